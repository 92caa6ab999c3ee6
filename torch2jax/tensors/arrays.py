"""Arrays in other shapes, for which nothing is emitted where they have them already."""

from jax import lax

__all__ = ["reshape", "transpose"]


def reshape(array, shape):
    """`array` in another shape; nothing is emitted where it has that shape already."""
    return array if array.shape == tuple(shape) else lax.reshape(array, shape)


def transpose(array, permutation):
    """`array` with its dimensions permuted; nothing is emitted for the identity."""
    return array if list(permutation) == list(range(array.ndim)) else lax.transpose(array, permutation)
