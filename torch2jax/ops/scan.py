"""Scans: running sums, products and extrema along a dimension."""

import functools
import math

import jax
import jax.numpy as jnp
import torch
from jax import lax

from ..rules.options import Tag
from ..rules.registry import implements
from ..tensors.dtypes import INEXACT, NUMBERS, REALS_AND_BOOL, canonical
from .arithmetic import sum_of_powers
from .arrays import axis_of, cast, is_complex, widened
from .reduction import in_dtype, integers_to_int64


def _scan(function, array, dim: int):
    axis = axis_of(array, dim)
    return cast(function(widened(array), axis), array.dtype) if array.ndim else array


def _accumulated_dtypes(input, dim, *, dtype=None):
    return None if dtype is None else NUMBERS  # bool alone becomes int64


@implements(torch.cumsum, takes=_accumulated_dtypes, dtype=integers_to_int64, tags=[Tag.LINEAR])
def cumsum(input, dim, *, dtype=None):
    return _scan(lax.cumsum, in_dtype(input, dtype), dim)


@implements(torch.cumprod, takes=_accumulated_dtypes, dtype=integers_to_int64)
def cumprod(input, dim, *, dtype=None):
    return _scan(lax.cumprod, in_dtype(input, dtype), dim)


@implements(torch.logcumsumexp, takes=INEXACT)
def logcumsumexp(input, dim):
    if is_complex(input):  # the running maximum orders real numbers only
        return _scan(_complex_logcumsumexp, input, dim)
    return _scan(_cumlogsumexp, input, dim)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _cumlogsumexp(array, axis):
    """``lax.cumlogsumexp``, whose own derivatives are wrong behind an infinity."""
    return lax.cumlogsumexp(array, axis)


@_cumlogsumexp.defjvp
def _(axis, primals, tangents):
    combine = functools.partial(sum_of_powers, 1.0)
    return jax.jvp(lambda x: lax.associative_scan(combine, x, axis=axis), primals, tangents)


def _complex_logcumsumexp(array, axis):
    return lax.associative_scan(_complex_logaddexp, array, axis=axis)


def _complex_logaddexp(one, other):
    """Complex `logaddexp`, also of two infinite numbers: where PyTorch's result is one of them, so is this."""
    ordered = lax.ge(lax.real(one), lax.real(other))
    high, low = lax.select(ordered, one, other), lax.select(ordered, other, one)
    is_nothing = lax.real(low) == -math.inf  # its exponential is zero, whatever its imaginary part
    both = lax.real(low) == math.inf
    usual = lax.bitwise_not(lax.bitwise_or(is_nothing, both))
    finite = lax.select(usual, lax.sub(low, high), lax.full_like(low, 0))
    sums = lax.add(high, lax.log1p(lax.exp(finite)))
    infinite = lax.log(lax.add(*map(_exp_of_infinity, lax.stop_gradient((high, low)))))
    return lax.select(is_nothing, high, lax.select(both, infinite, sums))


def _exp_of_infinity(array):
    """The exponential of numbers whose real part is infinite: a zero in their imaginary part stays."""
    angle = lax.imag(array)
    sine = lax.select(angle == 0, angle, lax.sin(angle) * math.inf)
    return lax.complex(lax.cos(angle) * math.inf, sine)


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
