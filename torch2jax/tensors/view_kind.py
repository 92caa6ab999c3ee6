"""The kinds of views: how each reads an array, and how a write to it changes the array."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jax import lax

from .arrays import reshape, transpose

__all__ = ["ViewKind", "all_of", "beginning", "flattening"]


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


def flattening(shape, order) -> ViewKind:
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


def beginning(shape, order) -> ViewKind:
    """The array of a storage that has grown, as the beginning of its memory."""
    size, memory = int(np.prod(shape)), flattening(shape, order)
    return ViewKind(
        lambda flat: memory.write(None, lax.slice(flat, (0,), (size,))),
        lambda flat, array: lax.dynamic_update_slice(flat, memory.read(array), (np.int32(0),)),
    )
