"""Selections by masks along several dimensions of a tensor: its shapes, and subscripts by such masks."""

import math
from typing import Any

import torch

from ..errors import TracedValueError
from ..values.lengths import is_same_number, is_traced_number
from ..values.selected import Chosen, Selected, like, map_rows, packed, select
from ..values.selected_at_axis import (
    aligned_along,
    at_axis,
    in_compact_order,
    leading_of,
    merged,
    nested,
    unknown_dims,
    unnested,
    with_leading,
)


def index_along(x: Any, dim: int) -> Any:
    """The index of each element along a dimension, with a size of one for those behind it."""
    if dim not in unknown_dims(x):
        index = torch.arange(x.shape[dim])
    else:
        leading = with_leading(x, dim)
        index = like((leading.mask.reshape(-1).cumsum(0) - 1).reshape(leading.mask.shape), leading)
    for _ in range(x.ndim - 1 - dim):
        index = index.unsqueeze(-1)
    return index


def viewed(input: Selected, shape: tuple) -> Any:
    """A view of a shape that keeps the data-dependent dimensions; None if it does not."""
    tensor, by_dim = unnested(input)
    dims, sizes = sorted(by_dim), list(shape)
    positions = [i for i, size in enumerate(shape) if is_traced_number(size)]
    if len(positions) == len(dims) - 1:
        positions = sorted([*positions, *(i for i, size in enumerate(shape) if i not in positions and size == -1)])
    if len(positions) != len(dims):
        return None
    for position, dim in zip(positions, dims, strict=True):
        if is_traced_number(shape[position]) and not is_same_number(shape[position], by_dim[dim].number):
            return None
        sizes[position] = tensor.shape[dim]
    if _between(sizes, positions) != _between(tensor.shape, dims):
        return None
    found = nested(
        tensor.reshape(sizes), {position: by_dim[dim] for position, dim in zip(positions, dims, strict=True)}
    )
    leading_of(found)[0].refuses_writes = True
    return found


def _between(sizes, positions: list[int]) -> list[int]:
    """The number of elements before, between and after some dimensions."""
    starts, stops = (0, *(position + 1 for position in positions)), (*positions, len(sizes))
    return [math.prod(sizes[start:stop]) for start, stop in zip(starts, stops, strict=True)]


def flattened(input: Selected, start: int, end: int) -> Any:
    """Dimensions as one."""
    if start == end:
        return input
    if start == 0:
        return merged(input, end + 1)
    lead = input.mask.ndim - 1
    return map_rows(lambda rows: rows.flatten(start + lead, end + lead), (input,), {}, "a view", safe=False)


def chosen_of(input: Any, mask: Any) -> Selected:
    """The elements of a tensor that a mask with several data-dependent dimensions chooses."""
    for dim in unknown_dims(mask):
        is_shared = dim in unknown_dims(input)
        input, mask = aligned_along([input, mask], [dim if is_shared else None, dim], "a subscript by a mask")
    found = merged(input, mask.ndim)
    return select(found.rows, found.mask & unnested(mask)[0])


def indices_in(condition: Any) -> tuple[Selected, ...]:
    """For each dimension, the indices of the elements of a selection that are true, or not zero."""
    found, (tensor, by_dim) = merged(condition, condition.ndim), unnested(condition)
    mask: Any = found.mask & (tensor if tensor.dtype == torch.bool else tensor != 0)
    positions = []
    for dim, size in enumerate(tensor.shape):
        index = by_dim[dim].mask.cumsum(0) - 1 if dim in by_dim else torch.arange(size)
        positions.append(select(index.reshape(-1, *[1] * (mask.ndim - 1 - dim)).expand(mask.shape), mask))
    return tuple(positions)


def element_of_nested(rows: Any, position: torch.Tensor, is_there: torch.Tensor) -> Any:
    """A copy of one row of ``(n, ...)``. One that is not there is nan, if it can be."""
    row = rows[position]
    if row.dtype.is_floating_point or row.dtype.is_complex:
        row = torch.where(is_there, row, torch.full((), math.nan, dtype=row.dtype))
    if isinstance(row, Chosen):
        leading_of(row)[0].refuses_writes = True
    return row


def by_indices(chosen: Any, indices: list, rest: list) -> Any:
    """The result of a subscript by indices along the first dimensions, some of which have data-dependent lengths."""
    found, by_dim = unnested(in_compact_order(chosen))
    count = len(indices)
    if any(isinstance(index, Chosen) and len(unknown_dims(index)) > 1 for index in indices):
        raise TracedValueError("a subscript by such places of boolean-mask selections")
    indices = [_from_start(index, by_dim.get(dim)) for dim, index in enumerate(indices)]
    found = nested(found, {dim: leading for dim, leading in by_dim.items() if dim >= count})
    return found[(*indices, *rest)]


def gather(input: Any, dim: int, index: Any) -> Any:
    """As `torch.gather`, with data-dependent dimensions."""
    shared = set(unknown_dims(input)) & set(unknown_dims(index)) - {dim}
    for each in set(unknown_dims(input)) - shared:
        input = at_axis(packed(with_leading(input, each)), each)
    for each in set(unknown_dims(index)) - shared - {dim}:
        index = at_axis(packed(with_leading(index, each), input.shape[each]), each)
    for each in shared:
        input, index = aligned_along([input, index], [each, each], "torch.gather")
    positions, by_dim = unnested(index, Selected.copied)
    return nested(torch.gather(unnested(input)[0], dim, positions), by_dim)


def write(target: Any, items: list, value: Any) -> None:
    """Writes by a subscript, with one item for each of the first dimensions."""
    value = value if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=target.dtype)
    if any(isinstance(item, torch.Tensor) and item.dtype != torch.bool for item in items):
        found, by_dim = unnested(in_compact_order(target))
        found = found.clone()
        found[tuple(_from_start(item, by_dim.get(dim)) for dim, item in enumerate(items))] = value
        target.copy_(nested(found, by_dim))
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


def _from_start(positions: Any, leading: Selected | None) -> Any:
    """Indices into a selection, without negative ones."""
    if leading is None or not isinstance(positions, torch.Tensor):
        return positions
    return torch.where(positions < 0, leading.length + positions, positions)
