"""Rolls the loops that calls leave in a program that JAX traces.

Where JAX traces the program itself, the equations that a call has added are there when it is over, and those with loops
take their places. Where JAX takes derivatives or batches of them at once, the call is traced by itself, and JAX takes
the derivatives of the loops: a call that is known to have loops at once, another one when a run has shown some, which
ends then. What has no loops stays as it is.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from jax.core import Tracer

from ..internals.jax_traces import DynamicJaxprTrace
from ..loops.program import Program, evaluated
from ..loops.report import RollingReport
from ..loops.rolled import EVERY, LONG, Wanted, rolled
from ..tensors.traced import is_traced
from ..tensors.trees import flatten
from .added import Added, are_in_use, without_owners
from .traces import current_trace, ending_with_errors, program_of
from .trial import tried

__all__ = ["Rolling"]

T = TypeVar("T")

_WANTED = {"auto": LONG, "rolled": EVERY, "unrolled": None}


class Rolling:
    """Finds the loops of what runs of some code leave in programs.

    Args:
        wanted: which iterations are to be loops.
    """

    def __init__(self, wanted: Wanted):
        self._wanted = wanted
        self._expects_loops = False
        """Whether the last call within derivatives or batches had loops."""
        self._puts_aside = False
        """Whether the code lets others have what it computes, beside its results."""

    @classmethod
    def of(cls, loops: str) -> "Rolling | None":
        """What `t2j` is told to do with loops.

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
        """What some code gives, of which the program that JAX traces has the loops.

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
    """Code that is traced by itself."""

    def __init__(self, code: Callable[[Any], Any], given: Any, wanted: Wanted):
        leaves, structure = flatten(given)
        places = [i for i, leaf in enumerate(leaves) if is_traced(leaf)]
        end: Any = None
        steps: list = []
        around = current_trace()

        def run(*arrays: Any) -> list:
            nonlocal end
            filled = list(leaves)
            for i, array in zip(places, arrays, strict=True):
                filled[i] = array
            with ending_with_errors(around):
                results, form = flatten(code(structure.unflatten(filled)))
            is_array = [isinstance(leaf, (jax.Array, np.ndarray)) for leaf in results]
            end = form, [None if x else leaf for x, leaf in zip(is_array, results, strict=True)], is_array
            steps.extend(without_owners(program_of(current_trace()).frame.tracing_eqns))
            return [leaf for x, leaf in zip(is_array, results, strict=True) if x]

        arrays = [leaves[i] for i in places]
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
        """What the code gives, computed with loops."""
        found = iter(evaluated(self._program, self._values))
        form, static, is_array = self._end
        return form.unflatten([next(found) if x else leaf for x, leaf in zip(is_array, static, strict=True)])
