"""Selections by masks along several dimensions of a tensor: its shapes, and subscripts by such masks."""

import math
from typing import Any

import torch

from ..errors import TracedValueError
from ..values.lengths import is_same_number, is_traced_number
from ..values.moved import (
    aligned_along,
    front_of,
    in_compact_order,
    led_by,
    merged,
    moved,
    nested,
    unknown_dims,
    unnested,
)
from ..values.selected import Chosen, Selected, compacted, like, map_rows, select


def index_along(x: Any, dim: int) -> Any:
    """The index of each element along a dimension, with a size of one for those behind it."""
    if dim not in unknown_dims(x):
        index = torch.arange(x.shape[dim])
    else:
        front = led_by(x, dim)
        index = like((front.mask.reshape(-1).cumsum(0) - 1).reshape(front.mask.shape), front, True)
    for _ in range(x.ndim - 1 - dim):
        index = index.unsqueeze(-1)
    return index


def viewed(input: Selected, shape: tuple) -> Any:
    """A view of a shape that keeps the data-dependent dimensions; None if it does not."""
    tensor, fronts = unnested(input)
    dims, sizes = sorted(fronts), list(shape)
    places = [i for i, size in enumerate(shape) if is_traced_number(size)]
    if len(places) == len(dims) - 1:
        places = sorted([*places, *(i for i, size in enumerate(shape) if i not in places and size == -1)])
    if len(places) != len(dims):
        return None
    for place, dim in zip(places, dims, strict=True):
        if is_traced_number(shape[place]) and not is_same_number(shape[place], fronts[dim].number):
            return None
        sizes[place] = tensor.shape[dim]
    if _between(sizes, places) != _between(tensor.shape, dims):
        return None
    found = nested(tensor.reshape(sizes), {place: fronts[dim] for place, dim in zip(places, dims, strict=True)})
    front_of(found)[0].refuses_writes = True
    return found


def _between(sizes, places: list[int]) -> list[int]:
    """The number of elements before, between and after some dimensions."""
    starts, stops = (0, *(place + 1 for place in places)), (*places, len(sizes))
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
    return select(found.rows, found.mask & unnested(mask)[0], True)


def places_in(condition: Any) -> tuple[Selected, ...]:
    """For each dimension, the indices of the elements of a selection that are true, or not zero."""
    found, (tensor, fronts) = merged(condition, condition.ndim), unnested(condition)
    mask: Any = found.mask & (tensor if tensor.dtype == torch.bool else tensor != 0)
    places = []
    for dim, size in enumerate(tensor.shape):
        index = fronts[dim].mask.cumsum(0) - 1 if dim in fronts else torch.arange(size)
        places.append(select(index.reshape(-1, *[1] * (mask.ndim - 1 - dim)).expand(mask.shape), mask))
    return tuple(places)


def element_of_nested(rows: Any, place: torch.Tensor, is_there: torch.Tensor) -> Any:
    """A copy of one row of ``(n, ...)``. One that is not there is nan, if it can be."""
    row = rows[place]
    if row.dtype.is_floating_point or row.dtype.is_complex:
        row = torch.where(is_there, row, torch.full((), math.nan, dtype=row.dtype))
    if isinstance(row, Chosen):
        front_of(row)[0].refuses_writes = True
    return row


def by_places(chosen: Any, indices: list, rest: list) -> Any:
    """The result of a subscript by indices along the first dimensions, some of which have data-dependent lengths."""
    found, fronts = unnested(in_compact_order(chosen))
    count = len(indices)
    if any(isinstance(index, Chosen) and len(unknown_dims(index)) > 1 for index in indices):
        raise TracedValueError("a subscript by such places of boolean-mask selections")
    indices = [_from_the_front(index, fronts.get(dim)) for dim, index in enumerate(indices)]
    found = nested(found, {dim: front for dim, front in fronts.items() if dim >= count})
    return found[(*indices, *rest)]


def gather(input: Any, dim: int, index: Any) -> Any:
    """As `torch.gather`, with data-dependent dimensions."""
    shared = set(unknown_dims(input)) & set(unknown_dims(index)) - {dim}
    for each in set(unknown_dims(input)) - shared:
        input = moved(compacted(led_by(input, each)), each)
    for each in set(unknown_dims(index)) - shared - {dim}:
        index = moved(compacted(led_by(index, each), input.shape[each]), each)
    for each in shared:
        input, index = aligned_along([input, index], [each, each], "torch.gather")
    places, fronts = unnested(index)
    return nested(torch.gather(unnested(input)[0], dim, places), fronts)


def write(target: Any, items: list, value: Any) -> None:
    """Writes by a subscript, with one item for each of the first dimensions."""
    value = value if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=target.dtype)
    if any(isinstance(item, torch.Tensor) and item.dtype != torch.bool for item in items):
        found, fronts = unnested(in_compact_order(target))
        found = found.clone()
        found[tuple(_from_the_front(item, fronts.get(dim)) for dim, item in enumerate(items))] = value
        target.copy_(nested(found, fronts, is_safe=False))
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


def _from_the_front(places: Any, front: Selected | None) -> Any:
    """Indices into a selection, without negative ones."""
    if front is None or not isinstance(places, torch.Tensor):
        return places
    return torch.where(places < 0, front.length + places, places)
