"""Finds identical iterations in a program, and makes loops of them.

A loop of Python's leaves its iterations in the program one after the other, without a sign where one begins. So they
are found by the equations:

1. Equations get numbers, equal for the same primitive, parameters and types (`likeness`). One with effects is like no
   other, so that no loop has effects. The repeated stretch of numbers that covers most equations is tried first.
2. `iterations.fitted` makes a loop of it, operand by operand, or tells the iteration from which on it is none
   (`Misfit`). Then the longer side of that iteration is tried, a few times.
3. A body may have loops inside, and the results of a loop may be what other iterations lacked: both are looked for
   again. The number of tries is bounded, so that a program without loops costs a few passes over its equations.

Invariant: the results have the same values. Equations may be dropped if nothing uses them, or merged if they are equal.

Equal equations are merged first, so that a computation which depends on no iteration is only in the first one.

Also here: the search for repeats in a sequence of numbers, and the log of what was rolled and what was not.
"""

import contextlib
import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn, Literal, Var, jaxprs_in_params

from .iterations import Misfit, Surroundings, earlier_iteration, fitted
from .likeness import Atom, Likeness, is_same, key_of
from .program import Loop, Program, operands, pruned, sizes_of, total
from .sums import with_sums_joined
from .windows import Joined, Part, Table, in_pieces, part_made_by, row_of_windows


def merged(program: Program, likeness: Likeness) -> Program:
    """The program, which consists of equations, with one for all that compute the same."""
    renamed: dict[Var, Atom] = {}
    known: dict[object, JaxprEqn] = {}
    kept = []
    for step in program.statements:
        taken = [x for x in step.invars if type(x) is not Literal]
        if not renamed.keys().isdisjoint(taken):
            number = likeness.number(step)
            step = step.replace(invars=_renamed(step.invars, renamed))
            likeness.note(step, number)
        if not step.effects:
            operands = [key_of(x) if isinstance(x, Literal) else x for x in step.invars]
            key = likeness.number(step), step.params.get("start_indices"), *operands
            same = known.setdefault(key, step)
            if same is not step and is_same(same.params, step.params):
                renamed.update(zip(step.outvars, same.outvars, strict=True))
                continue
        kept.append(step)
    return Program(kept, _renamed(program.results, renamed))


def _renamed(atoms: Sequence[Atom], names: dict[Var, Atom]) -> list[Atom]:
    return [names.get(x, x) if isinstance(x, Var) else x for x in atoms]


_CANDIDATES = 12
_WIDEST = 6  # powers of two: what is looked at together, to tell apart places of an iteration that begin alike


class Run(NamedTuple):
    """Consecutive iterations of equal length."""

    start: int
    period: int
    iterations: int

    @property
    def stop(self) -> int:
        return self.start + self.period * self.iterations


def longest_run(numbers: np.ndarray, iterations: int, least: int, sizes: np.ndarray | None = None) -> Run | None:
    """The iterations that cover most of a sequence.

    Args:
        iterations: how many there have to be.
        least: how much they have to cover.
        sizes: how much each number covers; one, if not given.
    """
    ends = np.concatenate(([0], np.cumsum(np.ones(len(numbers), np.int64) if sizes is None else sizes)))
    best, covered = None, 0
    for period in _candidates(numbers, len(numbers) // iterations, iterations, ends):
        start, length = _longest(numbers[period:] == numbers[:-period], ends)
        found = Run(start, period, length // period + 1)
        size = ends[found.stop] - ends[start]
        repeated = size - (ends[start + period] - ends[start])
        # What has a period has its multiples too, and what is left over at its ends is no reason to take one of these.
        if found.iterations >= iterations and size >= least and repeated > covered:
            best, covered = found, repeated
    return best


def _candidates(numbers: np.ndarray, largest: int, iterations: int, ends: np.ndarray) -> list[int]:
    """Periods that there may be: distances at which the same comes again, those that cover most."""
    if largest < 1:
        return []
    weights = np.zeros(largest + 1)
    words = numbers.astype(np.uint64)
    for power in range(_WIDEST + 1):
        order = np.argsort(words, kind="stable")
        gaps = np.diff(order)
        is_again = (words[order[1:]] == words[order[:-1]]) & (gaps <= largest)
        gaps, sizes = gaps[is_again], np.diff(ends[order])[is_again]
        counts = np.bincount(gaps, minlength=largest + 1)
        covered = np.bincount(gaps, sizes, minlength=largest + 1)
        np.maximum(weights, np.where(counts < iterations - 1, 0, covered), out=weights)
        width = 1 << power
        if len(words) <= width:
            break
        words = words[:-width] * np.uint64(0x9E3779B97F4A7C15) + words[width:] * np.uint64(0xC2B2AE3D27D4EB4F)
        words ^= words >> np.uint64(29)
    best = np.argsort(-weights, kind="stable")[:_CANDIDATES]
    return sorted(int(period) for period in best if weights[period] > 0)


def _longest(flags: np.ndarray, ends: np.ndarray) -> tuple[int, int]:
    """The start and the length of the run of true values that covers most equations."""
    bounds = np.flatnonzero(np.concatenate(([True], ~flags, [True])))
    starts, lengths = bounds[:-1], np.diff(bounds) - 1
    at = int(np.argmax(ends[starts + lengths] - ends[starts]))
    return int(starts[at]), int(lengths[at])


_LOG = logging.getLogger("torch2jax.loops")

_noted: ContextVar["list[str] | None"] = ContextVar("noted", default=None)


@contextlib.contextmanager
def noting_loops() -> Iterator[list[str]]:
    """A context that collects, in words, which iterations were rolled in the programs traced inside."""
    found: list[str] = []
    token = _noted.set(found)
    try:
        yield found
    finally:
        _noted.reset(token)


class RollingReport:
    """The log of what became of iterations in a program: their number, and their equations.

    Args:
        is_silent: whether nobody is told.
    """

    def __init__(self, *, is_silent: bool = False):
        self._is_silent = is_silent

    def rolled(self, iterations: int, equations: int) -> None:
        self._tell(f"{iterations} iterations of {equations} equations are one loop")

    def left(self, iterations: int, equations: int, reason: str) -> None:
        self._tell(f"{iterations} iterations of {equations} equations stay unrolled: {reason}")

    def undone(self, reason: str) -> None:
        """Notes that the loops found are discarded."""
        self._tell(f"all iterations stay unrolled: {reason}")

    def _tell(self, text: str) -> None:
        if self._is_silent:
            return
        noted = _noted.get()
        if noted is not None:
            noted.append(text)
        _LOG.info("%s", text)


class Wanted(NamedTuple):
    """The criteria by which iterations become a loop."""

    iterations: int
    """The fewest."""
    least: int
    """The fewest equations that they have together, with nested ones: short programs compile fast unrolled, and may run
    faster.
    """
    with_convolutions: bool = True
    """True if loops may have convolutions that XLA does not prepare for a CPU: they run five times slower in a loop."""


EVERY = Wanted(iterations=4, least=128)
"""All loops that may save time."""
LONG = Wanted(iterations=4, least=256, with_convolutions=False)
"""Loops that are faster wherever they run."""

_TRIES = 64
_SPLITS = 4


def rolled(
    program: Program, constants: Mapping[Var, object], report: RollingReport, wanted: Wanted = EVERY
) -> Program | None:
    """The program with loops for iterations that are alike; None if there are none.

    Args:
        program: of equations.
        constants: variables whose values are known, and these.
        report: is told what was rolled, and what was not.
    """
    likeness = Likeness()
    if not _may_have_loops(program.statements, likeness, wanted):
        return None
    program = with_sums_joined(_with_parts_ahead(merged(pruned(program), likeness)))
    return _Roller(program, constants, report, likeness, wanted).result()


def has_loops(steps: Sequence[JaxprEqn], constants: Mapping[Var, object], wanted: Wanted = EVERY) -> bool:
    """Returns True if some equations, all of whose results may be used, contain loops."""
    likeness = Likeness()
    report = RollingReport(is_silent=True)
    if not _may_have_loops(steps, likeness, wanted):
        return False
    program = _with_parts_ahead(merged(Program(list(steps), []), likeness))
    return _Roller(program, constants, report, likeness, wanted).roll() > 0


def _may_have_loops(statements: Sequence[JaxprEqn], likeness: Likeness, wanted: Wanted) -> bool:
    """A quick test whether iterations are alike."""
    sizes = np.asarray(sizes_of(statements), np.int64)
    if sizes.sum() < wanted.least:
        return False
    run = longest_run(likeness.numbers(statements), wanted.iterations, wanted.least, sizes)
    return run is not None and not _has_symbols(statements)


_CONVOLUTIONS = "convolutions may run slower in a loop; loops='rolled' makes one of them"


def _convolve(steps: Iterable[JaxprEqn]) -> bool:
    return any(
        step.primitive is lax.conv_general_dilated_p
        or any(_convolve(jaxpr.eqns) for jaxpr in jaxprs_in_params(step.params))
        for step in steps
    )


def _has_symbols(steps: Sequence[JaxprEqn]) -> bool:
    """Returns True if a dimension has no number, as in programs for export."""
    avals: list[object] = [var.aval for step in steps for var in step.outvars]
    kinds = {type(size) for aval in avals for size in getattr(aval, "shape", ())}
    return bool(kinds - {int})


class _Roller:
    def __init__(
        self,
        program: Program,
        constants: Mapping[Var, object],
        report: RollingReport,
        likeness: Likeness,
        wanted: Wanted,
    ):
        self._statements, self._results = program
        self._constants, self._report, self._likeness = constants, report, likeness
        self._wanted = wanted
        self._left: dict[int, tuple[Any, str]] = {}
        """The iterations of statements that are no loop, by id, and the reason."""

    def roll(self) -> int:
        """Replaces iterations by loops; returns the number of loops."""
        count = 0
        for _ in range(_TRIES):
            numbers = self._likeness.numbers(self._statements)
            for at, statement in enumerate(self._statements):
                if id(statement) in self._left:
                    numbers[at] = -1 - at
            sizes = np.asarray(sizes_of(self._statements), np.int64)
            run = longest_run(numbers, self._wanted.iterations, self._wanted.least, sizes)
            if run is None:
                break
            count += self._roll(_at_the_end(numbers, run))
        for iterations, reason in {
            id(iterations): (iterations, reason) for iterations, reason in self._left.values()
        }.values():
            if reason:
                self._report.left(len(iterations), total(iterations[0]), reason)
        return count

    def result(self) -> Program | None:
        """The program with loops; None if there are none."""
        if not self.roll():
            return None
        program = pruned(Program(self._statements, self._results))
        return pruned(_with_parts_joined(program))

    def _roll(self, run: Run) -> bool:
        """Replaces iterations by a loop, if they are one; returns whether they are."""
        steps, after = self._statements[run.start : run.stop], self._statements[run.stop :]
        iterations, hoisted = _without_parts(steps, run, _parts(self._statements[: run.stop]))
        before = [*self._statements[: run.start], *hoisted]
        try:
            if total(iterations[0]) * len(iterations) < self._wanted.least:
                raise Misfit(0, "")
            if not self._wanted.with_convolutions and _convolve(iterations[0]):
                raise Misfit(0, _CONVOLUTIONS)
            found = self._fitted(before, iterations, after)
        except Misfit as misfit:
            self._left.update((id(step), (iterations, misfit.reason)) for step in steps)
            return False
        self._statements = self._with_loop(found)
        self._left.clear()  # what this loop gives, iteration by iteration, may be what other iterations lacked
        return True

    def _with_loop(self, found: "_Found") -> list:
        self._report.rolled(len(found.iterations), total(found.iterations[0]))
        inner = rolled(found.loop.body, {}, self._report, self._wanted)
        loop = found.loop if inner is None else found.loop._replace(body=inner)
        made = {var for iteration in found.iterations for step in iteration for var in step.outvars}
        ahead, later = [], []
        for statement in found.before:  # an earlier iteration was among them, and what it has made may be used since
            is_later = not made.isdisjoint(operands(statement))
            (later if is_later else ahead).append(statement)
            if is_later:
                made.update(statement.outvars)
        return [*ahead, loop, *found.behind, *later, *found.after]

    def _fitted(self, before: list, iterations: list[list[JaxprEqn]], after: list) -> "_Found":
        """The longest row of iterations that is a loop.

        Raises:
            Misfit: there is none.
        """
        start, stop = 0, len(iterations)
        for tries in range(_SPLITS, 0, -1):
            ahead = [*before, *(step for iteration in iterations[:start] for step in iteration)]
            behind = [*(step for iteration in iterations[stop:] for step in iteration), *after]
            try:
                found = self._loop(ahead, iterations[start:stop], behind)
                return found if start else self._with_earlier(found)
            except Misfit as misfit:
                at = start + misfit.iteration
                start, stop = (start, at) if at - start >= stop - at else (at, stop)
                is_short = (
                    stop - start < self._wanted.iterations or (stop - start) * total(iterations[0]) < self._wanted.least
                )
                if not misfit.iteration or is_short or tries == 1:
                    raise
        raise AssertionError

    def _loop(self, before: list, iterations: list[list[JaxprEqn]], after: list) -> "_Found":
        used = {x for x in self._results if isinstance(x, Var)}
        for statement in itertools.chain(before, after):
            used.update(operands(statement))
        loop, behind = fitted(iterations, Surroundings(_parts(before), used, self._constants))
        return _Found(before, iterations, loop, behind, after)

    def _with_earlier(self, found: "_Found") -> "_Found":
        """A loop extended by earlier iterations, whose equations are mixed with others."""
        while (iteration := earlier_iteration(found.iterations, found.before, self._likeness)) is not None:
            inside = set(map(id, iteration))
            before = [x for x in found.before if id(x) not in inside]
            if not _is_movable(before, iteration, found.iterations):
                break
            try:
                found = self._loop(before, [iteration, *found.iterations], found.after)
            except Misfit:
                break
        return found


class _Found(NamedTuple):
    """A loop, and the statements around it."""

    before: list
    iterations: list[list[JaxprEqn]]
    loop: Loop
    behind: list[JaxprEqn]
    after: list


def _at_the_end(numbers: np.ndarray, run: Run) -> Run:
    """The run as far behind as it goes: it ends with an iteration, while the first may begin otherwise."""
    start, stop = run.start, run.stop
    while stop < len(numbers) and numbers[stop] == numbers[stop - run.period]:
        start, stop = start + 1, stop + 1
    return Run(start, run.period, run.iterations)


def _is_movable(before: list, iteration: list[JaxprEqn], iterations: list[list[JaxprEqn]]) -> bool:
    """Returns True if an equation among those of an iteration, which uses their results, may move behind the loop."""
    made = {var for step in iteration for var in step.outvars}
    late: set[Var] = set()
    for statement in before:
        used = operands(statement)
        if not made.isdisjoint(used) or not late.isdisjoint(used):
            if isinstance(statement, JaxprEqn) and statement.effects:
                return False
            late.update(statement.outvars)
    return not late or all(late.isdisjoint(operands(step)) for each in (iteration, *iterations) for step in each)


def _parts(statements: Sequence) -> dict[Var, Part]:
    """The results of statements that are parts of an array."""
    parts: dict[Var, Part] = {}
    for statement in statements:
        if isinstance(statement, JaxprEqn):
            for position, var in enumerate(statement.outvars):
                part = part_made_by(statement, position, parts)
                if part is not None:
                    parts[var] = part
    return parts


def _with_parts_ahead(program: Program) -> Program:
    """The program, which consists of equations, with the parts of an array where the array is made.

    Iterations that take parts of one array may share some, which the first of them is then to take.
    """
    parts = _parts(program.statements)
    waiting: dict[Var, list[JaxprEqn]] = {}
    others = []
    for step in program.statements:
        if parts.keys() >= {*step.outvars}:
            waiting.setdefault(step.invars[0], []).append(step)
        else:
            others.append(step)
    made = {var for step in program.statements for var in step.outvars}
    statements: list[JaxprEqn] = []

    def take(step: JaxprEqn) -> None:
        stack = [step]
        while stack:
            statements.append(step := stack.pop())
            for var in reversed(step.outvars):
                stack.extend(reversed(waiting.get(var, ())))

    for var, steps in waiting.items():
        if var not in made:
            for step in steps:
                take(step)
    for step in others:
        take(step)
    return Program(statements, program.results)


def _without_parts(
    steps: Sequence[JaxprEqn], run: Run, parts: Mapping[Var, Part]
) -> tuple[list[list[JaxprEqn]], list[JaxprEqn]]:
    """Iterations without the equations that take parts of arrays from around them, and these."""
    made: set[Var] = set()
    is_part = []
    for step in steps:
        found = [parts.get(var) for var in step.outvars]
        is_part.append(all(part is not None and part.base not in made for part in found))
        if not is_part[-1]:
            made.update(step.outvars)
    in_all = np.all(np.reshape(is_part, (run.iterations, run.period)), axis=0)
    is_hoisted = [bool(in_all[at % run.period]) for at in range(len(steps))]
    iterations = [
        [steps[at] for at in range(start, start + run.period) if not is_hoisted[at]]
        for start in range(0, len(steps), run.period)
    ]
    return iterations, [step for step, is_out in zip(steps, is_hoisted, strict=True) if is_out]


def _with_parts_joined(program: Program) -> Program:
    """The program, in which iterations' results that are joined again are taken as they come from the loop."""
    parts, statements = _parts(program.statements), []
    for statement in program.statements:
        if isinstance(statement, Loop):
            scanned = [  # of what became a loop's after this one
                each._replace(values=in_pieces(each.values, parts, EVERY.iterations))
                if isinstance(each.values, Table)
                else each
                for each in statement.scanned
            ]
            statements.append(statement._replace(scanned=scanned))
            continue
        is_joining = isinstance(statement, JaxprEqn) and statement.primitive is lax.concatenate_p
        statements.extend(_joined(statement, parts) if is_joining else [statement])
    return Program(statements, program.results)


def _joined(step: JaxprEqn, parts: Mapping[Var, Part]) -> list:
    axis = step.params["dimension"]
    statements, invars, at = [], [], 0
    known = [parts.get(x) if isinstance(x, Var) else None for x in step.invars]
    while at < len(step.invars):
        row = row_of_windows(known, at)
        found = row if row is not None and row.length >= EVERY.iterations else None
        if found is None:
            invars.append(step.invars[at])
            at += 1
            continue
        length = found.length
        avals: Any = step.invars[at].aval
        shape = [*avals.shape]
        shape[axis] *= length
        var = step.outvars[0] if length == len(step.invars) else Var(avals.update(shape=tuple(shape)))
        statements.append(Joined(found, axis, (var,)))
        if var is step.outvars[0]:
            return statements
        invars.append(var)
        at += length
    return [*statements, step.replace(invars=invars)]
