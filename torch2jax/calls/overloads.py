"""PyTorch's metadata of an ATen overload: the arguments that it writes to, its decomposition, its functional form."""

import functools
from typing import NamedTuple

import torch

from ..internals.dispatch import OpOverload
from ..rules import registry


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
