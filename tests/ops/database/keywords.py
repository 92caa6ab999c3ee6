"""Arguments by keyword: an entry's function, method and operators, called by PyTorch's own names."""

import functools
import inspect
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch.testing._internal.opinfo.core import OpInfo

__all__ = ["by_keyword"]

# The spellings of numpy, which PyTorch's parser takes for its own in functions and methods.
_NUMPYS = {"dim": "axis", "keepdim": "keepdims", "input": "x", "other": "x2"}


def by_keyword(op: "OpInfo") -> Iterator[tuple[str, Callable]]:
    """Functions of a sample's arguments that give them to PyTorch by keyword, as many as a signature has names for."""
    for what, function, names, given in _signatures(op):
        spellings = [names]
        if what != "operator":
            spellings.append(tuple(_NUMPYS.get(name, name) for name in names))
        for spelling in dict.fromkeys(spellings):
            yield f"{what} by keyword: {', '.join(spelling)}", _named(function, spelling, given)


def _signatures(op: "OpInfo") -> Iterator[tuple[str, Callable, tuple[str, ...], int]]:
    function, method = op.op, op.method_variant
    if isinstance(function, types.FunctionType):
        if function.__module__.startswith("torch."):
            yield "function", function, _names_of(function), 0
    else:
        for names in _schemas(getattr(function, "__name__", op.name)):
            yield "function", function, tuple("input" if name == "self" else name for name in names), 0
    if isinstance(method, types.MethodDescriptorType):
        for names in _schemas(method.__name__):
            yield "method", method, names, 1
    packet = getattr(torch.ops.aten, getattr(function, "__name__", op.name), None)
    for overload in packet.overloads() if packet is not None else ():
        operator = getattr(packet, overload)
        if operator.name() not in _dispatched():  # TorchScript's own
            continue
        if not any(argument.is_out for argument in operator._schema.arguments):
            yield "operator", functools.partial(_typed, operator), _positional(operator._schema), 0


@functools.cache
def _dispatched() -> frozenset[str]:
    return frozenset(torch._C._dispatch_get_all_op_names())


def _names_of(function: types.FunctionType) -> tuple[str, ...]:
    parameters = inspect.signature(function).parameters.values()
    return tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)


def _schemas(name: str) -> list[tuple[str, ...]]:
    schemas = torch._C._jit_get_schemas_for_operator(f"aten::{name}")
    return list(dict.fromkeys(_positional(schema) for schema in schemas))


def _typed(operator, *args, **kwargs):
    """Calls an operator with tensors for tensors only: it would take one for a number that is its place."""
    types = {argument.name: str(argument.type) for argument in operator._schema.arguments}
    for name, value in kwargs.items():
        if isinstance(value, torch.Tensor) and "Tensor" not in types.get(name, ""):
            raise TypeError(f"a tensor for the {types.get(name)} {name}")
    return operator(*args, **kwargs)


def _positional(schema) -> tuple[str, ...]:
    return tuple(argument.name for argument in schema.arguments if not argument.kwarg_only)


def _named(function: Callable, names: tuple[str, ...], given: int) -> Callable:
    def call(*args, **kwargs):
        if len(args) > len(names):
            raise TypeError(f"{len(args)} arguments for {len(names)} names")
        named = dict(zip(names[given:], args[given:], strict=False))
        if named.keys() & kwargs:
            raise TypeError("an argument by place and by keyword")
        if isinstance(named.get("dim", named.get("axis")), bool):
            raise TypeError("what another overload has for unbiased")
        result = function(*args[:given], **named, **kwargs)
        if result is NotImplemented:
            raise TypeError("what an operator answers to arguments that it does not know")
        return result

    return call
