"""Properties of PyTorch functions that decide how they are served: tags of rules, and PyTorch's schemas.

PyTorch says of each operator whether it draws random numbers, what it writes to and what its results share memory with.
A rule is tagged with what else has to be known, and a function of PyTorch's Python interface that is no operator too.
"""

import functools
from collections.abc import Callable
from enum import Enum
from typing import Any

import torch

from ..internals.operators import (
    OpOverload,
    OpOverloadPacket,
    dispatch_has_kernel,
    dispatch_has_kernel_for_dispatch_key,
)

__all__ = ["NO_TAGS", "Tag", "Tags", "operators_of", "tags_of_operators"]


class Tag(Enum):
    """What a function of PyTorch is."""

    AUTOGRAD = "asks how a tensor came about, or begins to note that"
    CONVERTS = "gives its first tensor, or a new one of another dtype"
    DATA = "takes NumPy's arrays and numbers for data, not for operands"
    FACTORY = "makes a new tensor, also of no other"
    FRESH = "gives new tensors, which share no memory with those that it takes"
    INTO_EXPANDED = "writes in place also to tensors that are expanded, with a warning"
    INDEXES = "gives a view, or a new tensor where a tensor tells the elements"
    LINEAR = "is linear in all tensors that it takes together"
    PRODUCT = "is linear in each of the tensors that it takes"
    QUOTIENT = "is linear in the first tensor that it takes, and singular in the others"
    RANDOM = "draws random numbers, or may"
    READS_BY_INDEX = "reads one element after the other, so that ``out=`` may share no memory with what it reads"
    READS = "gives Python's numbers, of values"
    SHARES = "lets its first tensor have the memory of another"
    UNINITIALIZED = "gives memory that is to be written"
    VIEW = "gives views, though its schema does not say so"
    WRITES = "writes values to its first tensor, and to no other"
    WRITES_BY_INDEX = "writes in place one element after the other, to no memory that it reads"
    WRITES_OTHERS = "writes values to other tensors than its first, or to several"


Tags = frozenset[Tag]
NO_TAGS: Tags = frozenset()


@functools.cache
def operators_of(function: Callable[..., Any]) -> tuple[OpOverload, ...]:
    """The overloads of an operator, or of what PyTorch's dispatcher has under a name, if anything."""
    packet = getattr(torch.ops.aten, function, None) if isinstance(function, str) else function
    if isinstance(packet, OpOverload):
        return (packet,)
    if not isinstance(packet, OpOverloadPacket):
        return ()
    overloads = [getattr(packet, name) for name in packet.overloads()]
    return tuple([x for x in overloads if dispatch_has_kernel(x.name())])


@functools.cache
def tags_of_operators(operators: tuple[OpOverload, ...]) -> Tags:
    """What PyTorch says of operators of one name."""
    found: set[Tag] = set()
    if any(torch.Tag.nondeterministic_seeded in x.tags for x in operators):
        found.add(Tag.RANDOM)
    written = [x for x in map(_written, operators) if x]
    if written:
        found.add(Tag.WRITES if all(x == _FIRST for x in written) else Tag.WRITES_OTHERS)
    elif operators and all(_gives_new(x) for x in operators if not _has_out(x)):
        found.add(Tag.FRESH)
    return frozenset(found)


def _has_out(operator: OpOverload) -> bool:
    return any(argument.is_out for argument in operator._schema.arguments)


_FIRST = [(0, "Tensor")]


def _written(operator: OpOverload) -> list[tuple[int, str]]:
    """The places of the arguments that an operator writes values to, and their types."""
    if torch.Tag.inplace_view in operator.tags:  # to what a tensor is
        return []
    arguments = enumerate(operator._schema.arguments)
    return [(place, str(x.type)) for place, x in arguments if x.is_write and not x.is_out]


def _gives_new(operator: OpOverload) -> bool:
    # A composition need not say that it gives what it got, as `type_as` does.
    if dispatch_has_kernel_for_dispatch_key(operator.name(), "CompositeImplicitAutograd"):
        return False
    results = operator._schema.returns
    return any("Tensor" in str(x.type) for x in results) and all(x.alias_info is None for x in results)
