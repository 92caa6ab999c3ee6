"""Tracers: tests for them, computation outside of their trace, and values with the derivatives of others."""

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.interpreters.partial_eval import DynamicJaxprTracer

from ..runtime.translation import current, this_call

evaluating = jax.core.eval_context
"""A context in which JAX computes with known values at once, whatever transformation is tracing around it."""

_tests = threading.local()


def is_traced(array: object) -> bool:
    """Returns True if `array` is a tracer, so that it may have no value yet."""
    if isinstance(array, jax.core.Tracer):
        _tests.asked = True
        return True
    return False


def lowered(array: jax.Array, found: object) -> tuple[Any, jax.Array | None]:
    """An array without the traces that it does not depend on, and its values if it is a constant of the graph.

    That is what code has written down, as ``jnp.array([3, 1])`` under `jax.jit`. JAX holds it in classes of its own, or
    as a Python number, which know nothing of what arrays can do; so the array stays the traced one.

    Args:
        found: what its ``full_lower()`` gave.
    """
    if isinstance(found, jax.Array):
        return found, None
    with evaluating():
        return array, jax.device_put(np.asarray(found, array.dtype))


def are_staged(arrays: Sequence[object]) -> bool:
    """True if all arrays are results in the jaxpr that JAX is tracing, without a derivative or a batch around it.

    Of none they are not.
    """
    return {*map(type, arrays)} == _STAGED


_STAGED = {DynamicJaxprTracer}


def noting_equations(function: Callable, *arrays: Any) -> tuple[Any, list | None]:
    """Returns the result of `function` for staged arrays, and the equations that it added to the jaxpr being traced.

    These are None where there are none in the jaxpr of the arrays, where JAX does not tell, or where a constant came
    with them.
    """
    frame = getattr(arrays[0]._trace, "frame", None)
    equations, constants = getattr(frame, "tracing_eqns", None), getattr(frame, "constvar_to_val", ())
    if equations is None:
        return function(*arrays), None
    before, known = len(equations), len(constants)
    result = function(*arrays)
    if len(constants) != known:
        return result, None
    added = [x() if isinstance(x, weakref.ref) else x for x in equations[before:]]
    return result, [x for x in added if x is not None] or None


def is_at_once(*arrays: object) -> bool:
    """True if a function of these arrays is computed at once, not staged: then one compiled call costs the least.

    What a call of `jax.jit` would leave in a graph is a nested call.
    """
    call = current()
    return not (call is None or call.stages or any(map(is_traced, arrays)))


def noting_tests(function: Callable, *args: object) -> tuple[object, bool]:
    """Applies `function` to traced arguments; returns its result, and whether it asked if something is traced."""
    before = getattr(_tests, "asked", False)
    _tests.asked = False
    try:
        return function(*args), _tests.asked
    finally:
        _tests.asked = before


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
    """The array without derivatives in reverse mode, as under `no_grad`; those of translated forward mode remain."""
    call = current()
    if call is not None and call.dual is not None:
        return call.dual.without_gradient(array)
    is_constant = isinstance(array, jax.core.Tracer) and not isinstance(array.full_lower(), jax.core.Tracer)
    return array if is_constant else lax.stop_gradient(array)


def with_tangents_of(before: jax.Array, after: jax.Array):
    """`after` with the forward-mode tangents of translated code for `before`, and its own derivatives in reverse
    mode.
    """
    fixed = this_call().without_tangents(before)
    if fixed is before:
        return after
    zeros = jnp.zeros_like(after)
    tangents_alone = lax.sub(values_only(before, zeros), values_only(fixed, zeros))
    return lax.add(after, tangents_alone)
