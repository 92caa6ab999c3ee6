"""One number for each equation, which is equal for the equations of identical iterations."""

import enum
import types
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

__all__ = ["Likeness", "without_starts"]

_PLAIN = (int, float, str, bool, types.NoneType, np.dtype, np.integer, enum.Enum)
_ATOMS = {int, str, bool, types.NoneType}
_STARTS = {"start_indices", "limit_indices"}


def without_starts(step: JaxprEqn) -> dict[str, Any]:
    """The parameters of an equation, but for where a slice begins, which the iterations of a loop decide."""
    if step.primitive is not lax.slice_p:
        return step.params
    return {name: value for name, value in step.params.items() if name not in _STARTS}


class Likeness:
    """Tells equations apart, but for their operands; of a few that differ in a parameter's inside it says that they
    are alike."""

    def __init__(self):
        self._numbers: dict[Any, int] = {}
        self._of_steps: dict[int, int] = {}  # by their ids
        self._steps: list[JaxprEqn] = []  # to keep these
        self._of_avals: dict[int, tuple[Any, Any]] = {}  # by their ids, with the avals to keep these
        self._of_params: dict[int, tuple[Any, Any]] = {}

    def numbers(self, statements: Sequence) -> np.ndarray:
        """One for each statement; what has effects, and what is no equation, is like no other."""
        found, known = [], self._of_steps
        for statement in statements:
            if not isinstance(statement, JaxprEqn) or statement.effects:
                found.append(-1 - len(found))
                continue
            number = known.get(id(statement))
            found.append(self.number(statement) if number is None else number)
        return np.asarray(found, np.int64)

    def number(self, step: JaxprEqn) -> int:
        number = self._of_steps.get(id(step))
        if number is None:
            number = self._of_steps[id(step)] = self._numbers.setdefault(self._key(step), len(self._numbers))
            self._steps.append(step)
        return number

    def note(self, step: JaxprEqn, number: int) -> None:
        """Notes the number of an equation that is as another one, but for its operands."""
        self._of_steps[id(step)] = number
        self._steps.append(step)

    def _key(self, step: JaxprEqn) -> Any:
        known = self._of_avals
        avals = [
            found[1] if (found := known.get(id(x.aval))) is not None else self._of_aval(x.aval)
            for x in (*step.invars, *step.outvars)
        ]
        params = [
            (name, value if type(value) in _ATOMS else self._of_param(value))
            for name, value in without_starts(step).items()
        ]
        return step.primitive, tuple(params), len(step.invars), tuple(avals), id(step.ctx)

    def _of_aval(self, aval: Any) -> Any:
        known = self._of_avals.get(id(aval))
        if known is None:
            known = self._of_avals[id(aval)] = aval, aval.strip_weak_type()
        return known[1]

    def _of_param(self, value: Any) -> Any:
        if isinstance(value, _PLAIN):
            return value
        known = self._of_params.get(id(value))
        if known is None:
            known = self._of_params[id(value)] = value, self._of_object(value)
        return known[1]

    def _of_object(self, value: Any) -> Any:
        if isinstance(value, ClosedJaxpr):
            value = value.jaxpr
        if isinstance(value, Jaxpr):
            return tuple([step.primitive for step in value.eqns]), tuple([self._of_aval(x.aval) for x in value.outvars])
        if isinstance(value, (tuple, list)):
            return tuple([self._of_param(x) for x in value])
        return type(value)
