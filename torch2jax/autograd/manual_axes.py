"""Derivatives of code's own within `jax.shard_map`, where JAX notes over which axes the values of an array differ.

What is the same on all devices of an axis has one cotangent, the same on all of them. What differs has one on each.
Where a value that is the same meets others that differ, JAX sums the cotangents that the devices have for it. A custom
function says itself what is summed, so that types have to be what its backward means: where it sums cotangents over an
axis, each device has its own part of them, and the result counts as one that differs.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax import lax

from ..internals.jax_programs import checks_manual_axes
from ..internals.jax_traces import varying_axes
from ..tracing.manual_axes import varying

__all__ = ["axes_in_types", "matched", "reduced_axes"]

Axes = frozenset[str]


def axes_in_types() -> Axes:
    """The axes over which types say whether values differ."""
    axes = jax.sharding.get_abstract_mesh().manual_axes
    return frozenset(axes) if axes and checks_manual_axes() else frozenset()


def matched(cotangent: Any, axes: Axes) -> Any:
    """The cotangent of an array whose values differ over some axes."""
    if cotangent is None or not hasattr(cotangent, "dtype") or cotangent.dtype == jax.dtypes.float0:
        return cotangent
    more = tuple(sorted(varying_axes(cotangent) - axes))
    return varying(lax.psum(cotangent, more) if more else cotangent, axes)


def reduced_axes(function: Callable[[], Any]) -> Axes:
    """The axes over which a function reduces arrays."""
    return frozenset(_reduced(jax.make_jaxpr(function)().jaxpr))


def _reduced(jaxpr: Any) -> Iterator[str]:
    for step in jaxpr.eqns:
        if step.primitive.name.startswith(("psum", "reduce_scatter", "pmax", "pmin")):
            axes = step.params.get("axes", step.params.get("axis_name"))
            yield from axes if isinstance(axes, tuple) else (axes,)
        for inner in jax.tree.leaves(list(step.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            if hasattr(inner, "eqns"):
                yield from _reduced(inner)
