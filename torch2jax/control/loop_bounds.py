"""The maximum number of iterations, if counters limit it: ``while n < 20 and x.norm() > tol: n += 1``.

A counter is an integer that the loop carries, which begins with a known number and changes by the same in each
iteration. So its value is known in every iteration, and with it what is computed from counters and known numbers alone
(`uniform_values`), also in arrays: ``ended | torch.full((batch,), length >= 20)`` is true in some iterations, whatever
ended is. A path through an iteration on which a condition has another answer than the path needs is not gone in that
iteration. Where no path is left that comes back to the beginning, the loop has ended, whatever the tensors are.

What is computed is proved, or there is no bound: where a counter might wrap around, none is given. The proof takes the
code at its word where it raises an exception, and `branches=` at its own: a check that is left out may fail, and the
loop go on behind its bound. Then its derivatives are NaN, as they are behind `max_steps`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.extend.core import Var

from .uniform_values import Uniform, uniform_of_number, uniform_values

MOST = 2**11
"""How many iterations are looked at, as many as a `for` may have."""


class IterationPath(NamedTuple):
    """A path through an iteration that comes back to its beginning."""

    steps: list
    """The equations on it."""
    decisions: list[tuple[Any, bool]]
    """The flags that were asked, and what they were."""
    results: Sequence
    """What the next iteration begins with."""


def most_iterations(
    paths: Sequence[IterationPath], carried: Sequence[Var], first: Sequence, known: Callable[[Any], Any]
) -> int | None:
    """The largest number of iterations that come back to the beginning; None if no counter says so.

    Args:
        paths: all that come back.
        carried: what iterations begin with.
        first: what the first one begins with.
        known: gives the value of a variable from before the loop, or None.
    """
    begins: dict[int, int] = {}
    for i, var in enumerate(carried):
        aval: Any = var.aval
        begin = uniform_of_number(first[i], known, 1) if not aval.shape and aval.dtype.kind in "iu" else None
        if begin is not None:
            begins[i] = int(begin.values[0])
    steps = {i: step for i in begins if (step := _step(paths, carried, i, begins, known)) is not None}
    while steps:
        counters = {i: _Counter(carried[i], begins[i], step) for i, step in steps.items()}
        found, wrong = _most(paths, counters, known)
        if not wrong:
            return found
        steps = {i: step for i, step in steps.items() if i not in wrong}
    return None


class _Counter(NamedTuple):
    var: Var
    begin: int
    step: int

    def values(self) -> Uniform:
        """Those of all iterations; what its dtype does not hold is not known."""
        dtype: Any = self.var.aval.dtype  # pyright: ignore[reportAttributeAccessIssue]
        range_, values = np.iinfo(dtype), [self.begin + self.step * k for k in range(MOST)]
        fits = np.array([range_.min <= value <= range_.max for value in values])
        held = [value if fit else 0 for value, fit in zip(values, fits, strict=True)]
        return Uniform(np.array(held, dtype), fits)


def _step(
    paths: Sequence[IterationPath], carried: Sequence[Var], position: int, begins: dict[int, int], known: Callable
):
    """The change of a number in the first iteration, if that is the same on all paths."""
    given = {
        carried[i]: Uniform(np.array([begin], carried[i].aval.dtype), np.ones(1, bool))  # pyright: ignore
        for i, begin in begins.items()
    }
    steps = set()
    for path in paths:
        end = uniform_values(path.steps, given, known, 1)(path.results[position])
        steps.add(int(end.values[0]) - begins[position] if end is not None and end.known[0] else None)
    return steps.pop() if len(steps) == 1 else None


def _most(
    paths: Sequence[IterationPath], counters: dict[int, _Counter], known: Callable
) -> tuple[int | None, set[int]]:
    """How many iterations come back, and the counters that do not count as was thought, as far as the iterations go."""
    given = {counter.var: counter.values() for counter in counters.values()}
    is_open, nexts = np.zeros(MOST, bool), []
    for path in paths:
        value_of = uniform_values(path.steps, given, known, MOST)
        holds = np.ones(MOST, bool)
        for flag, wanted in path.decisions:
            decision = value_of(flag)
            if decision is not None:
                holds &= ~decision.known | (decision.values.astype(bool) == wanted)
        is_open |= holds
        nexts.append([(i, value_of(path.results[i]), holds) for i in counters])
    ends = np.flatnonzero(~is_open)
    count = int(ends[0]) if len(ends) else MOST
    wrong = set()
    for i, end, holds in (x for found in nexts for x in found):
        counter = counters[i]
        values = given[counter.var]
        passed = holds[: max(count - 1, 0)]  # the iterations that are followed by one that might come back
        wanted, held = values.values[1:][: len(passed)], values.known[1:][: len(passed)]
        is_right = ~passed
        if end is not None:
            is_right |= end.known[: len(passed)] & held & (end.values[: len(passed)] == wanted)
        if not is_right.all() or not values.known[: min(count + 1, MOST)].all():
            wrong.add(i)
    return (count if len(ends) else None), wrong
