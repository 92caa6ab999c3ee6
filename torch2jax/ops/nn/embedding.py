"""Embeddings."""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ...rules.array_rule import InnerRule
from ...rules.options import Tag
from ...rules.registry import implements, implements_tensors
from ...tensors.traced import is_traced
from ...tensors.view_kind import reshape
from ..bounds import known_values, outside, seen
from ..indexing import progression
from ..values import values
from .embedding_rows import rows_apart, sharding_of_rows, take_rows

aten = torch.ops.aten


@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3))
def embed(weight, indices, padding_idx, scale_grad_by_freq):
    del padding_idx, scale_grad_by_freq  # they change the gradient alone
    return take_rows(weight, indices)


@embed.defjvp
def _(padding_idx, scale_grad_by_freq, primals, tangents):
    (weight, indices), (d_weight, _) = primals, tangents
    tangent = take_rows(d_weight, indices)
    if scale_grad_by_freq:
        counts = lax.max(jnp.zeros(weight.shape[:1], weight.dtype).at[indices].add(1), np.ones((), weight.dtype))
        factor = lax.div(np.ones((), weight.dtype), take_rows(counts, indices))
        tangent = lax.mul(tangent, lax.broadcast_in_dim(factor, tangent.shape, range(indices.ndim)))
    if padding_idx is not None:  # chosen, not multiplied by zero: what comes back for the padding may be NaN
        kept = lax.ne(indices, np.asarray(padding_idx, indices.dtype))
        told = sharding_of_rows(weight, indices)
        kept = lax.broadcast_in_dim(kept, tangent.shape, range(indices.ndim), out_sharding=told)
        tangent = lax.select(kept, tangent, lax.full_like(tangent, 0))
    return take_rows(weight, indices), tangent


@dataclass(frozen=True)
class _EvenRows:
    """Indices that are known, and evenly spaced: positions in a sequence."""

    start: int
    stop: int
    step: int
    shape: tuple[int, ...]

    def of(self, table):
        rows = lax.slice_in_dim(table, self.start, self.stop, self.step)
        return reshape(rows, (*self.shape, table.shape[1]))


def _find_rows(weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
    apart = rows_apart(weight, indices, padding_idx, scale_grad_by_freq) if sparse else None
    if apart is not None:
        (weight, indices, padding_idx), scale_grad_by_freq = apart, False
    plain = padding_idx < 0 and not scale_grad_by_freq and weight.ndim == 2
    indexed = known_values(indices) if plain and is_traced(weight.physical.array) else None
    rows = None if indexed is None else indexed.reshape(-1)
    region = None if rows is None else progression(rows)
    if region is not None and region.step > 0:
        indices = _EvenRows(region.start, min(region.stop, weight.shape[0]), region.step, tuple(indexed.shape))
    return (weight, indices, padding_idx, scale_grad_by_freq), {}


def expect_rows(weight, indices, error: type[Exception] = IndexError) -> None:
    """Raises `error` where indices are seen not to be of rows of `weight`."""
    rows, indexed = weight.shape[0] if weight.ndim else 0, seen(indices)
    if weight.ndim and indexed is not None and outside(indexed, 0, rows - 1) is not None:
        raise error(
            "index out of range in self: Expected idx >= 0 && idx < num_embeddings, but got indices from "
            f"{indexed.min()} to {indexed.max()} for {rows} rows"
        )


def _check_rows(weight, indices, *args, **kwargs) -> None:
    expect_rows(weight, indices)


@implements(torch.embedding, aten.embedding, check=_check_rows, prepare=_find_rows)
def embedding(weight, indices, padding_idx, scale_grad_by_freq):
    if weight.ndim != 2:
        raise RuntimeError(f"'weight' must be 2-D, but got {weight.ndim}-D")
    if isinstance(indices, _EvenRows):
        return indices.of(weight)
    if padding_idx < 0 and not scale_grad_by_freq:
        return take_rows(weight, indices)
    return embed(weight, indices, padding_idx if padding_idx >= 0 else None, scale_grad_by_freq)


@implements(aten.embedding_renorm)
def embedding_renorm(input, indices, max_norm, norm_type):
    """Scales down the rows that are used and too long."""
    norms = jnp.linalg.norm(input, ord=norm_type, axis=1, keepdims=True)
    used = jnp.zeros((input.shape[0], 1), bool).at[indices.ravel()].set(True)
    scaled = lax.mul(input, jnp.broadcast_to(max_norm / (norms + 1e-7), input.shape).astype(input.dtype))
    return lax.select(jnp.broadcast_to(used & (norms > max_norm), input.shape), scaled, input)


@implements_tensors(torch.nn.functional.one_hot, aten.one_hot.default, tags=[Tag.FRESH])
def one_hot(tensor, num_classes=-1):
    if tensor.dtype not in (torch.int64, torch.int32):  # JAX's own integers are int32
        raise RuntimeError(f"one_hot is only applicable to index tensor of type LongTensor, but got {tensor.dtype}")
    if num_classes == -1:
        indexed = values(tensor, "one_hot without num_classes")
        if indexed.size == 0:
            raise RuntimeError("Can not infer total number of classes from empty tensor.")
        num_classes = int(indexed.max()) + 1
    examples = seen(tensor)
    if examples is not None and examples.size:
        if examples.min() < 0:
            raise RuntimeError("Class values must be non-negative.")
        if examples.max() >= num_classes:
            raise RuntimeError(
                f"Class values must be smaller than num_classes, but got {examples.max()} for {num_classes}"
            )
    return _ONE_HOT((tensor, num_classes), {})


def _one_hot(input, num_classes):
    shape = (*input.shape, num_classes)
    classes = lax.broadcasted_iota(input.dtype, shape, input.ndim)
    return lax.eq(lax.broadcast_in_dim(input, shape, range(input.ndim)), classes).astype(input.dtype)


_ONE_HOT = InnerRule(_one_hot, "one_hot", dtype=torch.int64)
