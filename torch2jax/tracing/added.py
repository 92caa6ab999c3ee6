"""The equations that code has added to a program that JAX traces, and loops in their place."""

import gc
import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np
from jax.core import Tracer
from jax.extend.core import JaxprEqn, Var

from ..loops.iterations import is_small, own
from ..loops.periods import Run, longest_run
from ..loops.program import Program, evaluated, sizes_of, total
from ..loops.report import RollingReport
from ..loops.rolled import Wanted, has_loops, rolled

__all__ = ["Added", "are_in_use", "without_owners"]

_HAS_EFFECTS = "the code around has effects whose results it uses"


class Added:
    """The equations that a program has got since it had so many.

    Args:
        program: JAX's trace of it.
        wanted: which iterations are to be loops.
    """

    def __init__(self, program: Any, wanted: Wanted, count: int):
        self._program, self._wanted, self._count = program, wanted, count

    @property
    def _steps(self) -> list:
        return self._program.frame.tracing_eqns

    def is_enough(self) -> bool:
        """Whether there are as many as iterations have to have together."""
        return len(self._steps) - self._count >= self._wanted.iterations and total(self._held()) >= self._wanted.least

    def has_loops(self) -> bool:
        if not self._may_have_loops(RollingReport(is_silent=True)):
            return False
        steps, _ = self._equations()
        return has_loops(steps, self._constants(), self._wanted)

    def roll(self, leaves: list) -> None:
        """Lets loops compute the arrays in a list, which are to be kept by nobody else."""
        report = RollingReport()
        if not self._may_have_loops(report):
            return
        steps, values = self._equations()
        places = [i for i, leaf in enumerate(leaves) if self._is_made(leaf)]
        made = {var for step in steps for var in step.outvars}
        values.update((leaves[i].val, leaves[i]) for i in places if leaves[i].val not in made)
        program = Program(steps, [leaves[i].val for i in places])
        found = rolled(program, self._constants(), report, self._wanted)
        if found is None:
            return
        if any(step.effects and step.outvars for step in steps):  # what code has put aside may be made of these
            report.undone(_HAS_EFFECTS)
            return
        before = self._steps[self._count :]
        del self._steps[self._count :]
        results = evaluated(found, values)
        is_whole = all(x.aval == leaves[i].aval for i, x in zip(places, map(self._own, results), strict=True))
        after = self._steps[self._count :]
        del self._steps[self._count :]
        if not is_whole:
            self._steps.extend(before)
            return
        for i, x in zip(places, results, strict=True):
            leaves[i] = x
        self._keep_used(before, after)

    def _held(self) -> list:
        """The equations that are still there, as JAX's trace has them."""
        steps = [step() if isinstance(step, weakref.ref) else step for step in self._steps[self._count :]]
        return [step for step in steps if step is not None]

    def _may_have_loops(self, report: RollingReport) -> bool:
        """A cheap first test, because most programs have no loops."""
        steps = self._held()
        sizes = np.asarray(sizes_of(steps), np.int64)
        if sizes.sum() < self._wanted.least:
            return False
        known: dict[Any, int] = {}
        numbers = np.asarray(
            [
                # JAX leaves calls without results in a program whose scans it has differentiated.
                -1 - at
                if step.effects
                else known.setdefault(
                    (step.primitive, step.outvars[0].aval.shape if step.outvars else None), len(known)
                )
                for at, step in enumerate(steps)
            ],
            np.int64,
        )
        while (run := longest_run(numbers, self._wanted.iterations, self._wanted.least, sizes)) is not None:
            reason = self._own_array(steps, run)
            if reason is None:
                return True
            report.left(run.iterations, int(sizes[run.start : run.start + run.period].sum()), reason)
            numbers[run.start : run.stop] = -1 - np.arange(run.start, run.stop)
        return False

    def _own_array(self, steps: list, run: Run) -> str | None:
        """Why iterations are no loop, if the last two take large arrays from outside, each its own."""
        made = {var for step in steps for var in step.outvars}
        constants = self._program.frame.constvar_to_val
        for at in range(run.stop - run.period, run.stop):
            step, before = steps[at], steps[at - run.period]
            if isinstance(step, JaxprEqn):
                continue
            for x, y in zip(step.in_tracers, before.in_tracers, strict=False):
                is_outside = all(isinstance(z.val, Var) and z.val not in made for z in (x, y))
                if x is not y and is_outside:
                    is_constant = all(z.val in constants and not isinstance(constants[z.val], Tracer) for z in (x, y))
                    if not is_small(x.aval, is_constant=is_constant):
                        return own(step.primitive.name, x.aval)
        return None

    def _constants(self) -> dict[Var, Any]:
        """Values that are known: others are of traces around this one."""
        values = dict(self._program.frame.constvar_to_val)
        return {var: value for var, value in values.items() if not isinstance(value, Tracer)}

    def _own(self, array: Any) -> Any:
        return array if isinstance(array, Tracer) else self._program.to_jaxpr_tracer(array, None)

    def _is_made(self, leaf: Any) -> bool:
        return isinstance(leaf, Tracer) and leaf._trace is self._program and isinstance(leaf.val, Var)

    def _equations(self) -> tuple[list[JaxprEqn], dict[Var, Any]]:
        """The equations, and the tracers of the variables that they take from elsewhere."""
        steps, values = [], {}
        for step in self._held():
            if isinstance(step, JaxprEqn):
                steps.append(step)
                continue
            invars = [tracer.val for tracer in step.in_tracers]
            for x, y in zip(invars, step.in_tracers, strict=True):
                if isinstance(x, Var):
                    values[x] = y
            steps.append(
                JaxprEqn(invars, step.outvars, step.primitive, step.params, step.effects, step.source_info, step.ctx)
            )
        for step in steps:
            for var in step.outvars:
                values.pop(var, None)
        return steps, values

    def _keep_used(self, before: list, after: list) -> None:
        """Lets the program have the new equations, and of the old ones those that someone else still uses.

        Code may have put tensors aside, as hooks that note what layers give.
        """
        kept = without_owners(before)
        before.clear()
        found = [step for ref in kept if (step := ref()) is not None] if are_in_use(kept) else []
        self._steps.extend([*found, *after])


def without_owners(steps: Iterable) -> list[weakref.ref]:
    """References to equations that keep none; without those that have effects, which their program keeps."""
    return [
        step if isinstance(step, weakref.ref) else weakref.ref(step)
        for step in steps
        if isinstance(step, weakref.ref) or not step.effects
    ]


def are_in_use(steps: Iterable[weakref.ref]) -> bool:
    """Whether anything uses what some of these equations make."""
    for generation in (1, 2):
        if all(step() is None for step in steps):
            return False
        gc.collect(generation)
    return any(step() is not None for step in steps)
