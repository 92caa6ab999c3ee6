"""Pointwise functions of one number: exponentials, trigonometry, rounding, signs."""

import math

import jax
import jax.numpy as jnp
import torch
from jax import lax

from ..rules.options import Tag
from ..rules.registry import implements_tensors
from ..tensors.dtypes import FLOATS, NUMBERS, REALS, REALS_AND_BOOL
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
    unary,
    where,
    widened,
)
from .comparison import at_least, at_most
from .complex import direction, magnitude

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
