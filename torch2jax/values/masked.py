"""A tensor of which data decide how long some dimensions are: one with room for all, and a mask for each of these.

``x[mask]`` is held as the whole ``x`` and the mask, `Masked`: what is elementwise, and what is reduced, needs no more.
In *compact order* the rows that count come first, and the mask is ``arange(n) < length``: what needs an order, or a
smaller bound, makes that of the other (`packed`), by a cumulative sum and a gather. A padded array with a length is the
same thing. Invariants: the length is the number of ones in the mask; the bound, how many there are room for, is the
number of its elements; nothing that does not count is ever seen in a value or a derivative.

Rows that do not count may be anything: nan, infinite, equal to others. What is elementwise is computed of them too.
Where its derivatives may be infinite, it has none with respect to them (`safe`), nor through them with respect to what
is beside the rows: infinity times zero is not zero. Nothing need be known of their values.

Any dimensions may have a mask. What is written for the first of them (`rows` and `mask`) serves the others by a
transpose, which views make free (`with_leading`); its rows may have masks themselves.
"""

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import torch
from jax import lax

from ..internals.dispatch import DisableTorchFunction
from ..internals.tensors import make_wrapper_subclass
from ..rules.array_rule import InnerRule
from ..rules.features import handlers_of
from ..runtime.errors import EndedCallError, TracedValueError
from ..runtime.errors.locations import SourceLine
from ..runtime.layers import SELECTIONS
from ..runtime.translation import current
from ..tensors.dtypes import canonical, is_integral
from ..tensors.tensor import Torchish
from ..tracing.value_ranges import is_same_value, range_of
from .item import Item
from .lengths import Counted, constant_of, expect_to_fit, is_same_number, track_lengths
from .traced_numbers import Number


class Origin(NamedTuple):
    """The origin of a selection, in words, and the user's line that made it."""

    words: str
    location: SourceLine


class Mask:
    """The places along a dimension that count.

    Args:
        where: a mask over it, in one dimension or in several that are merged.
        length: how many count, if that is known, or a function that tells; else they are counted.
        is_compact: whether these come first.
    """

    def __init__(self, where: Any, length: Any = None, is_compact: bool = False):
        self.where, self._length, self.is_compact = where, length, is_compact

    @classmethod
    def first(cls, size: int, length: torch.Tensor) -> "Mask":
        """The first places of so many, `length` of them, which must not exceed their number."""
        where: Any = torch.arange(size) < length
        return cls(where, length, True)

    @property
    def size(self) -> int:
        return self.where.numel()

    @property
    def length(self) -> torch.Tensor:
        """The number of places that count, int64."""
        if callable(self._length):
            self._length = self._length()
        node = getattr(self._length, "_node", None)
        if self._length is None or (node is not None and node.storage.is_released):  # as of a branch that has ended
            self._length = self.where.sum()
        length: Any = self._length
        return length

    @property
    def number(self) -> Item:
        """The same, as a number of Python's."""
        track_lengths()
        length: Any = self.length
        if range_of(length.read())[1] > self.size:  # whose bound nothing else tells, as of a loop's count
            self._length = length = length.clamp(0, self.size)
        return Item.of(length)

    def flat(self) -> "Mask":
        """The same over one dimension."""
        return self if self.where.ndim == 1 else Mask(self.where.reshape(-1), self._length, self.is_compact)

    def is_like(self, other: "Mask") -> bool:
        return is_same_mask(self.where, other.where)

    def ranks(self) -> torch.Tensor:
        """The place of each element among those that count, in one dimension."""
        return self.where.reshape(-1).cumsum(0) - 1


@SELECTIONS.has
class Masked(torch.Tensor):
    """A tensor with room for all that data may choose, and a mask for each dimension that data decide."""

    length_depends_on_values = True
    """Read by rooms that do not know this class."""
    len_depends_on_values = True
    """True if data may decide the first dimension, which ``len`` returns."""
    unmasked: torch.Tensor
    """The tensor without any choice: a dimension with a mask of several has as many here."""
    masks: dict[int, Mask]
    """The mask along each data-dependent dimension, in order."""
    origin: Origin | None = None
    """The origin; None as long as no user's line is known."""
    indices_in: torch.Tensor | None = None
    """The mask among whose chosen rows each row here holds its own rank; None if the rows are no such ranks."""
    refuses_writes: bool = False
    """True if PyTorch's tensor would share memory with another one, and this one does not."""
    shares_memory: bool = False
    """True if the rows, including those not chosen, belong to a tensor that others see."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Its shape, with zero for each data-dependent dimension."""
        with DisableTorchFunction():
            return tuple(self.shape)

    def __repr__(self, *, tensor_contents: object = None) -> str:
        del tensor_contents
        return f"<a mask selection of {self.unmasked!r} along {', '.join(map(str, self.masks))}>"

    def __iter__(self) -> Any:
        if 0 not in self.masks:
            return iter(self.unbind())
        return Counted(self.number, self.__getitem__)

    def axis(self, dim: int) -> int:
        """The dimension of `unmasked` at which one begins."""
        return dim + sum(mask.where.ndim - 1 for at, mask in self.masks.items() if at < dim)

    def axes(self, dim: int) -> list[int]:
        """The dimensions of `unmasked` that are one."""
        begin = self.axis(dim)
        return [*range(begin, begin + (self.masks[dim].where.ndim if dim in self.masks else 1))]

    # As rows along the first dimension.

    @property
    def rows(self) -> Any:
        """The same without the mask along the first dimension; the dimensions of that mask come first."""
        more = self.mask.ndim - 1
        if len(self.masks) == 1:
            return self.unmasked
        rest = {at + more: mask for at, mask in self.masks.items() if at}
        return _with_memory_of(self, masked(self.unmasked, rest))

    @property
    def mask(self) -> Torchish:
        """The mask along the first dimension."""
        return self.masks[0].where

    @property
    def length(self) -> torch.Tensor:
        return self.masks[0].length

    @property
    def number(self) -> Any:
        """The size of the first dimension."""
        return self.masks[0].number if 0 in self.masks else self.unmasked.shape[0]

    @property
    def is_compact(self) -> bool:
        return self.masks[0].is_compact

    @property
    def row_ndim(self) -> int:
        return len(self.sizes) - 1

    def is_like(self, other: "Masked") -> bool:
        """Returns True if one mask chose the rows of both."""
        return self.masks[0].is_like(other.masks[0])

    def assign(self, other: "Masked") -> None:
        """Writes the values of another one with the same data-dependent dimensions."""
        for dim, mask in self.masks.items():
            other = in_the_order_of(other, dim, mask)
        self.overwrite(other.unmasked)

    def overwrite(self, unmasked: Any) -> None:
        """Writes to all rows, chosen or not; where no gradients are recorded, derivatives go through as before."""
        if self.refuses_writes:
            raise TracedValueError("writing to a part of a boolean-mask selection, which others see,")
        if self.shares_memory:
            for dim in self.masks:
                unmasked = torch.where(self.spread(dim), unmasked, self.unmasked)
        if self.unmasked._node.overlaps:  # pyright: ignore[reportAttributeAccessIssue] - nobody else sees the grid
            self.unmasked = unmasked
        else:
            self.unmasked.copy_(unmasked)

    def spread(self, dim: int = 0) -> torch.Tensor:
        """The mask along a dimension, with dimensions of size one for those of `unmasked` behind it."""
        where = self.masks[dim].where
        return where.reshape(*where.shape, *[1] * (self.unmasked.ndim - self.axes(dim)[-1] - 1))

    def spread_mask(self) -> torch.Tensor:
        """The mask along the first dimension, with dimensions of size one for those of a row."""
        return self.mask.reshape(*self.mask.shape, *[1] * self.row_ndim)

    def filled(self, value: Any) -> Any:
        """All rows, with a value in place of those not chosen."""
        return torch.where(self.spread_mask(), self.rows, value)

    def copied(self) -> Any:
        """All that there is room for, with a chosen row in place of those not chosen; if none is chosen, ones.

        For functions that want finite values, or integers within bounds; of these it has zeros.
        """
        unmasked: Any = self.unmasked
        harmless = unmasked.new_full((), int(not is_integral(self.dtype)))
        for dim, mask in self.masks.items():
            axes = self.axes(dim)
            if mask.size:
                flat = mask.where.reshape(-1)
                at = (*[slice(None)] * axes[0], flat.to(torch.uint8).argmax())
                first = torch.where(flat.any(), unmasked.flatten(axes[0], axes[-1])[at].detach(), harmless)
                for _ in axes:
                    first = first.unsqueeze(axes[0])
                unmasked = torch.where(self.spread(dim), unmasked, first)
        return unmasked

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ):
        del types
        call = current()
        if call is None:
            raise EndedCallError(getattr(func, "__name__", str(func)), "a mask selection")
        return handlers_of((cls,))[0](call, func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(
        cls,
        func: Callable[..., Any],
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ):
        del types, args, kwargs
        raise TracedValueError(f"torch.ops.{func} of what a boolean mask chose")


# Making one.


def masked(unmasked: Any, masks: Mapping[int, Mask], origin: Origin | None = None) -> Any:
    """A tensor with masks along some dimensions; the tensor itself, if there are none."""
    if not masks:
        return unmasked
    shape, axis = [], 0
    while axis < unmasked.ndim:
        mask = masks.get(len(shape))
        shape.append(0 if mask else unmasked.shape[axis])
        axis += mask.where.ndim if mask else 1
    made = make_wrapper_subclass(Masked, tuple(shape), dtype=unmasked.dtype)
    made.unmasked, made.origin, made.masks = unmasked, origin, dict(sorted(masks.items()))
    return made


def select(rows: Any, mask: Torchish | Mask, origin: Origin | None = None) -> Masked:
    """The rows of a tensor that a mask over its first dimensions chooses."""
    mask = mask if isinstance(mask, Mask) else Mask(mask)
    if not isinstance(rows, Masked):
        return masked(rows, {0: mask}, origin)
    rest = {at + 1 - mask.where.ndim: x for at, x in rows.masks.items()}
    return masked(rows.unmasked, {0: mask, **rest}, origin)


def first(rows: Any, length: torch.Tensor) -> Masked:
    """The first rows of a tensor, `length` of them, which must not exceed their number."""
    return select(rows, Mask.first(rows.shape[0], length))


def like(rows: Any, other: Masked) -> Masked:
    """Rows with the mask of another selection."""
    return _with_memory_of(other, select(rows, other.masks[0], other.origin))


def with_masks(unmasked: Any, other: Any, masks: Mapping[int, Mask] | None = None) -> Any:
    """A tensor with masks, by default those of another one, whose memory it may share."""
    made = masked(unmasked, masks_of(other) if masks is None else masks, getattr(other, "origin", None))
    return _with_memory_of(other, made)


def _with_memory_of(other: Any, made: Any) -> Any:
    """What was made of another, which takes over who else sees the rows, if these are a view of the other's."""
    if isinstance(made, Masked) and isinstance(other, Masked):
        one: Any = made.unmasked
        of: Any = other.unmasked
        if one._node.storage is of._node.storage:
            made.shares_memory, made.refuses_writes = other.shares_memory, other.refuses_writes
    return made


# Its dimensions.


def leads(x: Any) -> bool:
    """Returns True if data decide the first dimension of a tensor."""
    return isinstance(x, Masked) and 0 in x.masks


def unknown_dims(x: Any) -> list[int]:
    """The data-dependent dimensions of a tensor."""
    return [*masks_of(x)]


def masks_of(x: Any) -> dict[int, Mask]:
    """The mask along each data-dependent dimension of a tensor."""
    return x.masks if isinstance(x, Masked) else {}


def unmasked_of(x: Any) -> Any:
    """All that there is room for of a tensor."""
    return x.unmasked if isinstance(x, Masked) else x


def sizes_of(x: Any) -> tuple[int, ...]:
    """The shape of a tensor, with zero for each data-dependent dimension."""
    return x.sizes if isinstance(x, Masked) else tuple(x.shape)


def axes_of(x: Any, dim: int) -> list[int]:
    """The dimensions of all that there is room for that are one of a tensor's."""
    return x.axes(dim) if isinstance(x, Masked) else [dim]


def ndim_of(x: Any) -> int:
    """The number of dimensions of a tensor."""
    return len(sizes_of(x))


def permuted(x: Any, order: Sequence[int]) -> Any:
    """``x.permute(order)``."""
    if [*order] == sorted(order):
        return x
    if not isinstance(x, Masked):
        return x.permute(order)
    found = x.unmasked.permute([axis for dim in order for axis in x.axes(dim)])
    return with_masks(found, x, {order.index(dim): mask for dim, mask in x.masks.items()})


def index_along(x: Any, dim: int) -> Any:
    """The index of each element along a dimension, with a size of one for those behind it."""
    mask = masks_of(x).get(dim)
    index: Any = torch.arange(x.shape[dim]) if mask is None else select(mask.ranks().reshape(mask.where.shape), mask)
    for _ in range(ndim_of(x) - 1 - dim):
        index = index.unsqueeze(-1)
    return index


def with_leading(x: Any, dim: int) -> Any:
    """The same with one of its dimensions first."""
    return permuted(x, [dim, *(each for each in range(ndim_of(x)) if each != dim)])


def leading_of(x: Any) -> tuple[Masked, int]:
    """The same with the first data-dependent dimension in front, and the position of that."""
    at = min(x.masks)
    return with_leading(x, at), at


def at_axis(chosen: Any, at: int) -> Any:
    """The same with its first dimension at a place."""
    order = [*range(1, ndim_of(chosen))]
    return permuted(chosen, [*order[:at], 0, *order[at:]])


def flat_along(x: Masked, dim: int) -> Masked:
    """The same with a mask of one dimension along one of its own."""
    if x.masks[dim].where.ndim == 1:
        return x
    axes = x.axes(dim)
    return with_masks(x.unmasked.flatten(axes[0], axes[-1]), x, {**x.masks, dim: x.masks[dim].flat()})


def in_flat_masks(x: Masked) -> Masked:
    """The same, whose masks have one dimension each."""
    return functools.reduce(flat_along, x.masks, x)


def in_compact_order(x: Any) -> Any:
    """The same with each data-dependent dimension in compact order."""
    for dim in unknown_dims(x):
        x = packed(x, dim=dim)
    return x


# All that there is room for.


def filled(x: Masked, value: Any) -> Any:
    """All that there is room for, with a value in place of what was not chosen."""
    unmasked: Any = x.unmasked
    for dim in x.masks:
        unmasked = torch.where(x.spread(dim), unmasked, value)
    return unmasked


def zeroed(x: Masked) -> Any:
    """All that there is room for, with zeros in place of what was not chosen."""
    return filled(x, torch.zeros((), dtype=x.dtype))


def unnested(x: Any, held: Callable[[Masked], Any] | None = None) -> tuple[Any, dict[int, Mask]]:
    """A plain tensor with room for the bounds, and the mask along each data-dependent dimension, of one dimension.

    Args:
        held: gives all that there is room for, if what was not chosen is to be zero, or copies.
    """
    if not isinstance(x, Masked):
        return x, {}
    x = in_flat_masks(x)
    return x.unmasked if held is None else held(x), x.masks


def merged(x: Any, stop: int | None = None, start: int = 0) -> Masked:
    """Some dimensions, of which data decide some, as one; elements of the first index come first.

    Args:
        x: a tensor with masks.
        stop: the dimension behind the last; None for those up to the last that data decide.
        start: the first of them.
    """
    end: int = max(x.masks) + 1 if stop is None else stop
    inside = {dim: mask for dim, mask in x.masks.items() if start <= dim < end}
    if end - start == 1:
        return x
    begin, behind = x.axis(start), x.axes(end - 1)[-1] + 1
    spread = [
        mask.where.reshape(*mask.where.shape, *[1] * (behind - x.axes(dim)[-1] - 1)) for dim, mask in inside.items()
    ]
    where = functools.reduce(lambda one, other: one & other, spread).expand(x.unmasked.shape[begin:behind])
    sizes = [inside.get(dim, x.sizes[dim]) for dim in range(start, end)]

    def length() -> torch.Tensor:
        lengths = [size.length if isinstance(size, Mask) else size for size in sizes]
        return functools.reduce(lambda one, other: one * other, lengths)

    rest = {dim - (end - start - 1 if dim >= end else 0): x.masks[dim] for dim in x.masks if dim not in inside}
    return with_masks(x.unmasked, x, {start: Mask(where, length), **rest})


def flattened(x: Masked) -> Masked:
    """All dimensions as one."""
    return merged(x, len(x.sizes))


# Orders.


def _positions(mask: jax.Array, size: int):
    """The indices of the true elements of a mask, in order; beyond them, the index of the first."""
    dtype = canonical(torch.int64)
    if not mask.size or not size:
        return lax.full((size,), 0, dtype)
    if 2 * size * mask.size.bit_length() < mask.size:
        return _few_positions(lax.cumsum(lax.convert_element_type(mask, dtype)), size)
    slots = lax.select(mask, lax.cumsum(lax.convert_element_type(mask, dtype)) - 1, lax.full(mask.shape, size, dtype))
    positions = lax.broadcast(lax.argmax(mask, 0, dtype), (size,))
    return positions.at[slots].set(lax.iota(dtype, mask.size), mode="drop")


def _few_positions(counts: jax.Array, size: int):
    """As `_positions`, for cumulative counts: by binary search for each index, without a scatter."""
    wanted, last = lax.iota(counts.dtype, size) + 1, counts.size - 1

    def halved(_, ends: tuple[jax.Array, jax.Array]):
        low, high = ends
        middle = (low + high) // 2
        is_behind = counts[lax.min(middle, lax.full_like(middle, last))] < wanted
        return lax.select(is_behind, middle + 1, low), lax.select(is_behind, high, middle)

    ends = lax.full_like(wanted, 0), lax.full_like(wanted, counts.size)
    positions, _ = lax.fori_loop(0, counts.size.bit_length(), halved, ends)
    first = lax.broadcast(lax.min(positions[0], lax.full_like(positions[0], last)), (size,))
    return lax.select(positions <= last, positions, first)


_POSITIONS = InnerRule(_positions, "nonzero", dtype=torch.int64)


def positions_of(chosen: Masked, size: int, dim: int = 0) -> torch.Tensor:
    """The first `size` indices of what counts along a dimension, in order; beyond them, the index of the first."""
    return _POSITIONS((chosen.masks[dim].where.reshape(-1), size), {})


def packed(x: Masked, size: int | None = None, dim: int = 0) -> Masked:
    """The same in compact order, with room for at most `size` rows, which its length does not exceed."""
    mask = x.masks[dim]
    size = mask.size if size is None else min(size, mask.size)
    if mask.is_compact and size == mask.size:
        return x
    unmasked, axis = flat_along(x, dim).unmasked, x.axis(dim)
    if not mask.is_compact and mask.size:
        unmasked = unmasked.index_select(axis, positions_of(x, size, dim))
    unmasked = unmasked[:size] if axis == 0 else unmasked.narrow(axis, 0, size)
    return masked(unmasked, {**x.masks, dim: Mask.first(size, mask.length)})


def aligned(chosen: list[Masked], what: str, dims: Sequence[int] | None = None) -> list[Masked]:
    """Selections in one order under one mask along dimensions of theirs: their lengths are equal, or one.

    That their lengths fit is not checked: as other checks of traced values it is taken to find nothing.

    Args:
        chosen: some tensors.
        what: names a function in errors.
        dims: the dimension of each; the first if None.
    """
    del what
    each = [*zip(chosen, [0] * len(chosen) if dims is None else dims, strict=True)]
    masks = [x.masks[dim] for x, dim in each]
    if all(x.is_like(masks[0]) for x in masks):
        return chosen
    lengths = [x.length for x in masks]
    if all(is_same_number(x, lengths[0]) for x in lengths):
        size = min(x.size for x in masks)
        return [packed(x, size, dim) for x, dim in each]
    size = max(x.size for x in masks)
    empty = next((x for x in masks if not x.size), None)
    if empty is not None:  # the others are as long, or one long
        of_none = [packed(x, 0, dim) for x, dim in each]
        return [
            with_masks(x.unmasked, x, {**x.masks, dim: empty.flat()}) for x, (_, dim) in zip(of_none, each, strict=True)
        ]
    common = functools.reduce(lambda one, other: torch.where(one == 1, other, one), lengths)
    index, found = torch.arange(size), []
    for (x, dim), length in zip(each, lengths, strict=True):
        x, axis = packed(x, dim=dim), x.axis(dim)
        index_of = torch.where(length == 1, 0, index.clamp(max=x.unmasked.shape[axis] - 1))
        found.append(masked(_taken(x.unmasked, axis, index_of), {**x.masks, dim: Mask.first(size, common)}))
    return found


def expect_size(mask: Mask, size: int, or_one: bool = False) -> None:
    """Makes results of the call report where a dimension has not so many elements."""
    length: Any = mask.length
    if constant_of(length) != size:
        text = f"got {size} elements along a dimension beside as many as data decide, which are not as many"
        fits = (length == size) | (length == 1) if or_one else length == size
        expect_to_fit(fits, f"a size of {size} beside a length that data decide", text)


def as_long(x: Masked, dim: int, size: int) -> Any:
    """The same with a dimension of a known size, which it must have, or one: results of the call tell if it has not."""
    x = packed(x, dim=dim)
    mask, axis = x.masks[dim], x.axis(dim)
    length: Any = mask.length
    expect_size(mask, size, or_one=True)
    index = torch.where(length == 1, 0, torch.arange(size).clamp(max=max(mask.size - 1, 0)))
    if not mask.size:
        axes = x.unmasked.shape
        return with_masks(x.unmasked.new_zeros((*axes[:axis], size, *axes[axis + 1 :])), x, _without(x, dim))
    return with_masks(_taken(x.unmasked, axis, index), x, _without(x, dim))


def _without(x: Masked, dim: int) -> dict[int, Mask]:
    return {at: mask for at, mask in x.masks.items() if at != dim}


def _taken(unmasked: Any, axis: int, index: torch.Tensor) -> Any:
    return unmasked[index] if axis == 0 else unmasked[(*[slice(None)] * axis, index)]


def aligned_along(operands: list, dims: list[int | None], what: str) -> list:
    """Tensors in one order under one mask along data-dependent dimensions of equal lengths.

    Args:
        operands: some tensors.
        dims: which dimension of each; None for one that has none such.
        what: names a function in errors.
    """
    both = [(x, dim) for x, dim in zip(operands, dims, strict=True) if dim is not None]
    found = iter(aligned([x for x, _ in both], what, [dim for _, dim in both]))
    return [x if dim is None else next(found) for x, dim in zip(operands, dims, strict=True)]


def in_the_order_of(x: Any, dim: int, mask: Mask) -> Any:
    """A tensor that is as long as a mask says along a dimension: each element where the mask is true."""
    if isinstance(x, Masked) and dim in x.masks:
        if x.masks[dim].is_like(mask):
            return x
        x = packed(x, dim=dim)
    unmasked, masks, axis = unmasked_of(x), masks_of(x), axes_of(x, dim)[0]
    ranks = mask.ranks().clamp(0, max(unmasked.shape[axis] - 1, 0))
    if dim in masks and not is_same_number(masks[dim].length, mask.length):
        ranks = torch.where(masks[dim].length == 1, 0, ranks)
    found = _taken(unmasked, axis, ranks)
    found = found.unflatten(axis, tuple(mask.where.shape)) if mask.where.ndim > 1 else found
    return masked(found, {**masks, dim: mask})


def is_same_mask(one: Torchish, other: Torchish) -> bool:
    """Returns True if two masks are one array, or the same computation on one, as each `~mask` in the code."""
    return is_same_value(one.read(), other.read())


# Derivatives.


def has_derivatives(rows: torch.Tensor) -> bool:
    return rows.is_floating_point() or rows.is_complex()


def has_shared_derivatives(x: Any) -> bool:
    """Returns True if what is beside the rows of a selection may have derivatives."""
    if not isinstance(x, torch.Tensor) or isinstance(x, Number) or getattr(x, "known", None) is not None:
        return False
    return has_derivatives(x)
