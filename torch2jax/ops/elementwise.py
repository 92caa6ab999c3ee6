"""Pointwise operators: arithmetic, comparison, bits, rounding, exponentials and trigonometry."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from jax.custom_derivatives import SymbolicZero

from ..dtypes import canonical, is_integral
from ..promotion import Promotion
from ..registry import implements, implements_tensors, lookup
from .arrays import cast, is_complex, is_float, is_inexact, like, truth, where

aten = torch.ops.aten

default = functools.partial(implements, promote=Promotion.DEFAULT)
exact = functools.partial(implements, promote=Promotion.NO_OPMATH)
floating = functools.partial(implements, promote=Promotion.INT_TO_FLOAT)
predicate = functools.partial(implements, promote=Promotion.ALWAYS_BOOL)
floating_once = functools.partial(implements, promote=Promotion.INT_TO_FLOAT_ONCE)
default_once = functools.partial(implements, promote=Promotion.DEFAULT_ONCE)


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
    ((torch.atan, torch.arctan), lax.atan),
    ((torch.sinh,), lax.sinh),
    ((torch.cosh,), lax.cosh),
    ((torch.tanh, torch.nn.functional.tanh), lax.tanh),
    ((torch.exp,), lax.exp),
    ((torch.log,), lax.log),
    ((torch.log1p, torch.special.log1p), lax.log1p),
    ((torch.sqrt,), lax.sqrt),
    ((torch.rsqrt,), lax.rsqrt),
    ((torch.erf, torch.special.erf), lax.erf),
    ((torch.erfc, torch.special.erfc), lax.erfc),
    ((torch.erfinv, torch.special.erfinv), lax.erf_inv),
    ((torch.reciprocal,), lambda x: lax.div(like(x, 1), x)),
):
    floating_once(*_functions)(unary(_function))

for _functions, _function in (  # XLA computes these in several steps, each rounded
    ((torch.asin, torch.arcsin), lax.asin),
    ((torch.acos, torch.arccos), lax.acos),
    ((torch.asinh, torch.arcsinh), lax.asinh),
    ((torch.acosh, torch.arccosh), lax.acosh),
    ((torch.atanh, torch.arctanh), lax.atanh),
    ((torch.exp2, torch.special.exp2), lax.exp2),
    ((torch.expm1, torch.special.expm1), lax.expm1),
    ((torch.sigmoid, torch.special.expit, torch.nn.functional.sigmoid), lax.logistic),
    ((torch.log2,), lambda x: lax.mul(lax.log(x), like(x, 1 / math.log(2)))),
    ((torch.log10,), lambda x: lax.mul(lax.log(x), like(x, 1 / math.log(10)))),
    ((torch.deg2rad,), lambda x: lax.mul(x, like(x, math.pi / 180))),
    ((torch.rad2deg,), lambda x: lax.mul(x, like(x, 180 / math.pi))),
    ((torch.sinc, torch.special.sinc), jnp.sinc),
):
    floating(*_functions)(unary(_function))


def _trigamma(x):
    """The derivative of digamma: reflected to the right, raised above 6, and there an asymptotic series."""
    reflected = lax.lt(x, like(x, 0.5))
    sine = lax.sin(lax.mul(x, like(x, math.pi)))
    y = where(reflected, lax.sub(like(x, 1), x), x)
    total = like(x, 0)
    for _ in range(6):
        total = lax.add(total, lax.integer_pow(y, -2))
        y = lax.add(y, like(x, 1))
    z = lax.integer_pow(y, -2)
    series = 1 + lax.integer_pow(y, -1) / 2 + z * (1 / 6 - z * (1 / 30 - z / 42))
    total = lax.add(total, lax.div(series.astype(x.dtype), y))
    return where(reflected, lax.sub(lax.div(like(x, math.pi**2), lax.square(sine)), total), total)


@jax.custom_jvp
def _digamma(x):
    return lax.digamma(x)


@_digamma.defjvp
def _(primals, tangents):
    return _digamma(*primals), lax.mul(tangents[0], _trigamma(*primals))


@floating(torch.digamma, torch.special.digamma, torch.special.psi)
def digamma(input):
    # PyTorch has the limit from above at zero, where XLA has none.
    return where(lax.eq(input, like(input, 0)), lax.neg(lax.div(like(input, 1), input)), _digamma(input))


@jax.custom_jvp
def _lgamma(x):
    return lax.lgamma(x)


@_lgamma.defjvp
def _(primals, tangents):
    return _lgamma(*primals), lax.mul(tangents[0], _digamma(*primals))


@floating(torch.lgamma, torch.special.gammaln)
def lgamma(input):
    return _lgamma(input)


# Rounding and signs; integers are their own rounding.


def trunc(x):
    """Rounds towards zero."""
    return where(lax.lt(x, like(x, 0)), lax.ceil(x), lax.floor(x))


def _unless_integer(function):
    def body(input):
        return function(input) if is_float(input) else input

    return body


for _functions, _function in (
    ((torch.floor,), lax.floor),
    ((torch.ceil,), lax.ceil),
    ((torch.trunc, torch.fix), trunc),
):
    exact(*_functions)(_unless_integer(_function))


@exact(torch.round, torch.special.round)
def round(input, *, decimals=0):
    if not is_float(input):
        return input
    if decimals == 0:
        return lax.round(input, lax.RoundingMethod.TO_NEAREST_EVEN)
    scale = like(input, 10.0 ** abs(decimals))
    scaled = lax.mul(input, scale) if decimals > 0 else lax.div(input, scale)
    rounded = lax.round(scaled, lax.RoundingMethod.TO_NEAREST_EVEN)
    return lax.div(rounded, scale) if decimals > 0 else lax.mul(rounded, scale)


@exact(torch.frac)
def frac(input):
    return lax.sub(input, trunc(input))


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


@jax.custom_jvp
def magnitude(x):
    """``lax.abs`` with the derivative zero at zero."""
    return lax.abs(x)


@magnitude.defjvp
def _(primals, tangents):
    (x,), (tangent,) = primals, tangents
    if not is_complex(x):
        return magnitude(x), lax.mul(lax.sign(x), tangent)
    direction = sgn(x)
    return magnitude(x), lax.add(
        lax.mul(lax.real(direction), lax.real(tangent)), lax.mul(lax.imag(direction), lax.imag(tangent))
    )


@exact(torch.abs, torch.absolute, dtype=lambda input: input.dtype.to_real())
def abs_(input):
    return input if _is_unsigned(input) else magnitude(input) if is_inexact(input) else lax.abs(input)


def _is_unsigned(array) -> bool:
    return array.dtype == bool or jnp.issubdtype(array.dtype, jnp.unsignedinteger)


@exact(torch.sign)
def sign(input):
    _refuse_complex(input, "sign")
    return sgn(input)


@exact(torch.sgn)
def sgn(input):
    if is_complex(input):
        size = magnitude(input)
        return lax.div(input, cast(where(lax.eq(size, like(size, 0)), like(size, 1), size), input.dtype))
    if is_float(input):  # PyTorch has zero for nan
        return where(lax.ne(input, input), like(input, 0), lax.sign(input))
    return input if input.dtype == bool else lax.sign(input)


@predicate(torch.signbit)
def signbit(input):
    if is_float(input):
        input = lax.bitcast_convert_type(input, f"int{8 * input.dtype.itemsize}")
    return lax.lt(input, like(input, 0))


def _refuse_complex(array, name: str) -> None:
    if is_complex(array):
        raise RuntimeError(f"{name} is not supported for complex tensors, got {array.dtype}")


# Arithmetic. PyTorch adds booleans as `or` and multiplies them as `and`.


def _scaled_promotion(kwargs) -> Promotion:
    return Promotion.DEFAULT_ONCE if kwargs.get("alpha", 1) == 1 else Promotion.DEFAULT


def _scaled(operand, alpha):
    if alpha == 1:
        return operand
    if isinstance(alpha, bool) and operand.dtype != bool:
        raise RuntimeError("Boolean alpha only supported for Boolean results.")
    if isinstance(alpha, float) and not is_inexact(operand):
        raise RuntimeError("For integral input tensors, argument alpha must not be a floating point number.")
    return mul(operand, like(operand, alpha))


@implements(torch.add, promote=_scaled_promotion)
def add(input, other, *, alpha=1):
    other = _scaled(other, alpha)
    return lax.bitwise_or(input, other) if input.dtype == bool else lax.add(input, other)


@implements(torch.sub, torch.subtract, promote=_scaled_promotion)
def sub(input, other, *, alpha=1):
    if input.dtype == bool:
        raise RuntimeError(
            "Subtraction, the `-` operator, with two bool tensors is not supported. Use the `^` or `logical_xor()` "
            "operator instead."
        )
    return lax.sub(input, _scaled(other, alpha))


@implements(torch.rsub, torch.Tensor.__rsub__, promote=_scaled_promotion)
def rsub(input, other, *, alpha=1):
    return sub(other, input, alpha=alpha)


@default_once(torch.mul, torch.multiply)
def mul(input, other):
    return lax.bitwise_and(input, other) if input.dtype == bool else lax.mul(input, other)


def _division(kwargs) -> Promotion:
    return Promotion.INT_TO_FLOAT_ONCE if kwargs.get("rounding_mode") is None else Promotion.DEFAULT


@implements(torch.div, torch.divide, promote=_division)
def div(input, other, *, rounding_mode=None):
    if rounding_mode is None:
        return lax.div(input, other)
    if rounding_mode == "floor":
        return floor_divide(input, other)
    if rounding_mode == "trunc":
        _check_divisor(other)
        quotient = lax.div(input, other)
        return trunc(quotient) if is_float(input) else quotient
    raise RuntimeError(f"div expected rounding_mode to be one of None, 'trunc', or 'floor' but found '{rounding_mode}'")


@floating_once(torch.true_divide)
def true_divide(input, other):
    return lax.div(input, other)


def _prepare_rdiv(input, other):
    if not isinstance(input, torch.Tensor):
        raise AttributeError(f"{type(input).__name__!r} object has no attribute 'reciprocal'")
    return (input, other), {}


@floating_once(torch.Tensor.__rdiv__, torch.Tensor.__rtruediv__, prepare=_prepare_rdiv)
def rdiv(input, other):
    return lax.div(other, input)


def _check_divisor(other) -> None:
    if isinstance(other, np.ndarray) and not is_inexact(other) and not other.any():
        raise RuntimeError("ZeroDivisionError")


@default(torch.floor_divide)
def floor_divide(input, other):
    _refuse_complex(input, "floor_divide")
    _check_divisor(other)
    if not is_float(input):
        quotient = lax.div(input, other)
        return quotient if _is_unsigned(input) else _lower(quotient, lax.rem(input, other), other)
    input, other = (x if isinstance(x, np.ndarray) else lax.stop_gradient(x) for x in (input, other))
    rest = lax.rem(input, other)  # (input - rest) / other is a whole number, but for its rounding
    quotient = _lower(lax.div(lax.sub(input, rest), other), rest, other)
    quotient = lax.round(quotient, lax.RoundingMethod.TO_NEAREST_EVEN)
    if isinstance(other, np.ndarray) and other.all():
        return quotient
    return where(lax.eq(other, like(other, 0)), lax.div(input, other), quotient)


def _lower(quotient, rest, divisor):
    """A truncated quotient, one less where the rest has not the divisor's sign."""
    return where(_disagree(rest, divisor), lax.sub(quotient, like(quotient, 1)), quotient)


def _disagree(rest, divisor):
    zero = like(rest, 0)
    if isinstance(divisor, np.ndarray):
        return (lax.lt if divisor > 0 else lax.gt)(rest, zero)
    return lax.bitwise_and(lax.ne(rest, zero), lax.ne(lax.lt(rest, zero), lax.lt(divisor, zero)))


@default(torch.Tensor.__rfloordiv__)
def rfloordiv(input, other):
    return floor_divide(other, input)


@default(torch.remainder)
def remainder(input, other):
    _refuse_complex(input, "remainder")
    _check_divisor(other)
    rest = lax.rem(input, other)
    return rest if _is_unsigned(rest) else where(_disagree(rest, other), lax.add(rest, other), rest)


@default_once(torch.fmod)
def fmod(input, other):
    _refuse_complex(input, "fmod")
    _check_divisor(other)
    return lax.rem(input, other)


@default(torch.pow)
def pow(input, other):
    exponent = _plain_exponent(other)
    if exponent is not None and (exponent >= 0 or is_inexact(input)):
        return lax.integer_pow(input, exponent)
    if not is_inexact(input):
        if isinstance(other, np.ndarray) and (other < 0).any():
            raise RuntimeError("Integers to negative integer powers are not allowed.")
        return _integer_power(_as_number(input), _as_number(other))
    if isinstance(other, np.ndarray) and other in (0.5, -0.5):
        return (lax.sqrt if other == 0.5 else lax.rsqrt)(input)
    return lax.pow(*_same_shape(input, other))


def _plain_exponent(exponent) -> int | None:
    """A constant exponent that takes but a few multiplications."""
    if isinstance(exponent, np.ndarray) and exponent.imag == 0 and exponent.real in (-2, -1, 0, 1, 2, 3, 4):
        return int(exponent.real)
    return None


def _integer_power(base, exponent):
    zero, one = like(base, 0), like(base, 1)
    power = jnp.power(base, lax.max(exponent, zero))
    if _is_unsigned(base) or isinstance(exponent, np.ndarray):
        return power
    sign_of_minus_one = where(lax.eq(lax.bitwise_and(exponent, one), zero), one, like(base, -1))
    inverse = where(lax.eq(base, like(base, -1)), sign_of_minus_one, cast(lax.eq(base, one), base.dtype))
    return where(lax.lt(exponent, zero), inverse, power)


def _as_number(array):
    return cast(array, np.int8) if array.dtype == bool else array


def _same_shape(x, y):
    shape = np.broadcast_shapes(np.shape(x), np.shape(y))
    return jnp.broadcast_to(x, shape), jnp.broadcast_to(y, shape)


@implements(torch.square, promote=Promotion.BOOL_TO_LONG)
def square(input):
    return lax.square(input)


def _float_power_dtype(input, exponent) -> torch.dtype:
    is_complex = any(
        x.is_complex() if isinstance(x, torch.Tensor) else isinstance(x, complex) for x in (input, exponent)
    )
    return torch.complex128 if is_complex else torch.float64


@exact(torch.float_power, dtype=_float_power_dtype)
def float_power(input, exponent):
    dtype = canonical(torch.complex128 if is_complex(input) else torch.float64)
    return pow(cast(input, dtype), cast(exponent, dtype))


@implements_tensors(torch.Tensor.float_power_)
def float_power_(input, exponent):
    result = torch.float_power(input, exponent)
    if result.dtype != input.dtype:
        raise RuntimeError(
            f"the base given to float_power_ has dtype {input.dtype}, but the operation's result has {result.dtype}"
        )
    return input.copy_(result)


@floating(torch.atan2, torch.arctan2)
def atan2(input, other):
    return lax.atan2(*_same_shape(input, other))


@default(torch.hypot)
def hypot(input, other):
    return jnp.hypot(input, other)


@floating(torch.copysign)
def copysign(input, other):
    return jnp.copysign(input, other)


@jax.custom_jvp
def _nextafter(x, towards):
    return lax.nextafter(x, towards)


@_nextafter.defjvp
def _(primals, tangents):
    moves = lax.ne(*primals)
    return _nextafter(*primals), where(moves, tangents[0], like(tangents[0], 0))


@exact(torch.nextafter)
def nextafter(input, other):
    return _nextafter(*_same_shape(input, other))


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


@default(torch.lerp)
def lerp(input, end, weight):
    difference = lax.sub(end, input)
    if isinstance(weight, np.ndarray) and abs(weight) >= 0.5:  # exact at one, as PyTorch is
        return lax.sub(end, lax.mul(difference, like(weight, 1) - weight))
    return lax.add(input, lax.mul(weight, difference))


@default(torch.addcmul)
def addcmul(input, tensor1, tensor2, *, value=1):
    product = lax.mul(tensor1, tensor2)
    return lax.add(input, product if value == 1 else lax.mul(product, like(input, value)))


@floating(torch.addcdiv)
def addcdiv(input, tensor1, tensor2, *, value=1):
    quotient = lax.div(tensor1, tensor2)
    return lax.add(input, quotient if value == 1 else lax.mul(quotient, like(input, value)))


@exact(torch.gcd)
def gcd(input, other):
    return jnp.gcd(input, other)


@exact(torch.lcm)
def lcm(input, other):
    return jnp.lcm(input, other)


@implements(torch.frexp, dtype=(None, torch.int32))
def frexp(input):
    if not is_float(input):
        raise RuntimeError(f"torch.frexp() only supports floating-point dtypes, got {input.dtype}")
    return jnp.frexp(input)


# Larger, smaller, and within bounds.


@jax.custom_jvp
def at_least(x, bound):
    """``lax.max`` whose derivative is all that of `x` at a tie."""
    return lax.max(x, bound)


@jax.custom_jvp
def at_most(x, bound):
    """``lax.min`` whose derivative is all that of `x` at a tie."""
    return lax.min(x, bound)


@functools.partial(at_least.defjvp, symbolic_zeros=True)
def _(primals, tangents):
    return at_least(*primals), _tangent_of_chosen(lax.ge(*primals), tangents)


@functools.partial(at_most.defjvp, symbolic_zeros=True)
def _(primals, tangents):
    return at_most(*primals), _tangent_of_chosen(lax.le(*primals), tangents)


def _tangent_of_chosen(first, tangents):
    x, bound = (like(t, 0) if isinstance(t, SymbolicZero) else t for t in tangents)
    return where(first, x, bound)


@exact(torch.clamp, torch.clip)
def clamp(input, min=None, max=None):
    if min is None and max is None:
        raise RuntimeError("torch.clamp: At least one of 'min' or 'max' must not be None")
    _refuse_complex(input, "clamp")
    if min is not None:
        input = _bounded(at_least, lax.max, input, min)
    return input if max is None else _bounded(at_most, lax.min, input, max)


def _bounded(differentiable, plain, input, bound):
    return (differentiable if is_float(input) else plain)(input, bound)


@exact(torch.clamp_min)
def clamp_min(input, min):
    return clamp(input, min=min)


@exact(torch.clamp_max)
def clamp_max(input, max):
    return clamp(input, max=max)


@exact(torch.maximum, aten.max.other)
def maximum(input, other):
    _refuse_complex(input, "maximum")
    return lax.max(input, other)


@exact(torch.minimum, aten.min.other)
def minimum(input, other):
    _refuse_complex(input, "minimum")
    return lax.min(input, other)


@exact(torch.fmax)
def fmax(input, other):
    _refuse_complex(input, "fmax")
    return where(lax.bitwise_or(lax.ge(input, other), lax.ne(other, other)), input, other)


@exact(torch.fmin)
def fmin(input, other):
    _refuse_complex(input, "fmin")
    return where(lax.bitwise_or(lax.le(input, other), lax.ne(other, other)), input, other)


@exact(torch.heaviside)
def heaviside(input, values):
    zero = like(input, 0)
    return where(lax.eq(input, zero), values, cast(lax.gt(input, zero), input.dtype))


def _prepare_nan_to_num(input, nan=None, posinf=None, neginf=None):
    return (input,), {"nan": nan, "posinf": posinf, "neginf": neginf}


@exact(torch.nan_to_num, prepare=_prepare_nan_to_num)
def nan_to_num(input, *, nan, posinf, neginf):
    if is_complex(input):
        return lax.complex(
            *(nan_to_num(part(input), nan=nan, posinf=posinf, neginf=neginf) for part in (lax.real, lax.imag))
        )
    if not is_float(input):
        return input
    limits = jnp.finfo(input.dtype)
    for special, number in (
        (lax.ne(input, input), 0 if nan is None else nan),
        (lax.eq(input, like(input, math.inf)), limits.max if posinf is None else posinf),
        (lax.eq(input, like(input, -math.inf)), limits.min if neginf is None else neginf),
    ):
        input = where(special, like(input, number), input)
    return input


# Comparison and logic.


def _ordered(function):
    def compare(x, y):
        _refuse_complex(x, f"comparison ({function.__name__})")
        return function(x, y)

    return compare


for _functions, _function in (
    ((torch.eq, torch.Tensor.__eq__), lax.eq),
    ((torch.ne, torch.not_equal, torch.Tensor.__ne__), lax.ne),
    ((torch.lt, torch.less), _ordered(lax.lt)),
    ((torch.le, torch.less_equal), _ordered(lax.le)),
    ((torch.gt, torch.greater), _ordered(lax.gt)),
    ((torch.ge, torch.greater_equal), _ordered(lax.ge)),
    ((torch.logical_and,), lambda x, y: lax.bitwise_and(truth(x), truth(y))),
    ((torch.logical_or,), lambda x, y: lax.bitwise_or(truth(x), truth(y))),
    ((torch.logical_xor,), lambda x, y: lax.bitwise_xor(truth(x), truth(y))),
):
    predicate(*_functions)(binary(_function))


def _either_part(test):
    """A test of a real number, true of a complex one if it is of either part."""

    def body(input):
        if is_complex(input):
            return lax.bitwise_or(test(lax.real(input)), test(lax.imag(input)))
        return test(input) if is_float(input) else lax.full_like(input, False, bool)

    return body


def isinf(x):
    return lax.eq(lax.abs(x), like(x, math.inf))


for _functions, _function in (
    ((torch.logical_not,), lambda x: lax.bitwise_not(truth(x))),
    ((torch.isnan,), lambda x: lax.ne(x, x)),
    ((torch.isinf,), _either_part(isinf)),
    ((torch.isfinite,), lambda x: lax.bitwise_not(_either_part(lambda part: lax.bitwise_not(lax.is_finite(part)))(x))),
    ((torch.isposinf,), _either_part(lambda x: lax.eq(x, like(x, math.inf)))),
    ((torch.isneginf,), _either_part(lambda x: lax.eq(x, like(x, -math.inf)))),
):
    predicate(*_functions)(unary(_function))


def _prepare_isclose(input, other, rtol=1e-05, atol=1e-08, equal_nan=False):
    if isinstance(other, torch.Tensor) and input.dtype != other.dtype:
        raise RuntimeError(f"isclose needs two tensors of one dtype, got {input.dtype} and {other.dtype}")
    if rtol < 0 or atol < 0:
        raise RuntimeError(f"rtol and atol must be greater than or equal to zero, but got {rtol} and {atol}")
    return (input, other), {"rtol": rtol, "atol": atol, "equal_nan": equal_nan}


@predicate(torch.isclose, prepare=_prepare_isclose)
def isclose(input, other, *, rtol, atol, equal_nan):
    close = lax.eq(input, other)
    if equal_nan:
        close = lax.bitwise_or(close, lax.bitwise_and(lax.ne(input, input), lax.ne(other, other)))
    if not is_inexact(input):
        input, other = (lax.convert_element_type(x, canonical(torch.get_default_dtype())) for x in (input, other))
    allowed = lax.abs(lax.mul(other, like(other, rtol)))
    actual = lax.abs(lax.sub(input, other))
    within = lax.le(actual, lax.add(allowed, like(allowed, atol)))
    return lax.bitwise_or(close, lax.bitwise_and(lax.is_finite(actual), within))


@exact(aten.where, unpromoted=1)
def where_(condition, input, other):
    return where(truth(condition), input, other)


@implements_tensors(torch.where, aten.where.default)
def where_or_nonzero(condition, input=None, other=None, *, out=None):
    if input is None:
        return torch.nonzero(condition, as_tuple=True)
    return lookup(aten.where)((condition, input, other), {} if out is None else {"out": out})


@implements_tensors(torch.Tensor.where)
def where_method(self, condition, other):
    return lookup(aten.where)((condition, self, other), {})


# Bits.


def _shift_right(x, by):
    return (lax.shift_right_logical if _is_unsigned(x) else lax.shift_right_arithmetic)(x, by)


def _of_integers(function):
    def checked(*operands):
        if is_inexact(operands[0]):
            raise NotImplementedError(f"bitwise operators need integers or bools, got {operands[0].dtype}")
        return function(*operands)

    return checked


for _functions, _function in (
    ((torch.bitwise_and, torch.Tensor.__and__), lax.bitwise_and),
    ((torch.bitwise_or, torch.Tensor.__or__), lax.bitwise_or),
    ((torch.bitwise_xor, torch.Tensor.__xor__), lax.bitwise_xor),
    ((torch.bitwise_left_shift, torch.Tensor.__lshift__), lax.shift_left),
    ((torch.bitwise_right_shift, torch.Tensor.__rshift__), _shift_right),
):
    exact(*_functions)(binary(_of_integers(_function)))


@exact(torch.bitwise_not, torch.Tensor.__invert__)
def bitwise_not(input):
    return _of_integers(lax.bitwise_not)(input)


# Complex numbers.


def _dtype_of_angle(input) -> torch.dtype:
    return torch.get_default_dtype() if is_integral(input.dtype) else input.dtype.to_real()


@exact(torch.angle, dtype=_dtype_of_angle)
def angle(input):
    if is_complex(input):
        at_zero = lax.eq(input, like(input, 0))  # where PyTorch's derivative is zero
        real = lax.real(input)
        return lax.atan2(lax.imag(input), where(at_zero, like(real, 1), real))
    array = cast(input, canonical(torch.get_default_dtype())) if not is_float(input) else input
    zero = like(array, 0)
    return where(lax.lt(array, zero), like(array, math.pi), where(lax.ne(array, array), array, zero))


def _to_complex(input, other) -> torch.dtype:
    if input.dtype != other.dtype or not input.dtype.is_floating_point:
        raise RuntimeError(f"Expected two floating-point tensors of one dtype, got {input.dtype} and {other.dtype}")
    return input.dtype.to_complex()


@exact(torch.complex, dtype=lambda real, imag: _to_complex(real, imag), exact_out=True)
def complex_(real, imag):
    return lax.complex(*_same_shape(real, imag))


@exact(torch.polar, dtype=lambda abs, angle: _to_complex(abs, angle))
def polar(abs, angle):
    return lax.complex(*_same_shape(lax.mul(abs, lax.cos(angle)), lax.mul(abs, lax.sin(angle))))


def _prepare_logit(input, eps=None):
    return (input,), {"eps": eps}


@floating(torch.logit, torch.special.logit, prepare=_prepare_logit)
def logit(input, *, eps):
    if eps is not None:
        input = at_most(at_least(input, like(input, eps)), like(input, 1 - eps))
    return lax.sub(lax.log(input), lax.log1p(lax.neg(input)))
