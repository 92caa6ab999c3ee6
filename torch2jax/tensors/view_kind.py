"""The kinds of views: how each reads an array, and how a write through it changes the array.

Also here: reshapes of arrays, without an operation in the graph if they have the shape already.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ..internals.jax import ShardingTypeError
from ..runtime.caches import remembered


def reshape(array: jax.Array, shape: Sequence[int]):
    """`array` in another shape; nothing is emitted where it has that shape already."""
    if array.shape == tuple(shape):
        return array
    try:
        return lax.reshape(array, shape)
    except ShardingTypeError:  # JAX takes it for ambiguous if dimensions are split and merged that no device splits
        given = _sharding_after(array, tuple(shape))
        if given is None:
            raise
        return lax.reshape(array, shape, out_sharding=given)


def transpose(array: jax.Array, permutation: Sequence[int]):
    """`array` with its dimensions permuted; nothing is emitted for the identity."""
    return array if list(permutation) == list(range(array.ndim)) else lax.transpose(array, permutation)


def dot_general(left: jax.Array, right: jax.Array, dims: tuple, dtype: Any = None):
    """`lax.dot_general`, of a result in a dtype; over axes that split both contracted dimensions alike it is summed."""
    try:
        return lax.dot_general(left, right, dims, preferred_element_type=dtype)
    except ShardingTypeError:
        given = _sharding_of_sums(left, right, dims)
        if given is None:
            raise
        return lax.dot_general(left, right, dims, preferred_element_type=dtype, out_sharding=given)


def rows_of(array: jax.Array, like: jax.Array):
    """An array as all rows of another one; on explicit axes they lie as its rows do, and so do their cotangents."""
    added = like.ndim - array.ndim
    given = None
    if AxisType.Explicit in jax.typeof(like).sharding.mesh.axis_types:
        outer = entries_of(like)[:added]
        taken = set(_axes(outer))
        own = [entry if taken.isdisjoint(_axes([entry])) else None for entry in entries_of(array)]
        given = sharding_beside(like, [*outer, *own])
    return lax.broadcast_in_dim(array, like.shape, range(added, like.ndim), out_sharding=given)


def entries_of(array: jax.Array) -> list:
    """The mesh axes that split each dimension of an array: one, several in a tuple, or None."""
    spec = jax.typeof(array).sharding.spec
    return [*spec, *[None] * (array.ndim - len(spec))]


def sharding_beside(array: jax.Array, entries: Sequence[object]) -> NamedSharding | None:
    """The sharding by these entries on an array's mesh, which `jax.set_mesh` need not have set.

    None if an axis is to split two dimensions.
    """
    axes = _axes(entries)
    mesh = jax.typeof(array).sharding.mesh
    return NamedSharding(mesh, PartitionSpec(*entries)) if len(set(axes)) == len(axes) else None


def _axes(entries: Sequence[Any]) -> list[str]:
    """The axes in some entries, with repetitions."""
    return [
        axis for entry in entries if entry is not None for axis in (entry if isinstance(entry, tuple) else (entry,))
    ]


def _sharding_of_sums(left: jax.Array, right: jax.Array, dims: Any) -> NamedSharding | None:
    """The sharding of a product whose contracted dimensions are split alike, after the sum; None if they are not."""
    (contracted, other), (batch, other_batch) = dims
    one, two = entries_of(left), entries_of(right)
    if [one[dim] for dim in contracted] != [two[dim] for dim in other]:
        return None
    kept = [
        *[one[dim] for dim in batch],
        *[entry for dim, entry in enumerate(one) if dim not in (*contracted, *batch)],
        *[entry for dim, entry in enumerate(two) if dim not in (*other, *other_batch)],
    ]
    return sharding_beside(left, kept)


def _sharding_after(array: jax.Array, shape: tuple[int, ...]) -> NamedSharding | None:
    """The sharding of a reshaped array on explicit axes where each device keeps its elements; None if there is none.

    Of dimensions that are taken together the first alone may be split, so that each device has a run of elements.
    """
    mesh, entries = jax.typeof(array).sharding.mesh, entries_of(array)
    found: list = [None] * len(shape)
    for before, after in _together(array.shape, shape):
        split = [dim for dim in before if entries[dim] is not None]
        if not split:
            continue
        entry = entries[split[0]]
        count = math.prod(mesh.shape[axis] for axis in _axes([entry]))
        outer = next((dim for dim in after if shape[dim] > 1), None)
        is_first = all(array.shape[dim] == 1 for dim in before[: before.index(split[0])])
        if len(split) > 1 or not is_first or outer is None or shape[outer] % count:
            return None
        found[outer] = entry
    return sharding_beside(array, found)


def _together(shape: tuple[int, ...], other: tuple[int, ...]) -> Iterator[tuple[list[int], list[int]]]:
    """The dimensions of two shapes, in the smallest groups with equal numbers of elements."""
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


class ViewKind(NamedTuple):
    """A kind of view: how it reads its parent's array, and how a write to it changes the parent's array."""

    read: Callable[[Any], Any]
    write: Callable[[Any, Any], Any]
    """``write(parent, value)`` is the parent's new array."""
    covers: bool = False
    """True if the view has all of its parent's elements, so that `write` does not need the parent."""
    permutation: tuple[int, ...] | None = None
    """The parent's dimension at each place of the view, if the view is a permutation of dimensions."""
    overlaps: bool = False
    """True if several elements of the view may be one of the parent's."""
    bit: str | None = None
    """``"conj"`` or ``"neg"`` if the view changes values so; PyTorch notes that as a bit of the tensor."""
    traced: tuple[tuple[int, object, int | None], ...] = ()
    """The dimensions that traced indices choose from, with the indices, and how many elements begin at each: the view's
    values are not known then either."""


@remembered(64)
def all_of(ndim: int) -> ViewKind:
    """The kind of a view of everything."""
    return ViewKind(lambda array: array, lambda _, value: value, covers=True, permutation=tuple(range(ndim)))


def flattening(shape: Sequence[int], order: tuple[int, ...] | None) -> ViewKind:
    """A storage's array as its memory: one dimension, in the order that PyTorch keeps the elements in."""
    if order is None:
        return ViewKind(lambda array: reshape(array, (array.size,)), lambda _, flat: reshape(flat, shape), covers=True)
    in_memory = tuple(shape[dim] for dim in order)
    inverse = tuple(int(dim) for dim in np.argsort(order))
    return ViewKind(
        lambda array: reshape(transpose(array, order), (array.size,)),
        lambda _, flat: transpose(reshape(flat, in_memory), inverse),
        covers=True,
    )


class Gaps(NamedTuple):
    """The strides and offset of elements that do not fill their memory."""

    strides: tuple[int, ...]
    offset: int

    def reach(self, shape: Sequence[int]) -> int:
        """The number of elements of memory that the elements span."""
        last = sum((size - 1) * stride for size, stride in zip(shape, self.strides, strict=True))
        return 0 if 0 in shape else self.offset + last + 1


def element_offsets(shape: Sequence[int], strides: Sequence[int], offset: int) -> np.ndarray:
    """The indices in memory of the elements of a strided tensor."""
    found = np.full((), offset, np.int32)
    for size, stride in zip(shape, strides, strict=True):
        found = found[..., None] + np.arange(size, dtype=np.int32) * stride
    return found


def spreading(shape: Sequence[int], gaps: Gaps) -> ViewKind:
    """As `flattening`, for a storage with gaps between its elements."""
    index, size = element_offsets(shape, *gaps), gaps.reach(shape)
    return ViewKind(
        lambda array: jnp.zeros(size, array.dtype).at[index].set(array, mode="promise_in_bounds"),
        lambda _, flat: flat.at[index].get(mode="promise_in_bounds", wrap_negative_indices=False),
        covers=True,
    )


def beginning(memory: ViewKind, size: int) -> ViewKind:
    """The array of a storage that has grown, as the beginning of its memory.

    Args:
        memory: the array as its memory, before that.
        size: how much memory that was.
    """
    return ViewKind(
        lambda flat: memory.write(None, lax.slice(flat, (0,), (size,))),
        lambda flat, array: lax.dynamic_update_slice(flat, memory.read(array), (np.int32(0),)),
    )


@remembered(4096)
def element(shape: Sequence[int], position: Sequence[int]) -> ViewKind:
    """The kind of a view of one element, at an index along each dimension."""
    limits, dims = tuple(i + 1 for i in position), tuple(range(len(shape)))

    def write(array: jax.Array, value: jax.Array):
        return lax.dynamic_update_slice(array, lax.expand_dims(value, dims), [np.int32(i) for i in position])

    return ViewKind(lambda array: lax.squeeze(lax.slice(array, position, limits), dims), write)
