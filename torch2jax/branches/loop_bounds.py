"""The maximum number of iterations, if a counter limits it: ``while n < 20 and x.norm() > tol: n += 1``.

A counter is an integer that the loop carries, which begins with a known number and changes by the same in each turn.
So its value is known in every turn, and with it the answers of comparisons with known numbers. A way through a turn
on which one of these has another answer than the way needs is not gone in that turn. Where no way is left that comes
back to the beginning, the loop has ended at the latest, whatever the tensors are.

What is computed is proved, or there is no bound: integers of a graph wrap around, and where one might, none is given.
The proof takes the code at its word where it raises an exception, and `branches=` at its own: a check that is left out
may fail, and the loop go on behind its bound. Then its derivatives are NaN, as they are behind `max_steps`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax import lax
from jax.extend.core import Literal, Var

__all__ = ["Way", "most_turns"]

_MOST = 2**11  # turns that are looked at, as many as a `for` may have


class Way(NamedTuple):
    """A way through a turn that comes back to its beginning."""

    steps: list
    """The equations on it."""
    answers: list[tuple[Any, bool]]
    """The flags that were asked, and what they were."""
    results: Sequence
    """What the next turn begins with."""


class _Line(NamedTuple):
    """The integer ``factor * counter + offset``, as Python has it; the graph has it modulo the size of the dtype."""

    factor: int
    offset: int


_COMPARISONS = {
    lax.lt_p: np.less,
    lax.le_p: np.less_equal,
    lax.gt_p: np.greater,
    lax.ge_p: np.greater_equal,
    lax.eq_p: np.equal,
    lax.ne_p: np.not_equal,
}
_COMPUTED = {*_COMPARISONS, lax.add_p, lax.sub_p, lax.neg_p, lax.mul_p, lax.convert_element_type_p}


def most_turns(ways: Sequence[Way], carried: Sequence[Var], first: Sequence, known: Callable[[Any], Any]) -> int | None:
    """How many turns come back to the beginning at most; None if no counter says so.

    Args:
        ways: all that come back.
        carried: what turns begin with.
        first: what the first one begins with.
        known: gives the value of a variable from before the loop, or None.
    """
    found = []
    for i, var in enumerate(carried):
        aval: Any = var.aval
        if aval.shape or aval.dtype.kind not in "iu":
            continue
        begin = _integer(first[i], known)
        if begin is not None and (most := _most(ways, i, var, begin, known)) is not None:
            found.append(most)
    return min(found, default=None)


def _most(ways: Sequence[Way], place: int, counter: Var, begin: int, known: Callable) -> int | None:
    """How many turns come back, as one counter says."""
    dtype: Any = counter.aval.dtype  # pyright: ignore[reportAttributeAccessIssue]
    range_ = np.iinfo(dtype)
    steps, needed = set(), []
    for way in ways:
        lines, conditions = _followed(way, counter, dtype, known)
        end = way.results[place]
        line = lines.get(end) if isinstance(end, Var) else None
        if line is None or line.factor != 1:
            return None
        steps.add(line.offset)
        needed.append(conditions)
    if len(steps) != 1 or not all(needed):  # a way on which nothing is asked of it is always open
        return None
    (step,) = steps
    numbers = [begin, step, *(x for conditions in needed for _, one, other, _ in conditions for x in (*one, *other))]
    if any(abs(x) >= 2**45 for x in numbers):  # NumPy's 64 bits have to hold what comes of them
        return None
    values = begin + step * np.arange(_MOST, dtype=np.int64)
    is_open = np.zeros(_MOST, bool)
    in_range = (range_.min <= values) & (values <= range_.max)
    for conditions in needed:
        holds = np.ones(_MOST, bool)
        for compare, one, other, wanted in conditions:
            left, right = _values(one, values), _values(other, values)
            if left is None or right is None:
                return None
            for side in (left, right):
                in_range &= (range_.min <= side) & (side <= range_.max)
            holds &= compare(left, right) == wanted
        is_open |= holds
    ends = np.flatnonzero(~is_open)
    if not len(ends) or not in_range[: ends[0] + 1].all():
        return None
    return int(ends[0])


def _values(line: _Line, values: np.ndarray) -> np.ndarray | None:
    """None if 64 bits might be too few for them."""
    if abs(line.factor) * int(np.abs(values).max()) + abs(line.offset) >= 2**62:
        return None
    return line.factor * values + line.offset


def _followed(way: Way, counter: Var, dtype: Any, known: Callable) -> tuple[dict[Var, _Line], list]:
    """What a way computes of a counter, and the comparisons that it needs: (compare, line, line, wanted)."""
    lines = {counter: _Line(1, 0)}
    comparisons: dict[Var, tuple] = {}

    def line(atom: Any) -> _Line | None:
        if isinstance(atom, Var) and atom in lines:
            return lines[atom]
        number = _integer(atom, known)
        return None if number is None else _Line(0, number)

    for step in way.steps:
        operands = step.invars
        if step.primitive not in _COMPUTED or not any(isinstance(x, Var) and x in lines for x in operands):
            continue
        if any(x.aval.dtype != dtype or x.aval.shape for x in operands):
            continue
        given = [line(x) for x in operands]
        if any(x is None for x in given):
            continue
        (out, *_) = step.outvars
        if step.primitive in _COMPARISONS:
            comparisons[out] = _COMPARISONS[step.primitive], *given
        elif (found := _computed(step, given)) is not None and out.aval.dtype == dtype:
            lines[out] = found
    conditions = [(*comparisons[flag], wanted) for flag, wanted in way.answers if flag in comparisons]
    return lines, conditions


def _computed(step: Any, given: list) -> _Line | None:
    one, other = given[0], given[-1]
    if step.primitive is lax.add_p:
        return _Line(one.factor + other.factor, one.offset + other.offset)
    if step.primitive is lax.sub_p:
        return _Line(one.factor - other.factor, one.offset - other.offset)
    if step.primitive is lax.neg_p:
        return _Line(-one.factor, -one.offset)
    if step.primitive is lax.convert_element_type_p:
        return one
    if one.factor and other.factor:  # a square is no line
        return None
    factor, line = (other.offset, one) if one.factor else (one.offset, other)
    return _Line(factor * line.factor, factor * line.offset)


def _integer(atom: Any, known: Callable) -> int | None:
    """The integer that is known to be there."""
    value = atom.val if isinstance(atom, Literal) else known(atom)
    if value is None or np.shape(value) or np.asarray(value).dtype.kind not in "iu":
        return None
    return int(value)
