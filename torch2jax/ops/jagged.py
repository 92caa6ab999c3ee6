"""Jagged tensors: rows of the inner tensor between offsets, padded to one length, and back."""

import jax.numpy as jnp
import torch

from ..calls.call import current
from ..errors import StridedNestedError
from ..rules.registry import implements
from ..tensors.jagged import NestedTensor, like
from ..tensors.tensor import Torchish
from ..values.moved import moved
from ..values.selected import begin, first
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
    return like(query, found[0])


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
    """The rows; where a traced input decides their lengths, each has room for as many elements as there are at most."""
    offsets, lengths = input._offsets, input._lengths
    if dim != 0 or not isinstance(offsets, Torchish) or offsets.known is not None or not current().stages:
        return NotImplemented
    values, ragged = input._values.movedim(input._ragged_idx - 1, 0), input._ragged_idx - 1
    total, longest = values.shape[0], input._maybe_max_seqlen
    room = torch.arange(total if longest is None else min(longest, total))
    rows = []
    for i in range(offsets.shape[0] - 1):
        length = offsets[i + 1] - offsets[i] if lengths is None else lengths[i]
        places = (offsets[i] + room).clamp(max=max(total - 1, 0))
        row = begin(first(values.index_select(0, places), length.to(torch.int64)), "a row of a jagged tensor")
        rows.append(moved(row, ragged) if ragged else row)
    return tuple(rows)


@implements_of_class(NestedTensor, torch.where, torch.Tensor.where)
def where(condition, input=None, other=None):
    """With a number in the place of a tensor, of which PyTorch would make one with the ragged size."""
    like = next(x for x in (condition, input, other) if isinstance(x, NestedTensor))
    if all(isinstance(x, torch.Tensor) for x in (input, other)):
        return NotImplemented
    dtype = torch.result_type(*(getattr(x, "_values", x) for x in (input, other)))
    chosen = (x if isinstance(x, torch.Tensor) else torch.full_like(like, x, dtype=dtype) for x in (input, other))
    return torch.where(condition, *chosen)


def _refuse_strided(*args, **kwargs):
    del args, kwargs
    raise StridedNestedError


for _name in ("tensor_list", "mask", "mask_left_aligned"):
    _operator = getattr(_aten, f"_nested_tensor_from_{_name}", None)
    if _operator is not None:
        implements(_operator)(_refuse_strided)
