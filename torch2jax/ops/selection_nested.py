"""Selections by masks along several dimensions of a tensor: its shapes, and subscripts by such masks."""

import math
from typing import Any

import torch

from ..runtime.errors import TracedValueError
from ..values.lengths import is_same_number, is_traced_number
from ..values.masked import (
    Mask,
    Masked,
    aligned_along,
    copied,
    in_compact_order,
    in_flat_masks,
    masked,
    merged,
    packed,
    select,
    unknown_dims,
    unnested,
)


def index_along(x: Any, dim: int) -> Any:
    """The index of each element along a dimension, with a size of one for those behind it."""
    mask = x.masks.get(dim) if isinstance(x, Masked) else None
    index = torch.arange(x.shape[dim]) if mask is None else select(mask.ranks().reshape(mask.where.shape), mask)
    for _ in range(x.ndim - 1 - dim):
        index = index.unsqueeze(-1)
    return index


def viewed(input: Masked, shape: tuple) -> Any:
    """A view of a shape that keeps the data-dependent dimensions; None if it does not."""
    tensor, masks = unnested(input)
    dims, sizes = sorted(masks), list(shape)
    positions = [i for i, size in enumerate(shape) if is_traced_number(size)]
    if len(positions) == len(dims) - 1:
        positions = sorted([*positions, *(i for i, size in enumerate(shape) if i not in positions and size == -1)])
    if len(positions) != len(dims):
        return None
    for position, dim in zip(positions, dims, strict=True):
        if is_traced_number(shape[position]) and not is_same_number(shape[position], masks[dim].number):
            return None
        sizes[position] = tensor.shape[dim]
    if _between(sizes, positions) != _between(tensor.shape, dims):
        return None
    by_position = {position: masks[dim] for position, dim in zip(positions, dims, strict=True)}
    found = masked(tensor.reshape(sizes), by_position)
    found.refuses_writes = True
    return found


def _between(sizes, positions: list[int]) -> list[int]:
    """The number of elements before, between and after some dimensions."""
    starts, stops = (0, *(position + 1 for position in positions)), (*positions, len(sizes))
    return [math.prod(sizes[start:stop]) for start, stop in zip(starts, stops, strict=True)]


def chosen_of(input: Any, mask: Any) -> Masked:
    """The elements of a tensor that a mask with several data-dependent dimensions chooses."""
    for dim in unknown_dims(mask):
        is_shared = dim in unknown_dims(input)
        input, mask = aligned_along([input, mask], [dim if is_shared else None, dim], "a subscript by a mask")
    found = merged(in_flat_masks(input) if isinstance(input, Masked) else input, mask.ndim)
    return select(found.rows, found.mask & unnested(mask)[0])


def indices_in(condition: Any) -> tuple[Masked, ...]:
    """For each dimension, the indices of the elements of a selection that are true, or not zero."""
    condition = in_flat_masks(condition)
    found, tensor, masks = merged(condition, condition.ndim), condition.unmasked, condition.masks
    mask: Any = found.mask & (tensor if tensor.dtype == torch.bool else tensor != 0)
    positions = []
    for dim, size in enumerate(tensor.shape):
        index = masks[dim].ranks() if dim in masks else torch.arange(size)
        positions.append(select(index.reshape(-1, *[1] * (mask.ndim - 1 - dim)).expand(mask.shape), mask))
    return tuple(positions)


def element_of_nested(rows: Any, position: torch.Tensor, is_there: torch.Tensor) -> Any:
    """A copy of one row of ``(n, ...)``. One that is not there is nan, if it can be."""
    row = rows[position]
    if row.dtype.is_floating_point or row.dtype.is_complex:
        row = torch.where(is_there, row, torch.full((), math.nan, dtype=row.dtype))
    if isinstance(row, Masked):
        row.refuses_writes = True
    return row


def by_indices(chosen: Any, indices: list, rest: list) -> Any:
    """The result of a subscript by indices along the first dimensions, some of which have data-dependent lengths."""
    found, masks = unnested(in_compact_order(chosen))
    count = len(indices)
    if any(isinstance(index, Masked) and len(unknown_dims(index)) > 1 for index in indices):
        raise TracedValueError("a subscript by such places of boolean-mask selections")
    indices = [_from_start(index, masks.get(dim)) for dim, index in enumerate(indices)]
    found = masked(found, {dim: mask for dim, mask in masks.items() if dim >= count})
    return found[(*indices, *rest)]


def gather(input: Any, dim: int, index: Any) -> Any:
    """As `torch.gather`, with data-dependent dimensions."""
    shared = set(unknown_dims(input)) & set(unknown_dims(index)) - {dim}
    for each in set(unknown_dims(input)) - shared:
        input = packed(input, dim=each)
    for each in set(unknown_dims(index)) - shared - {dim}:
        index = packed(index, input.shape[each], each)
    for each in shared:
        input, index = aligned_along([input, index], [each, each], "torch.gather")
    positions, masks = unnested(index, copied)
    return masked(torch.gather(unnested(input)[0], dim, positions), masks)


def write(target: Any, items: list, value: Any) -> None:
    """Writes by a subscript, with one item for each of the first dimensions."""
    value = value if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=target.dtype)
    if any(isinstance(item, torch.Tensor) and item.dtype != torch.bool for item in items):
        found, masks = unnested(in_compact_order(target))
        found = found.clone()
        found[tuple(_from_start(item, masks.get(dim)) for dim, item in enumerate(items))] = value
        target.copy_(masked(found, masks))
        return
    is_it: Any = torch.ones((), dtype=torch.bool)
    for dim, item in enumerate(items):
        if isinstance(item, torch.Tensor):
            if len(items) > 1 or value.ndim:
                raise TracedValueError("writing more than one value by this mask to boolean-mask selections")
            is_it = item.reshape(*item.shape, *[1] * (target.ndim - item.ndim))
        else:
            is_it, value = _written_along(target, dim, item, is_it, value)
    target.copy_(torch.where(is_it, value, target).to(target.dtype))


def _written_along(target: Any, dim: int, item: Any, is_it: Any, value: Any):
    """The mask of the elements written to and the values, after one more item of a subscript."""
    behind = target.ndim - 1 - dim
    length = target.shape[dim]
    if isinstance(item, slice):
        if item.start is item.stop is item.step is None:
            return is_it, value
        if item.step not in (None, 1) or any(type(end) not in (int, type(None)) for end in (item.start, item.stop)):
            raise TracedValueError("writing by this slice to boolean-mask selections")
        if value.ndim > behind and value.shape[-1 - behind] != 1:
            raise TracedValueError("writing several rows to a part of boolean-mask selections")
        index = index_along(target, dim)
        for end, compare in ((item.start, torch.ge), (item.stop, torch.lt)):
            if end is not None:
                is_it = is_it & compare(index, end if end >= 0 else length + end)
        return is_it, value
    if type(item) is not int and not is_traced_number(item):
        raise TracedValueError("writing by this subscript to boolean-mask selections")
    is_it = is_it & (index_along(target, dim) == (item if is_traced_number(item) or item >= 0 else length + item))
    return is_it, value.unsqueeze(-1 - behind) if value.ndim >= behind else value


def _from_start(positions: Any, mask: Mask | None) -> Any:
    """Indices into a selection, without negative ones."""
    if mask is None or not isinstance(positions, torch.Tensor):
        return positions
    return torch.where(positions < 0, mask.length + positions, positions)
