"""PyTorch's own code within a call: bodies of Python functions, operators from C++, and observers of both.

What an operator writes to, its decomposition, and its functional form are asked of PyTorch's metadata.

Bodies of Python functions run in a call without their check for overrides. Operators that PyTorch's C++ calls come back
to a call through a mode. Observers see the functions that translated calls dispatch.
"""

import contextlib
import functools
import types
from collections.abc import Callable, Collection, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

import torch

from ..internals.dispatch import OpOverload, TorchDispatchMode, pop_torch_dispatch_stack, push_on_torch_dispatch_stack
from ..internals.transforms import is_any_autocast_enabled
from ..rules import registry
from ..rules.features import NEXT, Feature
from ..runtime.translation import CallMode
from ..tensors.dtypes import autocast_region

if TYPE_CHECKING:
    from .dispatch import Call


# PyTorch's metadata of an ATen overload.


class _Outputs(NamedTuple):
    """The arguments that an overload writes its results to, and the overload that returns them instead."""

    names: tuple[str, ...]
    functional: OpOverload


@functools.cache
def outputs_of(func: OpOverload) -> _Outputs | None:
    """The functional operator to call in place of an ``out`` overload without a rule of its own, or None."""
    names = tuple(argument.name for argument in func._schema.arguments if argument.is_out)
    if not names or (names == ("out",) and registry.lookup_aten(func) is not None):
        return None
    inputs = [(argument.name, argument.type) for argument in func._schema.arguments if not argument.is_out]
    for name in func.overloadpacket.overloads():
        functional = getattr(func.overloadpacket, name)
        if [(argument.name, argument.type) for argument in functional._schema.arguments] == inputs:
            return _Outputs(names, functional)
    return None


@functools.cache
def decomposition_of(func: OpOverload):
    """The Python decomposition that PyTorch has of an operator, or None."""
    from ..internals.decompositions import decomposition_table

    if torch.Tag.nondeterministic_seeded in func.tags:
        return None  # PyTorch's own generator must never be asked
    return decomposition_table.get(func)


@functools.cache
def functional_of(func: OpOverload):
    """The operator whose result an in-place operator writes, or None."""
    name = func.overloadpacket.__name__
    if func.namespace != "aten" or not name.endswith("_") or name.endswith("__"):
        return None
    written = [str(argument.type) for argument in func._schema.arguments if argument.is_write]
    if written != ["Tensor"] or not func._schema.arguments[0].is_write:
        return None  # a list, or several
    packet = getattr(torch.ops.aten, name[:-1], None)
    return getattr(packet, func._overloadname, None)


# Python functions, modes and observers.


class _Overlay(dict):
    """A module's globals, live, with some names replaced."""

    def __init__(self, below: dict, above: dict):
        super().__init__(above)
        self._below = below

    def __missing__(self, key: str) -> object:
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
        self._regions.append(autocast_region() if is_any_autocast_enabled() else None)
        return self

    def __exit__(self, *exc_info: object):
        self._regions.pop()
        pop_torch_dispatch_stack(None)

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Collection[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
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

    def __init__(self, observer: Callable[[object], None]):
        self._observer = observer

    def run_operator(self, call: "Call", function: Callable[..., object], args: tuple, kwargs: dict) -> object:
        del call, args, kwargs
        self._observer(function)
        return NEXT


observer: Callable[[], Feature | None] = _observer.get
"""Returns the feature that observes a call which begins now; None if there is none."""


@contextlib.contextmanager
def observing(observer: Callable[[object], None]) -> Iterator[None]:
    """Calls `observer` with every function that calls begun within dispatch, Python's and ATen's."""
    token = _observer.set(_Observer(observer))
    try:
        yield
    finally:
        _observer.reset(token)
