"""The kinds of views: how each reads an array, and how a write through it changes the array."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .arrays import reshape, transpose

__all__ = ["Gaps", "ViewKind", "all_of", "beginning", "element", "flattening", "places", "spreading"]


class ViewKind(NamedTuple):
    """How one kind of view reads its parent's array, and how a write to it changes the parent's array."""

    read: Callable[[Any], Any]
    write: Callable[[Any, Any], Any]
    """``write(parent, value)`` is the parent's new array."""
    covers: bool = False
    """Whether the view has all of its parent's elements, so that `write` does not need the parent."""
    permutation: tuple[int, ...] | None = None
    """The parent's dimension at each place of the view, if the view is a permutation of dimensions."""
    overlaps: bool = False
    """Whether several elements of the view may be one of the parent's."""
    bit: str | None = None
    """``"conj"`` or ``"neg"`` if the view changes values so; PyTorch notes that as a bit of the tensor."""
    traced: tuple[tuple[int, Any], ...] = ()
    """The dimensions that traced indices choose from, with the indices: the view's values are not known then either."""


@functools.cache
def all_of(ndim: int) -> ViewKind:
    """A view of everything as it is."""
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
    """Where elements lie in memory that has others between them, or before them."""

    strides: tuple[int, ...]
    offset: int

    def reach(self, shape: Sequence[int]) -> int:
        """How much memory it takes to hold them."""
        last = sum((size - 1) * stride for size, stride in zip(shape, self.strides, strict=True))
        return 0 if 0 in shape else self.offset + last + 1


def places(shape: Sequence[int], strides: Sequence[int], offset: int) -> np.ndarray:
    """Where the elements of a strided tensor lie in memory."""
    found = np.full((), offset, np.int32)
    for size, stride in zip(shape, strides, strict=True):
        found = found[..., None] + np.arange(size, dtype=np.int32) * stride
    return found


def spreading(shape: Sequence[int], gaps: Gaps) -> ViewKind:
    """As `flattening`, of a storage whose elements have gaps between them."""
    index, size = places(shape, *gaps), gaps.reach(shape)
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


@functools.lru_cache(maxsize=4096)
def element(shape: Sequence[int], place: Sequence[int]) -> ViewKind:
    """One element, at a place along each dimension."""
    limits, dims = tuple(i + 1 for i in place), tuple(range(len(shape)))

    def write(array: jax.Array, value: jax.Array):
        return lax.dynamic_update_slice(array, lax.expand_dims(value, dims), [np.int32(i) for i in place])

    return ViewKind(lambda array: lax.squeeze(lax.slice(array, place, limits), dims), write)
