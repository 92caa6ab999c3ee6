"""Rows of a table, on arrays."""

import jax
from jax import lax
from jax.sharding import AxisType, NamedSharding

from ...tensors.arrays import entries_of, sharding_beside
from ...tensors.traced import is_traced

__all__ = ["sharding_of_rows", "take_rows"]


def take_rows(table, indices):
    """``table[indices]`` on the first dimension; what is out of range is NaN (or the least value) where traced."""
    mode = lax.GatherScatterMode.FILL_OR_DROP if is_traced(indices) else lax.GatherScatterMode.PROMISE_IN_BOUNDS
    told = sharding_of_rows(table, indices)
    if told is not None:
        return table.at[indices].get(mode=mode, wrap_negative_indices=False, out_sharding=told)
    dimensions = lax.GatherDimensionNumbers(
        offset_dims=tuple(range(indices.ndim, indices.ndim + table.ndim - 1)),
        collapsed_slice_dims=(0,),
        start_index_map=(0,),
    )
    places = lax.expand_dims(indices, (indices.ndim,))
    return lax.gather(table, places, dimensions, (1, *table.shape[1:]), mode=mode)


def sharding_of_rows(table, indices) -> NamedSharding | None:
    """How rows lie on explicit axes: as the indices and the columns do, None if these are on one axis or on none.

    JAX asks for it, though a table that is split by rows leaves no other choice.
    """
    if AxisType.Explicit not in jax.typeof(table).sharding.mesh.axis_types:
        return None
    return sharding_beside(table, [*entries_of(indices), *entries_of(table)[1:]])
