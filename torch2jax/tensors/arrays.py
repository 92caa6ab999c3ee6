"""Arrays in other shapes, for which nothing is emitted where they have them already."""

from collections.abc import Sequence

import jax
from jax import lax

__all__ = ["reshape", "transpose"]


def reshape(array: jax.Array, shape: Sequence[int]):
    """`array` in another shape; nothing is emitted where it has that shape already."""
    return array if array.shape == tuple(shape) else lax.reshape(array, shape)


def transpose(array: jax.Array, permutation: Sequence[int]):
    """`array` with its dimensions permuted; nothing is emitted for the identity."""
    return array if list(permutation) == list(range(array.ndim)) else lax.transpose(array, permutation)
