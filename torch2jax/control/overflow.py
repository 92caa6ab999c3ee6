"""Python's integers in the graph, which has 32 bits for one, or 64 with `jax_enable_x64`: none wraps in silence.

What operators give is proved to fit, by the ranges of what they are given, or checked: where it does not, results of
the call tell (`lengths.expect_to_fit`), `checks=` raises, and a `while` loop ends. Two things are taken for granted:

- ``n + 1``: a number and a small known one have a sum that fits. Only the very largest integers have none.
- An integer that a loop carries, and that grows in an iteration by no more than a few, stays small: to become large it
  would take minutes. Such are counters, and what is chosen, halved or divided. If an integer may grow by more, all sums
  in that loop are checked.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Jaxpr, JaxprEqn, Literal

from ..runtime.errors.locations import user_line
from ..runtime.translation import this_call
from ..tracing.value_ranges import RULES, Range
from ..values.item import Item
from ..values.lengths import expect_to_fit, range_of_number
from .state import current_run

_STEP = 2**16  # what code outside of loops adds to a number
_CHANGE = 2**4  # by which a loop's integers grow in an iteration
_LARGEST = 2**28  # to which those grow at most, of which that is all: it takes minutes


def expect_integer(kind: str, one: Any, other: Any, result: Item) -> Item:
    """The integer that an operator has given, where it is one of Python's."""
    array = result.read()
    info = np.iinfo(array.dtype)
    least, most = int(info.min), int(info.max)
    ranges = _range(one), _range(other)
    found = _power_range(*ranges) if kind == "Pow" else RULES[_PRIMITIVES[kind]](*ranges)
    if found is not None and least <= found[0] and found[1] <= most:
        result.bounds = found
        return result
    if kind in ("Add", "Sub") and not current_run().sums_grow:
        known = next((x for x in (one, other) if type(x) is int), None)
        if known is not None and abs(known) <= _STEP:
            return result
    fits = _FITS[kind](one, other, array, least, most)
    _expect(fits, f"an integer of Python's leaves the {info.bits} bits that the graph has for it")
    return result


def _range(value: object) -> Range:
    low, high = range_of_number(value)
    bounds = value.bounds if type(value) is Item else None
    return (low, high) if bounds is None else (max(low, bounds[0]), min(high, bounds[1]))


def expect_finite(real: Item, integer: Item) -> Item:
    """The integer that is made of a float, where an integer of the graph has it."""
    info = np.iinfo(integer.read().dtype)
    array = real.read()
    bound = np.asarray(2.0 ** (info.bits - 1), array.dtype)
    fits = lax.bitwise_and(lax.ge(array, -bound), lax.lt(array, bound))
    _expect(fits, f"a float that an integer is made of is nan, or leaves the {info.bits} bits of the graph's integers")
    return integer


def _expect(fits: object, what: str) -> None:
    expect_to_fit(_Flag(fits), "an integer of Python's", f"OverflowError: {what}, at {user_line()}")


def fitting() -> Any:
    """The bool of the graph that all which data decide fits, as a tensor; None in a call that has none."""
    return this_call().execution.fits


class _Flag:
    """A bool of the graph as `expect_to_fit` takes it."""

    def __init__(self, array: object):
        self.read = lambda: array


def _array(value: object, like: jax.Array) -> Any:
    return value.read() if type(value) is Item else np.asarray(value, like.dtype)


def _sum_fits(one: int | Item, other: int | Item, result: jax.Array, least: int, most: int) -> jax.Array:
    """A sum leaves the bits if its sign is that of neither operand."""
    a, b = _array(one, result), _array(other, result)
    return lax.ge(lax.bitwise_and(lax.bitwise_xor(a, result), lax.bitwise_xor(b, result)), _zero(result))


def _difference_fits(one: int | Item, other: int | Item, result: jax.Array, least: int, most: int) -> jax.Array:
    a, b = _array(one, result), _array(other, result)
    return lax.ge(lax.bitwise_and(lax.bitwise_xor(a, b), lax.bitwise_xor(a, result)), _zero(result))


def _product_fits(one: int | Item, other: int | Item, result: jax.Array, least: int, most: int) -> jax.Array:
    if type(one) is not Item or type(other) is not Item:
        number: Any = one if type(one) is Item else other
        known: Any = other if type(one) is Item else one
        ends = (-(-least // known), most // known) if known > 0 else (-(-most // known), least // known)
        return _is_between(number.read(), max(ends[0], least), min(ends[1], most))
    a, b = one.read(), other.read()
    is_back = lax.eq(lax.div(result, lax.select(lax.eq(a, _zero(a)), _zero(a) + 1, a)), b)
    is_wrapped = lax.bitwise_and(lax.eq(a, _zero(a) - 1), lax.eq(b, np.asarray(least, b.dtype)))
    return lax.bitwise_or(lax.eq(a, _zero(a)), lax.bitwise_and(is_back, lax.bitwise_not(is_wrapped)))


def _power_fits(one: Any, other: Any, result: jax.Array, least: int, most: int) -> jax.Array:
    if type(other) is int:
        root = _largest(lambda x: x**other <= most, most)
        return _is_between(one.read(), -root, root)
    if type(one) is int:
        return lax.le(other.read(), np.asarray(_largest(lambda x: abs(one) ** x <= most, 64), result.dtype))
    real = [lax.convert_element_type(x, np.float32) for x in (lax.abs(one.read()), other.read())]
    return lax.lt(lax.pow(*real), np.float32(most * 0.999))


def _largest(holds: Callable[[int], bool], most: int) -> int:
    """The largest number for which something holds that holds for all smaller ones."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def _is_between(array: jax.Array, low: int, high: int) -> jax.Array:
    ends = [np.asarray(x, array.dtype) for x in (low, high)]
    return lax.bitwise_and(lax.ge(array, ends[0]), lax.le(array, ends[1]))


def _zero(array: jax.Array) -> np.ndarray:
    return np.zeros((), array.dtype)


def _power_range(base: Range, exponent: Range) -> Range | None:
    if exponent[0] < 0 or exponent[1] > 64:
        return None
    size = max(abs(base[0]), abs(base[1])) ** exponent[1] if exponent[1] else 1
    return (0 if base[0] >= 0 else -size), max(size, 1)


_PRIMITIVES = {"Add": "add", "Sub": "sub", "Mult": "mul"}
_FITS = {"Add": _sum_fits, "Sub": _difference_fits, "Mult": _product_fits, "Pow": _power_fits}


# What a loop carries.

_Size = tuple[float, int] | None
"""That a number is no larger than so many times the largest of those that an iteration begins with, and so much more;
None if nothing says how large it is."""


def unbounded(jaxpr: Jaxpr, positions: dict[int, int | None], bound: Callable[[], int | None]) -> list[int]:
    """The places of those integers that a loop carries which may leave their bits.

    Args:
        jaxpr: of an iteration.
        positions: by the places of integers among what an iteration begins with, those of what it ends with.
        bound: gives how many iterations there are at most, if that is known.
    """
    given: list[_Size] = [(1, 0) if i in positions else None for i in range(len(jaxpr.invars))]
    sizes = _sizes(jaxpr, given, (1, 0))
    ends = {i: (0, 0) if end is None else sizes[end] or (2, 0) for i, end in positions.items()}
    found = [i for i, (times, more) in ends.items() if times > 1 or (times and more > _CHANGE)]
    if not found or any(ends[i][0] > 1 for i in found):
        return found
    most = bound()
    return [i for i in found if most is None or ends[i][1] * (most + 1) > _LARGEST]


def bounds_of(started: object) -> Range | None:
    """The bounds of an integer that a loop carries, and that grows no more, by those of what it begins with."""
    low, high = _range(started) if type(started) in (int, Item) else (-_LARGEST, _LARGEST)
    return None if low < -_LARGEST or high > _LARGEST else (low - _LARGEST, high + _LARGEST)


def _sizes(jaxpr: Any, given: Sequence[_Size], outer: _Size) -> list[_Size]:
    known: dict[object, _Size] = dict(zip(jaxpr.invars, given, strict=True))
    known |= {x: outer if _is_integer(x) else None for x in jaxpr.constvars}

    def of(atom: object) -> _Size:
        if isinstance(atom, Literal):
            value = np.asarray(atom.val)
            return (0, abs(int(value))) if value.dtype.kind in "biu" and value.size == 1 else None
        return known.get(atom)

    for step in jaxpr.eqns:
        name, operands = step.primitive.name, [of(x) for x in step.invars]
        if name == "cond":
            branches = [_sizes(x.jaxpr, operands[1:], None) for x in step.params["branches"]]
            known.update(zip(step.outvars, map(_largest_of, zip(*branches, strict=True)), strict=True))
            continue
        rule = _SIZES.get(name)
        is_one = rule is not None and len(step.outvars) == 1 and _is_integer(step.outvars[0])
        for var in step.outvars:
            is_bool = _is_integer(var) and var.aval.dtype.kind == "b"
            known[var] = (0, 1) if is_bool else rule(step, operands) if rule is not None and is_one else None
    return [of(x) for x in jaxpr.outvars]


def _is_integer(var: Any) -> bool:
    dtype = getattr(var.aval, "dtype", None)
    return dtype is not None and any(jnp.issubdtype(dtype, kind) for kind in (np.integer, np.bool_))


def _largest_of(sizes: Sequence[_Size]) -> _Size:
    return None if None in sizes else (max(x[0] for x in sizes if x), max(x[1] for x in sizes if x))


def _sum_of(sizes: Sequence[_Size]) -> _Size:
    return None if None in sizes else (sum(x[0] for x in sizes if x), sum(x[1] for x in sizes if x))


def _product_of(sizes: Sequence[_Size]) -> _Size:
    for one, other in (sizes, sizes[::-1]):
        if one is not None and other is not None and not one[0]:
            return other[0] * one[1], other[1] * one[1]
    return None


def _quotient_of(step: JaxprEqn, sizes: Sequence[_Size]) -> _Size:
    divisor = step.invars[1]
    number = abs(int(divisor.val)) if isinstance(divisor, Literal) and np.size(divisor.val) == 1 else 1
    return None if sizes[0] is None else (sizes[0][0] / max(number, 1), sizes[0][1] // max(number, 1) + 1)


def _remainder_of(sizes: Sequence[_Size]) -> _Size:
    return min((x for x in sizes if x is not None), default=None)


_SIZES: dict[str, Callable[[Any, Sequence], _Size]] = {
    **dict.fromkeys(("add", "sub"), lambda step, sizes: _sum_of(sizes)),
    **dict.fromkeys(("max", "min", "clamp"), lambda step, sizes: _largest_of(sizes)),
    **dict.fromkeys(
        ("neg", "abs", "sign", "convert_element_type", "copy", "reshape", "squeeze", "broadcast_in_dim", "pvary"),
        lambda step, sizes: sizes[0],
    ),
    "select_n": lambda step, sizes: _largest_of(sizes[1:]),
    "mul": lambda step, sizes: _product_of(sizes),
    "div": _quotient_of,
    "rem": lambda step, sizes: _remainder_of(sizes),
    **dict.fromkeys(
        ("argmax", "argmin"), lambda step, sizes: (0, step.invars[0].aval.shape[step.params["axes"][0]] - 1)
    ),
    "reduce_sum": lambda step, sizes: (
        None if sizes[0] is None or sizes[0][0] else (0, sizes[0][1] * math.prod(step.invars[0].aval.shape))
    ),
}
