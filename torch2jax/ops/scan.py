"""Scans: running sums, products and extrema along a dimension."""

import jax.numpy as jnp
import torch
from jax import lax

from ..rules.registry import implements
from ..tensors.dtypes import INEXACT, NUMBERS, REALS_AND_BOOL, canonical
from .arrays import axis_of, cast, is_complex, widened
from .reduction import in_dtype, integers_to_int64


def _scan(function, array, dim: int):
    axis = axis_of(array, dim)
    return cast(function(widened(array), axis), array.dtype) if array.ndim else array


def _accumulated_dtypes(input, dim, *, dtype=None):
    return None if dtype is None else NUMBERS  # bool alone becomes int64


@implements(torch.cumsum, takes=_accumulated_dtypes, dtype=integers_to_int64)
def cumsum(input, dim, *, dtype=None):
    return _scan(lax.cumsum, in_dtype(input, dtype), dim)


@implements(torch.cumprod, takes=_accumulated_dtypes, dtype=integers_to_int64)
def cumprod(input, dim, *, dtype=None):
    return _scan(lax.cumprod, in_dtype(input, dtype), dim)


@implements(torch.logcumsumexp, takes=INEXACT)
def logcumsumexp(input, dim):
    if is_complex(input):  # the running maximum orders real numbers only
        return _scan(_complex_logcumsumexp, input, dim)
    return _scan(lax.cumlogsumexp, input, dim)


def _complex_logcumsumexp(array, axis):
    top = lax.stop_gradient(lax.reduce_max(lax.real(array), (axis,)))
    top = cast(lax.expand_dims(top, (axis,)), array.dtype)
    return lax.add(lax.log(lax.cumsum(lax.exp(lax.sub(array, top)), axis)), top)


def _running_extremum(scan, input, dim):
    """The extrema so far and the last index of each, whose element gets the gradient."""
    axis, index_dtype = axis_of(input, dim), canonical(torch.int64)
    if input.ndim == 0:
        return input, jnp.zeros((), index_dtype)
    array = lax.stop_gradient(cast(input, jnp.int8) if input.dtype == bool else input)
    is_extremum = lax.bitwise_or(lax.eq(array, scan(array, axis)), lax.ne(array, array))
    positions = lax.broadcasted_iota(index_dtype, input.shape, axis)
    indices = lax.cummax(lax.select(is_extremum, positions, lax.full_like(positions, 0)), axis)
    return jnp.take_along_axis(input, indices, axis), indices


@implements(torch.cummax, takes=REALS_AND_BOOL, dtype=(None, torch.int64))
def cummax(input, dim):
    return _running_extremum(lax.cummax, input, dim)


@implements(torch.cummin, takes=REALS_AND_BOOL, dtype=(None, torch.int64))
def cummin(input, dim):
    return _running_extremum(lax.cummin, input, dim)
