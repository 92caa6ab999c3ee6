"""Types within `jax.shard_map`, which say over which axes the values of an array differ."""

from typing import Any

from jax import lax

from ..internals.jax_traces import varying_axes

__all__ = ["varying"]


def varying(array: Any, axes: frozenset[str]) -> Any:
    """The array, as one whose values differ over some axes."""
    missing = tuple(sorted(axes - varying_axes(array)))
    return lax.pcast(array, missing, to="varying") if missing else array
