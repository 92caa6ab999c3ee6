"""PyTorch's own code within a call: bodies of Python functions, operators from C++, and observers of both.

Bodies of Python functions run in a call without their check for overrides. Operators that PyTorch's C++ calls come back
to a call through a mode. Observers see the functions that translated calls dispatch.
"""

import contextlib
import functools
import types
from collections.abc import Callable, Collection, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import torch

from ..internals.dispatch import OpOverload, TorchDispatchMode, pop_torch_dispatch_stack, push_on_torch_dispatch_stack
from ..rules import autocast
from ..rules.features import NEXT, Feature
from ..runtime.translation import CallMode

if TYPE_CHECKING:
    from .dispatch import Call


class _Overlay(dict):
    """A module's globals, live, with some names replaced."""

    def __init__(self, below: dict, above: dict):
        super().__init__(above)
        self._below = below

    def __missing__(self, key: str) -> Any:
        return self._below[key]


def _no_overrides(*_args: object) -> bool:
    return False


@functools.cache
def body_of(func: types.FunctionType):
    """The body of a Python function of PyTorch, without its check for overrides."""
    constants = dict.fromkeys(
        ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"), _no_overrides
    )
    overlay = _Overlay(func.__globals__, {**constants, "__builtins__": func.__globals__["__builtins__"]})
    body = types.FunctionType(func.__code__, overlay, func.__name__, func.__defaults__, func.__closure__)
    body.__kwdefaults__ = func.__kwdefaults__
    return body


class AtenMode(TorchDispatchMode, CallMode):
    """Brings operators to the `dispatch_aten` of a call, also those with no `Torchish` among their arguments."""

    def __init__(self, call: "Call"):
        super().__init__()
        self._call = call
        self._regions: list[str | None] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # dynamo would be imported, to leave alone what it never sees

    def __enter__(self):
        # The base class also sets flags of the whole process, which threads would leave behind.
        push_on_torch_dispatch_stack(self)
        self._regions.append(autocast.region())
        return self

    def __exit__(self, *exc_info: object):
        self._regions.pop()
        pop_torch_dispatch_stack(None)

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ):
        del types
        device = self._regions[-1]
        if device is None:
            return self._call.dispatch_aten(func, args, kwargs or {})
        torch.set_autocast_enabled(device, True)  # PyTorch has left the region on the way here
        try:
            return self._call.dispatch_aten(func, args, kwargs or {})
        finally:
            torch.set_autocast_enabled(device, False)


_observer: ContextVar["_Observer | None"] = ContextVar("observer", default=None)


class _Observer(Feature):
    rank = 40

    def __init__(self, observer: Callable[[Any], None]):
        self._observer = observer

    def run_operator(self, call: Any, function: Any, args: tuple, kwargs: dict) -> Any:
        del call, args, kwargs
        self._observer(function)
        return NEXT


observer: Callable[[], Feature | None] = _observer.get
"""Returns the feature that observes a call which begins now; None if there is none."""


@contextlib.contextmanager
def observing(observer: Callable[[Any], None]) -> Iterator[None]:
    """Calls `observer` with every function that calls begun within dispatch, Python's and ATen's."""
    token = _observer.set(_Observer(observer))
    try:
        yield
    finally:
        _observer.reset(token)
