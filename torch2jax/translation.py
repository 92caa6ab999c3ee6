"""The state of one translated call, and how code that runs inside it finds it."""

import contextlib
import threading
from abc import ABC, abstractmethod
from typing import Any

__all__ = ["Call", "CallMode", "Feature", "current", "hidden"]

_active = threading.local()


class CallMode:
    """A mode of PyTorch's that belongs to a call."""


class Feature:
    """An attribute of a call that is None as long as code does not use what it is for: `Call.features` has its name.

    It only takes what is assigned. What has no `__get__` costs a reader nothing.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __set__(self, call: "Call", value: Any) -> None:
        vars(call)[self._name] = value
        if value is None:
            call.features.discard(self._name)
        else:
            call.features.add(self._name)


class Call(ABC):
    """One translated call in progress; calls nest, and every thread has its own."""

    stream: Any
    """Where its random operators take their keys from; see `rng.Stream`."""
    attempt: Any
    """Which run of the function it is; see `autograd.tape.Attempt`."""
    features: set[str]
    """What code uses that acts on each operator, by name: where it is empty, an operator is what its plan says."""
    tape: Any = Feature()
    """What its own derivatives are taken from; None as long as the code asks for none. See `autograd.tape.Tape`."""
    dual: Any = Feature()
    """The tangents of forward mode, while a level of them is open; see `autograd.forward_ad.DualLevel`."""
    outermost: tuple[Any, Any]
    """What JAX traces with, and the tape, where the code is within no transformation that it has begun."""
    transformations: list
    """The transformations of JAX that its code has begun and is inside of, the innermost last; see `level.Level`."""
    paths: list
    """The ways through code that runs again for each answer to a question, the innermost last; see `paths.Path`."""
    is_backward = False
    """Whether it runs the backward of a custom function, in which PyTorch records nothing as a rule."""
    passes: list
    """The backward passes under way, the innermost last; see `autograd.engine`."""
    scalars: Any = Feature()
    """What `rules.inline` has computed of scalars, while that serves again."""
    casts: dict
    """The weights that `rules.autocast` has cast."""
    on_result: Any = Feature()
    """What sees the results of all rules; see `ops.selective`."""
    contexts: list
    """Those of custom functions, whose backward may run in it: what they hold is traced, and ends with it."""

    @abstractmethod
    def dispatch(self, func, args: tuple, kwargs: dict):
        """Runs a function of PyTorch's Python interface on JAX."""

    @abstractmethod
    def run_compiled(self, func, args: tuple, kwargs: dict):
        """Lets PyTorch's own C++ run a function, and the operators that it reaches on JAX."""

    @abstractmethod
    def dispatch_aten(self, func, args: tuple, kwargs: dict):
        """Runs an operator that reached PyTorch's dispatcher on JAX."""

    @abstractmethod
    def run_rule(self, func, rule, args: tuple, kwargs: dict):
        """Runs a rule; PyTorch computes what `func`, which it stands for, gives for known values."""

    @property
    @abstractmethod
    def stages(self) -> bool:
        """Whether what JAX computes now becomes a graph, whatever it is computed from."""

    @property
    @abstractmethod
    def is_lazy(self) -> bool:
        """Whether known values may stay out of the graph until something there asks for them."""

    @abstractmethod
    def outside(self) -> contextlib.AbstractContextManager:
        """A context for what is no part of the code in transformations that has been begun within the call."""

    @abstractmethod
    def lift(self, value) -> Any:
        """The tensor of this call that stands for a tensor or array from outside: a constant."""

    @abstractmethod
    def nested(self) -> contextlib.AbstractContextManager:
        """A context for code of this call that runs under a transformation of JAX's begun within the call."""

    @abstractmethod
    def at(self, tape: Any) -> contextlib.AbstractContextManager:
        """A context for code of this call that runs outside of a transformation it is inside of, on the tape there."""

    @abstractmethod
    def without_tangents(self, array):
        """An array without what its code is computing of derivatives forwards."""

    @property
    def is_running(self) -> bool:
        """Whether this thread is within the call."""
        return any(call is self for call in _active.__dict__.get("stack", ()))

    def __enter__(self):
        stack = _active.__dict__.setdefault("stack", [])
        stack.append(self)
        return self

    def __exit__(self, *exc_info) -> None:
        _active.stack.pop()


def current() -> Any:
    """The innermost `Call` of this thread (in practice a `dispatch.Translation`), or None."""
    stack = _active.__dict__.get("stack")
    return stack[-1] if stack else None


@contextlib.contextmanager
def hidden():
    """A context in which no call is in progress for the code within."""
    stack = _active.__dict__.setdefault("stack", [])
    stack.append(None)
    try:
        yield
    finally:
        stack.pop()
