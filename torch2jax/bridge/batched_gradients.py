"""Batches of gradients as ``torch.autograd.grad(..., is_grads_batched=True)`` hands them to a backward pass.

They are no tensors of `torch.func.vmap`, but of PyTorch's older vmap, for which nothing else than its own operators has
batching rules: the batch dimension is taken out here, and put back in.
"""

from collections.abc import Sequence

import torch
from torch._C._functorch import is_legacy_batchedtensor

__all__ = ["is_batched", "rebatched", "unbatched"]


def is_batched(tensor) -> bool:
    """Whether a gradient (None for zeros) is such a batch."""
    return tensor is not None and is_legacy_batchedtensor(tensor)


def unbatched(tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], tuple[int | None, ...]]:
    """The tensors with their batch dimension, and at which place it is; None where there is none."""
    level = _level()
    axes = tuple([0 if is_batched(tensor) else None for tensor in tensors])
    plain = [
        tensor if axis is None else torch._remove_batch_dim(tensor, level, 1, axis)
        for tensor, axis in zip(tensors, axes, strict=True)
    ]
    return plain, axes


def rebatched(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The batches of which the first dimension of `tensors` is the batch dimension."""
    level = _level()
    return [torch._add_batch_dim(tensor, 0, level) for tensor in tensors]


def _level() -> int:
    torch._C._vmapmode_increment_nesting()
    return torch._C._vmapmode_decrement_nesting()
