"""Types within `jax.shard_map`, which say over which axes the values of an array differ."""

from typing import Any

import jax
from jax import lax

from ..internals.jax_programs import checks_manual_axes
from ..internals.jax_traces import DynamicJaxprTracer, varying_axes

__all__ = ["axes_in_types", "unvaried", "varying"]


def axes_in_types() -> frozenset[str]:
    """The axes over which types say whether values differ."""
    axes = jax.sharding.get_abstract_mesh().manual_axes
    return frozenset(axes) if axes and checks_manual_axes() else frozenset()


def varying(array: Any, axes: frozenset[str]) -> Any:
    """The array, as one whose values differ over some axes."""
    missing = tuple(sorted(axes - varying_axes(array)))
    return lax.pcast(array, missing, to="varying") if missing else array


def unvaried(array: Any) -> Any:
    """The array before it counted as one whose values differ, where that can be told."""
    while isinstance(array, DynamicJaxprTracer) and array.parent is not None and array.parent.primitive.name == "pvary":
        (array,) = array.parent.in_tracers
    return array
