"""Values with the derivatives of other values."""

import jax
import jax.numpy as jnp
from jax import lax

from .call import current, this_call

__all__ = ["values_only", "with_derivatives_of", "with_tangents_of", "without_gradient"]


def with_derivatives_of(before: jax.Array, values: jax.Array):
    """`values` with the derivatives of `before`: a write that autograd does not see. Known values have none."""
    call = current()
    tape = None if call is None else call.tape
    if tape is None:
        return values_only(before, values)
    return tape.with_values(before, values_only(tape.primal(before), tape.primal(values)))


@jax.custom_jvp
def values_only(before: jax.Array, after: jax.Array):
    """The values of `after` with the derivatives of `before`, on JAX's side."""
    del before
    return after


@values_only.defjvp
def _(primals: tuple[jax.Array, jax.Array], tangents: tuple[jax.Array, jax.Array]):
    return values_only(*primals), tangents[0]


def without_gradient(array: jax.Array):
    """What `no_grad` makes of an array: it has no derivatives backwards, but those forwards of translated code."""
    call = current()
    return lax.stop_gradient(array) if call is None or call.dual is None else call.dual.without_gradient(array)


def with_tangents_of(before: jax.Array, after: jax.Array):
    """`after` with what translated code is computing of the derivatives of `before` forwards, and its own backwards."""
    fixed = this_call().without_tangents(before)
    if fixed is before:
        return after
    zeros = jnp.zeros_like(after)
    tangents_alone = lax.sub(values_only(before, zeros), values_only(fixed, zeros))
    return lax.add(after, tangents_alone)
