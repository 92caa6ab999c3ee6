"""The loops of what calls leave in a program that JAX traces.

Where JAX traces the program itself, the equations that a call has added are there when it is over, and those with loops
take their places. Where JAX takes derivatives or batches of them at once, the first run shows whether there are loops;
then the call is traced by itself, and JAX takes the derivatives of the loops. What has no loops stays as it is.
"""

import gc
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax.core import Tracer
from jax.extend.core import JaxprEqn, Var

from ..loops.program import Program, evaluated
from ..loops.report import Report
from ..loops.rolled import LEAST, has_loops, rolled
from ..tensors.traced import is_traced
from ..tensors.trees import flatten
from .traces import Bookmark, current_trace, program_of

__all__ = ["Rolling"]

T = TypeVar("T")


class Rolling:
    """Finds the loops of what runs of some code leave in programs."""

    def __init__(self):
        self._has_loops_within = False
        """Whether the last call within derivatives or batches had loops."""

    @classmethod
    def of(cls, loops: str) -> "Rolling | None":
        """What `t2j` is told to do with loops.

        Raises:
            ValueError: it is nothing that `t2j` takes.
        """
        if loops not in ("rolled", "unrolled"):
            raise ValueError(
                f"loops got {loops!r}; wanted 'rolled', which makes one jax.lax.scan of turns that are alike, or "
                "'unrolled', which leaves them as they are"
            )
        return cls() if loops == "rolled" else None

    def run(self, code: Callable[[Any], T], given: Any, is_repeatable: bool) -> T:
        """What some code gives, of which the program that JAX traces has the loops.

        Args:
            given: a tree with arrays, which `code` gets.
            is_repeatable: whether code that is traced by itself is the same code.
        """
        trace = current_trace()
        program = program_of(trace)
        if program is None:
            return code(given)
        if trace is program:
            added = _Added(program)
            return added.rolled(code(given))
        if not is_repeatable:
            return code(given)
        if not self._has_loops_within:
            bookmark, added = Bookmark(), _Added(program)
            result = code(given)
            if not added.has_loops():
                return result
            del result
            bookmark.return_to()
        found = _traced_alone(code, given)
        self._has_loops_within = found is not None
        return code(given) if found is None else found.tree


class _Found(NamedTuple):
    tree: Any


class _Added:
    """The equations that a program gets from now on."""

    def __init__(self, program: Any):
        self._program, self._steps = program, program.frame.tracing_eqns
        self._count = len(self._steps)

    def has_loops(self) -> bool:
        if len(self._steps) - self._count < LEAST:
            return False
        steps, _ = self._equations()
        return has_loops(steps, self._constants())

    def rolled(self, tree: T) -> T:
        """The tree, computed with loops."""
        if len(self._steps) - self._count < LEAST:
            return tree
        leaves, structure = flatten(tree)
        steps, values = self._equations()
        places = [i for i, leaf in enumerate(leaves) if self._is_made(leaf)]
        found = rolled(Program(steps, [leaves[i].val for i in places]), self._constants(), Report())
        if found is None:
            return tree
        before = self._steps[self._count :]
        del self._steps[self._count :]
        results = evaluated(found, values)
        is_whole = all(x.aval == leaves[i].aval for i, x in zip(places, map(self._own, results), strict=True))
        after = self._steps[self._count :]
        del self._steps[self._count :]
        if not is_whole:
            self._steps.extend(before)
            return tree
        for i, x in zip(places, results, strict=True):
            leaves[i] = x
        del tree
        self._keep_used(before, after)
        return structure.unflatten(leaves)

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
        for step in self._steps[self._count :]:
            step = step() if isinstance(step, weakref.ref) else step
            if step is None:
                continue
            if isinstance(step, JaxprEqn):
                steps.append(step)
                continue
            invars = [tracer.val for tracer in step.in_tracers]
            values.update((x, y) for x, y in zip(invars, step.in_tracers, strict=True) if isinstance(x, Var))
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
        effects = {id(step) for step in before if not isinstance(step, weakref.ref) and step.effects}
        kept = [
            step if isinstance(step, weakref.ref) else weakref.ref(step) for step in before if id(step) not in effects
        ]
        before.clear()
        if any(step() is not None for step in kept):
            gc.collect()
        found = [step for ref in kept if (step := ref()) is not None]
        self._steps.extend([*found, *after])


def _traced_alone(code: Callable[[Any], T], given: Any) -> _Found | None:
    """What code gives that is traced by itself, computed with loops; None if it has none."""
    leaves, structure = flatten(given)
    places = [i for i, leaf in enumerate(leaves) if is_traced(leaf)]
    end: Any = None

    def run(*arrays) -> list:
        nonlocal end
        filled = list(leaves)
        for i, array in zip(places, arrays, strict=True):
            filled[i] = array
        results, form = flatten(code(structure.unflatten(filled)))
        is_array = [isinstance(leaf, (jax.Array, np.ndarray)) for leaf in results]
        end = form, [None if x else leaf for x, leaf in zip(is_array, results, strict=True)], is_array
        return [leaf for x, leaf in zip(is_array, results, strict=True) if x]

    arrays = [leaves[i] for i in places]
    closed = jax.make_jaxpr(run)(*arrays)
    jaxpr = closed.jaxpr
    constants = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    known = {var: value for var, value in constants.items() if not isinstance(value, Tracer)}
    program = rolled(Program(list(jaxpr.eqns), list(jaxpr.outvars)), known, Report())
    if program is None:
        return None
    values = dict(zip(jaxpr.invars, arrays, strict=True))
    found = iter(evaluated(program, {**constants, **values}))
    form, static, is_array = end
    return _Found(form.unflatten([next(found) if x else leaf for x, leaf in zip(is_array, static, strict=True)]))
