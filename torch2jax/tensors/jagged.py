"""Jagged tensors and their values: autograd differentiates the tensor of values."""

from typing import Any

import torch

from ..internals.tensors import NestedTensor as NestedTensor


def values_of(tensor: Any) -> Any:
    """The values of a jagged tensor; another tensor as it is."""
    return tensor._values if type(tensor) is NestedTensor else tensor


def like(jagged: Any, values: torch.Tensor) -> Any:
    """A jagged tensor of the same lengths with other values."""
    return NestedTensor(
        values,
        jagged._offsets,
        lengths=jagged._lengths,
        _ragged_idx=jagged._ragged_idx,
        _metadata_cache=jagged._metadata_cache,
    )
