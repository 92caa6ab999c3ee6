"""Linear and bilinear layers, distances and similarities."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ...rules.inplace import check_cast
from ...rules.options import Tag
from ...rules.registry import implements
from ...rules.rule import of_metadata
from ...tensors.dtypes import FLOATS, NUMBERS, canonical
from ...tensors.view_kind import dot_general, rows_of
from ..arrays import cast, is_float8, like, where, widened
from ..elementwise import magnitude
from ..views import reshape


@of_metadata
def _with_bias_as_added(input, weight, bias=None):
    """The arguments, where a bias of another dtype is one that PyTorch adds to the product afterwards.

    Raises:
        RuntimeError: PyTorch adds it within the product, or its dtype does not fit into that of the product.
    """
    if bias is not None and canonical(bias.dtype) != canonical(input.dtype):
        if input.ndim < 3 or input.is_contiguous():
            raise RuntimeError(
                "linear expected input, weight and bias to have the same dtype, but got "
                f"{input.dtype}, {weight.dtype} and {bias.dtype}"
            )
        check_cast(bias, input)
    return (input, weight, bias), {}


@implements(torch.nn.functional.linear, prepare=_with_bias_as_added, takes=NUMBERS, tags=[Tag.PRODUCT])
def linear(input, weight, bias=None):
    if input.dtype != weight.dtype:
        raise RuntimeError(
            f"linear expected input and weight to have the same dtype, but got {input.dtype} and {weight.dtype}"
        )
    if input.ndim == 0 or input.shape[-1] != weight.shape[-1]:
        raise RuntimeError(
            f"mat1 and mat2 shapes cannot be multiplied: linear expected the last dimension of input and of weight to "
            f"be equal, but got input of shape {input.shape} and weight of shape {weight.shape}"
        )
    rows = input if input.ndim <= 2 else _rows(input)
    dims = ((rows.ndim - 1,), (weight.ndim - 1,)), ((), ())
    wide = np.float32 if bias is not None and is_float8(rows) else None  # PyTorch rounds to 8 bits once
    output = dot_general(rows, weight, dims, wide)
    if bias is not None:  # added to the matrix: XLA fuses it there, and not with what follows the reshape
        common, own = output.dtype if wide else jnp.promote_types(output.dtype, bias.dtype), rows.dtype
        bias = rows_of(cast(bias, common), output)
        output = cast(lax.add(cast(output, common), bias), own)
    return reshape(output, (*input.shape[:-1], *weight.shape[:-1]))


def _rows(array):
    return reshape(array, (math.prod(array.shape[:-1]), array.shape[-1]))


@implements(torch.bilinear, torch.nn.functional.bilinear, takes=NUMBERS)
def bilinear(input1, input2, weight, bias=None):
    if input1.shape[:-1] != input2.shape[:-1]:
        raise RuntimeError(f"bilinear expected inputs of equal leading sizes, got {input1.shape} and {input2.shape}")
    if weight.shape[1:] != (input1.shape[-1], input2.shape[-1]):
        raise RuntimeError(
            f"bilinear expected weight of shape (out, {input1.shape[-1]}, {input2.shape[-1]}), got {weight.shape}"
        )
    first, second = _rows(input1), _rows(input2)
    partial = lax.dot_general(first, weight, (((1,), (1,)), ((), ())))  # rows, out, in2
    output = lax.dot_general(partial, second, (((2,), (1,)), ((0,), (0,))))
    if bias is not None:
        output = lax.add(output, rows_of(bias, output))
    return reshape(output, (*input1.shape[:-1], weight.shape[0]))


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
