"""Comparison and logic: larger, within bounds, equal, finite; choices and bits."""

import builtins
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import torch
from jax import lax
from jax.custom_derivatives import SymbolicZero

from ..rules.options import Tag
from ..rules.pointwise import as_copy, as_tensors
from ..rules.promotion import Promotion, kind_of, promoted
from ..rules.registry import implements_overloads, implements_tensors
from ..rules.rule import of_metadata
from ..tensors.dtypes import (
    HALF,
    INTEGERS,
    INTEGERS_AND_BOOL,
    REALS,
    REALS_AND_BOOL,
    canonical,
    expect_fits,
    expect_integer,
    type_name,
)
from . import bounds
from .arrays import (
    binary,
    cast,
    exact,
    is_complex,
    is_float,
    is_inexact,
    is_unsigned,
    like,
    predicate,
    truth,
    unary,
    where,
)

aten = torch.ops.aten
ordered = functools.partial(exact, takes=REALS_AND_BOOL)
comparing = functools.partial(predicate, takes=REALS_AND_BOOL)


# Larger, smaller, and within bounds.


@jax.custom_jvp
def at_least(x, bound):
    """``lax.max`` with the whole derivative at a tie going to `x`."""
    return lax.max(x, bound)


@jax.custom_jvp
def at_most(x, bound):
    """``lax.min`` with the whole derivative at a tie going to `x`."""
    return lax.min(x, bound)


@jax.custom_jvp
def _above(x, bound):
    """``lax.max`` with no derivative at a tie going to `x`."""
    return lax.max(x, bound)


@jax.custom_jvp
def _below(x, bound):
    """``lax.min`` with no derivative at a tie going to `x`."""
    return lax.min(x, bound)


def _differentiates(bounded, is_chosen) -> None:
    @functools.partial(bounded.defjvp, symbolic_zeros=True)
    def _(primals, tangents):
        x, bound = (like(t, 0) if isinstance(t, SymbolicZero) else t for t in tangents)
        return bounded(*primals), where(is_chosen(*primals), x, bound)


for _bounded, _is_chosen in ((at_least, lax.ge), (at_most, lax.le), (_above, lax.gt), (_below, lax.lt)):
    _differentiates(_bounded, _is_chosen)


def _with_bounds(*names: str) -> Callable[..., tuple[tuple, dict]] | None:
    """Prepares the arguments ``(input, *bounds)`` of these names, where PyTorch tells numbers from tensors.

    In such releases they have different derivatives at ties. A number beyond an integer dtype is refused if none of
    the dtype is within it, and else is that of the dtype: it bounds nothing.
    """

    def prepare(input, *bounds, **named) -> tuple[tuple, dict]:
        given = dict(zip(names, bounds, strict=False)) | named
        are_numbers = not any(map(_is_tensor, given.values()))
        return (input, *(_fitting(input, name, given.get(name)) for name in names)), {"are_numbers": are_numbers}

    return prepare if bounds.ARE_BOUNDS_FITTED or bounds.IS_TIE_SHARED else None


def _is_tensor(bound) -> bool:
    """Returns True if PyTorch gets a tensor; a tensor may also stand for a number here, one that `item()` gave."""
    return isinstance(bound, torch.Tensor) and getattr(bound, "python_type", None) is None


def _fitting(input, name: str, bound):
    if not bounds.ARE_BOUNDS_FITTED or type(bound) is not int:
        return bound
    if not isinstance(input, torch.Tensor) or input.dtype not in INTEGERS:
        return bound
    expect_integer(bound)
    info = torch.iinfo(input.dtype)
    if bound > info.max if name == "min" else bound < info.min:
        raise RuntimeError(f"Clamp {name} value {bound} is outside the representable range of {type_name(input.dtype)}")
    return builtins.min(builtins.max(bound, info.min), info.max)


@exact(
    torch.clamp,
    torch.clip,
    takes=REALS,
    fits=("min", "max"),
    prepare=_with_bounds("min", "max"),
    strides=as_tensors,
)
def clamp(input, min=None, max=None, *, are_numbers=False):
    if min is None and max is None:
        raise RuntimeError("torch.clamp: At least one of 'min' or 'max' must not be None")
    if not is_float(input):
        return _within(lax.max, lax.min, input, min, max)
    if are_numbers:
        return _within(*((at_least, at_most) if bounds.IS_BOUND_INSIDE else (_above, _below)), input, min, max)
    if not bounds.IS_TIE_SHARED:
        return _within(at_least, at_most, input, min, max)
    shared = _within(lax.max, lax.min, input, min, max)  # whose derivatives are shared at ties
    if min is None or max is None:
        return shared
    return where(lax.eq(min, max), _within(at_least, at_most, input, min, max), shared)


def _within(least, most, input, min, max):
    if min is not None:
        input = least(input, min)
    return input if max is None else most(input, max)


@ordered(torch.clamp_min, fits=("min",), prepare=_with_bounds("min"), strides=as_tensors)
def clamp_min(input, min, *, are_numbers=False):
    return clamp(input, min=min, are_numbers=are_numbers)


@ordered(torch.clamp_max, fits=("max",), prepare=_with_bounds("max"), strides=as_tensors)
def clamp_max(input, max, *, are_numbers=False):
    return clamp(input, max=max, are_numbers=are_numbers)


@ordered(torch.maximum, aten.max.other)
def maximum(input, other):
    return lax.max(input, other)


@ordered(torch.minimum, aten.min.other)
def minimum(input, other):
    return lax.min(input, other)


@ordered(torch.fmax)
def fmax(input, other):
    return _of_numbers(lax.max, lax.ge, input, other)


@ordered(torch.fmin)
def fmin(input, other):
    return _of_numbers(lax.min, lax.le, input, other)


def _of_numbers(chosen, is_first, input, other):
    """The chosen one of two numbers; the other one if one is NaN."""
    if not bounds.IS_FMAX_SHARED:
        return where(lax.bitwise_or(is_first(input, other), lax.ne(other, other)), input, other)
    either = chosen(input, other)  # whose derivative is shared at ties
    return where(lax.ne(other, other), input, where(lax.ne(input, input), other, either))


def _of_one_dtype(input, values):
    if input.dtype != values.dtype:
        raise RuntimeError(f"heaviside wants tensors of one dtype, got {input.dtype} and {values.dtype}")
    return REALS_AND_BOOL


@exact(torch.heaviside, takes=_of_one_dtype)
def heaviside(input, values):
    zero = like(input, 0)
    return where(lax.eq(input, zero), values, cast(lax.gt(input, zero), input.dtype))


@exact(torch.nan_to_num, strides=as_copy)
def nan_to_num(input, *, nan=None, posinf=None, neginf=None):
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


for _functions, _function in (
    ((torch.eq, torch.Tensor.__eq__), lax.eq),
    ((torch.ne, torch.not_equal, torch.Tensor.__ne__), lax.ne),
    ((torch.logical_and,), lambda x, y: lax.bitwise_and(truth(x), truth(y))),
    ((torch.logical_or,), lambda x, y: lax.bitwise_or(truth(x), truth(y))),
    ((torch.logical_xor,), lambda x, y: lax.bitwise_xor(truth(x), truth(y))),
):
    predicate(*_functions)(binary(_function))

for _functions, _function in (
    ((torch.lt, torch.less), lax.lt),
    ((torch.le, torch.less_equal), lax.le),
    ((torch.gt, torch.greater), lax.gt),
    ((torch.ge, torch.greater_equal), lax.ge),
):
    comparing(*_functions)(binary(_function))


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
):
    predicate(*_functions)(unary(_function))

for _function, _infinity in ((torch.isposinf, math.inf), (torch.isneginf, -math.inf)):
    comparing(_function, exact_out=True)(_either_part(lambda x, infinity=_infinity: lax.eq(x, like(x, infinity))))


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


@of_metadata  # and of numbers, which are in the key of a plan
def _expect_choice(condition, input, other):
    numbers = [x for x in (input, other) if isinstance(x, (int, float, complex))]
    if numbers:
        tensors = [x for x in (input, other) if isinstance(x, torch.Tensor)]
        dtype, _ = promoted(Promotion.NO_OPMATH, tuple(map(kind_of, (*tensors, *numbers))))
        for number in numbers if dtype not in HALF else ():  # there it becomes infinite
            expect_fits(number, dtype)
    return (condition, input, other), {}


@exact(aten.where, unpromoted=1, prepare=_expect_choice, tags=[Tag.LINEAR])
def where_(condition, input, other):
    return where(truth(condition), input, other)


@implements_overloads(torch.where, tags=[Tag.FRESH])
def where_of(condition, input=None, other=None, *, out=None):
    return aten.where.default if input is None else aten.where


@implements_tensors(torch.Tensor.where, tags=[Tag.FRESH])
def where_method(self, condition, other):
    return torch.where(condition, self, other)


# Bits.


def _shift_right(x, by):
    return (lax.shift_right_logical if is_unsigned(x) else lax.shift_right_arithmetic)(x, by)


for _functions, _function, _takes in (
    ((torch.bitwise_and, torch.Tensor.__and__), lax.bitwise_and, INTEGERS_AND_BOOL),
    ((torch.bitwise_or, torch.Tensor.__or__), lax.bitwise_or, INTEGERS_AND_BOOL),
    ((torch.bitwise_xor, torch.Tensor.__xor__), lax.bitwise_xor, INTEGERS_AND_BOOL),
    ((torch.bitwise_left_shift, torch.Tensor.__lshift__), lax.shift_left, INTEGERS),
    ((torch.bitwise_right_shift, torch.Tensor.__rshift__), _shift_right, INTEGERS),
):
    exact(*_functions, takes=_takes)(binary(_function))


@exact(torch.bitwise_not, torch.Tensor.__invert__, takes=INTEGERS_AND_BOOL)
def bitwise_not(input):
    return lax.bitwise_not(input)
