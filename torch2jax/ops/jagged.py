"""Jagged tensors: rows of the inner tensor between offsets, padded to one length, and back."""

import jax.numpy as jnp
import torch

from ..rules.registry import implements

__all__: list[str] = []

_aten = torch.ops.aten


@implements(_aten._jagged_to_padded_dense_forward.default)
def padded(values, offsets, max_lengths, padding_value=0.0):
    """Rows between offsets, each of so many elements: what is missing is the padding, what is beyond is cut off.

    Args:
        values: ``(rows, ...)``.
        offsets: one array, ``(batch + 1,)``, that does not decrease.
    """
    (bounds,), (length,) = offsets, max_lengths
    places = bounds[:-1, None] + jnp.arange(length, dtype=bounds.dtype)
    there = places < bounds[1:, None]
    if not values.shape[0]:
        return jnp.full((*places.shape, *values.shape[1:]), padding_value, values.dtype)
    chosen = values[jnp.clip(places, 0, values.shape[0] - 1)]
    there = there.reshape(*there.shape, *(1,) * (values.ndim - 1))
    return jnp.where(there, chosen, jnp.asarray(padding_value, values.dtype))


@implements(_aten._padded_dense_to_jagged_forward.default)
def jagged(dense, offsets, total_L=None):
    """As many elements of each row as there are between offsets, one row after the other.

    Args:
        dense: ``(batch, length, ...)``.
        total_L: how many elements there are in all.
    """
    (bounds,) = offsets
    total = int(bounds[-1]) if total_L is None else total_L
    places = jnp.arange(total, dtype=bounds.dtype)
    row = jnp.clip(jnp.searchsorted(bounds, places, side="right") - 1, 0, dense.shape[0] - 1)
    column = places - bounds[row]
    there = (column < dense.shape[1]).reshape(-1, *(1,) * (dense.ndim - 2))
    return jnp.where(there, dense[row, jnp.clip(column, 0, dense.shape[1] - 1)], jnp.zeros((), dense.dtype))
