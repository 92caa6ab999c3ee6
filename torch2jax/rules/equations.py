"""The equations that a short body adds to a jaxpr: kept, and added again without running the body.

A body asks for shapes and dtypes, and JAX's functions check what they are given; each time that takes as long as the
equations themselves. What a pure body adds follows from the types of its arrays and JAX's settings alone. So it is kept
by these, as primitives with their parameters, and which values each takes. An equation with other operands (a constant
of the jaxpr, a number of a weak type), or with jaxprs inside, is not kept: then the body runs each time.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.core
import jax.extend.core

from ..internals.jax_traces import trace_context

__all__ = ["EquationsByTypes"]

_MOST = 64  # types of arrays for one body


class _Literal(NamedTuple):
    """An operand that is a number in the jaxpr."""

    value: Any


class _Equation(NamedTuple):
    """One equation of a jaxpr, whose operands are told by their places."""

    primitive: Any
    params: dict[str, Any]
    operands: tuple[int | _Literal, ...]
    """The places of values: the body's arrays, and then the results of all equations in their order."""


class _Equations(NamedTuple):
    """All equations of a body for arrays of certain types."""

    context: Any
    """JAX's settings while they were found."""
    equations: tuple[_Equation, ...]
    results: tuple[int, ...]
    """The places of the body's results among the values."""
    kind: type | None
    """Of the sequence that these are in; None for one result alone."""

    def add(self, arrays: Sequence[Any]) -> Any:
        values = [*arrays]
        for primitive, params, operands in self.equations:
            found = primitive.bind(*[values[x] if type(x) is int else x.value for x in operands], **params)  # pyright: ignore
            if primitive.multiple_results:
                values += found
            else:
                values.append(found)
        if self.kind is None:
            return values[self.results[0]]
        return self.kind([values[place] for place in self.results])


class EquationsByTypes:
    """The equations of one body, by the types of its arrays."""

    def __init__(self):
        self._kept: dict[tuple, _Equations] = {}

    def find(self, arrays: Sequence[Any]) -> Callable[[Sequence[Any]], Any] | None:
        """What adds the body's equations for such arrays, and gives its results; None if they are not kept."""
        found = self._kept.get(tuple([array.aval for array in arrays]))
        return None if found is None or found.context != trace_context() else found.add

    def keep(self, arrays: Sequence[Any], equations: Sequence[Any], result: Any) -> None:
        """Keeps the equations that a body has added for arrays, if nothing else has a say in them."""
        places = {id(array.val): place for place, array in enumerate(arrays)}
        if len(places) < len(arrays):
            return  # an array that is given twice: which one is meant?
        kept = []
        for equation in equations:
            operands: list[Any] = [_operand(x, places) for x in equation.invars]
            if None in operands or equation.effects:
                return
            kept.append(_Equation(equation.primitive, equation.params, tuple(operands)))
            for variable in equation.outvars:
                places[id(variable)] = len(places)
        kind = type(result) if type(result) in (tuple, list) else None
        results = [places.get(id(getattr(x, "val", None))) for x in (result if kind else (result,))]
        if None in results:
            return
        if len(self._kept) >= _MOST:
            self._kept.clear()
        types = tuple([array.aval for array in arrays])
        self._kept[types] = _Equations(trace_context(), tuple(kept), tuple(results), kind)  # pyright: ignore


def _operand(traced: Any, places: dict[int, int]) -> int | _Literal | None:
    """What an equation takes: a value by its place, or a number; None if it is anything else."""
    place = places.get(id(traced.val))
    if place is not None:
        return place
    if isinstance(traced.val, jax.extend.core.Literal) and jax.typeof(traced.val.val) == traced.val.aval:
        return _Literal(traced.val.val)
    return None
