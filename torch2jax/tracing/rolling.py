"""Rolls the loops that calls leave in a program that JAX traces.

Where JAX traces the program itself, the equations that a call has added are there when it is over, and those with loops
take their places. Where JAX takes derivatives or batches of them at once, the call is traced by itself, and JAX takes
the derivatives of the loops: a call that is known to have loops at once, another one when a run has shown some, which
ends then. What has no loops stays as it is.

Also here: the equations that code has added to a program that JAX traces, and loops in their place; and a trial run,
which ends as soon as it is known whether code leaves loops in a program.
"""

import gc
import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax.core import Tracer
from jax.extend.core import JaxprEqn, Var

from ..internals.jax import DynamicJaxprTrace
from ..runtime.errors.unwinding import Unwind
from ..tensors.traced import is_traced
from ..tensors.trees import flatten
from .loops.iterations import is_small, own
from .loops.program import Program, evaluated, sizes_of, total
from .loops.rolled import EVERY, LONG, RollingReport, Run, Wanted, has_loops, longest_run, rolled
from .traces import Bookmark, current_trace, ending_with_errors, program_of

_HAS_EFFECTS = "the code around has effects whose results it uses"


class Added:
    """The equations added to a program since it had `count`.

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
        """Returns True if there are as many equations as the iterations of a loop must have together."""
        return len(self._steps) - self._count >= self._wanted.iterations and total(self._held()) >= self._wanted.least

    def has_loops(self) -> bool:
        if not self._may_have_loops(RollingReport(is_silent=True)):
            return False
        steps, _ = self._equations()
        return has_loops(steps, self._constants(), self._wanted)

    def roll(self, leaves: list) -> None:
        """Replaces iterations by loops that compute the arrays in a list, to which nothing else may refer."""
        report = RollingReport()
        if not self._may_have_loops(report):
            return
        steps, values = self._equations()
        positions = [i for i, leaf in enumerate(leaves) if self._is_made(leaf)]
        made = {var for step in steps for var in step.outvars}
        values.update((leaves[i].val, leaves[i]) for i in positions if leaves[i].val not in made)
        program = Program(steps, [leaves[i].val for i in positions])
        found = rolled(program, self._constants(), report, self._wanted)
        if found is None:
            return
        if any(step.effects and step.outvars for step in steps):  # what code has put aside may be made of these
            report.undone(_HAS_EFFECTS)
            return
        before = self._steps[self._count :]
        del self._steps[self._count :]
        results = evaluated(found, values)
        is_complete = all(x.aval == leaves[i].aval for i, x in zip(positions, map(self._own, results), strict=True))
        after = self._steps[self._count :]
        del self._steps[self._count :]
        if not is_complete:
            self._steps.extend(before)
            return
        for i, x in zip(positions, results, strict=True):
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
        """The reason why iterations are no loop, if the last two take large arrays from outside, each its own."""
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
        """The values of known variables; those of outer traces are not known."""
        values = dict(self._program.frame.constvar_to_val)
        return {var: value for var, value in values.items() if not isinstance(value, Tracer)}

    def _own(self, array: jax.Array) -> jax.Array:
        return array if isinstance(array, Tracer) else self._program.to_jaxpr_tracer(array, None)

    def _is_made(self, leaf: object) -> bool:
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
        """Adds the new equations to the program, and keeps those of the old ones that something still uses.

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
    """Returns True if anything uses the results of some of these equations."""
    for generation in (1, 2):
        if all(step() is None for step in steps):
            return False
        gc.collect(generation)
    return any(step() is not None for step in steps)


_FIRST, _FURTHER = 2, 4


class HasLoops(Unwind):
    """The code has loops, and the rest of its run is of no use."""

    def __init__(self, shown_by: object):
        super().__init__()
        self.shown_by = shown_by


class Tried(NamedTuple):
    """The outcome of a run."""

    result: Any
    has_loops: bool
    """True if loops were found: there is no result, and the program is unchanged."""


def tried(code: Callable[[object], object], given: tuple[object, ...], program: Any, wanted: Wanted) -> Tried:
    """Runs code that adds to a program.

    Args:
        wanted: which iterations are to be loops.
    """
    bookmark, frame = Bookmark(), program.frame
    before = frame.tracing_eqns
    added = Added(program, wanted, len(before))
    watched = frame.tracing_eqns = _Watched(before, wanted.least, added.has_loops)
    try:
        result = code(given)
        if not added.has_loops():
            return Tried(result, False)
        del result
    except HasLoops as found:
        if found.shown_by is not watched:
            raise
    finally:
        if frame.tracing_eqns is watched:
            before[:] = watched
            frame.tracing_eqns = before
    bookmark.return_to()
    return Tried(None, True)


class _Watched(list):
    """A program's equations, searched for loops whenever their number, with nested ones, has grown by a factor.

    So that costs no more than some searches through all of them, however many there will be.
    """

    def __init__(self, steps: list, least: int, has_loops: Callable[[], bool]):
        super().__init__(steps)
        self._has_loops = has_loops
        self._size, self._next = 0, _FIRST * least

    def append(self, step: object) -> None:
        super().append(step)
        self._size += sizes_of([step() if isinstance(step, weakref.ref) else step])[0]
        if self._size >= self._next:
            self._next = _FURTHER * self._size
            if self._has_loops():
                raise HasLoops(self)


T = TypeVar("T")

_WANTED = {"auto": LONG, "rolled": EVERY, "unrolled": None}


class Rolling:
    """The loops of some code's programs: a search after or during its runs.

    Args:
        wanted: which iterations are to be loops.
    """

    def __init__(self, wanted: Wanted):
        self._wanted = wanted
        self._expects_loops = False
        """True if the last call within derivatives or batches had loops."""
        self._puts_aside = False
        """True if the code lets others have what it computes, beside its results."""

    @classmethod
    def of(cls, loops: str) -> "Rolling | None":
        """The search for loops that the option `loops` of `t2j` asks for; None for no loops.

        Raises:
            ValueError: it is nothing that `t2j` takes.
        """
        if loops not in _WANTED:
            raise ValueError(
                f"loops got {loops!r}; wanted 'rolled', which makes one jax.lax.scan of identical iterations, "
                "'unrolled', which keeps them, or 'auto', which rolls only long loops"
            )
        wanted = _WANTED[loops]
        return None if wanted is None else cls(wanted)

    def run(self, code: Callable[[Any], T], given: Any, is_repeatable: bool, has_layers: bool = False) -> T:
        """The result of some code, with loops in the program that JAX traces.

        Args:
            given: a tree with arrays, which `code` gets.
            is_repeatable: whether code that is traced by itself is the same code.
            has_layers: whether layers are stacked in the tree, which are to be a loop.
        """
        trace = current_trace()
        program = trace if isinstance(trace, DynamicJaxprTrace) else program_of(trace)
        if program is None:
            return code(given)
        wanted = EVERY if has_layers else self._wanted
        if trace is program:
            count = len(program.frame.tracing_eqns)
            result = code(given)
            added = Added(program, wanted, count)
            if not added.is_enough():
                return result
            leaves, structure = flatten(result)
            del result  # nothing is to keep what is computed iteration by iteration
            added.roll(leaves)
            return structure.unflatten(leaves)
        if not is_repeatable or self._puts_aside:
            return code(given)
        if not has_layers and not self._expects_loops:
            result, has_loops = tried(code, given, program, wanted)
            if not has_loops:
                return result
        alone = _Alone(code, given, wanted)
        self._expects_loops, self._puts_aside = alone.has_loops, alone.is_put_aside
        return code(given) if alone.is_put_aside else alone.result()


class _Alone:
    """Code in a trace of its own."""

    def __init__(self, code: Callable[[object], object], given: tuple[object, ...], wanted: Wanted):
        leaves, structure = flatten(given)
        positions = [i for i, leaf in enumerate(leaves) if is_traced(leaf)]
        end: Any = None
        steps: list = []
        around = current_trace()

        def run(*arrays: object) -> list:
            nonlocal end
            filled = list(leaves)
            for i, array in zip(positions, arrays, strict=True):
                filled[i] = array
            with ending_with_errors(around):
                results, form = flatten(code(structure.unflatten(filled)))
            is_array = [isinstance(leaf, (jax.Array, np.ndarray)) for leaf in results]
            end = form, [None if x else leaf for x, leaf in zip(is_array, results, strict=True)], is_array
            steps.extend(without_owners(program_of(current_trace()).frame.tracing_eqns))
            return [leaf for x, leaf in zip(is_array, results, strict=True) if x]

        arrays = [leaves[i] for i in positions]
        closed = jax.make_jaxpr(run)(*arrays)
        jaxpr, self._end = closed.jaxpr, end
        constants = dict(zip(jaxpr.constvars, closed.consts, strict=True))
        known = {var: value for var, value in constants.items() if not isinstance(value, Tracer)}
        self._program, report = Program(list(jaxpr.eqns), list(jaxpr.outvars)), RollingReport()
        found = rolled(self._program, known, report, wanted)
        self._values = {**constants, **dict(zip(jaxpr.invars, arrays, strict=True))}
        self.has_loops = found is not None
        self.is_put_aside = are_in_use(steps)
        if self.is_put_aside:
            report.undone("the code puts aside what they compute")
        elif found is not None:
            self._program = found

    def result(self) -> Any:
        """The result of the code, computed with loops."""
        found = iter(evaluated(self._program, self._values))
        form, static, is_array = self._end
        return form.unflatten([next(found) if x else leaf for x, leaf in zip(is_array, static, strict=True)])
