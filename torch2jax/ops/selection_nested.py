"""Selections by masks along several dimensions of a tensor: its shapes, and subscripts by such masks."""

import math
from typing import Any

import torch

from ..values.lengths import is_same_number, is_traced_number
from ..values.masked import (
    Masked,
    aligned_along,
    copied,
    masked,
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
