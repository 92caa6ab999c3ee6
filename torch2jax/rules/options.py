"""The options of a rule on arrays.

Also here: the tags of PyTorch functions, by their rules and by PyTorch's schemas.

PyTorch says of each operator whether it draws random numbers, what it writes to and what its results share memory with.
A rule is tagged with what else has to be known, and a function of PyTorch's Python interface that is no operator too.
"""

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, TypedDict

import torch

from ..internals.dispatch import OpOverload, OpOverloadPacket, dispatch_has_kernel, dispatch_has_kernel_for_dispatch_key
from ..tensors.dtypes import Takes
from .promotion import Promotion


class Tag(Enum):
    """A property of a PyTorch function."""

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
def operators_of(function: Callable[..., object]) -> tuple[OpOverload, ...]:
    """The overloads of an operator, or of the operators with a name."""
    packet = getattr(torch.ops.aten, function, None) if isinstance(function, str) else function
    if isinstance(packet, OpOverload):
        return (packet,)
    if not isinstance(packet, OpOverloadPacket):
        return ()
    overloads = [getattr(packet, name) for name in packet.overloads()]
    return tuple([x for x in overloads if dispatch_has_kernel(x.name())])


@functools.cache
def tags_of_operators(operators: tuple[OpOverload, ...]) -> Tags:
    """The tags that follow from PyTorch's schemas of the operators of one name."""
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
    return [(position, str(x.type)) for position, x in arguments if x.is_write and not x.is_out]


def _gives_new(operator: OpOverload) -> bool:
    # A composition need not say that it gives what it got, as `type_as` does.
    if dispatch_has_kernel_for_dispatch_key(operator.name(), "CompositeImplicitAutograd"):
        return False
    results = operator._schema.returns
    return any("Tensor" in str(x.type) for x in results) and all(x.alias_info is None for x in results)


PromoteSpec = Promotion | Callable[[dict], Promotion] | None
TakesSpec = Takes | Callable[..., Takes | None] | None
ChannelsLast = tuple[Literal["prefer", "follow"], int] | None
DtypeSpec = torch.dtype | tuple | Callable[..., Any] | None


@dataclass(frozen=True, kw_only=True)
class RuleOptions:
    """The options of a rule on arrays, which are the keywords of `implements`."""

    promote: PromoteSpec = None
    """The promotion of the positional parameters of the body (the operands) to a common dtype; they are broadcast too.
    None if they are not promoted. Keyword-only parameters are no operands, though a call may pass them by position too.
    A function of the operands returns the kind where they decide it."""
    unpromoted: int = 0
    """The number of first operands that are broadcast, but keep their dtype (the condition of a where)."""
    takes: TakesSpec = None
    """The dtypes that the function is defined for, as sets of `torch2jax.tensors.dtypes`, or a function of the call's
    arguments that gives them; any other is refused before the rule runs. Compared is the dtype that promotion gives to
    compute in; without it that of the first tensor, or what a `dtype` argument casts it to. All if None."""
    fits: tuple[str, ...] = ()
    """The parameters whose Python numbers that dtype must hold: values to fill with, factors. Others wrap around."""
    dtype: DtypeSpec = None
    """The PyTorch dtype of the result (one, a tuple of one for each, None in it where the operands decide, or a
    function of the call's arguments that gives one of these). By default the operands decide."""
    concrete: bool = False
    """True if the body needs values, not traced arrays, since the shape of its result depends on them."""
    random: bool = False
    """True if the body takes a JAX key before its other arguments."""
    channels_last: ChannelsLast = None
    """The rank of the first operand (or a list of them) that the body takes with its channels last, called with
    ``channels_last=True``; its results of that rank are so too. Always with ``("prefer", rank)``; if an operand is held
    so with ``("follow", rank)``; never with None.
    """
    prepare: Callable[..., tuple[tuple, dict]] | None = None
    """Gives the ``(args, kwargs)`` for the body from the call's. It has the body's parameters and sees the tensors
    themselves: their strides, their known values."""
    check: Callable[..., None] | None = None
    """Refuses the call's arguments, which it gets as tensors, where their values are known to be wrong: an index, a
    class. It is asked before all else, and what it raises has the attribute ``is_of_values``."""
    exact_out: bool = False
    """True if an ``out=`` tensor must have the dtype of the result, where others may have one that it casts to."""
    strides: Callable[..., tuple[int, ...] | None] | None = None
    """Gives the strides of a result from its shape and the call's arguments: `rules.pointwise`. By default results
    are contiguous, and those of a promoting rule as PyTorch has them for its operands, of which a number is one."""
    has_own_values: bool = False
    """True if PyTorch's function may give other values, as the sign of an eigenvector, so that the body computes known
    values too. Always true for rules of users."""
    tags: Iterable[Tag] = ()
    """The tags of the functions, beyond those that follow from PyTorch's schemas."""


class RuleKeywords(TypedDict, total=False):
    """The keywords of `implements`: those of `RuleOptions`, as a type."""

    promote: PromoteSpec
    unpromoted: int
    takes: TakesSpec
    fits: tuple[str, ...]
    dtype: DtypeSpec
    concrete: bool
    random: bool
    channels_last: ChannelsLast
    prepare: Callable[..., tuple[tuple, dict]] | None
    check: Callable[..., None] | None
    exact_out: bool
    strides: Callable[..., tuple[int, ...] | None] | None
    has_own_values: bool
    tags: Iterable[Tag]
