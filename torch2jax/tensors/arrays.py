"""Arrays in other shapes, without an operation in the graph if they have the shape already."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ..internals.jax_traces import ShardingTypeError

__all__ = ["dot_general", "reshape", "rows_of", "transpose"]


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
        return lax.reshape(array, shape, out_sharding=_on_its_mesh(array, spec))


def transpose(array: jax.Array, permutation: Sequence[int]):
    """`array` with its dimensions permuted; nothing is emitted for the identity."""
    return array if list(permutation) == list(range(array.ndim)) else lax.transpose(array, permutation)


def dot_general(left: jax.Array, right: jax.Array, dims: Any, dtype: Any = None):
    """`lax.dot_general`, of a result in a dtype; over axes that split both contracted dimensions alike it is summed."""
    try:
        return lax.dot_general(left, right, dims, preferred_element_type=dtype)
    except ShardingTypeError:
        spec = _spec_of_sums(left, right, dims)
        if spec is None:
            raise
        told = _on_its_mesh(left, spec)
        return lax.dot_general(left, right, dims, preferred_element_type=dtype, out_sharding=told)


def rows_of(array: jax.Array, like: jax.Array):
    """An array as all rows of another one; on explicit axes they lie as its rows do, and so do their cotangents."""
    added = like.ndim - array.ndim
    told = None
    if AxisType.Explicit in jax.typeof(like).sharding.mesh.axis_types:
        own, outer = _entries(array), _entries(like)[:added]
        spec = PartitionSpec(*outer, *[None if _axes([entry]) & _axes(outer) else entry for entry in own])
        told = _on_its_mesh(like, spec)
    return lax.broadcast_in_dim(array, like.shape, range(added, like.ndim), out_sharding=told)


def _on_its_mesh(array: jax.Array, spec: PartitionSpec) -> NamedSharding:
    """A sharding on the mesh of an array, which need not be the one that `jax.set_mesh` has set."""
    return NamedSharding(jax.typeof(array).sharding.mesh, spec)


def _entries(array: jax.Array) -> list:
    spec = jax.typeof(array).sharding.spec
    return [*spec, *[None] * (array.ndim - len(spec))]


def _axes(entries: Sequence[Any]) -> set[str]:
    """The axes in some entries of a spec."""
    return {
        axis for entry in entries if entry is not None for axis in (entry if isinstance(entry, tuple) else (entry,))
    }


def _spec_of_sums(left: jax.Array, right: jax.Array, dims: Any) -> PartitionSpec | None:
    """How a product lies whose contracted dimensions are split alike, once it is summed; None where that is open."""
    (contracted, other), (batch, other_batch) = dims
    specs = _entries(left), _entries(right)
    if [specs[0][dim] for dim in contracted] != [specs[1][dim] for dim in other]:
        return None
    kept = [
        *[specs[0][dim] for dim in batch],
        *[entry for dim, entry in enumerate(specs[0]) if dim not in (*contracted, *batch)],
        *[entry for dim, entry in enumerate(specs[1]) if dim not in (*other, *other_batch)],
    ]
    found = [axis for entry in kept for axis in _axes([entry])]
    return PartitionSpec(*kept) if len(set(found)) == len(found) else None


def _spec_after(array: jax.Array, shape: tuple[int, ...]) -> PartitionSpec | None:
    """How an array on explicit axes lies in another shape, each device with what it has; None if it cannot.

    Of dimensions that are taken together the first alone may be split, so that each device has a run of elements.
    """
    sharding = jax.typeof(array).sharding
    entries = _entries(array)
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
