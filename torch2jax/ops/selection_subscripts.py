"""Slices of a selection by a mask of unknown values, and slices of tensors between traced bounds."""

import math
from typing import Any

import torch

from ..internals.tensors import canonicalize_dim
from ..rules.registry import implements_by_length, implements_rows
from ..runtime.errors import TracedValueError
from ..runtime.translation import current, lift
from ..values.item import Item
from ..values.lengths import constant_of, is_traced_number, range_of_number, tensor_of
from ..values.masked import Masked, aligned, at_axis, first, leads, like, packed, positions_of, select
from ..values.traced_numbers import Number
from .bounds import known_values
from .selection import is_integer_index
from .selection_indices import getitem as getitem_by_indices, has_mask, setitem as setitem_by_indices, with_indices
from .selection_nested import by_indices, element_of_nested
from .selection_views import element_at, is_view, rows_at
from .traced_slices import as_number, items_of, spanned

Tensor = torch.Tensor


# Slices. Which rows there are is told by the mask; there is a gather only where it leaves room for fewer.


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


def part(chosen: Masked, start=None, stop=None, step: int = 1) -> Any:
    """``chosen[start:stop:step]`` with data-dependent ends; a plain tensor if its size is known."""
    if is_traced_number(step):
        raise TracedValueError("a slice's step")
    if type(start) in (int, type(None)) and start in (None, 0) and stop is None and step == 1:
        return chosen
    is_flat = step == 1 and chosen.mask.ndim == 1 and not chosen.refuses_writes and not isinstance(chosen.rows, Masked)
    size = _known_size(chosen, start, stop) if is_flat else None
    if size is not None:
        lead = start or 0
        positions = torch.arange(size) + (lead if lead >= 0 else chosen.length + lead)
        if not chosen.is_compact:
            positions = positions_of(chosen, chosen.mask.numel())[positions]
        return rows_at(chosen.rows, positions, torch.tensor(size))
    if step < 1:
        raise ValueError("step must be greater than zero")
    count, length = chosen.mask.numel(), chosen.length
    low, high = _range_of(start, stop, count)
    size = min(high - low, -start if type(start) is int and start < 0 else count)
    lower, upper = _end(start, length, torch.tensor(0)), _end(stop, length, length)
    capacity = math.ceil(size / step)
    if capacity > count // 2 and not chosen.is_compact:
        rank = chosen.mask.reshape(-1).cumsum(0) - 1
        is_there = (rank >= lower) & (rank < upper)
        if step > 1:
            is_there &= (rank - lower) % step == 0
        mask: Any = chosen.mask & is_there.reshape(chosen.mask.shape)
        part = select(chosen.rows, mask)
        part.shares_memory, part.refuses_writes = True, chosen.refuses_writes
        return part
    found = ((upper - lower).clamp(min=0) + (step - 1)) // step
    return _in_compact_order(chosen, found, slice(low, high, step), None if _is_known(start) else lower)


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


def _is_known(start) -> bool:
    return start is None or (type(start) is int and start >= 0)


def _in_compact_order(chosen: Masked, count: torch.Tensor, positions: slice, begin: torch.Tensor | None) -> Masked:
    """A part that begins with its rows, as a view of the selection.

    Args:
        count: how many rows it has.
        positions: between which places it is at most, and how far one is from the next.
        begin: the first of its places, if that is not the one of `positions`.
    """
    flat = chosen.rows.flatten(0, chosen.mask.ndim - 1)
    if begin is None and chosen.is_compact:
        rows = flat[positions]
    else:
        index = torch.arange(len(flat)) if chosen.is_compact else positions_of(chosen, positions.stop)
        if begin is None:
            index = index[positions]
        else:
            capacity = len(range(positions.start, positions.stop, positions.step))
            index = index[(begin + torch.arange(capacity) * positions.step).clamp(max=max(positions.stop - 1, 0))]
        rows = flat[index] if isinstance(flat, Masked) else rows_at(flat, index, count)
    part = first(rows, count)
    part.shares_memory = True
    part.refuses_writes = chosen.refuses_writes or not is_view(flat, chosen.rows)
    return part


def of_tensor(tensor: Tensor, start, stop, step=1) -> Masked:
    """``tensor[start:stop:step]`` along the first dimension; rows are a view, so that writes are seen."""
    if is_traced_number(step) or step < 1:
        raise TracedValueError("a slice's step")
    tensor = lift(tensor)
    count = len(tensor)
    length = torch.tensor(count)
    low, high = _range_of(start, stop, count)
    lower, upper = _end(start, length, torch.tensor(0)), _end(stop, length, length)
    rows, position = tensor[low:high], torch.arange(low, high)
    if low == 0 and start in (None, 0) and step == 1:
        chosen = first(rows, torch.minimum(upper, torch.tensor(high)))
    else:
        is_there: Any = (position >= lower) & (position < upper)
        chosen = select(rows, is_there if step == 1 else is_there & ((position - lower) % step == 0))
    chosen.shares_memory = True
    return chosen


def _is_full_slice(item) -> bool:
    return isinstance(item, slice) and item.start is item.stop is item.step is None


def _is_number(item) -> bool:
    if is_traced_number(item) or type(item) is int:
        return True
    return type(item) is not bool and isinstance(item, Tensor) and item.ndim == 0 and is_integer_index(item)


def _element(chosen: Masked, position) -> torch.Tensor:
    """``chosen[position]``; for a missing place PyTorch raises an error, and this is NaN, if the dtype has it."""
    position = tensor_of(position) if not isinstance(position, Tensor) or is_traced_number(position) else position
    position = torch.where(position < 0, chosen.length + position, position)
    rank = chosen.mask.reshape(-1).cumsum(0) - 1
    is_it = (rank == position) & chosen.mask.reshape(-1)
    rows = chosen.rows.flatten(0, chosen.mask.ndim - 1)
    index, is_there = is_it.to(torch.uint8).argmax(), is_it.any()
    return element_of_nested(rows, index, is_there) if isinstance(rows, Masked) else element_at(rows, index, is_there)


def _by_tensors(chosen, items: list):
    """A subscript that begins with integer tensors, some of which are selections."""
    count = next((i for i, item in enumerate(items) if not isinstance(item, Tensor)), len(items))
    indices, rest = items[:count], items[count:]
    if any(isinstance(item, Tensor) for item in rest) or not all(map(is_integer_index, indices)):
        return None
    if leads(chosen) and isinstance(chosen.rows, Masked) and len(indices) > 1:
        return by_indices(chosen, indices, rest)
    base = packed(chosen).rows if leads(chosen) else chosen
    selections = [x for x in indices if leads(x)]
    if leads(chosen) and indices[0].ndim and not leads(indices[0]):
        first = indices[0]
        indices[0] = torch.where(first < 0, chosen.length + first, first)
    if not selections:
        return base[(*indices, *rest)]
    if any(x.ndim != selections[0].ndim for x in selections) or any(
        x.ndim > selections[0].row_ndim for x in indices if not leads(x)
    ):
        return None
    found = aligned(selections, "a subscript")
    if found[0].mask.ndim > 1:
        found = [packed(x) for x in found]
    copied = iter([x.copied() for x in found])
    indices = [next(copied) if leads(x) else x for x in indices]
    return like(base[(*indices, *rest)], found[0])


@implements_rows(Tensor.__getitem__)
def getitem(self, index):
    index = with_indices(index) if has_mask(index) else index
    items = items_of(index, self.ndim)
    index = tuple(items) if isinstance(index, tuple) else items[0] if isinstance(index, list) else index
    lead = items[0] if items else slice(None)
    if leads(self):
        if isinstance(lead, slice) and not _is_full_slice(lead):
            chosen = part(self, lead.start, lead.stop, 1 if lead.step is None else lead.step)
            return chosen if len(items) == 1 else chosen[(slice(None), *items[1:])]
        if _is_number(lead) and not leads(lead):
            row = _element(self, lead)
            return row if len(items) == 1 else row[tuple(items[1:])]
        others = [x for x in items[1:] if isinstance(x, Tensor)]
        if _is_full_slice(lead) and others and not any(map(_is_unknown_in_row, others)):
            return like(self.rows[(*[slice(None)] * self.mask.ndim, *items[1:])], self)
    is_by_mask = isinstance(lead, Tensor) and not is_integer_index(lead)
    if isinstance(lead, Tensor) and lead.ndim and not is_by_mask:
        is_plain = leads(self) != leads(lead)
        if not (len(items) == 1 and leads(lead)) and (is_plain or len(items) > 1):
            try:
                return getitem_by_indices(self, index)
            except TracedValueError:
                found = _by_tensors(self, items)
                if found is None:
                    raise
                return found
    return getitem_by_indices(self, index)


def _is_unknown_in_row(index) -> bool:
    """Returns True if a tensor in a subscript, after the first item, is a selection, or a traced mask."""
    return leads(index) or (index.dtype == torch.bool and known_values(lift(index)) is None)


@implements_rows(Tensor.__setitem__)
def setitem(self, index, value):
    index = with_indices(index) if has_mask(index) else index
    items = items_of(index, self.ndim)
    if leads(self):
        if len(items) == 1 and leads(items[0]) and is_integer_index(items[0]) and not items[0].row_ndim:
            _write_at(self, items[0], value)
            return
        if len(items) == 1 and isinstance(items[0], slice) and not _is_full_slice(items[0]):
            _write_part(self, items[0], value)
            return
        if len(items) == 1 and type(items[0]) is int:
            _write_part(self, slice(items[0], None if items[0] == -1 else items[0] + 1), value)
            return
        if items and _is_number(items[0]) and type(items[0]) is not int:
            if len(items) > 1:
                row = getitem(self, (items[0],)).clone()
                row[tuple(items[1:])] = value
                value = row
            _write_element(self, items[0], value)
            return
    if not leads(self) and len(items) == 1 and isinstance(items[0], slice):
        _write_part(of_tensor(self, None, _full_length(self)), items[0], value)
        return
    setitem_by_indices(self, index, value)


def _write_at(chosen: Masked, index: Masked, value) -> None:
    """Writes to elements at indices into a selection."""
    mask: Any = chosen.mask.reshape(-1)
    rows = chosen.rows.flatten(0, chosen.mask.ndim - 1)
    if not chosen.is_compact:
        at = packed(first(torch.arange(len(rows)), torch.tensor(len(rows)))).rows
        at = packed(select(at, mask)).rows[index.copied()]
    else:
        at = index.copied()
    written = rows.clone()
    setitem_by_indices(written, like(at, index), value)
    chosen.overwrite(written.reshape(chosen.rows.shape))


def _write_part(chosen: Masked, item: slice, value) -> None:
    rank = chosen.mask.reshape(-1).cumsum(0) - 1
    length = chosen.length
    lower, upper = _end(item.start, length, torch.tensor(0)), _end(item.stop, length, length)
    is_there = (rank >= lower) & (rank < upper)
    if is_traced_number(item.step) or item.step not in (None, 1):
        is_there &= (rank - lower) % item.step == 0
    if leads(value):
        value = packed(value).rows
    if isinstance(value, Tensor) and value.ndim > chosen.row_ndim:
        value = value[(rank - lower).clamp(0, max(len(value) - 1, 0))].reshape(*chosen.mask.shape, *value.shape[1:])
    where = is_there.reshape(*chosen.mask.shape, *[1] * chosen.row_ndim)
    chosen.overwrite(torch.where(where, value, chosen.rows).to(chosen.dtype))


def _write_element(chosen: Masked, position, value) -> None:
    """``chosen[position] = value`` with a traced place; a missing one writes nothing."""
    position = tensor_of(position) if is_traced_number(position) else position
    position = torch.where(position < 0, chosen.length + position, position)
    mask = chosen.mask.reshape(-1)
    where = ((mask.cumsum(0) - 1 == position) & mask).reshape(*chosen.mask.shape, *[1] * chosen.row_ndim)
    chosen.overwrite(torch.where(where, value, chosen.rows).to(chosen.dtype))


# Of tensors.


def sliced_by_unknown(self: Tensor, index) -> Any:
    """The result of a subscript with slices with traced ends; None if the first item is not such a slice."""
    cut = spanned(self, index)
    if cut is not None:
        return cut[0][cut[1]]
    items = items_of(index, self.ndim)
    lead = items[0] if items else None
    if not isinstance(lead, slice):
        return None
    ends = [as_number(x) for x in (lead.start, lead.stop, lead.step)]
    if not any(map(is_traced_number, ends)):
        return None
    chosen = of_tensor(self, *ends[:2], 1 if ends[2] is None else ends[2])
    return chosen if len(items) == 1 else getitem(chosen, (slice(None), *items[1:]))


@implements_by_length(Tensor.__getitem__)
def getitem_by_length(self, index):
    found = sliced_by_unknown(self, index)
    if found is None:
        with current().inside():
            return current().dispatch(Tensor.__getitem__, (self, index), {})
    return found


@implements_by_length(Tensor.__setitem__, value=2)
def setitem_by_length(self, index, value):
    cut = spanned(self, index, value)
    if cut is not None:
        cut[0][cut[1]] = value
        return
    items = items_of(index, self.ndim)
    if len(items) == 1 and isinstance(items[0], slice):
        _write_part(of_tensor(self, None, _full_length(self)), items[0], value)
        return
    value = Number.of(value) if is_traced_number(value) else value
    current().dispatch(Tensor.__setitem__, (self, index, value), {})


def _full_length(tensor):
    return Item.of(lift(torch.tensor(len(tensor))))


@implements_by_length(torch.narrow, Tensor.narrow)
def narrow_by_length(input, dim, start, length):
    dim = canonicalize_dim(input.ndim, dim)
    size = constant_of(length) if is_traced_number(length) else length
    if size is not None:
        return torch.narrow(input, dim, tensor_of(start) if is_traced_number(start) else start, size)
    return at_axis(of_tensor(input.movedim(dim, 0), start, start + length), dim)
