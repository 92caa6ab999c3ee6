"""Dot-product attention on arrays: with the whole matrix of scores, or in blocks of rows if it is large.

A block of queries meets all keys, so its softmax is whole and nothing has to be put together. The gradient computes a
block's scores again, so that memory grows with the number of queries and keys, not with their product.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..arrays import where
from ..views import reshape

_LARGE = 2**26  # scores; above it the blocks take less time too, since their scores stay in the cache
_BLOCK = 2**22  # scores at a time, but for the bounds of the rows
_ROWS = (128, 1024)


def attention(query, key, value, mask=None, is_causal=False, scale=None, drop=None, rng=None):
    """``softmax(query @ key.T * scale + mask) @ value``.

    Args:
        query: ``(*batch, queries, features)``.
        key: ``(*batch, keys, features)``; groups of query heads, the last of `batch`, may share one.
        value: ``(*batch, keys, value features)``.
        mask: broadcasts to ``(*batch, queries, keys)``: true where to attend, or numbers to add.
        is_causal: the first query attends to the first key alone, each other one to one more.
        drop: ``drop(rng, weights)`` is what is left of the weights.
    """
    shape = (*query.shape[:-1], key.shape[-2])
    if mask is not None and together(mask.shape, shape) != shape:
        raise RuntimeError(
            f"scaled_dot_product_attention got a mask of shape {list(mask.shape)}, which does not broadcast to the "
            f"weights' shape {list(shape)}"
        )
    attend = functools.partial(_attend, key=key, value=value, is_causal=is_causal, scale=scale, drop=drop, rng=rng)
    rows = rows_at_a_time(shape)
    return attend(query, mask) if rows is None else _in_blocks(attend, query, mask, rows)


def _attend(query, mask, first=None, *, key, value, is_causal, scale, drop, rng):
    """The result for some rows, the first of which is number `first`, None if they are all.

    The sum of the exponentials divides the result instead of the weights: the pass over all weights is saved, here
    and in the gradient.
    """
    scores = _masked(scores_of(query, key, scale), mask, is_causal, first)
    weights, total, _ = exponentials(scores, may_be_empty=mask is not None or scores.shape[-1] == 0)
    if drop is not None:
        weights = drop(rng if first is None else jax.random.fold_in(rng, first), weights)
    return weighted(weights, total, value)


def rows_at_a_time(shape) -> int | None:
    """How many rows of scores of a shape ``(*batch, queries, keys)`` to compute at a time, None for all of them."""
    count, (least, most) = math.prod(shape), _ROWS
    if count <= _LARGE:
        return None
    fitting = _BLOCK * shape[-2] // count
    rows = min(max(1 << fitting.bit_length() - 1, least), most) if fitting else least
    return rows if rows < shape[-2] else None


def _in_blocks(attend: Callable, query, mask, rows: int):
    attend = jax.checkpoint(attend, prevent_cse=False)  # the loop does what that would prevent
    count, rest = divmod(query.shape[-2], rows)
    own = mask if mask is not None and mask.ndim > 1 and mask.shape[-2] > 1 else None  # what differs from row to row

    def step(first, block):
        query, own = block
        return lax.add(first, np.int32(rows)), attend(query, mask if own is None else own, first)

    blocks = jax.tree.map(functools.partial(_blocks, count=count, rows=rows), (query, own))
    first, results = lax.scan(step, np.int32(0), blocks)
    results = jnp.moveaxis(results, 0, -3)
    results = reshape(results, (*query.shape[:-2], count * rows, results.shape[-1]))
    if not rest:
        return results
    _, last = step(first, jax.tree.map(lambda x: lax.slice_in_dim(x, count * rows, None, axis=-2), (query, own)))
    return lax.concatenate([results, last], results.ndim - 2)


def _blocks(array, count: int, rows: int):
    """``(count, *batch, rows, columns)``, without the rows that are left over."""
    array = lax.slice_in_dim(array, 0, count * rows, axis=-2)
    return jnp.moveaxis(reshape(array, (*array.shape[:-2], count, rows, array.shape[-1])), -3, 0)


def scores_of(query, key, scale=None):
    """``query @ key.T * scale``, accumulated in float32 at least; heads may share a key."""
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    shape = (*query.shape[:-1], key.shape[-2])
    scales_query = query.dtype.itemsize >= 4 or math.frexp(scale)[0] == 0.5  # else the query would be rounded once more
    if scales_query:
        query = lax.mul(query, np.asarray(scale, query.dtype))
    scores = _batched_dot(_share_heads(query, key), key, contract=-1, accumulate=_accumulator(query))
    scores = reshape(scores, shape)
    return scores if scales_query else lax.mul(scores, np.asarray(scale, scores.dtype))


def weighted(weights, total, value):
    """``weights @ value / total``; heads may share a value."""
    shape = (*weights.shape[:-1], value.shape[-1])
    weights = _share_heads(weights.astype(value.dtype), value)
    output = reshape(_batched_dot(weights, value, contract=-2, accumulate=total.dtype), shape)
    return lax.div(output, lax.broadcast_in_dim(total, output.shape, range(output.ndim - 1))).astype(value.dtype)


def _accumulator(array):
    return np.dtype(np.float32) if array.dtype.itemsize < 4 else array.dtype


def _batched_dot(left, right, contract: int, accumulate):
    """A matrix product over the last dimension of `left`; the result is ``(*batch, left rows, right rest)``."""
    batch = tuple(range(left.ndim - 2))
    dimensions = (((left.ndim - 1,), (right.ndim + contract,)), (batch, batch))
    return lax.dot_general(left, right, dimensions, preferred_element_type=accumulate)


def _share_heads(query, key):
    """Puts the query heads that share a key head in one matrix."""
    *batch, length, size = query.shape
    if query.shape[:-2] != key.shape[:-2]:
        groups = batch[-1] // key.shape[-3]
        batch, length = [*batch[:-1], key.shape[-3]], groups * length
    return reshape(query, (*batch, length, size))


def _masked(scores, mask, is_causal: bool, first):
    if is_causal:
        rows, columns = (lax.broadcasted_iota(np.int32, scores.shape[-2:], i) for i in (0, 1))
        mask = lax.ge(rows if first is None else lax.add(rows, first), columns)
    if mask is None:
        return scores
    mask = lax.broadcast_in_dim(mask, scores.shape, range(scores.ndim - mask.ndim, scores.ndim))
    if mask.dtype == bool:
        return where(mask, scores, lax.full_like(scores, -np.inf))
    return lax.add(scores, mask.astype(scores.dtype))


def together(*shapes) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise RuntimeError(
            f"scaled_dot_product_attention: shapes {', '.join(str(list(shape)) for shape in shapes)} do not broadcast"
        ) from None


def exponentials(scores, may_be_empty: bool):
    """The exponentials of a softmax over the last dimension, their sum, and the maximum that is taken from each score.

    Args:
        may_be_empty: all scores of a row may be -inf.
    """
    most = lax.stop_gradient(lax.reduce_max(scores, (scores.ndim - 1,)))
    if may_be_empty:  # a row that attends to nothing gives zeros
        most = lax.max(most, np.asarray(jnp.finfo(scores.dtype).min, scores.dtype))
    powers = lax.exp(lax.sub(scores, lax.broadcast_in_dim(most, scores.shape, range(most.ndim))))
    total = lax.reduce_sum(powers, (scores.ndim - 1,))
    if may_be_empty:  # the sum is 1 at least, or 0: what stands for that has a square that derivatives can divide by
        total = lax.max(total, np.asarray(0.5, scores.dtype))
    return powers, total, most
