"""Attention by the platform's kernels, on request.

They are no default: none of them has run in the tests of this package, XLA divides those of a TPU among devices only
where it is told how, and JAX does not keep the meaning of cuDNN's calls in exported programs.
"""

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import torch
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from ...rules.array_rule import InnerRule
from ...rules.tables import Rules
from ...tensors.dtypes import FLOATS
from .attention import prepared, scaled_dot_product_attention
from .fused_operation import attention_by_platform
from .scores import attention

__all__ = ["fused_attention"]

_LONG = 2**20  # scores of a head; fewer are, in float32, 4 MB at most, which the fast memory of an accelerator holds

Axes = str | tuple[str, ...] | None


def fused_attention(mesh: Mesh | AbstractMesh | None = None, *, batch: Axes = None, heads: Axes = None) -> Rules:
    """Scoped rules that use a fused kernel for attention over long sequences. Enter them around a trace::

        with fused_attention():
            compiled = jax.jit(t2j(model)).lower(x, state_dict=params).compile()

    The kernel is `jax.nn.dot_product_attention` with cuDNN on CUDA, and
    `jax.experimental.pallas.ops.tpu.flash_attention` on TPU. On other platforms, and for operands that the kernel does
    not support, attention is the same as without these rules. So are derivatives of all orders and `jax.vmap`.

    Args:
        mesh: the mesh that the graph is partitioned for: each device then runs the kernel for its part. The TPU kernel
            needs it if there are several devices.
        batch: the axes of the mesh that divide the batch, the dimensions before the heads.
        heads: the axes that divide the heads, of keys and values as well.

    Raises:
        ValueError: the mesh lacks one of the axes.
    """
    parts = _OperandParts(mesh, batch, heads)
    rules = Rules()

    def attend(query, key, value, mask, is_causal, scale, enable_gqa):
        operands = prepared(query, key, value, enable_gqa)
        if _is_for_kernels(*operands, mask):
            return _in_four_dimensions(parts, *operands, mask, is_causal, scale)
        return attention(*operands, mask, is_causal, scale)

    attend_fused = InnerRule(attend, "scaled_dot_product_attention")

    @rules.implements_tensors(
        torch.nn.functional.scaled_dot_product_attention,
        torch.ops.aten.scaled_dot_product_attention.default,
        takes=FLOATS,
    )
    def _(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False):
        if dropout_p != 0 or (is_causal and attn_mask is not None):
            return scaled_dot_product_attention(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )
        return attend_fused((query, key, value, attn_mask, is_causal, scale, enable_gqa), {})

    return rules


@dataclasses.dataclass(frozen=True)
class _OperandParts:
    """What each device has of the operands."""

    mesh: Mesh | AbstractMesh | None
    batch: Axes
    heads: Axes

    def __post_init__(self):
        known = () if self.mesh is None else self.mesh.axis_names
        missing = [name for axes in (self.batch, self.heads) for name in _names(axes) if name not in known]
        if missing:
            raise ValueError(f"fused_attention got the axes {', '.join(missing)}; the mesh has {list(known)}")

    def are_equal(self, batch: int, *heads: int) -> bool:
        sizes = {} if self.mesh is None else self.mesh.shape
        devices = [math.prod(sizes[name] for name in _names(axes)) for axes in (self.batch, self.heads)]
        return batch % devices[0] == 0 and all(count % devices[1] == 0 for count in heads)

    def run(self, attend: Callable, operands: list) -> jax.Array:
        """``attend(*operands)``, of ``(batch, heads, ...)``, on each device for its part."""
        if self.mesh is None:
            return attend(*operands)
        axes = self.batch, self.heads
        specs = [
            PartitionSpec(*(name if size > 1 else None for name, size in zip(axes, x.shape[:2], strict=True)))
            for x in operands
        ]
        spread = jax.shard_map(
            attend, mesh=self.mesh, in_specs=tuple(specs), out_specs=PartitionSpec(*axes), check_vma=False
        )
        return spread(*operands)


def _names(axes: Axes) -> tuple[str, ...]:
    return () if axes is None else (axes,) if isinstance(axes, str) else axes


def _is_for_kernels(query, key, value, mask) -> bool:
    """Whether a kernel is worth while. Numbers to add are not for it: they may be infinite, or want a gradient."""
    return query.shape[-2] * key.shape[-2] >= _LONG and (mask is None or mask.dtype == bool)


def _in_four_dimensions(parts: _OperandParts, query, key, value, mask, is_causal: bool, scale: float | None):
    operands = [_four_dimensional(x) for x in (query, key, value)]
    if mask is not None:
        if mask.ndim > 4:
            mask = jnp.broadcast_to(mask, (*query.shape[:-3], *mask.shape[-3:]))
        operands.append(_four_dimensional(mask))
    (count, heads, *_), key_heads = operands[0].shape, operands[1].shape[1]
    if not parts.are_equal(count, heads, key_heads):
        return attention(query, key, value, mask, is_causal, scale)
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    output = parts.run(attention_by_platform(is_causal, scale, is_divided=parts.mesh is not None), operands)
    return output.reshape(*query.shape[:-1], value.shape[-1])


def _four_dimensional(array):
    shape = (1,) * (4 - array.ndim) + array.shape
    return array.reshape(math.prod(shape[:-3]), *shape[-3:])
