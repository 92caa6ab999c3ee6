"""The attention kernels that ship with JAX. Each raises an exception if it does not support the operands."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["cudnn_attention", "pallas_attention"]

_BLOCKS = (512, 256, 128)  # of queries and of keys, for Pallas; with 1,024 the gradient's do not fit a TPU's memory


def cudnn_attention(query, key, value, mask=None, *, is_causal: bool, scale: float):
    """`jax.nn.dot_product_attention` by cuDNN: half precision, 128 features, or 256 on Hopper, in eights.

    Args:
        query: ``(batch, heads, queries, features)``.
        key: ``(batch, key heads, keys, features)``, and `value`.
        mask: boolean, of as many dimensions, each of them the scores' or one.
    """
    _expect_a_diagonal(query, key, is_causal)
    if mask is not None:  # JAX broadcasts a batch and heads only
        mask = jnp.broadcast_to(mask, (*mask.shape[:2], query.shape[-2], key.shape[-2]))
    operands = (jnp.swapaxes(x, 1, 2) for x in (query, key, value))
    output = jax.nn.dot_product_attention(
        *operands, mask=mask, scale=scale, is_causal=is_causal, implementation="cudnn"
    )
    return _without_empty_rows(jnp.swapaxes(output, 1, 2), mask)


def pallas_attention(query, key, value, mask=None, *, is_causal: bool, scale: float):
    """`jax.experimental.pallas.ops.tpu.flash_attention`: bfloat16 and float32, lengths in multiples of 128,
    and `jax_enable_x64` off.

    Args:
        query: ``(batch, heads, queries, features)``.
        key: ``(batch, key heads, keys, features)``, and `value`.
        mask: boolean, ``(batch or 1, 1, 1, keys)``: what is padding. Any other would take a matrix as large as that of
            the scores.
    """
    from jax.experimental.pallas.ops.tpu.flash_attention import BlockSizes, SegmentIds, flash_attention

    _expect_a_diagonal(query, key, is_causal)
    if jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]
        raise NotImplementedError("the kernel mixes its own 32-bit integers with Python's, which are of 64 bits")
    (batch, heads, queries, _), keys = query.shape, key.shape[-2]
    rows, columns = (next((size for size in _BLOCKS if length % size == 0), None) for length in (queries, keys))
    if rows is None or columns is None or query.dtype not in (jnp.bfloat16, np.float32):
        raise NotImplementedError(f"got {query.dtype} and {queries} queries for {keys} keys")
    segments = None
    if mask is not None:
        if mask.shape[1:3] != (1, 1):
            raise NotImplementedError(f"got a mask of shape {mask.shape}")
        attended = jnp.broadcast_to(mask[:, 0, 0], (batch, keys)).astype(np.int32)
        segments = SegmentIds(jnp.ones((batch, queries), np.int32), attended)
    groups = heads // key.shape[1]
    key, value = (x if groups == 1 else jnp.repeat(x, groups, axis=1) for x in (key, value))
    names = [field.name for field in dataclasses.fields(BlockSizes)]
    blocks: Any = {name: columns if "_k" in name else rows for name in names} | {"block_b": 1}
    sizes = BlockSizes(**blocks)
    output = flash_attention(query, key, value, None, segments, causal=is_causal, sm_scale=scale, block_sizes=sizes)
    return _without_empty_rows(output, mask)


def _expect_a_diagonal(query, key, is_causal: bool) -> None:
    if is_causal and query.shape[-2] != key.shape[-2]:
        raise NotImplementedError("not documented is with which key the last query ends")


def _without_empty_rows(output, mask):
    """Zeros for what attends to nothing."""
    return output if mask is None else jnp.where(mask.any(-1, keepdims=True), output, jnp.zeros((), output.dtype))
