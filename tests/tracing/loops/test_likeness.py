"""Equations that compute the same, and others."""

import jax
import jax.numpy as jnp

from torch2jax.tracing.loops.likeness import is_same_step

X = jnp.ones(3)


def _step(yes, no):
    """The equation of a condition."""
    return jax.make_jaxpr(lambda c, x, y: jax.lax.cond(c, yes, no, x, y))(True, X, X).jaxpr.eqns[-1]


def test_programs_in_an_equation_count_without_its_parameters():
    step = _step(lambda x, y: x - jnp.maximum(y, 0), lambda x, y: x)
    assert is_same_step(step, _step(lambda x, y: x - jnp.maximum(y, 0), lambda x, y: x), with_params=False)
    assert not is_same_step(step, _step(lambda x, y: y - jnp.maximum(x, 0), lambda x, y: x), with_params=False)
    assert not is_same_step(step, _step(lambda x, y: x - jnp.maximum(y, 0), lambda x, y: y), with_params=False)
