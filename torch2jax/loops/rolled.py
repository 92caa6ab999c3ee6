"""Loops in a program: turns that are alike are found, and become one."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn, Var

from .earlier import earlier_turn
from .likeness import Likeness
from .merged import merged
from .periods import Run, longest_run
from .program import Loop, Program, operands, pruned
from .report import Report
from .turns import Misfit, Surroundings, fitted, own_array
from .windows import Joined, Part, part_made_by, stacks

__all__ = ["LEAST", "TURNS", "has_loops", "rolled"]

TURNS = 4
"""The fewest that are rolled."""
LEAST = 128
"""The fewest equations that turns have together: what is short compiles fast, and may run faster, as it is."""

_TRIES = 64
_SPLITS = 4


def rolled(
    program: Program,
    constants: Mapping[Var, Any],
    report: Report,
    *,
    turns: int = TURNS,
    least: int = LEAST,
) -> Program | None:
    """The program with loops for turns that are alike; None if there are none.

    Args:
        program: of equations.
        constants: variables whose values are known, and these.
        report: is told what was rolled, and what was not.
    """
    if len(program.statements) < least:
        return None
    likeness = Likeness()
    if not _may_have_loops(program.statements, constants, report, likeness, turns, least):
        return None
    roller = _Roller(merged(pruned(program), likeness), constants, report, likeness, turns, least)
    return roller.result()


def has_loops(steps: Sequence[JaxprEqn], constants: Mapping[Var, Any]) -> bool:
    """Whether equations, whose results may all be used, have turns that are loops."""
    likeness = Likeness()
    report = Report(is_silent=True)
    if not _may_have_loops(steps, constants, report, likeness, TURNS, LEAST):
        return False
    program = merged(Program(list(steps), []), likeness)
    return _Roller(program, constants, report, likeness, TURNS, LEAST).roll() > 0


def _may_have_loops(
    steps: Sequence[JaxprEqn],
    constants: Mapping[Var, Any],
    report: Report,
    likeness: Likeness,
    turns: int,
    least: int,
) -> bool:
    """Whether turns are alike whose arrays may be those of a loop, which is soon seen."""
    numbers = likeness.numbers(steps)
    parts: dict[Var, Part] | None = None
    while (run := longest_run(numbers, turns, least)) is not None:
        parts = _parts(steps) if parts is None else parts
        found = own_array(*_last_turns(steps, run), parts, constants)
        if found is None:
            return not _has_symbols(steps)
        report.left([steps[run.start : run.start + run.period]] * run.turns, found)
        numbers[run.start : run.stop] = -1 - np.arange(run.start, run.stop)
    return False


def _last_turns(steps: Sequence[JaxprEqn], run: Run) -> tuple[Sequence[JaxprEqn], Sequence[JaxprEqn], set[Var]]:
    """The last two turns of a run, and all that the run makes."""
    made = {var for step in steps[run.start : run.stop] for var in step.outvars}
    at = run.stop - run.period
    return steps[at - run.period : at], steps[at : run.stop], made


def _has_symbols(steps: Sequence[JaxprEqn]) -> bool:
    """Whether a dimension has no number, as in programs for export."""
    avals: Any = (var.aval for step in steps for var in step.outvars)
    return any(type(size) is not int for aval in avals for size in getattr(aval, "shape", ()))


class _Roller:
    def __init__(
        self, program: Program, constants: Mapping[Var, Any], report: Report, likeness: Likeness, turns: int, least: int
    ):
        self._statements, self._results = program
        self._constants, self._report, self._likeness = constants, report, likeness
        self._turns, self._least = turns, least
        self._left: set[int] = set()  # ids of statements that are no part of a loop

    def roll(self) -> int:
        """How many loops there are, each of which takes the place of its turns."""
        count = 0
        for _ in range(_TRIES):
            numbers = self._likeness.numbers(self._statements)
            for at, statement in enumerate(self._statements):
                if id(statement) in self._left:
                    numbers[at] = -1 - at
            run = longest_run(numbers, self._turns, self._least)
            if run is None:
                break
            count += self._roll(_at_the_end(numbers, run))
        return count

    def result(self) -> Program | None:
        """The program with loops; None if there are none."""
        if not self.roll():
            return None
        program = pruned(Program(self._statements, self._results))
        return pruned(_with_parts_joined(program))

    def _roll(self, run: Run) -> bool:
        """Whether turns are a loop, which takes their place then."""
        steps, after = self._statements[run.start : run.stop], self._statements[run.stop :]
        turns, front = _without_parts(steps, run, _parts(self._statements[: run.stop]))
        before = [*self._statements[: run.start], *front]
        try:
            if len(turns[0]) * len(turns) < self._least:
                raise Misfit(0, "")
            found = self._fitted(before, turns, after)
        except Misfit as misfit:
            self._left.update(map(id, steps))
            if misfit.reason:
                self._report.left(turns, misfit.reason)
            return False
        self._statements = self._with_loop(found)
        return True

    def _with_loop(self, found: "_Found") -> list:
        self._report.rolled(found.turns)
        inner = rolled(found.loop.body, {}, self._report, turns=self._turns, least=self._least)
        loop = found.loop if inner is None else found.loop._replace(body=inner)
        made = {var for turn in found.turns for step in turn for var in step.outvars}
        ahead, later = [], []
        for statement in found.before:  # an earlier turn was among them, and what it has made may be used since
            is_later = not made.isdisjoint(operands(statement))
            (later if is_later else ahead).append(statement)
            if is_later:
                made.update(statement.outvars)
        return [*ahead, loop, *found.behind, *later, *found.after]

    def _fitted(self, before: list, turns: list[list[JaxprEqn]], after: list) -> "_Found":
        """The longest row of turns that is a loop.

        Raises:
            Misfit: there is none.
        """
        start, stop = 0, len(turns)
        for tries in range(_SPLITS, 0, -1):
            ahead = [*before, *(step for turn in turns[:start] for step in turn)]
            behind = [*(step for turn in turns[stop:] for step in turn), *after]
            try:
                found = self._loop(ahead, turns[start:stop], behind)
                return found if start else self._with_earlier(found)
            except Misfit as misfit:
                at = start + misfit.turn
                start, stop = (start, at) if at - start >= stop - at else (at, stop)
                is_short = stop - start < self._turns or (stop - start) * len(turns[0]) < self._least
                if not misfit.turn or is_short or tries == 1:
                    raise
        raise AssertionError

    def _loop(self, before: list, turns: list[list[JaxprEqn]], after: list) -> "_Found":
        used = {x for x in self._results if isinstance(x, Var)}
        for statement in itertools.chain(before, after):
            used.update(operands(statement))
        loop, behind = fitted(turns, Surroundings(_parts(before), used, self._constants))
        return _Found(before, turns, loop, behind, after)

    def _with_earlier(self, found: "_Found") -> "_Found":
        """As found, with the turns before the first that other equations are among."""
        while (turn := earlier_turn(found.turns, found.before, self._likeness)) is not None:
            inside = set(map(id, turn))
            before = [x for x in found.before if id(x) not in inside]
            if not _is_movable(before, turn, found.turns):
                break
            try:
                found = self._loop(before, [turn, *found.turns], found.after)
            except Misfit:
                break
        return found


class _Found(NamedTuple):
    """A loop, and the statements around it."""

    before: list
    turns: list[list[JaxprEqn]]
    loop: Loop
    behind: list[JaxprEqn]
    after: list


def _at_the_end(numbers: np.ndarray, run: Run) -> Run:
    """The run as far behind as it goes: where it ends is the end of a turn, while the first may begin otherwise."""
    start, stop = run.start, run.stop
    while stop < len(numbers) and numbers[stop] == numbers[stop - run.period]:
        start, stop = start + 1, stop + 1
    return Run(start, run.period, run.turns)


def _is_movable(before: list, turn: list[JaxprEqn], turns: list[list[JaxprEqn]]) -> bool:
    """Whether what stands among the equations of a turn, and uses these, may stand behind the loop."""
    made = {var for step in turn for var in step.outvars}
    late: set[Var] = set()
    for statement in before:
        used = operands(statement)
        if not made.isdisjoint(used) or not late.isdisjoint(used):
            if isinstance(statement, JaxprEqn) and statement.effects:
                return False
            late.update(statement.outvars)
    return not late or all(late.isdisjoint(operands(step)) for each in (turn, *turns) for step in each)


def _parts(statements: Sequence) -> dict[Var, Part]:
    """What of the results of statements is a part of an array."""
    parts: dict[Var, Part] = {}
    for statement in statements:
        if isinstance(statement, JaxprEqn):
            for place, var in enumerate(statement.outvars):
                part = part_made_by(statement, place, parts)
                if part is not None:
                    parts[var] = part
    return parts


def _without_parts(
    steps: Sequence[JaxprEqn], run: Run, parts: Mapping[Var, Part]
) -> tuple[list[list[JaxprEqn]], list[JaxprEqn]]:
    """Turns without the equations that take parts of arrays from around them, and these."""
    made: set[Var] = set()
    is_part = []
    for step in steps:
        found = [parts.get(var) for var in step.outvars]
        is_part.append(all(part is not None and part.base not in made for part in found))
        if not is_part[-1]:
            made.update(step.outvars)
    in_all = np.all(np.reshape(is_part, (run.turns, run.period)), axis=0)
    moved = [bool(in_all[at % run.period]) for at in range(len(steps))]
    turns = [
        [steps[at] for at in range(start, start + run.period) if not moved[at]]
        for start in range(0, len(steps), run.period)
    ]
    return turns, [step for step, is_moved in zip(steps, moved, strict=True) if is_moved]


def _with_parts_joined(program: Program) -> Program:
    """The program, in which turns' results that are joined again are taken as they come from the loop."""
    parts, statements = _parts(program.statements), []
    for statement in program.statements:
        is_joining = isinstance(statement, JaxprEqn) and statement.primitive is lax.concatenate_p
        statements.extend(_joined(statement, parts) if is_joining else [statement])
    return Program(statements, program.results)


def _joined(step: JaxprEqn, parts: Mapping[Var, Part]) -> list:
    axis = step.params["dimension"]
    statements, invars, at = [], [], 0
    while at < len(step.invars):
        row: Any = [parts.get(x) if isinstance(x, Var) else None for x in step.invars[at:]]
        length = next((n for n in range(2, len(row) + 1) if stacks(row[:n]) is None), len(row) + 1) - 1
        found = stacks(row[:length]) if length >= TURNS else None
        if found is None:
            invars.append(step.invars[at])
            at += 1
            continue
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
