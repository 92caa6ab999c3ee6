"""Jagged tensors: rows of the inner tensor between offsets, padded to one length, and back."""

import jax.numpy as jnp
import torch

from ..calls.call import current
from ..errors import TracedValueError
from ..internals.jagged import NestedTensor
from ..rules.registry import implements
from ..tensors.tensor import Torchish
from ..values.wrapper_subclasses import implements_of_class

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


@implements_of_class(NestedTensor, torch.nn.functional.scaled_dot_product_attention)
def attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """Attention within each row: one product of all elements, where those of other rows are masked.

    Args:
        query: ``(batch, heads, ragged, features)``, as `key` and `value`.
    """
    given = (query, key, value)
    if not all(isinstance(x, NestedTensor) and x._ragged_idx == 2 and x._lengths is None for x in given):
        return NotImplemented
    if any(x._values.ndim != 3 for x in given):
        return NotImplemented
    if attn_mask is not None:
        raise RuntimeError("scaled_dot_product_attention: masks of jagged tensors are not supported; got an attn_mask")
    queries, keys = _rows(query), _rows(key)
    mask = queries[:, None] == keys
    if is_causal:
        mask = mask & (_columns(query, queries)[:, None] >= _columns(key, keys))
    found = torch.nn.functional.scaled_dot_product_attention(
        *(x._values[None] for x in given), mask, dropout_p, scale=scale, enable_gqa=enable_gqa
    )
    return NestedTensor(found[0], query._offsets, _ragged_idx=2, _metadata_cache=query._metadata_cache)


def _rows(jagged):
    """Which row each element is of."""
    places = torch.arange(jagged._values.shape[1])
    return torch.searchsorted(jagged._offsets, places, right=True) - 1


def _columns(jagged, rows):
    """The place of each element in its row."""
    return torch.arange(rows.shape[0]) - jagged._offsets[rows]


@implements_of_class(NestedTensor, torch.broadcast_tensors)
def broadcast_tensors(*tensors):
    """Tensors of one shape as they are: PyTorch 2.15's kernel wants sizes that are integers."""
    return list(tensors) if all(x.shape == tensors[0].shape for x in tensors) else NotImplemented


@implements_of_class(NestedTensor, torch.unbind, torch.Tensor.unbind)
def unbind(input, dim=0):
    if dim == 0 and isinstance(input._offsets, Torchish) and input._offsets.known is None and current().stages:
        raise TracedValueError("torch.unbind of a jagged tensor")
    return NotImplemented
