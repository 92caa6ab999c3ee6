"""Embeddings."""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ...rules.registry import implements, implements_tensors
from ...rules.rule import InnerRule
from ...tensors.dtypes import FLOATS
from ...tensors.storage import is_traced, reshape
from ..arrays import cast, widened
from ..indexing import known_values, progression
from ..values import values

aten = torch.ops.aten


def take_rows(table, indices, error: type[Exception] = IndexError):
    """``table[indices]`` on the first dimension; what is out of range is NaN (or the least value) where traced.

    Raises:
        IndexError, or `error`: an index is out of range, and the indices are known.
    """
    mode = lax.GatherScatterMode.FILL_OR_DROP
    if not is_traced(indices):
        held = np.asarray(indices)
        if held.size and not (held.min() >= 0 and held.max() < table.shape[0]):
            raise error(
                "index out of range in self: Expected idx >= 0 && idx < num_embeddings, but got indices from "
                f"{held.min()} to {held.max()} for {table.shape[0]} rows"
            )
        mode = lax.GatherScatterMode.PROMISE_IN_BOUNDS
    dimensions = lax.GatherDimensionNumbers(
        offset_dims=tuple(range(indices.ndim, indices.ndim + table.ndim - 1)),
        collapsed_slice_dims=(0,),
        start_index_map=(0,),
    )
    places = lax.expand_dims(indices, (indices.ndim,))
    return lax.gather(table, places, dimensions, (1, *table.shape[1:]), mode=mode)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3, 4))
def _embed(weight, indices, padding_idx, scale_grad_by_freq, error=IndexError):
    del padding_idx, scale_grad_by_freq  # they change the gradient alone
    return take_rows(weight, indices, error)


@_embed.defjvp
def _(padding_idx, scale_grad_by_freq, error, primals, tangents):
    del error
    (weight, indices), (d_weight, _) = primals, tangents
    factor = jnp.ones(indices.shape, weight.dtype)
    if scale_grad_by_freq:
        counts = jnp.zeros(weight.shape[:1], weight.dtype).at[indices].add(1)
        factor = lax.div(factor, lax.max(take_rows(counts, indices), factor))
    if padding_idx is not None:
        factor = lax.mul(factor, lax.ne(indices, np.asarray(padding_idx, indices.dtype)).astype(weight.dtype))
    tangent = take_rows(d_weight, indices)
    factor = lax.broadcast_in_dim(factor, tangent.shape, range(indices.ndim))
    return take_rows(weight, indices), lax.mul(tangent, factor)


@dataclass(frozen=True)
class _Rows:
    """Indices that are known, and evenly spaced: positions in a sequence."""

    start: int
    stop: int
    step: int
    shape: tuple[int, ...]

    def of(self, table):
        rows = lax.slice_in_dim(table, self.start, self.stop, self.step)
        return reshape(rows, (*self.shape, table.shape[1]))


def _find_rows(weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
    del sparse  # about how PyTorch holds the gradient
    plain = padding_idx < 0 and not scale_grad_by_freq and weight.ndim == 2
    held = known_values(indices) if plain and is_traced(weight.held.array) else None
    rows = None if held is None else held.reshape(-1)
    region = None if rows is None else progression(rows)
    if region is not None and region.step > 0 and region.start >= 0 and rows[-1] < weight.shape[0]:
        indices = _Rows(region.start, min(region.stop, weight.shape[0]), region.step, tuple(held.shape))
    return (weight, indices, padding_idx, scale_grad_by_freq), {}


@implements(torch.embedding, prepare=_find_rows)
def embedding(weight, indices, padding_idx, scale_grad_by_freq):
    if weight.ndim != 2:
        raise RuntimeError(f"'weight' must be 2-D, but got {weight.ndim}-D")
    if isinstance(indices, _Rows):
        return indices.of(weight)
    if padding_idx < 0 and not scale_grad_by_freq:
        return take_rows(weight, indices)
    return _embed(weight, indices, padding_idx if padding_idx >= 0 else None, scale_grad_by_freq)


@implements(aten.embedding_renorm)
def embedding_renorm(input, indices, max_norm, norm_type):
    """Scales down the rows that are used and too long."""
    norms = jnp.linalg.norm(input, ord=norm_type, axis=1, keepdims=True)
    used = jnp.zeros((input.shape[0], 1), bool).at[indices.ravel()].set(True)
    scaled = lax.mul(input, jnp.broadcast_to(max_norm / (norms + 1e-7), input.shape).astype(input.dtype))
    return lax.select(jnp.broadcast_to(used & (norms > max_norm), input.shape), scaled, input)


@implements_tensors(torch.nn.functional.one_hot, aten.one_hot.default)
def one_hot(tensor, num_classes=-1):
    if tensor.dtype not in (torch.int64, torch.int32):  # JAX's own integers are int32
        raise RuntimeError(f"one_hot is only applicable to index tensor of type LongTensor, but got {tensor.dtype}")
    if num_classes == -1:
        held = values(tensor, "one_hot without num_classes")
        if held.size == 0:
            raise RuntimeError("Can not infer total number of classes from empty tensor.")
        num_classes = int(held.max()) + 1
    return _ONE_HOT((tensor, num_classes), {})


def _one_hot(input, num_classes):
    if not is_traced(input) and input.size:
        held = np.asarray(input)
        least, most = int(held.min()), int(held.max())
        if least < 0:
            raise RuntimeError("Class values must be non-negative.")
        if most >= num_classes:
            raise RuntimeError(f"Class values must be smaller than num_classes, but got {most} for {num_classes}")
    shape = (*input.shape, num_classes)
    classes = lax.broadcasted_iota(input.dtype, shape, input.ndim)
    return lax.eq(lax.broadcast_in_dim(input, shape, range(input.ndim)), classes).astype(input.dtype)


_ONE_HOT = InnerRule(_one_hot, "one_hot", dtype=torch.int64)


# Bags: embeddings that are summed, averaged, or reduced to their largest.


_BAG_DTYPES = (None, torch.int64, torch.int64, torch.int64)


@implements(torch.embedding_bag, takes=FLOATS, dtype=_BAG_DTYPES)
def embedding_bag(
    weight,
    indices,
    offsets,
    scale_grad_by_freq=False,
    mode=0,
    sparse=False,
    per_sample_weights=None,
    include_last_offset=False,
    padding_idx=None,
):
    """Gives the bags, the bag of each index, the size of each bag, and for mode 2 (max) the winning indices."""
    del sparse
    rows = weight.shape[0]
    if padding_idx is not None and not -rows <= padding_idx < rows:
        raise RuntimeError(f"padding_idx must be within the {rows} rows of weight, but got {padding_idx}")
    padding_idx = None if padding_idx is None else padding_idx % rows
    return _bags(
        weight, indices, offsets, scale_grad_by_freq, mode, per_sample_weights, include_last_offset, padding_idx
    )


@implements(aten._embedding_bag, aten._embedding_bag_forward_only, takes=FLOATS, dtype=_BAG_DTYPES)
def _embedding_bag(
    weight,
    indices,
    offsets,
    scale_grad_by_freq=False,
    mode=0,
    sparse=False,
    per_sample_weights=None,
    include_last_offset=False,
    padding_idx=-1,
):
    del sparse
    padding_idx = None if padding_idx < 0 else padding_idx
    return _bags(
        weight, indices, offsets, scale_grad_by_freq, mode, per_sample_weights, include_last_offset, padding_idx
    )


def _bags(weight, indices, offsets, scale_grad_by_freq, mode, per_sample_weights, include_last_offset, padding_idx):
    count = offsets.shape[0] - (1 if include_last_offset else 0)
    # Index i lies in the last bag that starts at or before it.
    starts = jnp.zeros((indices.shape[0] + 1,), indices.dtype).at[offsets[:count]].add(1)
    bag = jnp.cumsum(starts)[:-1].astype(indices.dtype) - 1
    rows = _embed(weight, indices, padding_idx, scale_grad_by_freq, RuntimeError)
    padding = np.asarray(-1 if padding_idx is None else padding_idx, indices.dtype)
    kept = lax.ne(indices, padding)
    sizes = jnp.zeros((count,), indices.dtype).at[bag].add(kept.astype(indices.dtype))
    if mode == 2:
        return _largest(rows, indices, bag, kept, count, sizes)
    rows = widened(rows)
    if per_sample_weights is not None:
        rows = lax.mul(rows, lax.broadcast_in_dim(widened(per_sample_weights), rows.shape, (0,)))
    rows = lax.select(lax.broadcast_in_dim(kept, rows.shape, (0,)), rows, lax.full_like(rows, 0))
    output = jnp.zeros((count, weight.shape[1]), rows.dtype).at[bag].add(rows)
    if mode == 1:
        divisor = lax.max(sizes, lax.full_like(sizes, 1)).astype(rows.dtype)
        output = lax.div(output, lax.broadcast_in_dim(divisor, output.shape, (0,)))
    return cast(output, weight.dtype), bag, sizes, jnp.zeros((0,), indices.dtype)


def _largest(rows, indices, bag, kept, count: int, sizes):
    """The largest of each column in each bag, the first one where several are."""
    last = rows.shape[0]
    if last == 0:
        shape = (count, rows.shape[1])
        return jnp.zeros(shape, rows.dtype), bag, sizes, jnp.full(shape, -1, indices.dtype)
    values = jnp.where(kept[:, None], lax.stop_gradient(rows), -jnp.inf)
    most = jnp.full((count, rows.shape[1]), -jnp.inf, rows.dtype).at[bag].max(values)
    places = jnp.where((values == most[bag]) & kept[:, None], lax.broadcasted_iota(bag.dtype, rows.shape, 0), last)
    first = jnp.full(most.shape, last, bag.dtype).at[bag].min(places)
    taken = jnp.take_along_axis(rows, jnp.minimum(first, last - 1), axis=0)
    winners = jnp.where(first == last, -1, indices[jnp.minimum(first, last - 1)])
    return jnp.where(first == last, 0, taken), bag, sizes, winners
