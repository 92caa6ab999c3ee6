"""The options of a rule on arrays."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

import torch

from ..tensors.dtypes import Takes
from .promotion import Promotion
from .tags import Tag

__all__ = ["ChannelsLast", "DtypeSpec", "PromoteSpec", "RuleKeywords", "RuleOptions", "TakesSpec"]

PromoteSpec = Promotion | Callable[[dict], Promotion] | None
TakesSpec = Takes | Callable[..., Takes | None] | None
ChannelsLast = tuple[Literal["prefer", "follow"], int] | None
DtypeSpec = torch.dtype | tuple | Callable[..., Any] | None


@dataclass(frozen=True, kw_only=True)
class RuleOptions:
    """The options of a rule on arrays, which are the keywords of `implements`."""

    promote: PromoteSpec = None
    """How all positional parameters of the body (the operands) are promoted to a common dtype and broadcast, if they
    are; keyword-only parameters are no operands, though a call may give them by place too. A function of these gives
    the kind where they decide it."""
    unpromoted: int = 0
    """How many of the first operands are broadcast, but keep their dtype (the condition of a where)."""
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
    """Whether the body needs values, not traced arrays, since the shape of its result depends on them."""
    random: bool = False
    """Whether the body takes a JAX key before its other arguments."""
    channels_last: ChannelsLast = None
    """When the body takes its first operand (or a list of them), of the given rank, with its channels last, and gives
    results of that rank likewise, called with ``channels_last=True``: always with ``("prefer", rank)``, if an operand
    is held so with ``("follow", rank)``."""
    prepare: Callable[..., tuple[tuple, dict]] | None = None
    """Gives the ``(args, kwargs)`` for the body from the call's. It has the body's parameters and sees the tensors
    themselves: their strides, their known values."""
    check: Callable[..., None] | None = None
    """Refuses the call's arguments, which it gets as tensors, where their values are known to be wrong: an index, a
    class. It is asked before all else, and what it raises has the attribute ``is_of_values``."""
    exact_out: bool = False
    """Whether an ``out=`` tensor must have the dtype of the result, where others may have one that it casts to."""
    strides: Callable[..., tuple[int, ...] | None] | None = None
    """Gives the strides of a result from its shape and the call's arguments: `rules.memory_formats`. By default results
    are contiguous, and those of a promoting rule as PyTorch has them for its operands, of which a number is one."""
    has_own_values: bool = False
    """Whether PyTorch's function may give other values, as the sign of an eigenvector, so that the body computes them
    also where they are known. It does for all rules of users."""
    tags: Iterable[Tag] = ()
    """What the functions are, beyond what PyTorch's schemas of them say."""


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
