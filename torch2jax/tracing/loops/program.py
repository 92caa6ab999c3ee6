"""Programs with loops: how they are evaluated, and how much there is to compile."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import eval_jaxpr
from jax.extend.core import ClosedJaxpr, DebugInfo, Jaxpr, JaxprEqn, Literal, Var, new_jaxpr_eqn, no_effects

from ...internals.jax import join_effects, remat_p
from .likeness import Atom as Atom
from .windows import Pieces, Table, Windows, reader


class Program(NamedTuple):
    """A jaxpr with more than equations: JAX's, in their order, and other statements.

    A statement that is no equation has

    - `outvars`, the variables that it sets, and `operands`, those from before it that it uses;
    - `has_effects`, whether it is needed though nothing uses what it sets;
    - `pruned(needed)`, itself without what is not needed of its `outvars`;
    - `evaluated(values)`, what it gives in the current trace of JAX.
    """

    statements: list
    results: list[Atom]


class Carry(NamedTuple):
    """A value that one iteration passes to the next."""

    var: Var
    first: Atom | None
    """Its value in the first iteration; None if only the code after the loop needs it, from the last iteration."""


class Scanned(NamedTuple):
    """A value that differs from iteration to iteration."""

    var: Var
    values: Windows | Table | Pieces


class Loop(NamedTuple):
    """A body that runs a number of times. It may use any value from before."""

    length: int
    carries: list[Carry]
    scanned: list[Scanned]
    body: Program
    """Its results are the next carries, and then the values to stack."""
    outvars: list[Var]

    has_effects = False

    @property
    def operands(self) -> set[Var]:
        found = free(self.body)
        found.difference_update([*(carry.var for carry in self.carries), *(each.var for each in self.scanned)])
        found.update(carry.first for carry in self.carries if isinstance(carry.first, Var))
        for each in self.scanned:
            found.update(each.values.operands)
        return found

    def pruned(self, needed: set[Var]) -> "Loop":
        del needed
        return self

    def evaluated(self, values: dict[Var, object]) -> list:
        count, read = len(self.carries), reader(values)

        def body(carried: Sequence[jax.Array], given: Sequence[jax.Array]):
            within = dict(values)
            within.update((carry.var, x) for carry, x in zip(self.carries, carried, strict=True))
            within.update((each.var, x) for each, x in zip(self.scanned, given, strict=True))
            found = evaluated(self.body, within)
            return [*map(_of_own_type, found[:count])], found[count:]

        if not any(_is_remat(x) for x in self.body.statements):  # where code says itself what waits for the way back
            body = jax.checkpoint(body, policy=_keeps, prevent_cse=False)
        first = [zeros(carry.var) if carry.first is None else read(carry.first) for carry in self.carries]
        given = [each.values.stacked(read) for each in self.scanned]
        carried, stacked = lax.scan(body, [*map(_of_own_type, first)], given, length=self.length)
        return [*carried, *stacked]


def _is_remat(statement: JaxprEqn) -> bool:
    return isinstance(statement, JaxprEqn) and statement.primitive is remat_p


def _keeps(primitive: object, *_: object, **__: object) -> bool:
    """A rematerialization policy: True if a result is saved, False if it is as soon made again, and larger."""
    return primitive is not lax.broadcast_in_dim_p


_DEBUG_INFO = DebugInfo("loops", "torch2jax", None, None)


def new_step(invars: list, outvar: Var, primitive: object, params: dict) -> JaxprEqn:
    """An equation with one result, which does nothing else."""
    return new_jaxpr_eqn(invars, [outvar], primitive, params, no_effects)


def operands(statement: Any) -> Iterable[Var]:
    """The variables that a statement uses."""
    if isinstance(statement, JaxprEqn):
        return [x for x in statement.invars if isinstance(x, Var)]
    return statement.operands


def has_effects(statement: JaxprEqn) -> bool:
    """Returns True if a statement is needed even if nothing uses its results."""
    return bool(statement.effects) if isinstance(statement, JaxprEqn) else statement.has_effects


def free(program: Program) -> set[Var]:
    """The variables that a program uses and does not set."""
    found = {atom for atom in program.results if isinstance(atom, Var)}
    for statement in reversed(program.statements):
        found.difference_update(statement.outvars)
        found.update(operands(statement))
    return found


def pruned(program: Program) -> Program:
    """The program without dead code."""
    needed = {atom for atom in program.results if isinstance(atom, Var)}
    kept = []
    for statement in reversed(program.statements):
        if not isinstance(statement, JaxprEqn):
            statement = statement.pruned(needed)
        if has_effects(statement) or not needed.isdisjoint(statement.outvars):
            needed.difference_update(statement.outvars)
            needed.update(operands(statement))
            kept.append(statement)
    return Program(kept[::-1], program.results)


def run_steps(steps: Sequence[JaxprEqn], values: dict[Var, object]) -> None:
    """Computes equations in JAX's current trace, and adds their results to the values."""
    made = [var for step in steps for var in step.outvars]
    known = set(made)
    taken = list(dict.fromkeys(x for step in steps for x in step.invars if isinstance(x, Var) and x not in known))
    effects = join_effects(*[step.effects for step in steps])
    jaxpr = Jaxpr((), taken, made, list(steps), effects, _DEBUG_INFO)
    values.update(zip(made, eval_jaxpr(jaxpr, (), *(values[var] for var in taken)), strict=True))


def evaluated(program: Program, values: dict[Var, object]) -> list:
    """Computes a program in the current trace of JAX.

    Args:
        values: of the variables that it does not set.
    """
    values = dict(values)
    for is_step, group in itertools.groupby(program.statements, lambda x: isinstance(x, JaxprEqn)):
        if is_step:
            run_steps(list(group), values)
            continue
        for statement in group:
            values.update(zip(statement.outvars, statement.evaluated(values), strict=True))
    return [x.val if isinstance(x, Literal) else values[x] for x in program.results]


def _of_own_type(array: jax.Array):
    """An array that has its dtype whatever it is computed with, as a carry has."""
    is_weak = getattr(array, "weak_type", True) and not jnp.issubdtype(array.dtype, jax.dtypes.extended)
    return jnp.asarray(array, array.dtype) if is_weak else array


def zeros(var: Var):
    aval: Any = var.aval
    return lax.full(aval.shape, 0, aval.dtype)


def sizes_of(steps: Iterable[object]) -> list[int]:
    """The number of equations of each step: a rematerialized layer has those within.

    What is no equation is one. A loop without calls, since every program is looked through.
    """
    sizes = []
    for step in steps:
        size = 1
        for value in getattr(step, "params", {}).values():
            kind = type(value)
            if kind is ClosedJaxpr or kind is Jaxpr:
                size += total(value.eqns)
            elif kind is tuple:  # the branches of a condition
                for each in value:
                    if type(each) is ClosedJaxpr or type(each) is Jaxpr:
                        size += total(each.eqns)
        sizes.append(size)
    return sizes


def total(steps: Iterable[object]) -> int:
    """The number of equations, with those of the functions that they call."""
    return sum(sizes_of(steps))
