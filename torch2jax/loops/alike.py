"""Whether equations compute the same, although JAX makes the functions in their parameters anew."""

import functools
import types
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import torch
from jax.core import Trace
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Var
from jax.extend.linear_util import WrappedFun

from ..internals.jax_programs import EqualStore, Store

__all__ = ["Atom", "is_same", "is_same_step", "key_of"]

Atom = Any
"""A `Var` or a `Literal`."""


def key_of(atom: Atom) -> Any:
    """What tells operands apart."""
    if isinstance(atom, Var):
        return atom
    value = np.asarray(atom.val)
    return str(atom.aval), value.dtype, value.tobytes()


def is_same_step(one: JaxprEqn, other: JaxprEqn, *, with_params: bool = True) -> bool:
    """Whether two equations compute the same of operands alike."""
    return (
        one.primitive is other.primitive
        and _avals(one.invars) == _avals(other.invars)
        and _avals(one.outvars) == _avals(other.outvars)
        and (not with_params or is_same(one.params, other.params))
    )


def _avals(atoms: Sequence[Atom]) -> list:
    return [atom.aval for atom in atoms]


def is_same(one: Any, other: Any) -> bool:
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


def _is_same_jaxpr(one: Jaxpr, other: Jaxpr) -> bool:
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
        if not is_same_step(x, y) or not are_same(x.invars, y.invars):
            return False
        inner.update(zip(x.outvars, y.outvars, strict=True))
    return are_same(one.outvars, other.outvars)
