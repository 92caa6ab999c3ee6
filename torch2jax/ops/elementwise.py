"""Pointwise functions of one number: exponentials, trigonometry, rounding, signs, and the parts of complex numbers."""

import math

import jax
import jax.numpy as jnp
import torch
from jax import lax

from ..rules.options import Tag
from ..rules.registry import implements_tensors
from ..tensors.dtypes import FLOATS, NUMBERS, REALS, REALS_AND_BOOL, canonical, is_integral, type_name
from .arrays import (
    cast,
    exact,
    floating,
    floating_once,
    floating_real,
    floating_real_once,
    has_sign,
    is_complex,
    is_float,
    is_inexact,
    is_unsigned,
    like,
    predicate,
    same_shape,
    unary,
    where,
    widened,
)
from .comparison import at_least, at_most


@jax.custom_jvp
def magnitude(x):
    """``lax.abs`` with the derivative zero at zero."""
    return lax.abs(x)


@magnitude.defjvp
def _(primals, tangents):
    (x,), (tangent,) = primals, tangents
    if not is_complex(x):
        return magnitude(x), lax.mul(lax.sign(x), tangent)
    return magnitude(x), _along(direction(x), tangent)


def _along(unit, tangent):
    """The component of a complex `tangent` in a direction of the plane."""
    return lax.add(lax.mul(lax.real(unit), lax.real(tangent)), lax.mul(lax.imag(unit), lax.imag(tangent)))


def _length_or_one(x):
    size = magnitude(x)
    return cast(where(lax.eq(size, like(size, 0)), like(size, 1), size), x.dtype)


@jax.custom_jvp
def direction(x):
    """``x / abs(x)``, with a derivative that divides by nothing smaller than the length, and is zero at zero."""
    return lax.div(x, _length_or_one(x))


@direction.defjvp
def _(primals, tangents):
    (x,), (tangent,) = primals, tangents
    unit = direction(x)
    across = lax.sub(tangent, lax.mul(unit, cast(_along(unit, tangent), x.dtype)))
    turned = lax.div(across, _length_or_one(x))
    return unit, where(lax.eq(x, like(x, 0)), like(x, 0), turned)


@jax.custom_jvp
def _argument(x):
    """The angle of a complex number, with the derivative zero at zero."""
    return lax.atan2(lax.imag(x), lax.real(x))


@_argument.defjvp
def _(primals, tangents):
    (x,), (tangent,) = primals, tangents
    at_zero = lax.eq(x, like(x, 0))
    turned = lax.imag(lax.div(tangent, where(at_zero, like(x, 1), x)))
    return _argument(x), where(at_zero, like(turned, 0), turned)


def _dtype_of_angle(input) -> torch.dtype:
    return torch.get_default_dtype() if is_integral(input.dtype) else input.dtype.to_real()


@exact(torch.angle, dtype=_dtype_of_angle)
def angle(input):
    if is_complex(input):
        return _argument(input)
    array = cast(input, canonical(torch.get_default_dtype())) if not is_float(input) else input
    zero = like(array, 0)
    return where(lax.lt(array, zero), like(array, math.pi), where(lax.ne(array, array), array, zero))


def _to_complex(input, other) -> torch.dtype:
    names = [type_name(x.dtype) for x in (input, other)]
    if not {input.dtype, other.dtype} <= {torch.float16, torch.float32, torch.float64}:
        raise RuntimeError(f"Expected both inputs to be Half, Float or Double tensors but got {' and '.join(names)}")
    if input.dtype != other.dtype:
        raise RuntimeError(
            f"Expected object of scalar type {names[0]} but got scalar type {names[1]} for second argument"
        )
    return input.dtype.to_complex()


@exact(torch.complex, dtype=lambda real, imag: _to_complex(real, imag), exact_out=True)
def complex_(real, imag):
    return lax.complex(*same_shape(real, imag))


@exact(torch.polar, takes=frozenset({torch.float32, torch.float64}), dtype=lambda abs, angle: _to_complex(abs, angle))
def polar(abs, angle):
    return _polar(*same_shape(abs, angle))


@jax.custom_jvp
def _polar(size, angle):
    """A complex number by its size and angle; as PyTorch's, without a derivative by a size of zero."""
    return lax.complex(lax.mul(size, lax.cos(angle)), lax.mul(size, lax.sin(angle)))


@_polar.defjvp
def _(primals, tangents):
    (size, angle), (d_size, d_angle) = primals, tangents
    along = lax.mul(d_size, cast(lax.ne(size, like(size, 0)), size.dtype))
    across = lax.mul(size, d_angle)
    cos, sin = lax.cos(angle), lax.sin(angle)
    real = lax.sub(lax.mul(along, cos), lax.mul(across, sin))
    return _polar(size, angle), lax.complex(real, lax.add(lax.mul(along, sin), lax.mul(across, cos)))


def complex_power(base, exponent):
    """``exp(exponent * log(base))``, but of zero, with which ``lax.pow`` overflows only if the result does."""
    base, exponent = same_shape(base, exponent)
    vanishes = lax.bitwise_and(lax.eq(base, like(base, 0)), lax.gt(lax.real(exponent), like(lax.real(exponent), 0)))
    power = lax.exp(lax.mul(exponent, lax.log(where(vanishes, like(base, 1), base))))
    return where(vanishes, like(power, 0), power)


# Inverse functions. XLA's take one side of some branch cuts for both, and lose what is not a number.


def _reflecting_real(function, x):
    """A function whose real part is odd in the real part of its argument, from its values on the right."""
    left = has_sign(lax.real(x))
    return _mirrored(left, function(_mirrored(left, x)))


def _reflecting_imag(function, x):
    """A function whose imaginary part is odd in the imaginary part of its argument, from its values above."""
    below = has_sign(lax.imag(x))
    return _conjugated(below, function(_conjugated(below, x)))


def _mirrored(there, x):
    real = lax.real(x)
    return lax.complex(where(there, lax.neg(real), real), lax.imag(x))


def _conjugated(there, x):
    imag = lax.imag(x)
    return lax.complex(lax.real(x), where(there, lax.neg(imag), imag))


@jax.custom_jvp
def _acosh(x):
    """``lax.acosh`` of complex numbers, whose own derivative has the wrong sign in the left half of the plane."""
    return lax.acosh(x)


@_acosh.defjvp
def _(primals, tangents):
    (x,), (tangent,) = primals, tangents
    one = like(x, 1)
    return _acosh(x), lax.mul(tangent, lax.mul(lax.rsqrt(lax.sub(x, one)), lax.rsqrt(lax.add(x, one))))


def _has_no_angle(along, across):
    """True where an inverse tangent is NaN: infinitely far across, the other part does not matter."""
    unknown = lax.bitwise_and(lax.ne(along, along), lax.lt(lax.abs(across), like(across, math.inf)))
    return lax.bitwise_or(unknown, lax.ne(across, across))


def _inverse(function, reflect, of_complex):
    def body(input):
        return reflect(of_complex, input) if is_complex(input) else function(input)

    return body


for _functions, _function, _reflect, _of_complex in (
    ((torch.asin, torch.arcsin), lax.asin, _reflecting_imag, lax.asin),
    ((torch.acos, torch.arccos), lax.acos, _reflecting_imag, lax.acos),
    ((torch.asinh, torch.arcsinh), lax.asinh, _reflecting_real, lax.asinh),
    ((torch.acosh, torch.arccosh), lax.acosh, _reflecting_imag, _acosh),
):
    floating(*_functions)(_inverse(_function, _reflect, _of_complex))


@floating_once(torch.atan, torch.arctan)
def atan(input):
    if not is_complex(input):
        return lax.atan(input)
    inverse = _reflecting_real(lax.atan, input)
    real = lax.real(inverse)
    undefined = _has_no_angle(lax.imag(input), lax.real(input))
    return lax.complex(where(undefined, like(real, math.nan), real), lax.imag(inverse))


@floating(torch.atanh, torch.arctanh)
def atanh(input):
    if not is_complex(input):
        return lax.atanh(input)
    inverse = _reflecting_imag(lax.atanh, input)
    imag = lax.imag(inverse)
    undefined = _has_no_angle(lax.real(input), lax.imag(input))
    return lax.complex(lax.real(inverse), where(undefined, like(imag, math.nan), imag))


for _functions, _function in (
    ((torch.sin,), lax.sin),
    ((torch.cos,), lax.cos),
    ((torch.tan,), lax.tan),
    ((torch.sinh,), lax.sinh),
    ((torch.cosh,), lax.cosh),
    ((torch.tanh, torch.nn.functional.tanh), lax.tanh),
    ((torch.exp,), lax.exp),
    ((torch.log,), lax.log),
    ((torch.log1p, torch.special.log1p), lax.log1p),
    ((torch.sqrt,), lax.sqrt),
    ((torch.rsqrt,), lax.rsqrt),
    ((torch.reciprocal,), lambda x: lax.div(like(x, 1), x)),
):
    floating_once(*_functions)(unary(_function))

for _functions, _function in (
    ((torch.erf, torch.special.erf), lax.erf),
    ((torch.erfc, torch.special.erfc), lax.erfc),
    ((torch.erfinv, torch.special.erfinv), lax.erf_inv),
):
    floating_real_once(*_functions)(unary(_function))

for _functions, _function in (  # XLA computes these in several steps, each rounded
    ((torch.exp2, torch.special.exp2), lambda x: lax.pow(like(x, 2), x)),  # exact powers, as lax.exp2 has not
    ((torch.expm1, torch.special.expm1), lax.expm1),
    ((torch.sigmoid, torch.special.expit, torch.nn.functional.sigmoid), lax.logistic),
    ((torch.log2,), lambda x: lax.mul(lax.log(x), like(x, 1 / math.log(2)))),
    ((torch.log10,), lambda x: lax.mul(lax.log(x), like(x, 1 / math.log(10)))),
    ((torch.sinc, torch.special.sinc), jnp.sinc),
):
    floating(*_functions)(unary(_function))


@floating_real(torch.deg2rad)
def deg2rad(input):
    return lax.mul(input, like(input, math.pi / 180))


@floating_real(torch.rad2deg)
def rad2deg(input):
    return lax.mul(input, like(input, 180 / math.pi))


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
    exact(*_functions, takes=REALS)(_unless_integer(_function))


def _rounded_dtypes(input, *, decimals=None):
    return REALS if decimals is None else FLOATS


@exact(torch.round, torch.special.round, takes=_rounded_dtypes)
def round(input, *, decimals=0):
    if not is_float(input):
        return input
    if decimals == 0:
        return lax.round(input, lax.RoundingMethod.TO_NEAREST_EVEN)
    wide = widened(input)
    scale = like(wide, 10.0 ** abs(decimals))
    scaled = lax.mul(wide, scale) if decimals > 0 else lax.div(wide, scale)
    rounded = lax.round(scaled, lax.RoundingMethod.TO_NEAREST_EVEN)
    return cast(lax.div(rounded, scale) if decimals > 0 else lax.mul(rounded, scale), input.dtype)


@exact(torch.frac, takes=FLOATS)
def frac(input):
    return lax.sub(input, trunc(input))


@exact(torch.neg, torch.negative, tags=[Tag.LINEAR])
def neg(input):
    if input.dtype == bool:
        raise RuntimeError(
            "Negation, the `-` operator, on a bool tensor is not supported. If you are trying to invert a mask, use "
            "the `~` or `logical_not()` operator instead."
        )
    return lax.neg(input)


@implements_tensors(
    torch.positive, torch.Tensor.positive, torch.Tensor.__pos__, torch.ops.aten.positive.default, takes=NUMBERS
)
def positive(input):
    return input  # itself, so that a write to the result is one to the argument


@exact(torch.abs, torch.absolute, dtype=lambda input: input.dtype.to_real())
def abs_(input):
    return input if is_unsigned(input) else magnitude(input) if is_inexact(input) else lax.abs(input)


@implements_tensors(torch.abs_, torch.Tensor.abs_, torch.Tensor.absolute_, torch.ops.aten.abs_.default)
def in_place_abs(self):
    if self.is_complex():
        raise RuntimeError("In-place abs is not supported for complex tensors.")
    return self.copy_(self.abs())


@exact(torch.sign, takes=REALS_AND_BOOL)
def sign(input):
    return sgn(input)


@exact(torch.sgn)
def sgn(input):
    if is_complex(input):
        return direction(input)
    if is_float(input):  # PyTorch has zero for nan
        return where(lax.ne(input, input), like(input, 0), lax.sign(input))
    return input if input.dtype == bool else lax.sign(input)


@predicate(torch.signbit, takes=REALS_AND_BOOL, exact_out=True)
def signbit(input):
    return has_sign(input)


@floating_real(torch.logit, torch.special.logit)
def logit(input, *, eps=None):
    if eps is not None and eps > 0.5:  # then the bounds have changed places, and the lower one is asked first
        low = like(input, eps)
        input = where(lax.lt(input, low), low, at_most(input, like(input, 1 - eps)))
    elif eps is not None:
        input = at_most(at_least(input, like(input, eps)), like(input, 1 - eps))
    return _log_odds(input)


@jax.custom_jvp
def _log_odds(x):
    return lax.sub(lax.log(x), lax.log1p(lax.neg(x)))


@_log_odds.defjvp
def _(primals, tangents):
    ((x,), (dx,)) = primals, tangents
    one = like(x, 1)
    is_outside = lax.bitwise_or(lax.lt(x, like(x, 0)), lax.gt(x, one))
    slope = where(is_outside, like(x, math.nan), lax.div(one, lax.mul(x, lax.sub(one, x))))
    return _log_odds(x), lax.mul(dx, slope)
