"""Activation functions."""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.nn.functional as F
from jax import lax

from ...rules.pointwise import as_copy, like_input
from ...rules.promotion import Promotion
from ...rules.registry import implements, implements_tensors, limit_decomposed
from ...tensors.dtypes import FLOATS, INEXACT, REALS, canonical
from ..arrays import axis_of, cast, is_unsigned, like, spread, where, widened

aten = torch.ops.aten
exact = functools.partial(implements, promote=Promotion.NO_OPMATH)
activation = functools.partial(implements, promote=Promotion.DEFAULT, takes=FLOATS)


# Rectifiers. Their derivative at a kink is PyTorch's: zero where two pieces meet, unless said otherwise.


@jax.custom_jvp
def _relu(x):
    return lax.max(x, like(x, 0))


@_relu.defjvp
def _(primals, tangents):
    (x,), (tangent,) = primals, tangents
    return _relu(x), lax.select(lax.le(x, lax.full_like(x, 0)), lax.full_like(tangent, 0), tangent)  # nan: all of it


@exact(torch.relu, F.relu, takes=REALS)
def relu(input):
    return _relu(input)


def _clamp(x, low, high):
    # The derivative of lax.clamp is zero at both bounds.
    return lax.clamp(like(x, low), x, like(x, high))


@exact(F.relu6, takes=REALS)
def relu6(input):
    return hardtanh(input, min_val=0, max_val=6)


@exact(F.hardtanh, takes=REALS, fits=("min_val", "max_val"), strides=as_copy)
def hardtanh(input, *, min_val=-1.0, max_val=1.0):
    if min_val > max_val:
        raise ValueError(f"min_val cannot be greater than max_val, got {min_val} and {max_val}")
    if min_val < 0 and is_unsigned(input):
        raise RuntimeError(f"hardtanh got min_val={min_val} for {input.dtype}, which holds no negative number")
    return _clamp(input, min_val, max_val)


@activation(F.hardsigmoid)
def hardsigmoid(input):
    return lax.div(_clamp(lax.add(input, like(input, 3)), 0, 6), like(input, 6))


@activation(F.hardswish)
def hardswish(input):
    return lax.mul(input, hardsigmoid(input))


@activation(F.leaky_relu, fits=("negative_slope",))
def leaky_relu(input, *, negative_slope=0.01):
    return _rectify(input, lambda x: lax.mul(x, like(x, negative_slope)))


def _rectify(x, negative):
    """`x` where it is positive, a function of it elsewhere."""
    return where(lax.gt(x, like(x, 0)), x, negative(x))


def _expm1_below(x, factor):
    """``expm1`` of the values below zero, times a factor; elsewhere it could overflow, and make the derivative NaN."""
    return lax.expm1(_times(where(lax.gt(x, like(x, 0)), like(x, 0), x), factor))


@activation(F.elu, fits=("alpha",))
def elu(input, *, alpha=1.0, scale=1, input_scale=1):
    def body(x):
        negative = lax.mul(_expm1_below(x, input_scale), like(x, alpha))
        return _times(where(lax.gt(x, like(x, 0)), x, negative), scale)

    return _straight_at_kinks(lambda x: lax.eq(x, like(x, 0)), body, input)


def _straight_at_kinks(is_kink: Callable, body: Callable, x):
    """``body(x)``, elementwise, taken for a straight line at kinks: PyTorch has second derivatives of zero there."""

    @jax.custom_jvp
    def function(x):
        return body(x)

    @function.defjvp
    def _(primals, tangents):
        def straight(x):
            at = lax.stop_gradient(x)  # so that neither the value nor the slope there has a derivative
            value, slope = jax.jvp(body, (at,), (lax.full_like(at, 1),))
            return where(is_kink(at), lax.add(value, lax.mul(slope, lax.sub(x, at))), body(x))

        return jax.jvp(straight, primals, tangents)

    return function(x)


def _times(x, factor):
    return lax.mul(x, like(x, factor)) if factor != 1 else x


@activation(torch.selu, F.selu)
def selu(input):
    return elu(input, alpha=1.6732632423543772848170429916717, scale=1.0507009873554804934193349852946)


@activation(torch.celu, F.celu, fits=("alpha",))
def celu(input, *, alpha=1.0):
    if alpha == 0:
        raise RuntimeError("ZeroDivisionError: alpha cannot be 0 for CELU")
    return elu(input, alpha=alpha, input_scale=1 / alpha)


@implements(torch.prelu, takes=FLOATS, strides=like_input)
def prelu(input, weight):
    if input.dtype != weight.dtype:
        raise RuntimeError(f"prelu: Type promoting not supported. Got {input.dtype} and {weight.dtype}")
    if weight.ndim > 1:
        raise RuntimeError(f"prelu: Expected `weight` to be a scalar or 1D tensor, but got: ndim = {weight.ndim}")
    channels = input.shape[1] if input.ndim > 1 else 1
    if weight.size not in (1, channels):
        raise RuntimeError(
            f"Mismatch of parameter numbers and input channel size. Found parameter numbers = {weight.size} and "
            f"channel size = {channels}."
        )
    slope = lax.reshape(weight, (weight.size,) + (1,) * (input.ndim - 2) if input.ndim > 1 else (1,) * input.ndim)
    return _prelu_kernel(input, slope)


@exact(aten._prelu_kernel, takes=FLOATS)
def _prelu_kernel(input, weight):
    weight = jnp.broadcast_to(weight, input.shape)
    return _rectify(input, lambda x: lax.mul(x, weight))


@exact(torch.threshold, F.threshold, takes=REALS, fits=("threshold", "value"))
def threshold(input, *, threshold, value):
    return where(lax.le(input, like(input, threshold)), like(input, value), input)


@activation(F.hardshrink, torch.hardshrink, fits=("lambd",))
def hardshrink(input, *, lambd=0.5):
    return where(lax.le(lax.abs(input), like(input, lambd)), like(input, 0), input)


@activation(F.softshrink)
def softshrink(input, *, lambd=0.5):
    if lambd < 0:
        raise RuntimeError(f"lambda must be greater or equal to 0, but found to be {lambd}.")
    lambd = like(input, lambd)
    shrunk = where(lax.gt(input, lambd), lax.sub(input, lambd), lax.add(input, lambd))
    return where(lax.le(lax.abs(input), lambd), like(input, 0), shrunk)


@implements_tensors(F.rrelu, torch.rrelu, takes=FLOATS)
def rrelu(input, lower=1 / 8, upper=1 / 3, training=False, inplace=False):
    if lower > upper:
        raise RuntimeError(f"Lower bound should be less than or equal to the upper bound, got {lower} and {upper}")
    slope = torch.empty_like(input).uniform_(lower, upper) if training else (lower + upper) / 2
    result = torch.where(input > 0, input, input * slope)
    return input.copy_(result) if inplace else result


@implements_tensors(aten.rrelu.default, takes=FLOATS)
def _aten_rrelu(input, lower=1 / 8, upper=1 / 3, training=False, generator=None):
    return rrelu(input, lower, upper, training)


@implements_tensors(torch.rrelu_, aten.rrelu_.default, takes=FLOATS)
def rrelu_(input, lower=1 / 8, upper=1 / 3, training=False, generator=None):
    return rrelu(input, lower, upper, training, inplace=True)


# Smooth functions.


@activation(F.gelu)
def gelu(input, *, approximate="none"):
    half = lax.mul(input, like(input, 0.5))
    if approximate == "none":
        return lax.mul(half, lax.add(lax.erf(lax.mul(input, like(input, math.sqrt(0.5)))), like(input, 1)))
    if approximate == "tanh":
        cubic = lax.add(input, lax.mul(lax.integer_pow(input, 3), like(input, 0.044715)))
        return lax.mul(half, lax.add(lax.tanh(lax.mul(cubic, like(input, math.sqrt(2 / math.pi)))), like(input, 1)))
    raise RuntimeError(f"approximate argument must be either none or tanh, got {approximate!r}.")


@implements(F.silu, promote=Promotion.DEFAULT, takes=INEXACT)
def silu(input):
    return lax.mul(input, lax.logistic(input))


@activation(F.mish)
def mish(input):
    return lax.mul(input, lax.tanh(_softplus(1, 20, input)))


@activation(F.softplus, fits=("beta", "threshold"))
def softplus(input, *, beta=1, threshold=20):
    is_bound = lambda x: lax.eq(_times(x, beta), like(x, threshold))
    return _straight_at_kinks(is_bound, functools.partial(_softplus, beta, threshold), input)


def _softplus(beta, threshold, input):
    scaled = _times(input, beta)
    is_linear = lax.gt(scaled, like(input, threshold))
    # The unused branch must stay finite, for its derivative is multiplied by zero.
    curved = lax.log1p(lax.exp(where(is_linear, like(input, 0), scaled)))
    if beta == 0:  # infinite, of a slope of a half
        slope = lax.mul(lax.sub(input, lax.stop_gradient(input)), like(input, 0.5))
        return where(is_linear, input, lax.add(slope, like(input, math.inf)))
    return where(is_linear, input, _times(curved, 1 / beta))


@activation(F.logsigmoid, aten.log_sigmoid)
def logsigmoid(input):
    # Beyond the threshold the two branches are the same number.
    return lax.neg(_softplus(1, -math.log(jnp.finfo(input.dtype).eps), lax.neg(input)))


limit_decomposed(aten.glu.default, takes=FLOATS)


# Softmax, in float32 for half precision.


def softmax_operands(input, dim: int, dtype: torch.dtype | None):
    """The array to take a softmax of, in a dtype to compute in; the axes to reduce; the dtype of the result."""
    if dtype is not None:
        input = cast(input, canonical(dtype))
    dim = axis_of(input, dim)
    return widened(input), (dim,) if input.ndim else (), input.dtype


def shifted(x, axes):
    """`x` less its maximum, which has no part in the derivative."""
    return lax.sub(x, spread(lax.stop_gradient(lax.reduce_max(x, axes)), x, axes))


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def softmax_over(x, axes):
    """Softmax, whose derivative needs the result alone."""
    exponentials = lax.exp(shifted(x, axes))
    return lax.div(exponentials, spread(lax.reduce_sum(exponentials, axes), x, axes))


@softmax_over.defjvp
def _(axes, primals, tangents):
    y = softmax_over(*primals, axes)
    tangent = lax.mul(y, *tangents)
    return y, lax.sub(tangent, lax.mul(y, spread(lax.reduce_sum(tangent, axes), y, axes)))


def log_softmax_over(x, axes):
    """Logarithm of the softmax."""
    x = shifted(x, axes)
    return lax.sub(x, spread(lax.log(lax.reduce_sum(lax.exp(x), axes)), x, axes))


def _softmax_dtype(input, dim, dtype=None):
    return dtype


@implements(torch.softmax, torch.special.softmax, aten.softmax.int, takes=FLOATS, dtype=_softmax_dtype)
def softmax(input, dim, dtype=None):
    x, axes, dtype = softmax_operands(input, dim, dtype)
    return cast(softmax_over(x, axes), dtype)


@implements(torch.log_softmax, torch.special.log_softmax, aten.log_softmax.int, takes=FLOATS, dtype=_softmax_dtype)
def log_softmax(input, dim, dtype=None):
    x, axes, dtype = softmax_operands(input, dim, dtype)
    return cast(log_softmax_over(x, axes), dtype)


@implements(aten._softmax, takes=FLOATS)
def _softmax(input, dim, half_to_float):
    return softmax(input, dim, torch.float32 if half_to_float else None)


@implements(aten._safe_softmax, takes=FLOATS, dtype=_softmax_dtype)
def _safe_softmax(input, dim, dtype=None):
    x, axes, dtype = softmax_operands(input, dim, dtype)
    masked = lax.expand_dims(lax.eq(lax.reduce_max(x, axes), like(x, -np.inf)), axes)
    return cast(where(masked, like(x, 0), softmax_over(where(masked, like(x, 0), x), axes)), dtype)


@implements(aten._log_softmax, takes=FLOATS)
def _log_softmax(input, dim, half_to_float):
    return log_softmax(input, dim, torch.float32 if half_to_float else None)
