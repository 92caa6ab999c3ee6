"""Loops that end on traced conditions, as JAX has them: a ``while_loop``, or a bounded scan.

Backwards a loop needs a bound: then it is a scan of so many iterations, of which those behind its end do nothing. The
iterations are checkpointed in groups of about the square root of the bound, so that memory grows with that alone.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from ..runtime.errors import BranchError
from ..tracing.primitives import linear_call
from ..tracing.traces import is_float


def strong(array: Any) -> object:
    """An array that has its dtype whatever it is computed with."""
    return lax.convert_element_type(array, array.dtype) if getattr(array, "weak_type", True) else array


def run_while(step: Callable, given: list, state: tuple, bound: int | None, location: str) -> tuple:
    """Takes steps until the first of the state says that it is over."""

    def run_loop(given: list, state: tuple) -> tuple:
        return lax.while_loop(lambda state: state[0], lambda state: step(given, state), state)

    run = jax.custom_jvp(run_loop)

    @run.defjvp
    def derivative(primals: tuple, tangents: tuple) -> tuple:
        if bound is not None:
            most = bound
            return jax.jvp(lambda given, state: _bounded(step, given, state, most), primals, tangents)
        values, tangents_out = jax.jvp(run_loop, primals, tangents)
        return values, _only_forwards(tangents_out, location)

    return run(given, state)


@custom_vmap
def _in_batch(goes_on: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Any loop of the batch goes on, and this one does, among these: known to be true where there is no batch.

    A ``cond`` of many answers becomes a ``select``, which JAX cannot transpose in a jvp.
    """
    return goes_on, jnp.ones((), bool)


@_in_batch.def_vmap
def _in_larger_batch(size: int, is_batched: list, goes_on: jax.Array) -> tuple:
    del size, is_batched
    return (_in_batch(goes_on.any(0))[0], goes_on), (False, True)


def _bounded(step: Callable, given: list, state: tuple, bound: int) -> tuple:
    """As ``while_loop``, of so many steps at most; where that is too few, what has derivatives is NaN."""
    length = max(1, math.isqrt(bound - 1) + 1)

    def kept(state: tuple) -> tuple:
        return state

    def one(state: tuple, _: None) -> tuple[tuple, None]:
        any_goes_on, goes_on = _in_batch(state[0])

        def taken(state: tuple) -> tuple:
            # What is over stays as it is, and what another step would make of it has no derivative.
            held, before = jax.tree.map(lambda x: jnp.where(goes_on, x, lax.stop_gradient(x)), (given, state))
            return jax.tree.map(lambda new, old: jnp.where(goes_on, new, old), step(held, before), state)

        return lax.cond(any_goes_on, taken, kept, state), None

    @jax.checkpoint
    def several(state: tuple) -> tuple:
        return lax.scan(one, state, None, length=length)[0]

    def group(state: tuple, _: None) -> tuple[tuple, None]:
        return lax.cond(_in_batch(state[0])[0], several, kept, state), None

    state, _ = lax.scan(group, state, None, length=-(-bound // length))
    is_over = jnp.where(state[0], jnp.nan, 1.0)
    return jax.tree.map(lambda x: x * is_over.astype(x.dtype) if is_float(x) else x, state)


def _only_forwards(tangents: object, location: str) -> object:
    """The tangents, which nobody can go back from."""

    def refuse(*_: object):
        raise BranchError(
            f"the loop at {location} ends on a traced condition, and a gradient through it needs a bound on its "
            "iterations: t2j(..., max_steps=N). Forward mode (jax.jvp, jax.jacfwd) needs none"
        )

    leaves, structure = jax.tree.flatten(tangents)
    positions = [i for i, leaf in enumerate(leaves) if leaf.dtype != jax.dtypes.float0]
    if not positions:
        return tangents
    arrays = [leaves[i] for i in positions]
    for i, leaf in zip(positions, linear_call(lambda _, arrays: arrays, refuse, [], arrays, arrays), strict=True):
        leaves[i] = leaf
    return structure.unflatten(leaves)
