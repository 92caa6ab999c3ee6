"""PyTorch's metadata of an ATen overload: what it writes to, its decomposition, its functional form."""

import functools
from typing import Any, NamedTuple

import torch

from ..internals.operators import OpOverload
from ..rules import registry

__all__ = ["decomposition_of", "functional_of", "outputs_of"]


class _Outputs(NamedTuple):
    """The arguments that an overload writes its results to, and the overload that returns them instead."""

    names: tuple[str, ...]
    functional: OpOverload


@functools.cache
def outputs_of(func: OpOverload) -> _Outputs | None:
    """What to call in place of an ``out`` overload that no rule serves by itself."""
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
def decomposition_of(func: Any):
    """The Python decomposition that PyTorch has of an operator, or None."""
    from ..internals.decompositions import decomposition_table  # slow to import, and seldom needed

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
