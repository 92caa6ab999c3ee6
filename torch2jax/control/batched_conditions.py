"""Conditions that JAX can batch when they have been differentiated.

JAX makes a ``select`` of a ``cond`` of many answers. It cannot transpose that in the derivative of a loop, which it
takes before it batches.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

from ..tracing.loops.program import run_steps
from ..tracing.loops.windows import reader
from ..tracing.traces import is_float


@custom_vmap
def in_batch(is_true: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Any of a batch is true, and this one is, among these: known to be true where there is no batch."""
    return is_true, jnp.ones((), bool)


@in_batch.def_vmap
def _in_larger_batch(size: int, is_batched: list, is_true: jax.Array) -> tuple:
    del size, is_batched
    return (in_batch(is_true.any(0))[0], is_true), (False, True)


def with_batched_conditions(function: Callable) -> Callable:
    """The function with conditions that may be batched once they are differentiated; itself if it has none."""

    def run(*args: object):
        program, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
        if not _has_conditions(program.jaxpr):
            return function(*args)
        return jax.tree.unflatten(jax.tree.structure(shapes), _evaluated(program, jax.tree.leaves(args)))

    return run


def _inner(step: JaxprEqn) -> ClosedJaxpr | None:
    """The program of a call of a jitted function."""
    return step.params["jaxpr"] if step.primitive.name in ("jit", "pjit") else None


def _has_conditions(jaxpr: Jaxpr) -> bool:
    return any(
        step.primitive.name == "cond" or ((inner := _inner(step)) is not None and _has_conditions(inner.jaxpr))
        for step in jaxpr.eqns
    )


def _evaluated(program: ClosedJaxpr, args: list) -> list:
    jaxpr = program.jaxpr
    values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*program.consts, *args), strict=True))
    read = reader(values)
    for step in jaxpr.eqns:
        inner = _inner(step)
        if step.primitive.name == "cond":
            values.update(zip(step.outvars, _chosen(step, *map(read, step.invars)), strict=True))
        elif inner is not None and _has_conditions(inner.jaxpr):
            values.update(zip(step.outvars, _evaluated(inner, [*map(read, step.invars)]), strict=True))
        else:
            run_steps([step], values)
    return [*map(read, jaxpr.outvars)]


def _chosen(step: JaxprEqn, index: jax.Array, *operands: jax.Array) -> list:
    """What a ``cond`` gives, by one for each of its branches, which runs if any of a batch takes it."""
    result: list | None = None
    for number, branch in enumerate(step.params["branches"]):
        is_taken = index == number
        any_takes, takes = in_batch(is_taken)
        # What does not take the branch has no derivative in it, be that infinite.
        given = [_differentiated_where(takes, x) for x in operands]
        made = lax.cond(
            any_takes,
            lambda *xs, branch=branch: _evaluated(branch, list(xs)),
            lambda *xs, branch=branch: [jnp.zeros(x.shape, x.dtype) for x in branch.out_avals],
            *given,
        )
        result = made if result is None else [jnp.where(is_taken, x, y) for x, y in zip(made, result, strict=True)]
    assert result is not None
    return result


@jax.custom_jvp
def _differentiated_where(condition: jax.Array, x: jax.Array) -> jax.Array:
    del condition
    return x


@_differentiated_where.defjvp
def _(primals: tuple, tangents: tuple) -> tuple:
    (condition, x), (_, tangent) = primals, tangents
    return x, jnp.where(condition, tangent, jnp.zeros_like(tangent)) if is_float(x) else tangent
