"""What steps compute from known numbers alone: scalars, and arrays all of whose elements are one number.

Many iterations of a loop are computed at once, each with numbers of its own. A number may be known in some of them:
zero times anything is zero. Integers and bools are computed as the graph does, in their dtypes; of floating-point
numbers only comparisons are.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.extend.core import Literal, Var

_SMALL = 4096  # elements of a constant that are looked at


class Uniform(NamedTuple):
    """The number that all elements of an array are, in each iteration."""

    values: np.ndarray
    known: np.ndarray
    """In which iterations it is known."""


def uniform_of_number(atom: Any, known: Callable[[Any], Any], iterations: int) -> Uniform | None:
    """What an operand is that is known in all iterations: a literal, or what is `known` of a variable."""
    value = atom.val if isinstance(atom, Literal) else known(atom)
    if value is None or not 0 < math.prod(np.shape(value)) <= _SMALL:
        return None
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        return None
    number = array.reshape(-1)[:1]
    return Uniform(np.repeat(number, iterations), np.ones(iterations, bool)) if (array == number).all() else None


def uniform_values(
    steps: Sequence, given: Mapping[Var, Uniform], known: Callable[[Any], Any], iterations: int
) -> Callable[[Any], Uniform | None]:
    """A function that gives what an operand of these equations, or a result, is in each of some iterations.

    Args:
        given: what is known of variables, in each iteration.
        known: gives the value of a variable from before the loop, or None.
    """
    found: dict[Any, Uniform | None] = dict(given)

    def value_of(atom: Any) -> Uniform | None:
        if isinstance(atom, Literal):
            return uniform_of_number(atom, known, iterations)
        if atom not in found:
            found[atom] = uniform_of_number(atom, known, iterations)
        return found[atom]

    with np.errstate(all="ignore"):
        for step in steps:
            if step.primitive.name == "cond":
                found.update(zip(step.outvars, _of_branches(step, value_of, iterations), strict=True))
                continue
            rule = _RULES.get(step.primitive.name)
            operands = [None if rule is None else value_of(x) for x in step.invars]
            is_any = any(x is not None for x in operands)
            result = rule(step, operands) if rule is not None and is_any else None
            for var in step.outvars:
                found[var] = None
            if result is not None and result.known.any() and math.prod(step.outvars[0].aval.shape):
                found[step.outvars[0]] = result
    return value_of


def _of_branches(step: Any, value_of: Callable[[Any], Uniform | None], iterations: int) -> list[Uniform | None]:
    """What a condition gives, of which the answer is known in some iterations, or does not matter."""
    condition, *operands = map(value_of, step.invars)
    results = []
    for branch in step.params["branches"]:
        given = {x: known for x, known in zip(branch.jaxpr.invars, operands, strict=True) if known is not None}
        inner = uniform_values(branch.jaxpr.eqns, given, lambda _: None, iterations)
        results.append([inner(x) for x in branch.jaxpr.outvars])
    if len(results) != 2:
        return [None] * len(step.outvars)
    return [_answered(condition, one, other) for other, one in zip(*results, strict=True)]


def _answered(condition: Uniform | None, one: Uniform | None, other: Uniform | None) -> Uniform | None:
    if one is None and other is None:
        return None
    some: Any = one or other
    unknown = Uniform(np.zeros_like(some.values), np.zeros_like(some.known))
    one, other = one or unknown, other or unknown
    is_same = one.known & other.known & (one.values == other.values)
    if condition is None:
        return Uniform(one.values, is_same)
    decision = condition.values.astype(bool)
    is_known = condition.known & np.where(decision, one.known, other.known)
    return Uniform(np.where(condition.known & ~decision, other.values, one.values), is_known | is_same)


def _are_integers(operands: Sequence) -> bool:
    """True if these are known, and integers or bools."""
    return all(x is not None and x.values.dtype.kind in "biu" for x in operands)


def _computed(function: Callable) -> Callable:
    def rule(step: Any, operands: list) -> Uniform | None:
        if not _are_integers(operands):
            return None
        dtype = step.outvars[0].aval.dtype
        values = function(*[x.values for x in operands]).astype(dtype)
        return Uniform(values, np.logical_and.reduce([x.known for x in operands]))

    return rule


def _compared(function: Callable) -> Callable:
    def rule(step: Any, operands: list) -> Uniform | None:
        del step
        if None in operands:
            return None
        one, other = operands
        return Uniform(function(one.values, other.values), one.known & other.known)

    return rule


def _absorbing(function: Callable, absorbs: Callable) -> Callable:
    """A function of two integers or bools whose result is one of them, where that absorbs the other."""

    def rule(step: Any, operands: list) -> Uniform | None:
        dtype = step.outvars[0].aval.dtype
        if dtype.kind not in "biu":
            return None
        held = [x for x in operands if x is not None]
        known = np.logical_or.reduce([x.known & absorbs(x.values) for x in held])
        values = np.full(known.shape, 0, dtype)
        for x in held:
            values = np.where(x.known & absorbs(x.values), x.values, values)
        if len(held) == 2:
            both = held[0].known & held[1].known
            values = np.where(both, function(held[0].values, held[1].values), values)
            known = known | both
        return Uniform(values.astype(dtype), known)

    return rule


def _same(step: Any, operands: list) -> Uniform | None:
    del step
    return operands[0]


def _converted(step: Any, operands: list) -> Uniform | None:
    (x,), dtype = operands, step.outvars[0].aval.dtype
    return Uniform(x.values.astype(dtype), x.known) if x.values.dtype.kind in "biu" and dtype.kind in "biuf" else None


def _chosen(step: Any, operands: list) -> Uniform | None:
    del step
    which, *cases = operands
    if which is None:
        return None
    values, known = None, np.zeros(which.known.shape, bool)
    for number, case in enumerate(cases):
        if case is None:
            continue
        is_it = which.known & (which.values.astype(int) == number) & case.known
        values = np.where(is_it, case.values, case.values if values is None else values)
        known |= is_it
    return None if values is None else Uniform(values, known)


def _concatenated(step: Any, operands: list) -> Uniform | None:
    parts = [x for x, var in zip(operands, step.invars, strict=True) if math.prod(var.aval.shape)]
    if not parts or None in parts:
        return None
    first, *rest = parts
    known = first.known.copy()
    for x in rest:
        known &= x.known & (x.values == first.values)
    return Uniform(first.values, known)


def _all_ones(values: np.ndarray) -> np.ndarray:
    return values if values.dtype == bool else values == ~np.zeros((), values.dtype)


def _divided(function: Callable) -> Callable:
    compute = _computed(function)

    def rule(step: Any, operands: list) -> Uniform | None:
        found = compute(step, operands)
        return None if found is None else Uniform(found.values, found.known & (operands[1].values != 0))

    return rule


_RULES: dict[str, Callable[[Any, list], Uniform | None]] = {
    "lt": _compared(np.less),
    "le": _compared(np.less_equal),
    "gt": _compared(np.greater),
    "ge": _compared(np.greater_equal),
    "eq": _compared(np.equal),
    "ne": _compared(np.not_equal),
    "add": _computed(np.add),
    "sub": _computed(np.subtract),
    "neg": _computed(np.negative),
    "max": _computed(np.maximum),
    "min": _computed(np.minimum),
    "xor": _computed(np.bitwise_xor),
    "not": _computed(np.invert),
    "abs": _computed(np.abs),
    "sign": _computed(np.sign),
    "clamp": _computed(lambda low, x, high: np.minimum(np.maximum(x, low), high)),
    "rem": _divided(np.fmod),
    "div": _divided(lambda x, y: np.sign(x) * np.sign(y) * (np.abs(x) // np.maximum(np.abs(y), 1))),
    "mul": _absorbing(np.multiply, lambda values: values == 0),
    "and": _absorbing(np.bitwise_and, lambda values: values == 0),
    "or": _absorbing(np.bitwise_or, _all_ones),
    "select_n": _chosen,
    "convert_element_type": _converted,
    "concatenate": _concatenated,
    **dict.fromkeys(("broadcast_in_dim", "reshape", "squeeze", "expand_dims", "transpose", "copy", "slice"), _same),
    **dict.fromkeys(("dynamic_slice", "rev", "reduce_max", "reduce_min", "reduce_and", "reduce_or"), _same),
    **dict.fromkeys(("pvary", "stop_gradient"), _same),
}
