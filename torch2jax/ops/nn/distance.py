"""Distances and similarities."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ...rules.registry import implements
from ...tensors.dtypes import FLOATS
from ..arrays import cast, like, where, widened
from ..complex import magnitude

_MATMUL_FROM = 26  # rows: where PyTorch computes Euclidean distances as a product of matrices


@implements(torch.cdist, takes=FLOATS)
def cdist(x1, x2, p=2.0, compute_mode=None):
    if x1.ndim < 2 or x2.ndim < 2 or x1.shape[-1] != x2.shape[-1]:
        raise RuntimeError(
            "cdist needs two tensors of at least 2 dimensions with the same number of columns, got shapes "
            f"{list(x1.shape)} and {list(x2.shape)}"
        )
    if p < 0:
        raise RuntimeError(f"cdist only supports non-negative p values, got {p}")
    a, b = widened(x1), widened(x2)
    if p == 2 and _uses_matmul(compute_mode, max(a.shape[-2], b.shape[-2])):
        return cast(_euclidean(a, b), x1.dtype)
    return cast(_norm(a[..., :, None, :] - b[..., None, :, :], p), x1.dtype)


def _uses_matmul(mode, rows: int) -> bool:
    if mode in ("use_mm_for_euclid_dist", 1):
        return True
    return mode in ("use_mm_for_euclid_dist_if_necessary", None, 0) and rows >= _MATMUL_FROM


def _euclidean(a, b):
    squares = [jnp.sum(lax.square(x), axis=-1) for x in (a, b)]
    products = jnp.matmul(a, jnp.swapaxes(b, -1, -2), precision=lax.Precision.HIGHEST)
    return _root(lax.max(squares[0][..., :, None] + squares[1][..., None, :] - 2 * products, like(a, 0)), 2)


def _norm(difference, p):
    """The p-norm over the last dimension, with PyTorch's zero derivative where it is zero."""
    last = (difference.ndim - 1,)
    if p == 0:
        return lax.reduce_sum(cast(lax.ne(difference, like(difference, 0)), difference.dtype), last)
    if p == 2:
        return _root(lax.reduce_sum(lax.square(difference), last), 2)
    size = magnitude(difference)
    if p == 1:
        return lax.reduce_sum(size, last)
    if math.isinf(p):
        return _largest(size) if size.shape[-1] else jnp.zeros(size.shape[:-1], size.dtype)
    return _root(lax.reduce_sum(_where_positive(lambda x: x ** like(x, p), size), last), p)


@jax.custom_jvp
def _largest(x):
    """The largest along the last dimension; of several, as in PyTorch's distances, each has all of the derivative."""
    return lax.reduce_max(x, (x.ndim - 1,))


@_largest.defjvp
def _(primals, tangents):
    (x,), (tangent,) = primals, tangents
    largest = _largest(x)
    is_largest = lax.eq(x, lax.broadcast_in_dim(largest, x.shape, tuple(range(x.ndim - 1))))
    return largest, lax.reduce_sum(lax.mul(tangent, cast(is_largest, x.dtype)), (x.ndim - 1,))


def _root(x, p):
    return _where_positive(lambda y: lax.sqrt(y) if p == 2 else y ** like(y, 1 / p), x)


def _where_positive(function, x):
    """A function where its argument is positive, and zero, with derivative zero, where it is zero."""
    zero = lax.eq(x, like(x, 0))
    return where(zero, like(x, 0), function(where(zero, like(x, 1), x)))


@implements(torch.pdist, takes=FLOATS)
def pdist(input, p=2.0):
    if input.ndim != 2:
        raise RuntimeError(f"pdist only supports 2D tensors, got: {input.ndim}D")
    if p < 0:
        raise RuntimeError(f"pdist only supports non-negative p values, got {p}")
    rows, columns = np.triu_indices(len(input), 1)
    return cast(_norm(widened(input)[rows] - widened(input)[columns], p), input.dtype)
