"""Arithmetic: PyTorch adds booleans as `or` and multiplies them as `and`."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from jax.custom_derivatives import SymbolicZero

from ..rules.options import Tag
from ..rules.pointwise import as_tensors, like_input
from ..rules.promotion import Promotion
from ..rules.registry import implements, implements_tensors
from ..tensors.dtypes import FLOATS, HALF, INEXACT, INTEGERS, NUMBERS, REALS, expect, expect_fits, held_as, is_integral
from .arrays import (
    cast,
    default,
    default_once,
    exact,
    floating,
    floating_once,
    floating_real,
    is_complex,
    is_float,
    is_inexact,
    is_unsigned,
    like,
    same_shape,
    where,
)
from .bounds import seen
from .conversion import converted
from .elementwise import complex_power, trunc

aten = torch.ops.aten


def _is_one(factor) -> bool:
    return not isinstance(factor, jax.Array) and factor == 1


def _scaled_promotion(kwargs) -> Promotion:
    return Promotion.DEFAULT_ONCE if _is_one(kwargs.get("alpha", 1)) else Promotion.DEFAULT


def _scaled(operand, alpha):
    if isinstance(alpha, bool) and operand.dtype != bool:
        raise RuntimeError("Boolean alpha only supported for Boolean results.")
    if isinstance(alpha, float) and not is_inexact(operand):
        raise RuntimeError("For integral input tensors, argument alpha must not be a floating point number.")
    return _times(operand, alpha)


def _times(operand, factor):
    """The operand times a number, which is taken in its dtype."""
    if _is_one(factor):
        return operand
    if isinstance(factor, jax.Array):
        return lax.mul(operand, cast(factor, operand.dtype))
    return mul(operand, like(operand, factor))


@implements(torch.add, promote=_scaled_promotion, fits=("alpha",), tags=[Tag.LINEAR])
def add(input, other, *, alpha=1):
    other = _scaled(other, alpha)
    return lax.bitwise_or(input, other) if input.dtype == bool else lax.add(input, other)


def _subtracted_dtypes(input, other, *, alpha=1):
    """All dtypes but bool, from which a number is not subtracted either."""
    for operand in (input, other):
        if getattr(operand, "dtype", type(operand)) in (torch.bool, bool):
            raise RuntimeError(
                "Subtraction, the `-` operator, with a bool tensor is not supported. If you are trying to invert a "
                "mask, use the `~` or `logical_not()` operator instead. Of two masks, use `^` or `logical_xor()`."
            )


@implements(
    torch.sub, torch.subtract, promote=_scaled_promotion, takes=_subtracted_dtypes, fits=("alpha",), tags=[Tag.LINEAR]
)
def sub(input, other, *, alpha=1):
    return lax.sub(input, _scaled(other, alpha))


@implements(
    torch.rsub,
    torch.Tensor.__rsub__,
    promote=_scaled_promotion,
    takes=_subtracted_dtypes,
    fits=("alpha",),
    tags=[Tag.LINEAR],
)
def rsub(input, other, *, alpha=1):
    return sub(other, input, alpha=alpha)


@default_once(torch.mul, torch.multiply, tags=[Tag.PRODUCT])
def mul(input, other):
    return lax.bitwise_and(input, other) if input.dtype == bool else lax.mul(input, other)


def _division(kwargs) -> Promotion:
    return Promotion.INT_TO_FLOAT_ONCE if kwargs.get("rounding_mode") is None else Promotion.DEFAULT


def _dividend_dtypes(input, other, *, rounding_mode=None):
    return None if rounding_mode is None else REALS


def _check_divisor(input, other, *, rounding_mode: str | None = "floor") -> None:
    """Refuses to divide whole numbers by a zero that is seen."""
    if rounding_mode is None or not all(map(_is_integer, (input, other))):
        return
    if isinstance(other, torch.Tensor):
        values = seen(other)
        is_zero = values is not None and not values.all()
    else:
        is_zero = other.bit_length() <= 64 and other % 2 ** _bits_of(input) == 0  # it wraps around
    if is_zero:
        raise RuntimeError("ZeroDivisionError")


def _bits_of(value) -> int:
    """The number of bits of the integers that a number is combined with."""
    is_of_integers = isinstance(value, torch.Tensor) and value.dtype != torch.bool
    return torch.iinfo(held_as(value.dtype)).bits if is_of_integers else 64


def _is_integer(value) -> bool:
    return is_integral(value.dtype) if isinstance(value, torch.Tensor) else isinstance(value, int)


def _check_reflected_divisor(input, other) -> None:
    _check_divisor(other, input)


def _check_rounded_divisor(input, other, *, rounding_mode=None) -> None:
    _check_divisor(input, other, rounding_mode=rounding_mode)


@implements(
    torch.div,
    torch.divide,
    promote=_division,
    takes=_dividend_dtypes,
    check=_check_rounded_divisor,
    tags=[Tag.QUOTIENT],
)
def div(input, other, *, rounding_mode=None):
    if rounding_mode is None:
        return lax.div(input, other)
    if rounding_mode == "floor":
        return floor_divide(input, other)
    if rounding_mode == "trunc":
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


@floating_once(torch.Tensor.__rdiv__, torch.Tensor.__rtruediv__, prepare=_prepare_rdiv, strides=as_tensors)
def rdiv(input, other):
    return lax.div(other, input)


@default(torch.floor_divide, takes=REALS, check=_check_divisor)
def floor_divide(input, other):
    if not is_float(input):
        quotient = lax.div(input, other)
        return quotient if is_unsigned(input) else _lower(quotient, lax.rem(input, other), other)
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


@default(torch.Tensor.__rfloordiv__, takes=REALS, check=_check_reflected_divisor)
def rfloordiv(input, other):
    return floor_divide(other, input)


@exact(torch.remainder, takes=REALS, check=_check_divisor)  # PyTorch rounds a number, of which the rest depends
def remainder(input, other):
    rest = lax.rem(input, other)
    return rest if is_unsigned(rest) else where(_disagree(rest, other), lax.add(rest, other), rest)


@exact(torch.fmod, takes=REALS, check=_check_divisor)
def fmod(input, other):
    return lax.rem(input, other)


def _powered_dtypes(input, other):
    """The dtypes of a power; checks that an exponent fits those of integers and of half precision."""
    if isinstance(input, torch.Tensor):
        if type(other) is int and is_integral(input.dtype):
            if other < 0:
                raise RuntimeError("Integers to negative integer powers are not allowed.")
            expect_fits(other, input.dtype)
        elif input.dtype in HALF:
            expect_fits(other, input.dtype)
    return NUMBERS


def _strides_of_power(shape, input, other):
    """The strides of a power: contiguous, if the base is a number."""
    return as_tensors(shape, input, other) if isinstance(input, torch.Tensor) else None


@default(torch.pow, takes=_powered_dtypes, strides=_strides_of_power)
def pow(input, other):
    exponent = _plain_exponent(other)
    if exponent is not None and (exponent >= 0 or is_inexact(input)):
        return lax.integer_pow(input, exponent)
    if not is_inexact(input):
        if isinstance(other, np.ndarray) and (other < 0).any():
            raise RuntimeError("Integers to negative integer powers are not allowed.")
        return _integer_power(input, other)
    if isinstance(other, np.ndarray) and other in (0.5, -0.5):
        return (lax.sqrt if other == 0.5 else lax.rsqrt)(input)
    if is_complex(input):
        return complex_power(input, other)
    base, exponent = same_shape(input, other)
    return lax.pow(base, exponent) if isinstance(other, np.ndarray) else _power(base, exponent)


@jax.custom_jvp
def _power(base, exponent):
    """``lax.pow``, whose own derivative at a base of zero is not defined, or not infinite, where PyTorch's is.

    Where a derivative is zero whatever else is, as by the base of ``x**0``, nothing comes through it in second
    derivatives either: a logarithm of a negative base would be nan there, times zero.
    """
    return lax.pow(base, exponent)


def _power_jvp(primals, tangents):
    base, exponent = primals
    result, moves = _power(base, exponent), []
    zero, one = like(base, 0), like(base, 1)
    if not isinstance(tangents[0], SymbolicZero):
        slope = lax.mul(exponent, _power(base, lax.sub(exponent, one)))
        moves.append(_product_or_zero(tangents[0], slope, lax.eq(exponent, zero)))
    if not isinstance(tangents[1], SymbolicZero):
        is_flat = lax.bitwise_and(lax.eq(base, zero), lax.ge(exponent, zero))
        moves.append(_product_or_zero(tangents[1], lax.mul(result, lax.log(base)), is_flat))
    return result, moves[0] if len(moves) == 1 else lax.add(*moves)


def _product_or_zero(tangent, slope, is_flat):
    zero = like(slope, 0)
    return lax.mul(where(is_flat, zero, tangent), where(is_flat, zero, slope))


_power.defjvp(_power_jvp, symbolic_zeros=True)


def _plain_exponent(exponent) -> int | None:
    """A constant exponent that takes but a few multiplications."""
    if isinstance(exponent, np.ndarray) and exponent.imag == 0 and exponent.real in (-2, -1, 0, 1, 2, 3, 4):
        return int(exponent.real)
    return None


def _integer_power(base, exponent):
    if isinstance(exponent, np.ndarray):
        return lax.integer_pow(base, int(exponent))
    zero, one = like(base, 0), like(base, 1)
    power = _power_by_squaring(base, lax.max(exponent, zero))
    if is_unsigned(base):
        return power
    is_odd = lax.bitwise_and(exponent, one)
    sign_of_minus_one = where(lax.eq(is_odd, zero), one, like(base, -1))
    inverse = where(lax.eq(base, like(base, -1)), sign_of_minus_one, cast(lax.eq(base, one), base.dtype))
    return where(lax.lt(exponent, zero), inverse, power)


def _power_by_squaring(base, exponent):
    """Powers that wrap around as products do, by all bits of the largest exponent: ``jnp.power`` looks at six."""
    base, exponent = same_shape(base, exponent)
    one = like(base, 1)

    def has_bits(carry):
        return lax.reduce_or(lax.ne(carry[2], like(base, 0)), range(base.ndim))

    def iteration(carry):
        result, square, rest = carry
        is_factor = lax.ne(lax.bitwise_and(rest, one), like(base, 0))
        result = lax.select(is_factor, lax.mul(result, square), result)
        return result, lax.mul(square, square), lax.shift_right_logical(rest, lax.full_like(rest, 1))

    return lax.while_loop(has_bits, iteration, (lax.full_like(base, 1), base, exponent))[0]


@implements(torch.square, promote=Promotion.BOOL_TO_LONG)
def square(input):
    return lax.square(input)


def _float_power_dtype(input, exponent) -> torch.dtype:
    is_complex = any(
        x.is_complex() if isinstance(x, torch.Tensor) else isinstance(x, complex) for x in (input, exponent)
    )
    return torch.complex128 if is_complex else torch.float64


def _prepare_float_power(input, exponent):
    """Casts both operands to double precision first: a number is not wrapped to a tensor's integer dtype."""
    dtype = _float_power_dtype(input, exponent)
    number = complex if dtype.is_complex else float
    return tuple(converted(x, dtype) if isinstance(x, torch.Tensor) else number(x) for x in (input, exponent)), {}


@exact(torch.float_power, dtype=_float_power_dtype, prepare=_prepare_float_power, strides=_strides_of_power)
def float_power(input, exponent):
    return pow(input, exponent)


@implements_tensors(torch.Tensor.float_power_)
def float_power_(input, exponent):
    result = torch.float_power(input, exponent)
    if result.dtype != input.dtype:
        raise RuntimeError(
            f"the base given to float_power_ has dtype {input.dtype}, but the operation's result has {result.dtype}"
        )
    return input.copy_(result)


@floating_real(torch.atan2, torch.arctan2)
def atan2(input, other):
    return _angle(*same_shape(input, other))


@jax.custom_jvp
def _angle(y, x):
    """``lax.atan2`` with derivatives of zero at the origin, where JAX has nan: torsions of atoms in a line."""
    return lax.atan2(y, x)


@_angle.defjvp
def _(primals, tangents):
    (y, x), (d_y, d_x) = primals, tangents
    size = lax.add(lax.square(y), lax.square(x))
    size = where(lax.eq(size, like(size, 0)), like(size, math.inf), size)
    return _angle(y, x), lax.sub(lax.mul(d_y, lax.div(x, size)), lax.mul(d_x, lax.div(y, size)))


@default(torch.hypot, takes=FLOATS)
def hypot(input, other):
    return _hypotenuse(*same_shape(input, other))


@jax.custom_jvp
def _hypotenuse(x, y):
    """``jnp.hypot``, whose own derivatives are not defined at infinity, nor the second ones where `x` is `y`."""
    return jnp.hypot(x, y)


@_hypotenuse.defjvp
def _(primals, tangents):
    result = _hypotenuse(*primals)
    slopes = (lax.div(x, result) for x in primals)
    return result, lax.add(*(lax.mul(slope, tangent) for slope, tangent in zip(slopes, tangents, strict=True)))


@floating_real(torch.copysign)
def copysign(input, other):
    return _copysign(*same_shape(input, other))


@jax.custom_jvp
def _copysign(x, other):
    """``jnp.copysign`` with PyTorch's derivative, which is zero at zero; the other operand has none."""
    return jnp.copysign(x, other)


@_copysign.defjvp
def _(primals, tangents):
    (x, other), (d_x, _) = primals, tangents
    result = _copysign(x, other)
    return result, lax.mul(lax.mul(lax.sign(x), lax.sign(result)), d_x)


@jax.custom_jvp
def _nextafter(x, towards):
    return lax.nextafter(x, towards)


@_nextafter.defjvp
def _(primals, tangents):
    moves = lax.ne(*primals)
    return _nextafter(*primals), where(moves, tangents[0], like(tangents[0], 0))


@exact(torch.nextafter, takes=FLOATS)
def nextafter(input, other):
    return _nextafter(*same_shape(input, other))


@default(torch.logaddexp, takes=INEXACT)
def logaddexp(input, other):
    if is_complex(input):
        return jnp.logaddexp(input, other)
    return sum_of_powers(1.0, *same_shape(input, other))


@default(torch.logaddexp2, takes=FLOATS)
def logaddexp2(input, other):
    return sum_of_powers(math.log(2), *same_shape(input, other))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def sum_of_powers(scale: float, x, y):
    """``logaddexp`` or ``logaddexp2``, whose own derivatives are wrong where one operand is infinite."""
    return (jnp.logaddexp if scale == 1 else jnp.logaddexp2)(x, y)


@sum_of_powers.defjvp
def _(scale, primals, tangents):
    (x, y), (d_x, d_y) = primals, tangents
    is_undefined = lax.bitwise_and(lax.eq(x, y), lax.eq(lax.abs(x), like(x, math.inf)))
    apart = lax.mul(where(is_undefined, like(x, 0), lax.sub(x, y)), like(x, scale))
    moves = lax.add(lax.mul(d_x, lax.logistic(apart)), lax.mul(d_y, lax.logistic(lax.neg(apart))))
    return sum_of_powers(scale, x, y), moves


@floating_real(torch.xlogy, torch.special.xlogy)
def xlogy(input, other):
    return _x_times_log(*same_shape(input, other))


@jax.custom_jvp
def _x_times_log(x, y):
    """``jax.scipy.special.xlogy`` with PyTorch's derivative of zero by `x` where it is 0 and the logarithm is not."""
    return jax.scipy.special.xlogy(x, y)


@_x_times_log.defjvp
def _(primals, tangents):
    (x, y), (d_x, d_y) = primals, tangents
    vanishes = lax.bitwise_and(lax.eq(x, like(x, 0)), lax.le(y, like(y, 0)))
    slope = lax.log(where(vanishes, like(y, 1), y))
    return _x_times_log(x, y), lax.add(lax.mul(d_x, slope), lax.mul(d_y, lax.div(x, y)))


@floating_real(torch.special.xlog1py)
def xlog1py(input, other):
    return _x_times_log1p(*same_shape(input, other))


@jax.custom_jvp
def _x_times_log1p(x, y):
    """As `_x_times_log`, for ``y + 1``."""
    return jax.scipy.special.xlog1py(x, y)


@_x_times_log1p.defjvp
def _(primals, tangents):
    (x, y), (d_x, d_y) = primals, tangents
    vanishes = lax.bitwise_and(lax.eq(x, like(x, 0)), lax.le(y, like(y, -1)))
    slope = lax.log1p(where(vanishes, like(y, 0), y))
    return _x_times_log1p(x, y), lax.add(lax.mul(d_x, slope), lax.mul(d_y, lax.div(x, lax.add(y, like(y, 1)))))


def _prepare_lerp(input, end, weight):
    if end.dtype != input.dtype:
        raise RuntimeError(f"lerp expects `end` of the dtype of `input`, got {end.dtype} for {input.dtype}")
    expect("lerp", input.dtype, INEXACT)
    return (input, end, weight), {}


@default(torch.lerp, prepare=_prepare_lerp, fits=("weight",), strides=as_tensors)
def lerp(input, end, weight):
    difference = lax.sub(end, input)
    if isinstance(weight, np.ndarray) and abs(weight) >= 0.5:  # exact at one, as PyTorch is
        return lax.sub(end, lax.mul(difference, like(weight, 1) - weight))
    return lax.add(input, lax.mul(weight, difference))


@default(torch.addcmul, takes=NUMBERS, fits=("value",))
def addcmul(input, tensor1, tensor2, *, value=1):
    product = lax.mul(tensor1, tensor2)
    return lax.add(input, _times(product, value))


def _quotient_dtypes(input, tensor1, tensor2, *, value=1):
    if all(is_integral(x.dtype) for x in (tensor1, tensor2)):
        raise RuntimeError(
            "Integer division with addcdiv is no longer supported, and in a future release addcdiv will perform a true "
            "division of tensor1 and tensor2. The historic addcdiv behavior can be implemented as (input + value * "
            "torch.trunc(tensor1 / tensor2)).to(input.dtype) for integer inputs and as (input + value * tensor1 / "
            "tensor2) for float inputs. The future addcdiv behavior is just the latter implementation: (input + value "
            "* tensor1 / tensor2), for all dtypes."
        )
    return INEXACT


@default(torch.addcdiv, takes=_quotient_dtypes, fits=("value",))
def addcdiv(input, tensor1, tensor2, *, value=1):
    quotient = lax.div(tensor1, tensor2)
    return lax.add(input, _times(quotient, value))


@exact(torch.gcd, takes=INTEGERS)
def gcd(input, other):
    """As PyTorch computes it, step by step: the least integer has no absolute value, and ``jnp.gcd`` would not end."""
    input, other = same_shape(*(x if is_unsigned(x) else lax.abs(x) for x in (input, other)))
    zero, one, axes = like(input, 0), like(input, 1), tuple(range(input.ndim))

    def iteration(pair):
        rest, divisor = pair
        goes_on = lax.ne(rest, zero)
        return where(goes_on, lax.rem(divisor, where(goes_on, rest, one)), zero), where(goes_on, rest, divisor)

    return lax.while_loop(lambda pair: lax.reduce_or(lax.ne(pair[0], zero), axes), iteration, (input, other))[1]


@exact(torch.lcm, takes=INTEGERS)
def lcm(input, other):
    dtype, divisor = input.dtype, gcd(input, other)
    if dtype.itemsize < 4:  # as C computes with narrow integers
        input, other, divisor = (cast(x, np.int32) for x in (input, other, divisor))
    parts = lax.div(*same_shape(input, where(lax.eq(divisor, like(divisor, 0)), like(divisor, 1), divisor)))
    found = lax.mul(*same_shape(parts, other))
    return cast(found if is_unsigned(found) else lax.abs(found), dtype)


@implements(torch.frexp, takes=FLOATS, dtype=(None, torch.int32), strides=like_input)
def frexp(input):
    fixed = lax.stop_gradient(input)
    exponent = _exponent(fixed)
    return _fraction(input, lax.stop_gradient(cast(exponent, input.dtype))), exponent


def _bits(x):
    """A number's bits, as an integer, and how many of them its fraction has."""
    return lax.bitcast_convert_type(x, f"int{8 * x.dtype.itemsize}"), jnp.finfo(x.dtype).nmant


def _exponent(x):
    """The exponent of each number as in `frexp`, 0 where there is none. XLA takes what is below the least normal for
    zero.
    """
    bits, fraction = _bits(x)
    information = jnp.finfo(x.dtype)
    bias, width = information.maxexp - 1, bits.dtype.itemsize * 8
    magnitude = lax.bitwise_and(bits, like(bits, (1 << (width - 1)) - 1))
    field = lax.shift_right_logical(magnitude, like(bits, fraction))
    below = lax.sub(like(bits, width - bias - fraction + 1), lax.clz(magnitude))
    exponent = where(lax.eq(field, like(bits, 0)), below, lax.sub(field, like(bits, bias - 1)))
    has_none = lax.bitwise_or(lax.eq(magnitude, like(bits, 0)), lax.eq(field, like(bits, 2 * bias + 1)))
    return cast(where(has_none, like(bits, 0), exponent), np.int32)


@jax.custom_jvp
def _fraction(x, exponent):
    """``x / 2**exponent``, for the exponent of `x`."""
    bits, fraction = _bits(x)
    bias, width = jnp.finfo(x.dtype).maxexp - 1, bits.dtype.itemsize * 8
    most = (1 << (width - 1)) - 1
    magnitude = lax.bitwise_and(bits, like(bits, most))
    is_below = lax.lt(magnitude, like(bits, 1 << fraction))
    shifted = lax.shift_left(magnitude, lax.sub(lax.clz(magnitude), like(bits, width - 1 - fraction)))
    found = lax.bitwise_and(where(is_below, shifted, magnitude), like(bits, (1 << fraction) - 1))
    sign = lax.bitwise_and(bits, like(bits, -most - 1))
    found = lax.bitwise_or(lax.bitwise_or(found, like(bits, (bias - 1) << fraction)), sign)
    has_none = lax.bitwise_or(
        lax.eq(magnitude, like(bits, 0)), lax.ge(magnitude, like(bits, (2 * bias + 1) << fraction))
    )
    return where(has_none, x, lax.bitcast_convert_type(found, x.dtype))


@_fraction.defjvp
def _(primals, tangents):
    x, exponent = primals
    return _fraction(x, exponent), _scaled_by_two(tangents[0], lax.neg(exponent))


@floating(torch.ldexp)
def ldexp(input, other):
    input, other = same_shape(input, other)
    if not is_complex(input):
        return _scaled_by_two(input, other)
    exponent, angle = lax.real(other), lax.mul(lax.imag(other), like(lax.imag(other), math.log(2)))
    turned = lax.mul(input, lax.complex(lax.cos(angle), lax.sin(angle)))
    return lax.complex(*(_scaled_by_two(part(turned), exponent) for part in (lax.real, lax.imag)))


@jax.custom_jvp
def _scaled_by_two(x, exponent):
    """``x * 2**exponent``, by three factors: XLA may flush the whole power to zero, or it may be infinite."""
    most = 3 * (jnp.finfo(x.dtype).maxexp - 2)
    exponent = lax.clamp(like(x, -most), exponent, like(x, most))
    third = trunc(lax.div(exponent, like(x, 3)))
    factor = _power_of_two(third)
    rest = _power_of_two(lax.sub(exponent, lax.mul(third, like(x, 2))))
    return lax.mul(lax.mul(lax.mul(x, factor), factor), rest)


def _power_of_two(exponent):
    return lax.pow(lax.full_like(exponent, 2), exponent)


@_scaled_by_two.defjvp
def _(primals, tangents):
    (x, exponent), (d_x, d_exponent) = primals, tangents
    result = _scaled_by_two(x, exponent)
    moves = lax.mul(d_exponent, lax.mul(result, like(x, math.log(2))))
    return result, lax.add(_scaled_by_two(d_x, exponent), moves)
