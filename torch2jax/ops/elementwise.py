"""Pointwise operators: arithmetic, comparison, bits, rounding, exponentials and trigonometry."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..promotion import Promotion
from ..registry import implements

default = functools.partial(implements, promote=Promotion.DEFAULT)
exact = functools.partial(implements, promote=Promotion.NO_OPMATH)
floating = functools.partial(implements, promote=Promotion.INT_TO_FLOAT)
predicate = functools.partial(implements, promote=Promotion.ALWAYS_BOOL)
real_part = functools.partial(implements, promote=Promotion.COMPLEX_TO_FLOAT)


def unary(function):
    """A body that is one function of its one operand."""

    def body(input):
        return function(input)

    return body


def binary(function):
    """A body that is one function of two operands, either of which may be a scalar."""

    def body(input, other):
        return function(input, other)

    return body


for _functions, _function in (
    ((torch.sin,), lax.sin),
    ((torch.cos,), lax.cos),
    ((torch.tan,), lax.tan),
    ((torch.asin, torch.arcsin), lax.asin),
    ((torch.acos, torch.arccos), lax.acos),
    ((torch.atan, torch.arctan), lax.atan),
    ((torch.sinh,), lax.sinh),
    ((torch.cosh,), lax.cosh),
    ((torch.tanh, torch.nn.functional.tanh), lax.tanh),
    ((torch.asinh, torch.arcsinh), lax.asinh),
    ((torch.acosh, torch.arccosh), lax.acosh),
    ((torch.atanh, torch.arctanh), lax.atanh),
    ((torch.exp,), lax.exp),
    ((torch.exp2, torch.special.exp2), lax.exp2),
    ((torch.expm1, torch.special.expm1), lax.expm1),
    ((torch.log,), lax.log),
    ((torch.log1p, torch.special.log1p), lax.log1p),
    ((torch.sqrt,), lax.sqrt),
    ((torch.rsqrt,), lax.rsqrt),
    ((torch.sigmoid, torch.special.expit, torch.nn.functional.sigmoid), lax.logistic),
    ((torch.erf, torch.special.erf), lax.erf),
    ((torch.erfc, torch.special.erfc), lax.erfc),
    ((torch.erfinv, torch.special.erfinv), lax.erf_inv),
    ((torch.lgamma, torch.special.gammaln), lax.lgamma),
    ((torch.digamma, torch.special.digamma, torch.special.psi), lax.digamma),
    ((torch.reciprocal,), lambda x: lax.div(_one(x), x)),
    ((torch.log2,), lambda x: lax.mul(lax.log(x), _like(x, 1 / math.log(2)))),
    ((torch.log10,), lambda x: lax.mul(lax.log(x), _like(x, 1 / math.log(10)))),
    ((torch.deg2rad,), lambda x: lax.mul(x, _like(x, math.pi / 180))),
    ((torch.rad2deg,), lambda x: lax.mul(x, _like(x, 180 / math.pi))),
):
    floating(*_functions)(unary(_function))


def _like(array, value):
    """A scalar literal of an array's dtype."""
    return np.asarray(value).astype(array.dtype)


def _one(array):
    return _like(array, 1)


def _is_float(array) -> bool:
    return jnp.issubdtype(array.dtype, jnp.floating)


def _is_complex(array) -> bool:
    return jnp.issubdtype(array.dtype, jnp.complexfloating)


def where(condition, x, y):
    """``lax.select`` with operands that may be scalars."""
    shape = np.broadcast_shapes(np.shape(condition), np.shape(x), np.shape(y))
    return lax.select(*(jnp.broadcast_to(operand, shape) for operand in (condition, x, y)))


# Rounding and signs; integers are their own rounding.


def _unless_integer(function):
    def body(input):
        return function(input) if _is_float(input) else input

    return body


for _functions, _function in (
    ((torch.floor,), lax.floor),
    ((torch.ceil,), lax.ceil),
    ((torch.trunc, torch.fix), lambda x: where(lax.lt(x, _like(x, 0)), lax.ceil(x), lax.floor(x))),
):
    exact(*_functions)(_unless_integer(_function))


@exact(torch.round, torch.special.round)
def round(input, *, decimals=0):
    if not _is_float(input):
        return input
    if decimals == 0:
        return lax.round(input, lax.RoundingMethod.TO_NEAREST_EVEN)
    scale = _like(input, 10.0 ** abs(decimals))
    scaled = lax.mul(input, scale) if decimals > 0 else lax.div(input, scale)
    rounded = lax.round(scaled, lax.RoundingMethod.TO_NEAREST_EVEN)
    return lax.div(rounded, scale) if decimals > 0 else lax.mul(rounded, scale)


@exact(torch.frac)
def frac(input):
    return lax.sub(input, where(lax.lt(input, _like(input, 0)), lax.ceil(input), lax.floor(input)))


@exact(torch.neg, torch.negative)
def neg(input):
    if input.dtype == bool:
        raise RuntimeError(
            "Negation, the `-` operator, on a bool tensor is not supported. If you are trying to invert a mask, use "
            "the `~` or `logical_not()` operator instead."
        )
    return lax.neg(input)


@exact(torch.positive)
def positive(input):
    if input.dtype == bool:
        raise RuntimeError("The `+` operator, on a bool tensor is not supported.")
    return input


@real_part(torch.abs, torch.absolute)
def abs_(input):
    return input if _is_unsigned(input) else lax.abs(input)


def _is_unsigned(array) -> bool:
    return array.dtype == bool or jnp.issubdtype(array.dtype, jnp.unsignedinteger)


@exact(torch.sign)
def sign(input):
    return input if input.dtype == bool else lax.sign(input)


@exact(torch.sgn)
def sgn(input):
    return input if input.dtype == bool else lax.sign(input)


@predicate(torch.signbit)
def signbit(input):
    return jnp.signbit(input) if _is_float(input) else lax.lt(input, _like(input, 0))


@exact(torch.square)
def square(input):
    return lax.mul(_as_number(input), _as_number(input)) if input.dtype == bool else lax.square(input)


def _as_number(array):
    return array.astype(np.int8) if array.dtype == bool else array


# Arithmetic. PyTorch adds booleans as `or` and multiplies them as `and`.


@default(torch.add)
def add(input, other, *, alpha=1):
    if alpha != 1:
        other = mul(other, _like(input, alpha))
    return lax.bitwise_or(input, other) if input.dtype == bool else lax.add(input, other)


def _no_bool(input, other) -> None:
    if input.dtype == bool:
        raise RuntimeError(
            "Subtraction, the `-` operator, with two bool tensors is not supported. Use the `^` or `logical_xor()` "
            "operator instead."
        )


@default(torch.sub, torch.subtract)
def sub(input, other, *, alpha=1):
    _no_bool(input, other)
    if alpha != 1:
        other = lax.mul(other, _like(input, alpha))
    return lax.sub(input, other)


@default(torch.rsub, torch.Tensor.__rsub__)
def rsub(input, other, *, alpha=1):
    return sub(other, input, alpha=alpha)


@default(torch.mul, torch.multiply)
def mul(input, other):
    return lax.bitwise_and(input, other) if input.dtype == bool else lax.mul(input, other)


def _division(kwargs) -> Promotion:
    return Promotion.INT_TO_FLOAT if kwargs.get("rounding_mode") is None else Promotion.DEFAULT


@implements(torch.div, torch.divide, promote=_division)
def div(input, other, *, rounding_mode=None):
    if rounding_mode is None:
        return lax.div(input, other)
    if rounding_mode == "floor":
        return floor_divide(input, other)
    if rounding_mode == "trunc":
        quotient = lax.div(input, other)
        return trunc(quotient) if _is_float(input) else quotient
    raise RuntimeError(
        f"div expected rounding_mode to be one of None, 'trunc', or 'floor' but found '{rounding_mode}'"
    )


@floating(torch.true_divide)
def true_divide(input, other):
    return lax.div(input, other)


def trunc(x):
    """Rounds towards zero."""
    return where(lax.lt(x, _like(x, 0)), lax.ceil(x), lax.floor(x))


@default(torch.floor_divide)
def floor_divide(input, other):
    return jnp.floor_divide(input, other)


@default(torch.Tensor.__rfloordiv__)
def rfloordiv(input, other):
    return jnp.floor_divide(other, input)


@floating(torch.Tensor.__rdiv__, torch.Tensor.__rtruediv__)
def rdiv(input, other):
    return lax.div(other, input)


@default(torch.remainder)
def remainder(input, other):
    return jnp.remainder(input, other)


@default(torch.fmod)
def fmod(input, other):
    return lax.rem(input, other)


@default(torch.pow)
def pow(input, other):
    if isinstance(other, np.ndarray) and other.ndim == 0 and float(other.real).is_integer() and _small(other):
        exponent = int(other.real)
        if exponent >= 0 or not jnp.issubdtype(input.dtype, jnp.integer):
            return lax.integer_pow(input, exponent)
        raise RuntimeError("Integers to negative integer powers are not allowed.")
    if isinstance(other, np.ndarray) and other.ndim == 0 and other == 0.5:
        return lax.sqrt(input)
    if jnp.issubdtype(input.dtype, jnp.integer) or input.dtype == bool:
        return jnp.power(_as_number(input), _as_number(other))
    return lax.pow(*_same_shape(input, other))


def _small(exponent) -> bool:
    return -3 <= float(exponent.real) <= 4 and (not np.iscomplexobj(exponent) or exponent.imag == 0)


def _same_shape(x, y):
    shape = np.broadcast_shapes(np.shape(x), np.shape(y))
    return jnp.broadcast_to(x, shape), jnp.broadcast_to(y, shape)


@floating(torch.float_power, dtype=lambda input, exponent: _float_power_dtype(input, exponent))
def float_power(input, exponent):
    return jnp.power(input, exponent)


def _float_power_dtype(*operands):
    is_complex = any(x.is_complex() if isinstance(x, torch.Tensor) else isinstance(x, complex) for x in operands)
    return torch.complex128 if is_complex else torch.float64


@floating(torch.atan2, torch.arctan2)
def atan2(input, other):
    return lax.atan2(*_same_shape(input, other))


@default(torch.maximum)
def maximum(input, other):
    return lax.max(input, other)


@default(torch.minimum)
def minimum(input, other):
    return lax.min(input, other)


@default(torch.fmax)
def fmax(input, other):
    return jnp.fmax(input, other)


@default(torch.fmin)
def fmin(input, other):
    return jnp.fmin(input, other)


@default(torch.clamp, torch.clip)
def clamp(input, min=None, max=None):
    if min is None and max is None:
        raise RuntimeError("torch.clamp: At least one of 'min' or 'max' must not be None")
    if min is not None:
        input = lax.max(input, min)
    return input if max is None else lax.min(input, max)


@default(torch.clamp_min)
def clamp_min(input, min):
    return lax.max(input, min)


@default(torch.clamp_max)
def clamp_max(input, max):
    return lax.min(input, max)


@default(torch.hypot)
def hypot(input, other):
    return jnp.hypot(input, other)


@default(torch.copysign)
def copysign(input, other):
    return jnp.copysign(input, other)


@exact(torch.nextafter)
def nextafter(input, other):
    return lax.nextafter(*_same_shape(input, other))


@floating(torch.logaddexp)
def logaddexp(input, other):
    return jnp.logaddexp(input, other)


@floating(torch.logaddexp2)
def logaddexp2(input, other):
    return jnp.logaddexp2(input, other)


@floating(torch.xlogy, torch.special.xlogy)
def xlogy(input, other):
    return jax.scipy.special.xlogy(input, other)


@floating(torch.special.xlog1py)
def xlog1py(input, other):
    return jax.scipy.special.xlog1py(input, other)


@floating(torch.sinc, torch.special.sinc)
def sinc(input):
    return jnp.sinc(input)


@default(torch.lerp)
def lerp(input, end, weight):
    return lax.add(input, lax.mul(weight, lax.sub(end, input)))


@default(torch.addcmul)
def addcmul(input, tensor1, tensor2, *, value=1):
    product = lax.mul(tensor1, tensor2)
    return lax.add(input, product if value == 1 else lax.mul(product, _like(input, value)))


@default(torch.addcdiv)
def addcdiv(input, tensor1, tensor2, *, value=1):
    quotient = lax.div(tensor1, tensor2)
    return lax.add(input, quotient if value == 1 else lax.mul(quotient, _like(input, value)))


@exact(torch.gcd)
def gcd(input, other):
    return jnp.gcd(input, other)


@exact(torch.lcm)
def lcm(input, other):
    return jnp.lcm(input, other)


@default(torch.heaviside)
def heaviside(input, values):
    return jnp.heaviside(input, values)


@exact(torch.nan_to_num)
def nan_to_num(input, *, nan=None, posinf=None, neginf=None):
    if not (_is_float(input) or _is_complex(input)):
        return input
    return jnp.nan_to_num(input, nan=0.0 if nan is None else nan, posinf=posinf, neginf=neginf)


# Comparison and logic.


for _functions, _function in (
    ((torch.eq, torch.Tensor.__eq__), lax.eq),
    ((torch.ne, torch.not_equal, torch.Tensor.__ne__), lax.ne),
    ((torch.lt, torch.less), lax.lt),
    ((torch.le, torch.less_equal), lax.le),
    ((torch.gt, torch.greater), lax.gt),
    ((torch.ge, torch.greater_equal), lax.ge),
    ((torch.logical_and,), lambda x, y: lax.bitwise_and(_truth(x), _truth(y))),
    ((torch.logical_or,), lambda x, y: lax.bitwise_or(_truth(x), _truth(y))),
    ((torch.logical_xor,), lambda x, y: lax.bitwise_xor(_truth(x), _truth(y))),
):
    predicate(*_functions)(binary(_function))

for _functions, _function in (
    ((torch.logical_not,), lambda x: lax.bitwise_not(_truth(x))),
    ((torch.isnan,), lambda x: jnp.isnan(x)),
    ((torch.isinf,), lambda x: jnp.isinf(x)),
    ((torch.isfinite,), lambda x: jnp.isfinite(x)),
    ((torch.isposinf,), lambda x: jnp.isposinf(x)),
    ((torch.isneginf,), lambda x: jnp.isneginf(x)),
):
    predicate(*_functions)(unary(_function))


def _truth(array):
    return array if array.dtype == bool else lax.ne(array, _like(array, 0))


@predicate(torch.isclose)
def isclose(input, other, *, rtol=1e-05, atol=1e-08, equal_nan=False):
    return jnp.isclose(input, other, rtol, atol, equal_nan)


@implements(torch.where, promote=lambda kwargs: Promotion.NO_OPMATH, unpromoted=1)
def where_(condition, input=None, other=None):
    return where(_truth(condition), input, other)


for _functions, _function in (
    ((torch.bitwise_and, torch.Tensor.__and__), lax.bitwise_and),
    ((torch.bitwise_or, torch.Tensor.__or__), lax.bitwise_or),
    ((torch.bitwise_xor, torch.Tensor.__xor__), lax.bitwise_xor),
    ((torch.bitwise_left_shift, torch.Tensor.__lshift__), lax.shift_left),
    ((torch.bitwise_right_shift, torch.Tensor.__rshift__), jnp.right_shift),
):
    exact(*_functions)(binary(_function))


@exact(torch.bitwise_not, torch.Tensor.__invert__)
def bitwise_not(input):
    return lax.bitwise_not(input)


# Complex numbers.


@real_part(torch.angle)
def angle(input):
    if _is_complex(input):
        return lax.atan2(lax.imag(input), lax.real(input))
    return where(lax.lt(input, _like(input, 0)), _like(input, math.pi), where(jnp.isnan(input), input, _like(input, 0)))


@implements(torch.complex)
def complex_(real, imag):
    return lax.complex(*_same_shape(real, imag))


@implements(torch.polar)
def polar(abs, angle):
    return lax.complex(lax.mul(abs, lax.cos(angle)), lax.mul(abs, lax.sin(angle)))


@default(torch.logit, torch.special.logit)
def logit(input, *, eps=None):
    if eps is not None:
        input = lax.clamp(_like(input, eps), input, _like(input, 1 - eps))
    return lax.sub(lax.log(input), lax.log1p(lax.neg(input)))
