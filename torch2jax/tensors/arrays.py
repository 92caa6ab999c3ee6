"""Arrays in other shapes, without an operation in the graph if they have the shape already."""

import math
from collections.abc import Iterator, Sequence

import jax
from jax import lax
from jax.sharding import PartitionSpec

from ..internals.jax_traces import ShardingTypeError

__all__ = ["reshape", "transpose"]


def reshape(array: jax.Array, shape: Sequence[int]):
    """`array` in another shape; nothing is emitted where it has that shape already."""
    if array.shape == tuple(shape):
        return array
    try:
        return lax.reshape(array, shape)
    except ShardingTypeError:  # JAX takes it for ambiguous if dimensions are split and merged that no device splits
        spec = _spec_after(array, tuple(shape))
        if spec is None:
            raise
        return lax.reshape(array, shape, out_sharding=spec)


def transpose(array: jax.Array, permutation: Sequence[int]):
    """`array` with its dimensions permuted; nothing is emitted for the identity."""
    return array if list(permutation) == list(range(array.ndim)) else lax.transpose(array, permutation)


def _spec_after(array: jax.Array, shape: tuple[int, ...]) -> PartitionSpec | None:
    """How an array on explicit axes lies in another shape, each device with what it has; None if it cannot.

    Of dimensions that are taken together the first alone may be split, so that each device has a run of elements.
    """
    sharding = jax.typeof(array).sharding
    entries = [*sharding.spec, *[None] * (array.ndim - len(sharding.spec))]
    found: list = [None] * len(shape)
    for before, after in _together(array.shape, shape):
        split = [dim for dim in before if entries[dim] is not None]
        if not split:
            continue
        entry = entries[split[0]]
        count = math.prod(sharding.mesh.shape[axis] for axis in (entry if isinstance(entry, tuple) else (entry,)))
        outer = next((dim for dim in after if shape[dim] > 1), None)
        is_first = all(array.shape[dim] == 1 for dim in before[: before.index(split[0])])
        if len(split) > 1 or not is_first or outer is None or shape[outer] % count:
            return None
        found[outer] = entry
    return PartitionSpec(*found)


def _together(shape: tuple[int, ...], other: tuple[int, ...]) -> Iterator[tuple[list[int], list[int]]]:
    """The dimensions of two shapes, in the smallest parts that have as many elements in both."""
    start = begin = 0
    one = two = 1
    end = stop = 0
    while end < len(shape) or stop < len(other):
        if (one <= two and end < len(shape)) or stop == len(other):
            one, end = one * shape[end], end + 1
        else:
            two, stop = two * other[stop], stop + 1
        if one == two:
            yield list(range(start, end)), list(range(begin, stop))
            start, begin, one, two = end, stop, 1, 1
