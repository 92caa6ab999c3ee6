"""Subscripts of tensors with masks, and by what data decide; slices of tensors between traced bounds.

A subscript is read and written in two steps. Its numbers, its slices and each None take a view of the tensor, one
dimension after the other. Of that, what is left chooses: a mask, of which another view has all that there is room for,
or indices. Reading copies these; writing writes to the view, or scatters.
"""

import math
from typing import Any

import numpy as np
import torch

from ..internals.tensors import canonicalize_dim
from ..rules.array_rule import InnerRule
from ..rules.registry import implements_by_length, implements_masked
from ..runtime.errors import TracedValueError
from ..runtime.errors.locations import user_location
from ..runtime.translation import current, lift
from ..tensors.dtypes import has_same_array_dtype
from ..tracing.value_ranges import range_of
from ..values.lengths import constant_of, is_traced_number, range_of_number, tensor_of
from ..values.masked import (
    Mask,
    Masked,
    at_axis,
    axes_of,
    first,
    flat_along,
    in_the_order_of,
    is_same_mask,
    leads,
    masks_of,
    merged,
    ndim_of,
    packed,
    permuted,
    positions_of,
    select,
    sizes_of,
    unknown_dims,
    unmasked_of,
    with_leading,
    with_masks,
)
from ..values.masked_functions import align, broadcast, spread, spread_over
from ..values.traced_numbers import Number
from .arrays import cast
from .bounds import known_values
from .selection_dims import element_at, is_view, rows_at
from .traced_slices import as_number, spanned

Tensor = torch.Tensor
_ALL = slice(None)


# The items of a subscript.


def _is_number(item) -> bool:
    if is_traced_number(item) or type(item) is int:
        return True
    return isinstance(item, Tensor) and ndim_of(item) == 0 and item.dtype not in (torch.bool, torch.uint8)


def _is_mask(item) -> bool:
    return isinstance(item, Tensor) and item.dtype == torch.bool and ndim_of(item) > 0


def _is_unknown_mask(item) -> bool:
    return _is_mask(item) and (isinstance(item, Masked) or known_values(lift(item)) is None)


def _is_unknown_slice(item) -> bool:
    return isinstance(item, slice) and any(is_traced_number(as_number(x)) for x in (item.start, item.stop, item.step))


def _items(x, index) -> list:
    """The items of a subscript, without an ellipsis, for all dimensions; indices in place of masks beside others."""
    items = [*index] if isinstance(index, tuple) else [index]
    items = [torch.as_tensor(item) if isinstance(item, (list, np.ndarray)) else item for item in items]
    for item in items:
        if not (item is None or item is Ellipsis or isinstance(item, (slice, Tensor)) or _is_number(item)):
            raise TracedValueError("this subscript of, or by, a boolean-mask selection")
    missing = ndim_of(x) - sum(_dims_taken(item) for item in items)
    if missing < 0:
        raise IndexError(f"too many indices for tensor of dimension {ndim_of(x)}")
    at = next((i for i, item in enumerate(items) if item is Ellipsis), len(items))
    items[at : at + 1] = [_ALL] * missing
    if len([item for item in items if isinstance(item, Tensor) and not _is_number(item)]) > 1:
        items = [each for item in items for each in (torch.where(item) if _is_mask(item) else (item,))]
    return items


def _dims_taken(item) -> int:
    return 0 if item is None or item is Ellipsis else ndim_of(item) if _is_mask(item) else 1


def _basic(x, index) -> tuple[Any, list[tuple[int, Any]]]:
    """The view that numbers, slices and None take; and what is left, each with the dimension of that where it begins.

    What needs no mask is one subscript of all that there is room for.
    """
    unknown, known, masks = unknown_dims(x), [], {}
    along, left, dim, at = [], [], 0, 0
    for item in _items(x, index):
        size = _dims_taken(item)
        is_known = _is_number(item) or (isinstance(item, slice) and not _is_unknown_slice(item))
        if item is None or (is_known and dim not in unknown):
            known.append(item)
            at += item is None or isinstance(item, slice)
        else:
            for each in range(dim, dim + size):
                known += [_ALL] * len(axes_of(x, each))
                masks |= {at + each - dim: x.masks[each]} if each in unknown else {}
            if item != _ALL if isinstance(item, slice) else True:
                (along if _is_number(item) or isinstance(item, slice) else left).append((at, item))
            at += size
        dim += size
    if any(not isinstance(item, slice) or item != _ALL for item in known):
        x = with_masks(unmasked_of(x)[tuple(known)], x, masks)
    for at, item in reversed(along):
        if isinstance(item, slice):
            x = sliced(x, at, item)
        else:
            x = _element(x, at, item)
            left = [(dim - (dim > at), index) for dim, index in left]
    return x, left


# Slices. Which rows there are is told by the mask; there is a gather only where it leaves room for fewer.


def sliced(x, dim: int, item: slice) -> Any:
    """The view of a slice along a dimension; one of a known length is a plain one there."""
    start, stop, step = (as_number(end) for end in (item.start, item.stop, item.step))
    if dim not in unknown_dims(x):
        cut = spanned(unmasked_of(x), (*[_ALL] * axes_of(x, dim)[0], slice(start, stop, step)))
        if cut is not None:
            return with_masks(cut[0][cut[1]], x)
    if is_traced_number(step):
        raise TracedValueError("a slice's step")
    step = 1 if step is None else step
    if step < 1:
        raise ValueError("step must be greater than zero")
    return at_axis(_part(with_leading(x, dim), start, stop, step), dim)


def _end(number, length, default):
    """A place where a slice begins or ends, among `length`; an int where that is known."""
    if number is None:
        return default
    if is_traced_number(number):
        low, _ = range_of_number(number)
        position = tensor_of(number)
        position = position if low >= 0 else torch.where(position < 0, length + position, position).clamp(min=0)
        return torch.minimum(position, length)
    if number < 0:
        return (length + number).clamp(min=0)
    return torch.minimum(torch.tensor(number), length)


def _range_of(start, stop, count: int) -> tuple[int, int]:
    """Between which places of `count` a slice is at most, as far as its ends tell."""
    low = start if type(start) is int and start >= 0 else 0
    high = count
    if type(stop) is int and stop >= 0:
        high = min(count, stop)
    elif is_traced_number(stop) and range_of_number(stop)[0] >= 0:
        high = min(count, range_of_number(stop)[1])
    return min(low, high), high


def _part(x, start, stop, step: int) -> Any:
    """``x[start:stop:step]`` with data-dependent ends, or of a data-dependent length."""
    mask = x.masks[0] if leads(x) else None
    is_known = start is None or (type(start) is int and start >= 0)
    is_first = is_known and not start and step == 1
    if mask is not None and is_first and stop is None:
        return x
    count, length = (len(x), torch.tensor(len(x))) if mask is None else (mask.size, mask.length)
    low, high = _range_of(start, stop, count)
    size = min(high - low, -start if type(start) is int and start < 0 else count)
    if mask is not None and step == 1 and mask.where.ndim == 1 and not x.refuses_writes:
        fixed = _known_size(x, start, stop)
        if fixed is not None:
            lead = start or 0
            index = torch.arange(fixed) + (lead if lead >= 0 else length + lead)
            return _rows(x, index if mask.is_compact else positions_of(x, count)[index], torch.tensor(fixed))
    lower, upper = _end(start, length, torch.tensor(0)), _end(stop, length, length)
    capacity = math.ceil(size / step)
    if mask is None and is_first:
        return _shared(first(x[:high], torch.minimum(upper, torch.tensor(high))))
    if mask is None or (capacity > count // 2 and not mask.is_compact):
        rows, rank = (x[low:high], torch.arange(low, high)) if mask is None else (x.rows, mask.ranks())
        is_there: Any = (rank >= lower) & (rank < upper)
        if step > 1:
            is_there &= (rank - lower) % step == 0
        return _shared(select(rows, is_there if mask is None else mask.where & is_there.reshape(mask.where.shape)), x)
    found = ((upper - lower).clamp(min=0) + (step - 1)) // step
    flat, index = flat_along(x, 0), None
    if not (mask.is_compact and is_known):
        index = torch.arange(count) if mask.is_compact else positions_of(x, high)
        if is_known:
            index = index[low:high:step]
        else:
            index = index[(lower + torch.arange(capacity) * step).clamp(max=max(high - 1, 0))]
    rows = flat.rows[low:high:step] if index is None else _rows(flat, index, found)
    part = _shared(first(rows, found), x)
    part.refuses_writes |= not is_view(flat, x)
    return part


def _shared(part: Masked, of: Any = None) -> Masked:
    part.shares_memory, part.refuses_writes = True, getattr(of, "refuses_writes", False)
    return part


def _known_size(chosen: Masked, start, stop) -> int | None:
    """The length of a slice that lies within the selection in any case, by the bounds of its length; else None."""
    if not all(x is None or type(x) is int for x in (start, stop)):
        return None
    if start is not None and start < 0 and (stop is None or start <= stop < 0):
        needed, size = -start, (stop or 0) - start
    elif (start is None or start >= 0) and stop is not None and stop >= (start or 0):
        needed, size = stop, stop - (start or 0)
    else:
        return None
    return size if range_of_number(chosen.number)[0] >= needed else None


def _rows(x: Masked, index: Tensor, count: Tensor) -> Any:
    """The view of some rows, of which the first few are there, without the mask along the first dimension."""
    rest = {dim: mask for dim, mask in x.masks.items() if dim}
    return with_masks(rows_at(x.unmasked, index, count), x, rest)


def _element(x: Masked, dim: int, number) -> Any:
    """The view of one; for a missing one PyTorch raises an error, and this is nan, if the dtype has it."""
    x = with_leading(x, dim)
    mask, rest = x.masks[0], {dim - 1: mask for dim, mask in x.masks.items() if dim}
    if type(number) is int:
        position = number if number >= 0 else mask.length + number
    else:
        position = tensor_of(number) if is_traced_number(number) else number
        position = torch.where(position < 0, mask.length + position, position)
    is_it = (mask.ranks() == position) & mask.where.reshape(-1)
    found = element_at(flat_along(x, 0).unmasked, is_it.to(torch.uint8).argmax(), is_it.any())
    return with_masks(found, x, rest)


# What tensors choose.


def _chosen(x, left: list[tuple[int, Any]]) -> Masked | None:
    """The view that has room for all of which a mask chooses, or the indices of a mask's elements; None for others."""
    (dim, index), masks = left[0], masks_of(x)
    if _is_mask(index):
        return by_mask(x, dim, index)
    of = index.indices_in if isinstance(index, Masked) and len(left) == 1 and dim in masks else None
    if of is not None and is_same_mask(of, masks[dim].where):
        return _shared(with_masks(x.unmasked, x, {**masks, dim: index.masks[0]}), x)
    indices = [index for _, index in left]
    if masks or not all(leads(x) and len(x.masks) == 1 and x.is_like(indices[0]) for x in indices):
        return None
    shape = tuple(indices[0].mask.shape)
    if len(left) != len(shape) or tuple(x.shape[: len(shape)]) != shape or [*range(len(shape))] != [x for x, _ in left]:
        return None
    known = (known_values(lift(position.rows)) for position in indices)
    is_it = all(x is not None and np.array_equal(x, y) for x, y in zip(known, np.indices(shape), strict=True))
    return _shared(select(lift(x), indices[0].masks[0])) if is_it else None


def by_mask(x, dim: int, mask) -> Masked:
    """The view that has room for all of which a mask over some dimensions chooses."""
    stop = dim + ndim_of(mask)
    inside = [each - dim for each in unknown_dims(x) if dim <= each < stop]
    if inside != unknown_dims(mask):
        raise TracedValueError("this subscript of, or by, a boolean-mask selection")
    if not inside:
        masks = {at - (stop - dim - 1 if at >= stop else 0): each for at, each in masks_of(x).items()}
        return _shared(with_masks(unmasked_of(x), x, {**masks, dim: Mask(lift(mask).clone())}), x)
    for each in inside:
        mask = in_the_order_of(mask, each, x.masks[dim + each])
    joined = merged(x, stop, dim)
    where = joined.masks[dim].where & mask.unmasked
    return _shared(with_masks(joined.unmasked, x, {**joined.masks, dim: Mask(where)}), x)


def _of_any(x, dim: int, mask) -> Any:
    """What a mask over dimensions without masks chooses, as of any tensor."""
    over = [*range(dim, dim + ndim_of(mask))]
    order = [*over, *(each for each in range(ndim_of(x)) if each not in over)]
    permuted_x = permuted(x, order)
    found = unmasked_of(permuted_x)[mask]
    masks = {at - len(over) + 1: each for at, each in masks_of(permuted_x).items()} | masks_of(found)
    return at_axis(with_masks(unmasked_of(found), found, masks), dim)


def _indexable(x, left: list[tuple[int, Any]], are_read: bool) -> tuple[Any, list]:
    """A tensor in compact order along dimensions, and indices into these: from the first, and within if they read."""
    indices = []
    for dim, index in left:
        size = sizes_of(x)[dim]
        if dim in unknown_dims(x):
            x = packed(x, dim=dim)
            size, length = x.masks[dim].size, x.masks[dim].length
            if range_of(lift(unmasked_of(index)).read())[0] < 0:
                index = torch.where(index < 0, length + index, index)
        if are_read and isinstance(index, Masked):
            low, high = range_of(lift(index.unmasked).read())
            index = index if -size <= low and high < size else with_masks(index.copied(), index)
        indices.append(index)
    return x, indices


def _rest_of(x, left: list[tuple[int, Any]]) -> tuple[list[int], int]:
    """The dimensions that no index is for, and how many of these are before those of the indices in the result."""
    dims = [dim for dim, _ in left]
    is_together = dims == [*range(dims[0], dims[0] + len(dims))]
    return [dim for dim in range(ndim_of(x)) if dim not in dims], dims[0] if is_together else 0


def _by_indices(x, left: list[tuple[int, Any]]) -> Any:
    rest, before = _rest_of(x, left)
    ndim = max(ndim_of(index) for _, index in left)
    x, indices = _indexable(x, left, are_read=True)
    masks = {rest.index(dim): mask for dim, mask in masks_of(x).items() if dim in rest}
    if not any(isinstance(index, Masked) for index in indices):
        by_dim = dict(zip([dim for dim, _ in left], indices, strict=True))
        given = [[by_dim[dim]] if dim in by_dim else [_ALL] * len(axes_of(x, dim)) for dim in range(ndim_of(x))]
        found = unmasked_of(x)[tuple(item for items in given for item in items)]
        return with_masks(found, x, {at + (ndim if at >= before else 0): mask for at, mask in masks.items()})
    indexed = _indexed_first(x, left, rest)
    found = broadcast(lambda *indices: indexed[indices], tuple(indices), {}, "a subscript", safe=False)
    found = with_masks(found.unmasked, found, {**found.masks, **{ndim + at: mask for at, mask in masks.items()}})
    behind = range(ndim, ndim + len(rest))
    return permuted(found, [*behind[:before], *range(ndim), *behind[before:]])


def _indexed_first(x, left: list[tuple[int, Any]], rest: list[int]) -> Any:
    """All that there is room for, with the dimensions that indices are for in front."""
    axes = [axis for dim in (*(dim for dim, _ in left), *rest) for axis in axes_of(x, dim)]
    return unmasked_of(x) if axes == sorted(axes) else unmasked_of(x).permute(axes)


@implements_masked(Tensor.__getitem__)
def getitem(self, index):
    view, left = _basic(self, index)
    if not left:
        return view
    (dim, item), *_ = left
    over = range(dim, dim + ndim_of(item)) if _is_mask(item) else ()
    if over and not isinstance(item, Masked) and not any(each in over for each in unknown_dims(view)):
        return _of_any(view, dim, item)
    chosen = _chosen(view, left)
    return _by_indices(view, left) if chosen is None else with_masks(chosen.unmasked.clone(), chosen)


# Writes.


@implements_masked(Tensor.__setitem__)
def setitem(self, index, value):
    view, left = _basic(self, index)
    if not isinstance(value, Tensor) or is_traced_number(value):
        value = (tensor_of(value) if is_traced_number(value) else torch.tensor(value)).to(self.dtype)
    while ndim_of(value) and 0 not in unknown_dims(value) and value.shape[0] == 1:
        value = value[0]
    if left:
        expect_same_dtype(view, value)
    chosen = _chosen(view, left) if left else view
    if chosen is not None:
        write(chosen, value)
    elif isinstance(view, Masked):
        view.assign(scattered(view, left, value))
    else:
        view.copy_(scattered(view, left, value))


def expect_same_dtype(target, value) -> None:
    """Refuses to write values of another dtype by indices or masks, as PyTorch does."""
    if ndim_of(value) and not has_same_array_dtype(value.dtype, target.dtype):
        raise RuntimeError(
            f"Index put requires the source and destination dtypes match, got {target.dtype} for the destination and "
            f"{value.dtype} for the source."
        )


def write(target, value) -> None:
    """``target.copy_(value)``; what is not of one size is taken to be as long as what it is written to."""
    value, missing = in_order(target, value)
    unmasked = spread_over(masks_of(target), value, ndim_of(value) + missing).to(target.dtype)
    if isinstance(target, Masked):
        target.overwrite(unmasked.expand(target.unmasked.shape))
    else:
        target.copy_(unmasked)


def _missing(value, ndim: int) -> int:
    """The number of dimensions that a tensor to write lacks."""
    if ndim_of(value) > ndim:
        raise RuntimeError(
            f"shape mismatch: got values of {ndim_of(value)} dimensions, and an indexing result of {ndim}, some of "
            f"which data decide, at {user_location()}"
        )
    return ndim - ndim_of(value)


def in_order(target, value) -> tuple[Any, int]:
    """A tensor to write, in the order of what it is written to; and how many dimensions it lacks."""
    missing = _missing(value, ndim_of(target))
    for dim in range(missing, ndim_of(target)):
        at = dim - missing
        if at not in unknown_dims(value) and (dim not in unknown_dims(target) or value.shape[at] == 1):
            continue
        mask = target.masks[dim] if dim in unknown_dims(target) else None
        if mask is None:
            mask = Mask(torch.ones(target.shape[dim], dtype=torch.bool), torch.tensor(target.shape[dim]), True)
        value = in_the_order_of(value, at, mask)
        if dim not in unknown_dims(target):
            value = with_masks(value.unmasked, value, {x: each for x, each in value.masks.items() if x != at})
    return value, missing


def _scatter(array, values, accumulate: bool, *indices):
    """An array with values at indices, of which those beyond the end are dropped."""
    values = cast(values, array.dtype)
    at = array.at[indices]
    return at.add(values, mode="drop") if accumulate else at.set(values, mode="drop")


_SCATTER = InnerRule(_scatter, "index_put")


def scattered(x, left: list[tuple[int, Any]], value, accumulate: bool = False) -> Any:
    """A tensor with values at indices along some dimensions."""
    expect_same_dtype(x, value)
    rest, before = _rest_of(x, left)
    x, indices = _indexable(x, left, are_read=False)
    ndim = max(map(ndim_of, indices))
    masks = {rest.index(dim): mask for dim, mask in masks_of(x).items() if dim in rest}
    missing = _missing(value, ndim + len(rest))
    if before and missing < ndim + len(rest):
        for _ in range(missing):
            value = value.unsqueeze(0)
        value, missing = value.movedim([*range(before, before + ndim)], [*range(ndim)]), 0
    for at, mask in masks.items():
        dim = ndim + at - missing
        if dim >= 0 and (dim in unknown_dims(value) or value.shape[dim] != 1):
            value = in_the_order_of(value, dim, mask)
    given = {i: _with_more(index, len(rest)) for i, index in enumerate(indices)} | {-1: value}
    common = align(given, ndim + len(rest), "writing by a subscript")
    tensors = {name: spread_over(common, each, ndim + len(rest)) for name, each in given.items()}
    indexed = _indexed_first(x, left, rest)
    axes = sum(common[dim].where.ndim if dim in common else 1 for dim in range(ndim))
    for dim in [dim for dim in common if dim < ndim]:  # what is not there is written nowhere
        tensors[0] = torch.where(spread(common, dim, ndim + len(rest)), tensors[0], len(indexed))
    places = [tensors[i].reshape(tensors[i].shape[:axes]) for i in range(len(indices))]
    shape = torch.broadcast_shapes(*(each.shape for each in places))
    values = tensors[-1].expand(*shape, *indexed.shape[len(indices) :])
    made = _SCATTER((indexed, values, accumulate, *places), {})
    order = [axis for dim in (*(dim for dim, _ in left), *rest) for axis in axes_of(x, dim)]
    made = made if order == sorted(order) else made.permute([order.index(axis) for axis in range(len(order))])
    return with_masks(made, x)


def _with_more(x, count: int) -> Any:
    for _ in range(count):
        x = x.unsqueeze(-1)
    return x


# Of tensors.


def by_unknown(self: Tensor, index) -> Any:
    """The result of a subscript with slices with traced ends, or traced masks; None for other subscripts."""
    cut = spanned(self, index)
    if cut is not None:
        return cut[0][cut[1]]
    items = index if isinstance(index, tuple) else (index,)
    return getitem(self, index) if any(_is_unknown_slice(x) or _is_unknown_mask(x) for x in items) else None


@implements_by_length(Tensor.__getitem__)
def getitem_by_length(self, index):
    found = by_unknown(self, index)
    if found is None:
        with current().inside():
            return current().dispatch(Tensor.__getitem__, (self, index), {})
    return found


@implements_by_length(Tensor.__setitem__, value=2)
def setitem_by_length(self, index, value):
    cut = spanned(self, index, value)
    if cut is not None:
        cut[0][cut[1]] = value
    elif any(map(_is_unknown_slice, index if isinstance(index, tuple) else (index,))):
        setitem(self, index, value)
    else:
        value = Number.of(value) if is_traced_number(value) else value
        current().dispatch(Tensor.__setitem__, (self, index, value), {})


@implements_by_length(torch.narrow, Tensor.narrow)
def narrow_by_length(input, dim, start, length):
    size = constant_of(length) if is_traced_number(length) else length
    if size is not None:
        return torch.narrow(input, dim, tensor_of(start) if is_traced_number(start) else start, size)
    return sliced(input, canonicalize_dim(input.ndim, dim), slice(start, start + length))
