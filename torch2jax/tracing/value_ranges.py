"""The bounds of traced integers, as the operations that compute them show.

Also here: the equality of traced arrays, if both are the same computation, of a few steps, on the same arrays; and the
difference of two traced integers, as the sums that compute them show.
"""

import itertools
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.extend.core import Literal
from jax.interpreters import partial_eval as pe

from ..internals.jax import BatchTracer
from .loops.likeness import Atom, is_same, key_of
from .traces import without_derivatives

_DEPTH_OF_SUMS = 16


def terms_of(array: object) -> tuple[int, list[tuple[object, int]]]:
    """A scalar as a sum: a number, and arrays with how often each is added."""
    constant, terms = 0, []
    for value, times in _taken_apart(without_derivatives(array), 1, _DEPTH_OF_SUMS):
        if isinstance(value, int):
            constant += value * times
            continue
        same = next((i for i, (other, _) in enumerate(terms) if other is value or _is_same(other, value)), None)
        if same is None:
            terms.append((value, times))
        else:
            terms[same] = value, terms[same][1] + times
    return constant, [(value, times) for value, times in terms if times]


def _is_same(one: Any, other: Any) -> bool:
    are_traced = isinstance(one, pe.DynamicJaxprTracer) and isinstance(other, pe.DynamicJaxprTracer)
    return are_traced and one.val is other.val


def _taken_apart(value: Any, times: int, depth: int):
    if isinstance(value, BatchTracer):  # of whose examples each is such a sum
        value = value.val
    if not isinstance(value, Tracer):
        yield (int(np.reshape(value, ())) if np.size(value) == 1 else value), times
        return
    if isinstance(value, pe.DynamicJaxprTracer):
        if isinstance(value.val, Literal):
            yield int(value.val.val), times
            return
        step = value.parent
        if step is None or not depth:
            around = value._trace.get_const(value) if step is None else None  # what a trace around it has for the value
            if around is None:
                yield value, times
            else:
                yield from _taken_apart(without_derivatives(around), times, depth)
            return
        name = step.primitive.name
        if name in ("add", "sub"):
            one, other = step.in_tracers
            yield from _taken_apart(one, times, depth - 1)
            yield from _taken_apart(other, times if name == "add" else -times, depth - 1)
            return
        if name in ("convert_element_type", "copy", "neg", "pvary") or (
            name in ("broadcast_in_dim", "reshape", "squeeze") and np.size(step.in_tracers[0]) == 1 == value.size
        ):
            yield from _taken_apart(step.in_tracers[0], -times if name == "neg" else times, depth - 1)
            return
        if name == "mul":
            for one, other in (step.in_tracers, step.in_tracers[::-1]):
                factor = list(_taken_apart(one, 1, depth - 1))
                if all(isinstance(x, int) for x, _ in factor):
                    number = sum(x * n for x, n in factor)
                    yield from _taken_apart(other, times * number, depth - 1)
                    return
    yield value, times


def is_same_value(one: Any, other: Any, depth: int = 8) -> bool:
    """True if two arrays are the same computation, of a few steps, on the same ones; derivatives are ignored."""
    one, other = without_derivatives(one), without_derivatives(other)
    if one is other:
        return True
    if isinstance(one, BatchTracer) and isinstance(other, BatchTracer):
        is_one_batch = one._trace.tag is other._trace.tag and one.batch_dim == other.batch_dim
        return is_one_batch and is_same_value(one.val, other.val, depth)
    if not isinstance(one, Tracer) and not isinstance(other, Tracer):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if not isinstance(one, pe.DynamicJaxprTracer) or not isinstance(other, pe.DynamicJaxprTracer):
        return False
    mine: Atom = one.val
    theirs: Atom = other.val
    if mine is theirs:
        return True
    if isinstance(mine, Literal) or isinstance(theirs, Literal):
        return isinstance(mine, Literal) and isinstance(theirs, Literal) and key_of(mine) == key_of(theirs)
    step, again = one.parent, other.parent
    if step is None or again is None or not depth or step.primitive is not again.primitive:
        return False
    if step.effects and step.primitive is not lax.axis_index_p:  # whose effect is that there is such an axis
        return False
    if not is_same(step.params, again.params) or step.outvars.index(mine) != again.outvars.index(theirs):
        return False
    pairs = zip(step.in_tracers, again.in_tracers, strict=False)
    return len(step.in_tracers) == len(again.in_tracers) and all(is_same_value(x, y, depth - 1) for x, y in pairs)


def distance(one: jax.Array, other: jax.Array) -> int | None:
    """The difference of two integer scalars; None where the sums that compute them do not show it."""
    (constant, terms), (number, others) = terms_of(one), terms_of(other)
    are_none = cancel_out([*terms, *((value, -times) for value, times in others)])
    return constant - number if are_none else None


def cancel_out(terms: list) -> bool:
    """Returns True if the terms of a sum, each with a factor, cancel out: some may be the same computation."""
    left = list(terms)
    while left:
        value, times = left.pop()
        alike = [x for x in left if is_same_value(value, x[0])]
        if times + sum(x[1] for x in alike):
            return False
        left = [x for x in left if not any(x is other for other in alike)]
    return True


Range = tuple[int, int]

_DEPTH = 24
_KEEPING = {  # steps whose results are some of the elements of their first operand
    *("broadcast_in_dim", "reshape", "squeeze", "expand_dims", "transpose", "rev", "slice", "dynamic_slice", "copy"),
    *("reduce_max", "reduce_min", "cummax", "cummin", "pvary", "split"),
}
_REPLACING = ("scatter", "scatter-min", "scatter-max", "scatter_min", "scatter_max")
_ORDERS = {"lt": (None, -1, 0, None), "le": (None, 0, 1, None), "gt": (1, None, None, 0), "ge": (0, None, None, -1)}
"""The numbers to add to c for the bounds of x, below and above, if ``x < c`` and so on is true; and if it is false."""


def range_of(array: jax.Array) -> Range:
    """The least and the greatest that the elements of an array of integers or bools can be."""
    return _range(without_derivatives(array), _Assumed({}, {}), _DEPTH)


class _Assumed(NamedTuple):
    """Bounds that are assumed, by the ids of variables, and a cache of the ranges found so."""

    ranges: dict[int, Range]
    found: dict[Any, tuple[int, Range]]
    """The range of each variable under some assumptions, with the depth of the search that found it. So a value that
    many others are computed from is looked at once.
    """

    @property
    def nothing(self) -> "_Assumed":
        return self._replace(ranges={})

    def also(self, more: dict[int, Range]) -> "_Assumed":
        return self._replace(ranges={**self.ranges, **more})


def _range(value: Any, assumed: _Assumed, depth: int) -> Range:
    if isinstance(value, BatchTracer):
        return _range(value.val, assumed, depth)
    if not isinstance(value, Tracer):
        return _of_values(np.asarray(value))
    dtype = value.dtype
    if not isinstance(value, pe.DynamicJaxprTracer):
        return _of_dtype(dtype)
    constant = value.val.val if isinstance(value.val, Literal) else value._trace.get_const(value)
    if constant is not None:
        return _range(constant, assumed, depth)
    bounds = _of_dtype(dtype)
    if id(value.val) in assumed.ranges:
        return assumed.ranges[id(value.val)]
    step: Any = value.parent
    if step is None or not depth:
        return bounds
    key = id(value.val), tuple(assumed.ranges.items())
    before, found = assumed.found.get(key, (-1, bounds))
    if before < depth:
        new = _of_step(step, step.outvars.index(value.val), assumed, depth - 1)
        # What is beyond the dtype has overflowed, and may be anything.
        found = new if new is not None and bounds[0] <= new[0] <= new[1] <= bounds[1] else bounds
        assumed.found[key] = depth, found
    return found


def _of_values(values: np.ndarray) -> Range:
    return (int(values.min()), int(values.max())) if values.size else (0, 0)


def _of_dtype(dtype: np.dtype) -> Range:
    if np.dtype(bool) == dtype:
        return 0, 1
    info = jnp.iinfo(dtype) if jnp.issubdtype(dtype, jnp.integer) else jnp.iinfo(np.int64)
    return int(info.min), int(info.max)


def _either(ranges: Iterable[Range]) -> Range:
    lows, highs = zip(*ranges, strict=True)
    return min(lows), max(highs)


def _of_step(step: Any, position: int, assumed: Any, depth: int) -> Range | None:
    name, operands = step.primitive.name, step.in_tracers
    if name == "top_k" and position == 1:
        return 0, operands[0].aval.shape[step.params.get("axis", -1)] - 1
    if name not in ("argmax", "argmin", "sort") and not all(map(_is_integer, operands)):
        return None
    if name == "select_n":
        cases = [(case, _assumption(operands[0], bool(which), assumed)) for which, case in enumerate(operands[1:])]
        ranges = [_range(case, assumed.also(more), depth) for case, more in cases if more is not None]
        return _either(ranges) if ranges else None
    if name in ("argmax", "argmin"):
        return 0, operands[0].aval.shape[step.params["axes"][0]] - 1
    if name == "axis_index":
        return 0, lax.axis_size(step.params["axis_name"]) - 1
    if name == "iota":
        return 0, max(step.params["shape"][step.params["dimension"]] - 1, 0)
    if name == "convert_element_type":
        return _range(operands[0], assumed, depth)
    if name in ("reduce_sum", "cumsum"):
        low, high = _range(operands[0], assumed.nothing, depth)
        shape, axes = operands[0].aval.shape, step.params["axes" if name == "reduce_sum" else "axis"]
        count = math.prod([shape[axis] for axis in axes]) if name == "reduce_sum" else shape[axes]
        return (low * count, high * count) if name == "reduce_sum" else (min(low, low * count), max(high, high * count))
    if name in ("scatter-add", "scatter_add"):
        return _of_added(operands, assumed, depth)
    if name in _REPLACING:
        return _either(_range(x, assumed.nothing, depth) for x in (operands[0], operands[2]))
    if name in RULES:
        return RULES[name](*(_range(x, assumed, depth) for x in operands))
    # What is assumed of an element says nothing of one at another place.
    if name == "sort":
        return _range(operands[position], assumed.nothing, depth)
    if name == "gather" and step.params["mode"] not in (
        lax.GatherScatterMode.CLIP,
        lax.GatherScatterMode.PROMISE_IN_BOUNDS,
    ):
        return None
    if name in _KEEPING or name == "gather":
        return _range(operands[0], assumed.nothing, depth)
    return _either(_range(x, assumed.nothing, depth) for x in operands) if name in ("concatenate", "pad") else None


def _of_added(operands: list, assumed: _Assumed, depth: int) -> Range:
    """The range of a scatter-add: each index adds at most one number to an element."""
    target, positions, numbers = operands
    (low, high), (least, most) = _range(target, assumed, depth), _range(numbers, assumed.nothing, depth)
    count = math.prod(positions.aval.shape[:-1])
    return low + min(least * count, 0), high + max(most * count, 0)


def _is_integer(operand: Any) -> bool:
    dtype = operand.aval.dtype
    return np.dtype(bool) == dtype or jnp.issubdtype(dtype, jnp.integer)


def _assumption(predicate: object, is_true: bool, assumed: _Assumed) -> dict[int, Range] | None:
    """The bounds of an operand that follow from a comparison with a number; None if it never has this result."""
    predicate = without_derivatives(predicate)
    step = predicate.parent if isinstance(predicate, pe.DynamicJaxprTracer) else None
    if step is None or step.primitive.name not in _ORDERS or not _is_integer(step.in_tracers[0]):
        return {}
    value, other = step.in_tracers
    low, high = _range(other, assumed.nothing, 1)
    if not isinstance(value, pe.DynamicJaxprTracer) or isinstance(value.val, Literal) or low != high:
        return {}
    below, above = _ORDERS[step.primitive.name][:2] if is_true else _ORDERS[step.primitive.name][2:]
    least, most = _range(value, assumed.nothing, _DEPTH // 2)
    least = least if below is None else max(least, low + below)
    most = most if above is None else min(most, low + above)
    return {id(value.val): (least, most)} if least <= most else None


def _absolute(x: Range) -> Range:
    return (0 if x[0] <= 0 <= x[1] else min(map(abs, x))), max(map(abs, x))


def _product(x: Range, y: Range) -> Range:
    ends = [a * b for a, b in itertools.product(x, y)]
    return min(ends), max(ends)


def _remainder(x: Range, y: Range) -> Range | None:
    if y[0] <= 0 <= y[1]:
        return None
    most = max(map(abs, y)) - 1
    return max(min(x[0], 0), -most), min(max(x[1], 0), most)


def _quotient(x: Range, y: Range) -> Range | None:
    if y[0] <= 0:
        return None
    ends = [int(a / b) if abs(a) < 2**53 else a // b for a, b in itertools.product(x, y)]
    return min(ends) - 1 if min(ends) < 0 else min(ends), max(ends)


def _conjunction(x: Range, y: Range) -> Range | None:
    highs = [high for low, high in (x, y) if low >= 0]
    return (0, min(highs)) if highs else None


RULES = {
    "max": lambda x, y: (max(x[0], y[0]), max(x[1], y[1])),
    "min": lambda x, y: (min(x[0], y[0]), min(x[1], y[1])),
    "clamp": lambda low, x, high: (min(max(x[0], low[0]), high[0]), min(max(x[1], low[1]), high[1])),
    "add": lambda x, y: (x[0] + y[0], x[1] + y[1]),
    "sub": lambda x, y: (x[0] - y[1], x[1] - y[0]),
    "neg": lambda x: (-x[1], -x[0]),
    "abs": _absolute,
    "square": lambda x: _product(_absolute(x), _absolute(x)),
    "mul": _product,
    "rem": _remainder,
    "div": _quotient,
    "and": _conjunction,
}
