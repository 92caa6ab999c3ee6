"""The maximum number of iterations, if counters limit it: ``while n < 20 and x.norm() > tol: n += 1``.

The iterations are gone through, one after another, with the numbers alone that are known: those that the loop begins
with, and what its body computes of such. ``False and x`` is known whatever x is. The first iteration in which the loop
is known to end is the last one, whatever the tensors are.

What is computed is proved, or there is no bound. Integers are computed exactly: one that its dtype does not hold is not
known. Of floating-point numbers only comparisons are computed. An array is known where all its elements are one number,
as in ``ended | torch.full((batch,), n >= 20)``. The proof takes the code at its word where it raises an exception, and
`branches=` at its own: a check that is left out may fail, and the loop go on behind its bound. Then its derivatives are
NaN, as they are behind `max_steps`.
"""

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var

MOST = 2**11
"""How many iterations are looked at, as many as a `for` may have."""
_SMALL = 4096  # elements of an array that are looked at

Number = bool | int | float


def most_iterations(
    jaxpr: Jaxpr, decisions: Sequence[Var | Literal], begin: Sequence[Number | None], results: Sequence[object]
) -> int | None:
    """The largest number of iterations that come back to the beginning; None if no counter says so.

    Args:
        jaxpr: an iteration.
        decisions: flags of it, all of which are true where it comes back.
        begin: what is known of its first operands where the loop begins.
        results: what these are in the next iteration.
    """
    carried = jaxpr.invars[: len(begin)]
    known = {var: number for var, number in zip(carried, begin, strict=True) if number is not None}
    steps = _relevant(jaxpr.eqns, set(known), [*decisions, *results])
    for count in range(MOST):
        values = _computed(steps, known)
        if any(_value(flag, values) is False for flag in decisions):
            return count
        after = {var: _value(atom, values) for var, atom in zip(carried, results, strict=True)}
        after = {var: number for var, number in after.items() if number is not None}
        if after == known:  # and so for ever
            return None
        known = after
    return None


def uniform(array: jax.Array) -> Number | None:
    """The number that all elements of an array are; None if they are not one, or nobody knows."""
    if isinstance(array, Tracer) or not 0 < math.prod(np.shape(array)) <= _SMALL:
        return None
    numbers = np.asarray(array).reshape(-1)
    if numbers.dtype.kind not in "biuf" or not (numbers == numbers[0]).all():
        return None
    return numbers[0].item()


def _value(atom: Any, values: dict[Var, Number]) -> Number | None:
    return uniform(atom.val) if isinstance(atom, Literal) else values.get(atom)


def _relevant(steps: Sequence[JaxprEqn], known: set[Var], wanted: Sequence[object]) -> list[JaxprEqn]:
    """The steps that lead from numbers that may be known to what is wanted."""
    found = []
    for step in steps:
        rule = _RULES.get(step.primitive.name)
        may_be = [isinstance(x, Literal) or x in known for x in step.invars]
        if rule is not None and (any(may_be) if step.primitive.name in _ABSORBING else all(may_be)):
            found.append(step)
            known.update(step.outvars)
    needed, kept = {x for x in wanted if isinstance(x, Var)}, []
    for step in reversed(found):
        if not needed.isdisjoint(step.outvars):
            kept.append(step)
            needed.update(x for x in step.invars if isinstance(x, Var))
    return kept[::-1]


def _computed(steps: Sequence[JaxprEqn], known: dict[Var, Number]) -> dict[Var, Number]:
    values = dict(known)
    for step in steps:
        operands = [_value(x, values) for x in step.invars]
        for var, number in zip(step.outvars, _RULES[step.primitive.name](step, operands), strict=True):
            dtype = var.aval.dtype  # pyright: ignore[reportAttributeAccessIssue]
            if number is not None and _is_held(number, dtype):
                values[var] = bool(number) if dtype.kind == "b" else number
    return values


def _is_held(number: Number, dtype: np.dtype) -> bool:
    return dtype.kind not in "iu" or np.iinfo(dtype).min <= number <= np.iinfo(dtype).max


# Rules: from a step, and what is known of its operands, to what is known of its results.

_Rule = Callable[[JaxprEqn, list[Any]], Sequence[Number | None]]


def _compared(function: Callable) -> _Rule:
    return lambda step, operands: [None if None in operands else function(*operands)]


def _of_integers(function: Callable) -> _Rule:
    def rule(step: JaxprEqn, operands: list[Any]) -> Sequence[Number | None]:
        return [None if not all(isinstance(x, int) for x in operands) else function(*operands)]

    return rule


def _absorbing(function: Callable, absorbs: Callable[[int], bool]) -> _Rule:
    """A function of two integers or bools whose result is one of them, where that absorbs the other."""

    def rule(step: JaxprEqn, operands: list[Any]) -> Sequence[Number | None]:
        if step.outvars[0].aval.dtype.kind not in "biu":  # pyright: ignore[reportAttributeAccessIssue]
            return [None]
        if None not in operands:
            return [function(*operands)]
        return [next((x for x in operands if x is not None and absorbs(x)), None)]

    return rule


def _not(step: JaxprEqn, operands: list[Any]) -> Sequence[Number | None]:
    (x,) = operands
    return [None if x is None else not x if isinstance(x, bool) else ~x]


def _divided(x: int, y: int) -> int | None:
    return None if y == 0 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


def _remainder(x: int, y: int) -> int | None:
    return None if y == 0 else int(math.copysign(abs(x) % abs(y), x))


def _converted(step: JaxprEqn, operands: list[object]) -> Sequence[Number | None]:
    (x,), dtype = operands, step.params["new_dtype"]
    if not isinstance(x, int) or np.dtype(dtype).kind not in "biuf" or not _is_held(x, np.dtype(dtype)):
        return [None]
    return [np.dtype(dtype).type(x).item()]


def _chosen(step: JaxprEqn, operands: list[Number | None]) -> Sequence[Number | None]:
    which, *cases = operands
    return [None if which is None else cases[int(which)]]


def _same(step: JaxprEqn, operands: list[Number | None]) -> Sequence[Number | None]:
    return operands[:1]


def _one(step: JaxprEqn, operands: list[Number | None]) -> Sequence[Number | None]:
    return [operands[0] if all(x == operands[0] for x in operands) else None]


def _branched(step: JaxprEqn, operands: list[Any]) -> Sequence[Number | None]:
    """The results of a condition, if its answer is known, or does not matter."""
    which, *given = operands
    sides = step.params["branches"]
    found = []
    for side in sides if which is None else [sides[int(which)]]:
        known = {var: x for var, x in zip(side.jaxpr.invars, given, strict=True) if x is not None}
        values = _computed(_relevant(side.jaxpr.eqns, set(known), side.jaxpr.outvars), known)
        found.append([_value(x, values) for x in side.jaxpr.outvars])
    return [one if all(x == one for x in rest) else None for one, *rest in zip(*found, strict=True)]


_ABSORBING: dict[str, _Rule] = {
    "mul": _absorbing(operator.mul, lambda x: x == 0),
    "and": _absorbing(operator.and_, lambda x: x == 0),
    "or": _absorbing(operator.or_, lambda x: x is True or x == -1),
    "select_n": _chosen,
    "cond": _branched,
}
"""Those that may know their results where they do not know all operands."""
_RULES: dict[str, _Rule] = {
    **_ABSORBING,
    **{name: _compared(getattr(operator, name)) for name in ("lt", "le", "gt", "ge", "eq", "ne")},
    **{name: _of_integers(getattr(operator, name)) for name in ("add", "sub", "neg", "xor", "abs")},
    **{name: _of_integers(function) for name, function in (("max", max), ("min", min), ("div", _divided))},
    "rem": _of_integers(_remainder),
    "sign": _of_integers(lambda x: (x > 0) - (x < 0)),
    "clamp": _of_integers(lambda low, x, high: min(max(x, low), high)),
    "not": _not,
    "convert_element_type": _converted,
    "concatenate": _one,
    **dict.fromkeys(("broadcast_in_dim", "reshape", "squeeze", "expand_dims", "transpose", "copy", "slice"), _same),
    **dict.fromkeys(("dynamic_slice", "rev", "reduce_max", "reduce_min", "reduce_and", "reduce_or"), _same),
    **dict.fromkeys(("pvary", "stop_gradient"), _same),
}
