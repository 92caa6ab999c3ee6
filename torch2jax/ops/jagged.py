"""Jagged tensors: rows of the inner tensor between offsets, padded to one length, and back; and their gradients.

To PyTorch's autograd a jagged tensor is one, and its class computes below. Here the values have the history, so what
code asks of the whole is asked of them; `transforms.engine` takes them in its place.
"""

# Properties are looked up on the class, where pyright takes them for their values.
# pyright: reportAttributeAccessIssue=false

import functools

import jax.numpy as jnp
import torch

from ..internals.tensors import nested_view_from_jagged
from ..rules.registry import implements
from ..runtime.errors import StridedNestedError
from ..runtime.translation import current
from ..tensors.tensor import Torchish
from ..tensors.wrapped import NestedTensor, is_of_call, like, values_of
from ..values.masked import at_axis, first
from ..values.masked_functions import begin
from ..values.wrapper_subclasses import implements_of_class

_aten = torch.ops.aten


@implements(_aten._jagged_to_padded_dense_forward.default)
def padded(values, offsets, max_lengths, padding_value=0.0):
    """The rows between offsets, cut or padded to one length.

    Args:
        values: ``(rows, ...)``.
        offsets: one array, ``(batch + 1,)``, that does not decrease.
    """
    (bounds,), (length,) = offsets, max_lengths
    positions = bounds[:-1, None] + jnp.arange(length, dtype=bounds.dtype)
    there = positions < bounds[1:, None]
    if not values.shape[0]:
        return jnp.full((*positions.shape, *values.shape[1:]), padding_value, values.dtype)
    chosen = values[jnp.clip(positions, 0, values.shape[0] - 1)]
    there = there.reshape(*there.shape, *(1,) * (values.ndim - 1))
    return jnp.where(there, chosen, jnp.asarray(padding_value, values.dtype))


@implements(_aten._padded_dense_to_jagged_forward.default)
def jagged(dense, offsets, total_L=None):
    """The elements of each row up to the lengths between offsets, one row after the other.

    Args:
        dense: ``(batch, length, ...)``.
        total_L: how many elements there are in all.
    """
    (bounds,) = offsets
    total = int(bounds[-1]) if total_L is None else total_L
    positions = jnp.arange(total, dtype=bounds.dtype)
    row = jnp.clip(jnp.searchsorted(bounds, positions, side="right") - 1, 0, dense.shape[0] - 1)
    column = positions - bounds[row]
    there = (column < dense.shape[1]).reshape(-1, *(1,) * (dense.ndim - 2))
    return jnp.where(there, dense[row, jnp.clip(column, 0, dense.shape[1] - 1)], jnp.zeros((), dense.dtype))


@implements_of_class(NestedTensor, torch.nn.functional.scaled_dot_product_attention)
def attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """Attention within each row: one product of all elements, with those of other rows masked.

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
    """The row of each element."""
    positions = torch.arange(jagged._values.shape[1])
    return torch.searchsorted(jagged._offsets, positions, right=True) - 1


def _columns(jagged, rows):
    """The place of each element in its row."""
    return torch.arange(rows.shape[0]) - jagged._offsets[rows]


@implements_of_class(NestedTensor, torch.broadcast_tensors)
def broadcast_tensors(*tensors):
    """Returns tensors of one shape unchanged: PyTorch 2.15's kernel needs sizes that are integers."""
    return list(tensors) if all(x.shape == tensors[0].shape for x in tensors) else NotImplemented


@implements_of_class(NestedTensor, torch.unbind, torch.Tensor.unbind)
def unbind(input, dim=0):
    """The rows; where a traced input decides their lengths, each has room for as many elements as there are at most."""
    offsets, lengths = input._offsets, input._lengths
    if dim != 0 or not isinstance(offsets, Torchish) or offsets.known is not None or not current().stages:
        return NotImplemented
    values, ragged = input._values.movedim(input._ragged_idx - 1, 0), input._ragged_idx - 1
    total, longest = values.shape[0], input._maybe_max_seqlen
    capacity = torch.arange(total if longest is None else min(longest, total))
    rows = []
    for i in range(offsets.shape[0] - 1):
        length = offsets[i + 1] - offsets[i] if lengths is None else lengths[i]
        positions = (offsets[i] + capacity).clamp(max=max(total - 1, 0))
        row = begin(first(values.index_select(0, positions), length.to(torch.int64)), "a row of a jagged tensor")
        rows.append(at_axis(row, ragged) if ragged else row)
    return tuple(rows)


@implements_of_class(NestedTensor, torch.where, torch.Tensor.where)
def where(condition, input=None, other=None):
    """Replaces a number by a jagged tensor: PyTorch would make one with the ragged size."""
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


Tensor = torch.Tensor
_implements = functools.partial(implements_of_class, NestedTensor, handles_below=True)


def _of_values(name, self):
    return getattr(self._values, name) if is_of_call(self) else NotImplemented


for _name in ("requires_grad", "is_leaf", "grad_fn", "retains_grad"):
    _implements(getattr(Tensor, _name).__get__)(functools.partial(_of_values, _name))


@_implements(Tensor.requires_grad_, Tensor.requires_grad.__set__)
def requires_grad_(self, requires_grad=True):
    if not is_of_call(self):
        return NotImplemented
    if requires_grad and not self._values.requires_grad:
        self._values = self._values.detach()  # others that have these values do not require grad
    self._values.requires_grad_(requires_grad)
    return self


@_implements(Tensor.grad.__get__)
def _grad(self):
    if not is_of_call(self):
        return NotImplemented
    gradient = self._values.grad
    return None if gradient is None else like(self, gradient)


@_implements(Tensor.grad.__set__)
def _set_grad(self, gradient):
    if not is_of_call(self):
        return NotImplemented
    self._values.grad = values_of(gradient)
    return None


@_implements(Tensor.retain_grad)
def retain_grad(self):
    return self._values.retain_grad() if is_of_call(self) else NotImplemented


@_implements(Tensor.register_hook)
def register_hook(self, hook):
    if not is_of_call(self):
        return NotImplemented
    return self._values.register_hook(lambda gradient: values_of(hook(like(self, gradient))))


@implements_of_class(NestedTensor, nested_view_from_jagged)
def _view(input, offsets, dummy, lengths=None, ragged_idx=1, min_seqlen=None, max_seqlen=None):
    del dummy  # by which PyTorch's C++ finds the class
    lengths_of_rows = {"min_seqlen": min_seqlen, "max_seqlen": max_seqlen}
    known = {name: length for name, length in lengths_of_rows.items() if length is not None}
    made = NestedTensor(input, offsets, lengths=lengths, _ragged_idx=ragged_idx, _metadata_cache=known)
    made.is_view_of_values = True
    return made


@_implements(Tensor._is_view)
def _is_view(self):
    return hasattr(self, "is_view_of_values") if is_of_call(self) else NotImplemented


@_implements(Tensor._base.__get__)
def _base(self):
    if not is_of_call(self):
        return NotImplemented
    if not hasattr(self, "is_view_of_values"):
        return None
    return self._values._base if self._values._is_view() else self._values
