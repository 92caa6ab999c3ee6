"""Types within `jax.shard_map`, which say over which axes an array's values differ."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import jax
from jax import lax

from ..internals.jax_programs import checks_manual_axes
from ..internals.jax_traces import DynamicJaxprTracer, extend_axis_env_nd, varying_axes

__all__ = ["ALONE", "alone", "axes_in_types", "unvaried", "varying"]

ALONE = "alone"
"""The axis of the only device, where code for several is traced without a mesh."""


@contextlib.contextmanager
def alone(axes: Iterable[str]) -> Iterator[None]:
    """Outside of `jax.shard_map`, lets code be traced as on a mesh of one device, which has these axes."""
    if jax.sharding.get_abstract_mesh().manual_axes:
        yield
    else:
        with extend_axis_env_nd([(axis, 1) for axis in dict.fromkeys((ALONE, *axes))]):
            yield


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
