"""Reductions: sums, products, extrema, moments and norms over some of a tensor's dimensions."""

import functools
import math

import jax
import numpy as np
import torch
from jax import lax

from ..rules.options import Tag
from ..rules.registry import implements, implements_overloads, implements_tensors
from ..tensors.dtypes import INEXACT, REALS, REALS_AND_BOOL, canonical, is_integral
from .arrays import (
    at_least_1d,
    axes_of,
    axis_of,
    cast,
    is_complex,
    is_float,
    is_inexact,
    kept,
    like,
    real_dtype,
    spread,
    truth,
    where,
    widened,
)
from .bounds import seen
from .elementwise import magnitude

aten = torch.ops.aten


def _like_real(array, value):
    """A scalar literal of the dtype of an array's real part."""
    return np.asarray(value, real_dtype(array))


def _size(array, axes) -> int:
    return math.prod(array.shape[axis] for axis in axes)


def _expect_elements(array, axes, name: str) -> None:
    if _size(array, axes) or not axes or array.ndim == 0:
        return
    if len(axes) == array.ndim:
        raise RuntimeError(
            f"{name}(): Expected reduction dim to be specified for input.numel() == 0. Specify the "
            "reduction dim with the 'dim' argument."
        )
    empty = next(axis for axis in axes if array.shape[axis] == 0)
    raise IndexError(f"{name}(): Expected reduction dim {empty} to have non-zero size.")


def integers_to_int64(input, *_, dtype=None, **__) -> torch.dtype | None:
    """The dtype of sums and products: the one asked for, or int64 for integers."""
    return dtype or (torch.int64 if is_integral(input.dtype) else None)


def in_dtype(input, dtype: torch.dtype | None):
    """The operand of a sum or product, in the dtype asked for, or int64 for integers."""
    if dtype is None and not is_inexact(input):
        dtype = torch.int64
    return input if dtype is None else cast(input, canonical(dtype))


# Sums and products.


@implements(torch.sum, dtype=integers_to_int64, tags=[Tag.LINEAR])
def sum(input, dim=None, keepdim=False, *, dtype=None):
    axes, array = axes_of(input, dim), in_dtype(input, dtype)
    if array.dtype == np.bool_:
        return kept(lax.reduce_or(array, axes), axes, keepdim)
    return kept(cast(lax.reduce_sum(widened(array), axes), array.dtype), axes, keepdim)


@implements(torch.mean, takes=INEXACT, dtype=lambda *_, dtype=None, **__: dtype, tags=[Tag.LINEAR])
def mean(input, dim=None, keepdim=False, *, dtype=None):
    axes, array = axes_of(input, dim), input if dtype is None else cast(input, canonical(dtype))
    return kept(cast(_mean(widened(array), axes), array.dtype), axes, keepdim)


def _mean(array, axes):
    return lax.div(lax.reduce_sum(array, axes), like(array, _size(array, axes)))


@implements(torch.nansum, dtype=integers_to_int64)
def nansum(input, dim=None, keepdim=False, *, dtype=None):
    if dtype is not None and is_integral(dtype) and is_inexact(input):
        raise NotImplementedError(f"nansum got dtype={dtype} for floating-point numbers, of which nan is no integer")
    array = in_dtype(input, dtype)
    if is_float(array):
        array = where(lax.ne(array, array), like(array, 0), array)
    return sum(array, dim, keepdim)


@implements(torch.prod, dtype=integers_to_int64)
def prod(input, dim=None, keepdim=False, *, dtype=None):
    axes, array = axes_of(input, dim), in_dtype(input, dtype)
    reduce = lax.reduce_and if array.dtype == bool else lax.reduce_prod
    return kept(cast(reduce(widened(array), axes), array.dtype), axes, keepdim)


def _bool_or_uint8(input, *_, **__) -> torch.dtype:
    return torch.uint8 if input.dtype == torch.uint8 else torch.bool


@implements(torch.all, dtype=_bool_or_uint8)
def all(input, dim=None, keepdim=False):
    axes = axes_of(input, dim)
    return kept(lax.reduce_and(truth(input), axes), axes, keepdim)


@implements(torch.any, dtype=_bool_or_uint8)
def any(input, dim=None, keepdim=False):
    axes = axes_of(input, dim)
    return kept(lax.reduce_or(truth(input), axes), axes, keepdim)


@implements(torch.count_nonzero, dtype=torch.int64)
def count_nonzero(input, dim=None):
    return lax.reduce_sum(cast(truth(input), canonical(torch.int64)), axes_of(input, dim))


# Extrema. A full reduction shares its gradient among ties; one along a dimension gives it to the element it indexes.


def _reduce_max(array, axes):
    return (lax.reduce_or if array.dtype == bool else lax.reduce_max)(array, axes)


def _reduce_min(array, axes):
    return (lax.reduce_and if array.dtype == bool else lax.reduce_min)(array, axes)


@implements(torch.amax, takes=REALS_AND_BOOL)
def amax(input, dim=(), keepdim=False):
    axes = axes_of(input, dim)
    _expect_elements(input, axes, "amax")
    return kept(_reduce_max(input, axes), axes, keepdim)


@implements(torch.amin, takes=REALS_AND_BOOL)
def amin(input, dim=(), keepdim=False):
    axes = axes_of(input, dim)
    _expect_elements(input, axes, "amin")
    return kept(_reduce_min(input, axes), axes, keepdim)


@implements(torch.aminmax, takes=REALS_AND_BOOL, exact_out=True)
def aminmax(input, *, dim=None, keepdim=False):
    axes = axes_of(input, dim)
    _expect_elements(input, axes, "aminmax")
    return kept(_reduce_min(input, axes), axes, keepdim), kept(_reduce_max(input, axes), axes, keepdim)


def _arg_extremum(function, input, dim, name):
    axis = 0 if dim is None else axis_of(input, dim)
    array = lax.reshape(input, (input.size,)) if dim is None and input.ndim != 1 else at_least_1d(input)
    _expect_elements(array, (axis,), name)
    return function(array, axis, canonical(torch.int64))


@implements(torch.argmax, takes=REALS, dtype=torch.int64)
def argmax(input, dim=None, keepdim=False):
    indices = _arg_extremum(lax.argmax, input, dim, "argmax")
    return _kept_index(indices, input, dim, keepdim)


@implements(torch.argmin, takes=REALS, dtype=torch.int64)
def argmin(input, dim=None, keepdim=False):
    indices = _arg_extremum(lax.argmin, input, dim, "argmin")
    return _kept_index(indices, input, dim, keepdim)


def _kept_index(indices, input, dim, keepdim):
    return kept(indices, axes_of(input, dim), keepdim) if input.ndim else lax.reshape(indices, ())


def at_index(array, indices, axis: int):
    """The element of each line along `axis` at its index, as a sum over a mask: its gradient is a select."""
    mask = lax.eq(lax.broadcasted_iota(indices.dtype, array.shape, axis), lax.expand_dims(indices, (axis,)))
    if array.dtype == bool:
        return lax.reduce_or(lax.bitwise_and(mask, array), (axis,))
    return lax.reduce_sum(where(mask, array, like(array, 0)), (axis,))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 2))
def _extremum(reduce, array, axis: int):
    """The extremum along one dimension, and its index, which alone gets the gradient."""
    find = lax.argmax if reduce is _reduce_max else lax.argmin
    numbers = cast(array, np.int8) if array.dtype == bool else array
    return reduce(array, (axis,)), find(numbers, axis, canonical(torch.int64))


@_extremum.defjvp
def _(reduce, axis, primals, tangents):
    values, indices = _extremum(reduce, *primals, axis)
    return (values, indices), (at_index(tangents[0], indices, axis), np.zeros(indices.shape, jax.dtypes.float0))


@jax.custom_jvp
def shared(array, value):
    """`value`, one of the array's, whose derivative is shared among the elements equal to it: all nans for a nan."""
    del array
    return value


@shared.defjvp
def _(primals, tangents):
    array, value = primals
    equal = lax.bitwise_or(lax.eq(array, value), lax.bitwise_and(lax.ne(array, array), lax.ne(value, value)))
    axes = tuple(range(array.ndim))
    count = lax.reduce_sum(cast(equal, array.dtype), axes)
    return value, lax.div(lax.reduce_sum(where(equal, tangents[0], like(array, 0)), axes), count)


def _extremum_of_all(reduce, input, name):
    axes = axes_of(input, None)
    _expect_elements(input, axes, name)
    value = reduce(lax.stop_gradient(input), axes)
    return shared(input, value) if is_float(input) else value


def _along(reduce, input, dim, keepdim, name):
    axis = axis_of(input, dim)
    if input.ndim == 0:
        return input, np.zeros((), canonical(torch.int64))
    _expect_elements(input, (axis,), name)
    values, indices = _extremum(reduce, input, axis)
    return kept(values, (axis,), keepdim), kept(indices, (axis,), keepdim)


@implements(aten.max.dim, aten.max.dim_max, takes=REALS_AND_BOOL, dtype=(None, torch.int64))
def max_dim(input, dim, keepdim=False):
    return _along(_reduce_max, input, dim, keepdim, "max")


@implements(aten.min.dim, aten.min.dim_min, takes=REALS_AND_BOOL, dtype=(None, torch.int64))
def min_dim(input, dim, keepdim=False):
    return _along(_reduce_min, input, dim, keepdim, "min")


@implements(aten.max.default, takes=REALS_AND_BOOL)
def max_all(input):
    return _extremum_of_all(_reduce_max, input, "amax")


@implements(aten.min.default, takes=REALS_AND_BOOL)
def min_all(input):
    return _extremum_of_all(_reduce_min, input, "amin")


def _overloads(every, along, of_two):
    """Dispatches the overloads of one name: over everything, along a dimension, of two tensors."""

    def choose(input, other=None, keepdim=False, *, dim=None, out=None):
        if isinstance(other, torch.Tensor):
            return of_two
        return every if dim is None and other is None else along

    return choose


implements_overloads(torch.max, torch.Tensor.max, tags=[Tag.FRESH])(
    _overloads(aten.max.default, aten.max.dim, torch.maximum)
)
implements_overloads(torch.min, torch.Tensor.min, tags=[Tag.FRESH])(
    _overloads(aten.min.default, aten.min.dim, torch.minimum)
)


# Moments.


def _deviations(array, axes):
    return lax.sub(array, spread(_mean(array, axes), array, axes))


def _mean_square(array, axes, freedom):
    return lax.div(lax.reduce_sum(_real_product(array, array), axes), _like_real(array, freedom))


def _real_product(x, y):
    """The real part of ``conj(x) * y``."""
    if is_complex(x):
        return lax.add(lax.mul(lax.real(x), lax.real(y)), lax.mul(lax.imag(x), lax.imag(y)))
    return lax.square(x) if x is y else lax.mul(x, y)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _variance(array, axes, freedom):
    return _mean_square(_deviations(array, axes), axes, freedom)


@_variance.defjvp
def _(axes, freedom, primals, tangents):
    # The derivative through the mean is zero, since deviations sum to zero.
    deviations = _deviations(*primals, axes)
    slope = lax.div(lax.reduce_sum(_real_product(deviations, tangents[0]), axes), _like_real(deviations, freedom / 2))
    return _mean_square(deviations, axes, freedom), slope


@jax.custom_jvp
def _root(array):
    """The square root, with PyTorch's derivative of zero at zero."""
    return lax.sqrt(array)


@_root.defjvp
def _(primals, tangents):
    root = _root(*primals)
    at_zero = lax.eq(root, like(root, 0))
    slope = lax.div(tangents[0], where(at_zero, like(root, 1), lax.mul(root, like(root, 2))))
    return root, where(at_zero, like(root, 0), slope)


def _moment(input, dim, unbiased, keepdim, correction):
    """The variance and the mean, in the dtype that PyTorch accumulates in."""
    if isinstance(dim, bool):  # var(input, unbiased)
        dim, unbiased = None, dim
    if correction is None:
        correction = 1 if unbiased is None else int(unbiased)
    axes, array = axes_of(input, dim), widened(input)
    freedom = max(0, _size(array, axes) - correction)
    return kept(_variance(array, axes, freedom), axes, keepdim), axes


def _dtype_of_moment(input, *_, **__):
    return input.dtype.to_real()


@implements(torch.var, aten.var, takes=INEXACT, dtype=_dtype_of_moment)
def var(input, dim=None, unbiased=True, keepdim=False, *, correction=None):
    return _moment(input, dim, unbiased, keepdim, correction)[0]


@implements(torch.std, aten.std, takes=INEXACT, dtype=_dtype_of_moment)
def std(input, dim=None, unbiased=True, keepdim=False, *, correction=None):
    return _root(_moment(input, dim, unbiased, keepdim, correction)[0])


def _dtypes_of_moments(input, *_, **__):
    return input.dtype.to_real(), input.dtype


@implements(torch.var_mean, aten.var_mean, takes=INEXACT, dtype=_dtypes_of_moments)
def var_mean(input, dim=None, unbiased=True, keepdim=False, *, correction=None):
    variance, axes = _moment(input, dim, unbiased, keepdim, correction)
    return variance, kept(_mean(widened(input), axes), axes, keepdim)


@implements(torch.std_mean, aten.std_mean, takes=INEXACT, dtype=_dtypes_of_moments)
def std_mean(input, dim=None, unbiased=True, keepdim=False, *, correction=None):
    variance, mean = var_mean(input, dim, unbiased, keepdim, correction=correction)
    return _root(variance), mean


@implements_tensors(torch.cov, torch.Tensor.cov, aten.cov.default)
def cov(input, *, correction=1, fweights=None, aweights=None):
    if input.ndim > 2:
        raise RuntimeError(f"cov(): expected input to have two or fewer dimensions, but got {input.ndim}")
    if input.dtype == torch.bool:
        raise RuntimeError("cov(): bool dtype is not supported for input")
    observations = input.reshape(1, -1) if input.ndim < 2 else input
    weights = _weights(observations.shape[1], fweights, aweights)
    total = observations.shape[1] if weights is None else weights.sum()
    weighted = observations if weights is None else observations * weights
    if aweights is None or correction == 0:
        freedom = torch.as_tensor(total - correction, device=input.device)
    else:
        freedom = total - correction * (weights * aweights).sum() / total
    deviations = observations - (weighted.sum(1) / total).unsqueeze(1)
    weighted = deviations if weights is None else deviations * weights
    return torch.true_divide(deviations @ weighted.mH, freedom.clamp_min(0)).squeeze()


def _weights(count: int, fweights, aweights):
    """The weight of each observation, or None."""
    for name, weights, floating in (("fweights", fweights, False), ("aweights", aweights, True)):
        if weights is None:
            continue
        if weights.ndim > 1 or weights.numel() != count:
            raise RuntimeError(f"cov(): expected {name} to be {count} numbers, but got shape {tuple(weights.shape)}")
        if weights.is_floating_point() != floating or weights.dtype == torch.bool:
            raise RuntimeError(f"cov(): expected {name} to have {'floating point' if floating else 'integral'} dtype")
        values = seen(weights)
        if values is not None and (values < 0).any():
            raise RuntimeError(f"cov(): {name} cannot be negative")
    if fweights is None or aweights is None:
        weights = fweights if aweights is None else aweights
    else:
        weights = fweights * aweights
    values = None if weights is None else seen(weights)
    if values is not None and values.size and (values.reshape(len(values), -1).sum(1) == 0).any():
        raise RuntimeError("cov(): weights sum to zero, can't be normalized")
    return weights


# Logarithms of sums, and norms.


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _logsumexp(array, axes):
    real = lax.real(array) if is_complex(array) else array
    top = lax.expand_dims(lax.reduce_max(real, axes), axes)
    top = lax.stop_gradient(where(lax.is_finite(top), top, like(top, 0)))
    total = lax.reduce_sum(lax.exp(lax.sub(array, cast(top, array.dtype))), axes)
    return lax.add(lax.log(total), cast(lax.squeeze(top, axes), array.dtype))


@_logsumexp.defjvp
def _(axes, primals, tangents):
    result = _logsumexp(*primals, axes)
    top = lax.expand_dims(where(_is_minus_infinity(result), like(result, 0), result), axes)
    return result, lax.reduce_sum(lax.mul(lax.exp(lax.sub(primals[0], top)), tangents[0]), axes)


def _is_minus_infinity(array):
    real = lax.real(array) if is_complex(array) else array
    return lax.eq(real, like(real, -math.inf))


@implements(torch.logsumexp, torch.special.logsumexp, dtype=lambda input, *_, **__: _inexact(input.dtype))
def logsumexp(input, dim, keepdim=False):
    axes = axes_of(input, dim)
    array = widened(input if is_inexact(input) else cast(input, canonical(torch.get_default_dtype())))
    if _size(array, axes) == 0:
        return kept(lax.log(lax.reduce_sum(array, axes)), axes, keepdim)
    return kept(_logsumexp(array, axes), axes, keepdim)


def _inexact(dtype: torch.dtype) -> torch.dtype:
    return torch.get_default_dtype() if is_integral(dtype) else dtype


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _power_norm(array, order: float, axes):
    """The norm of an order other than 0, 1 and infinity; its derivative is zero where the norm or an element is."""
    if order == 2:
        return lax.sqrt(lax.reduce_sum(_real_product(array, array), axes))
    return lax.pow(
        lax.reduce_sum(lax.pow(lax.abs(array), _like_real(array, order)), axes), _like_real(array, 1 / order)
    )


@_power_norm.defjvp
def _(order, axes, primals, tangents):
    (array,), (tangent,) = primals, tangents
    norm = _power_norm(array, order, axes)
    zero = like(norm, 0)
    slope = _real_product(array, tangent)
    if order == 2:
        scale = norm
    else:
        size = lax.abs(array)
        power = lax.pow(where(lax.eq(size, zero), like(size, 1), size), like(size, order - 2))
        slope = lax.mul(slope, where(lax.eq(size, zero), zero, power))
        scale = lax.pow(norm, like(norm, order - 1))
    slope = lax.div(lax.reduce_sum(slope, axes), where(lax.eq(norm, zero), like(norm, 1), scale))
    return norm, where(lax.eq(norm, zero), zero, slope)


def _norm(array, order: float, axes):
    if order == 0:
        return lax.reduce_sum(cast(truth(array), real_dtype(array)), axes)
    if order == 1:
        return lax.reduce_sum(magnitude(array), axes)
    if order == math.inf:
        return lax.reduce_max(magnitude(array), axes)
    if order == -math.inf:
        return lax.reduce_min(magnitude(array), axes)
    return _power_norm(array, order, axes)


def _dtype_of_norm(input, *_, dtype=None, **__):
    return (dtype or input.dtype).to_real()


@implements(torch.linalg.vector_norm, aten.linalg_vector_norm, dtype=_dtype_of_norm)
def vector_norm(x, ord=2, dim=None, keepdim=False, *, dtype=None):
    if not is_inexact(x):
        raise RuntimeError(f"linalg.vector_norm: Expected a floating point or complex tensor as input. Got {x.dtype}")
    axes, array = axes_of(x, dim), widened(x if dtype is None else cast(x, canonical(dtype)))
    if _size(array, axes) == 0 and (ord < 0 or ord == math.inf):
        raise RuntimeError(
            f"linalg.vector_norm cannot compute the {ord} norm on an empty tensor because the operation does not have "
            "an identity"
        )
    return kept(_norm(array, float(ord), axes), axes, keepdim)


# Hashes.


@implements(torch.hash_tensor, takes=REALS_AND_BOOL, dtype=torch.uint64)
def hash_tensor(input, dim=(), *, keepdim=False, mode=0):
    if mode != 0:
        raise RuntimeError(f"hash_tensor: got mode={mode}; wanted 0, the exclusive or of all elements")
    axes, bits = axes_of(input, dim), _bits(input)
    return kept(lax.reduce(bits, like(bits, 0), lax.bitwise_xor, axes), axes, keepdim)


def _bits(array):
    """Each element as an int64 or a double, bit by bit; the lower half of them where JAX has 32 bits only."""
    wide = canonical(torch.uint64)
    if not is_float(array):
        return cast(cast(array, canonical(torch.int64)), wide)
    if wide.itemsize == 8:
        return lax.bitcast_convert_type(cast(array, np.float64), wide)
    # A double has 29 more bits for the mantissa, so that a float's last three are the first of the lower half.
    bits = lax.bitcast_convert_type(cast(array, np.float32), wide)
    return lax.shift_left(bits, like(bits, 29))
