"""Numbers of equations, equal for the equations of identical iterations.

Also here: the equality of equations, although JAX makes the functions in their parameters anew each time.
"""

import enum
import functools
import types
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import torch
from jax import lax
from jax.core import Trace
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Var
from jax.extend.linear_util import WrappedFun

from ...internals.jax import EqualStore, Store

Atom = Any
"""A `Var` or a `Literal`."""


def key_of(atom: Atom) -> object:
    """A key that two operands have in common if they are equal."""
    if isinstance(atom, Var):
        return atom
    value = np.asarray(atom.val)
    return str(atom.aval), value.dtype, value.tobytes()


def is_same_step(one: JaxprEqn, other: JaxprEqn, *, with_params: bool = True) -> bool:
    """Returns True if two equations compute the same for operands of the same types.

    Args:
        with_params: whether parameters are compared; else only the equations of programs among them are.
    """
    return (
        one.primitive is other.primitive
        and _avals(one.invars) == _avals(other.invars)
        and _avals(one.outvars) == _avals(other.outvars)
        and (is_same(one.params, other.params) if with_params else _have_same_steps(one.params, other.params))
    )


def _have_same_steps(one: object, other: Any) -> bool:
    """Returns True if programs among parameters have the same equations, whatever parameters these have."""
    if one is other:
        return True
    if isinstance(one, ClosedJaxpr):
        return isinstance(other, ClosedJaxpr) and _is_same_jaxpr(one.jaxpr, other.jaxpr, with_params=False)
    if isinstance(one, Jaxpr):
        return isinstance(other, Jaxpr) and _is_same_jaxpr(one, other, with_params=False)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_have_same_steps(value, other[key]) for key, value in one.items())
    if isinstance(one, (tuple, list)):
        is_long_enough = isinstance(other, (tuple, list)) and len(one) == len(other)
        return is_long_enough and all(map(_have_same_steps, one, other))
    return True


def _avals(atoms: Sequence[Atom]) -> list:
    return [atom.aval for atom in atoms]


def is_same(one: object, other: Any) -> bool:
    if one is other:
        return True
    if type(one) is not type(other) or isinstance(one, (jax.Array, torch.Tensor)):
        return False
    if isinstance(one, types.FunctionType):  # JAX makes the derivative of a function anew for each call
        return one.__code__ is other.__code__ and is_same(_closed_over(one), _closed_over(other))
    if isinstance(one, Store):  # what a call has left there: of the same functions the same
        return not one or not other or is_same(one._val, other._val)
    if isinstance(one, EqualStore):
        return is_same(one._store, other._store)
    if type(one) is object or isinstance(one, Trace):  # a mark, or where the derivative would be traced
        return True
    if isinstance(one, functools.partial):
        return is_same((one.func, one.args, one.keywords), (other.func, other.args, other.keywords))
    if isinstance(one, WrappedFun):
        return is_same((one.f, one.transforms, one.params), (other.f, other.transforms, other.params))
    if isinstance(one, ClosedJaxpr):
        consts = zip(one.consts, other.consts, strict=False)
        return _is_same_jaxpr(one.jaxpr, other.jaxpr) and all(x is y for x, y in consts)
    if isinstance(one, Jaxpr):
        return _is_same_jaxpr(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_same(value, other[key]) for key, value in one.items())
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    try:
        return bool(one == other)
    except Exception:  # what cannot be compared is not the same
        return False


def _closed_over(function: types.FunctionType) -> tuple:
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    if cells.keys() >= {"cells", "sentinel"}:  # what JAX remembers of calls
        del cells["cells"]
    contents = [cell.cell_contents for cell in cells.values()]
    return function.__defaults__, [None if x is function else x for x in contents]


def _is_same_jaxpr(one: Jaxpr, other: Jaxpr, with_params: bool = True) -> bool:
    inner: dict[Var, Var] = {}

    def enter(ours: Sequence[Var], others: Sequence[Var]) -> bool:
        inner.update(zip(ours, others, strict=False))
        return _avals(ours) == _avals(others)

    def are_same(ours: Sequence[Atom], others: Sequence[Atom]) -> bool:
        return len(ours) == len(others) and all(
            inner[x] is y if isinstance(x, Var) else not isinstance(y, Var) and key_of(x) == key_of(y)
            for x, y in zip(ours, others, strict=True)
        )

    if not enter(one.constvars, other.constvars) or not enter(one.invars, other.invars):
        return False
    if len(one.eqns) != len(other.eqns):
        return False
    for x, y in zip(one.eqns, other.eqns, strict=True):
        if not is_same_step(x, y, with_params=with_params) or not are_same(x.invars, y.invars):
            return False
        inner.update(zip(x.outvars, y.outvars, strict=True))
    return are_same(one.outvars, other.outvars)


_PLAIN = (int, float, str, bool, types.NoneType, np.dtype, np.integer, enum.Enum)
_ATOMS = {int, str, bool, types.NoneType}
_STARTS = {"start_indices", "limit_indices"}


def without_starts(step: JaxprEqn) -> dict[str, object]:
    """The parameters of an equation, except the start of a slice, which may differ between iterations."""
    if step.primitive is not lax.slice_p:
        return step.params
    return {name: value for name, value in step.params.items() if name not in _STARTS}


class Likeness:
    """Tells equations apart, but for their operands; of a few that differ in a parameter's inside it says that they
    are alike."""

    def __init__(self):
        self._numbers: dict[object, int] = {}
        self._of_steps: dict[int, int] = {}  # by their ids
        self._steps: list[JaxprEqn] = []  # to keep these
        self._of_avals: dict[int, tuple[object, object]] = {}  # by their ids, with the avals to keep these
        self._of_params: dict[int, tuple[object, object]] = {}

    def numbers(self, statements: Sequence) -> np.ndarray:
        """A number for each statement, equal for like ones; effects, and all but equations, are like no other."""
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
        """Gives an equation the number of one that differs in operands alone."""
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

    def _of_aval(self, aval: Any) -> object:
        known = self._of_avals.get(id(aval))
        if known is None:
            known = self._of_avals[id(aval)] = aval, aval.strip_weak_type()
        return known[1]

    def _of_param(self, value: object) -> object:
        if isinstance(value, _PLAIN):
            return value
        known = self._of_params.get(id(value))
        if known is None:
            known = self._of_params[id(value)] = value, self._of_object(value)
        return known[1]

    def _of_object(self, value: object) -> object:
        if isinstance(value, ClosedJaxpr):
            value = value.jaxpr
        if isinstance(value, Jaxpr):
            return tuple([step.primitive for step in value.eqns]), tuple([self._of_aval(x.aval) for x in value.outvars])
        if isinstance(value, (tuple, list)):
            return tuple([self._of_param(x) for x in value])
        return type(value)
