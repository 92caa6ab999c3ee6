"""Batches of gradients, as ``torch.autograd.grad(..., is_grads_batched=True)`` passes them to a backward pass.

They are tensors of PyTorch's older vmap, not of `torch.func.vmap`. Only PyTorch's own operators have batching rules for
it, so the batch dimension is taken out here, and put back in.
"""

from collections.abc import Sequence

import torch

from ..internals.functorch import (
    add_batch_dim,
    is_legacy_batchedtensor,
    remove_batch_dim,
    vmapmode_decrement_nesting,
    vmapmode_increment_nesting,
)

__all__ = ["is_batched", "rebatched", "unbatched"]


def is_batched(tensor: torch.Tensor | None) -> bool:
    """Whether a gradient (None for zeros) is such a batch."""
    return tensor is not None and is_legacy_batchedtensor(tensor)


def unbatched(tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], tuple[int | None, ...]]:
    """The tensors with their batch dimension, and at which place it is; None where there is none."""
    level = _level()
    axes = tuple([0 if is_batched(tensor) else None for tensor in tensors])
    plain = [
        tensor if axis is None else remove_batch_dim(tensor, level, 1, axis)
        for tensor, axis in zip(tensors, axes, strict=True)
    ]
    return plain, axes


def rebatched(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The batches of which the first dimension of `tensors` is the batch dimension."""
    level = _level()
    return [add_batch_dim(tensor, 0, level) for tensor in tensors]


def _level() -> int:
    vmapmode_increment_nesting()
    return vmapmode_decrement_nesting()
