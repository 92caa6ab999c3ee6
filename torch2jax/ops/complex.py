"""Complex numbers: absolute values, angles and parts, and inverse functions along their branch cuts."""

import math

import jax
import torch
from jax import lax

from ..tensors.dtypes import canonical, is_integral, type_name
from .arrays import cast, exact, floating, floating_once, has_sign, is_complex, is_float, like, same_shape, where


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
