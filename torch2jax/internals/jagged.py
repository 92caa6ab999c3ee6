"""PyTorch's jagged tensors, which wrap their values and offsets."""

from torch.nested._internal import nested_tensor

__all__ = ["NestedTensor"]

NestedTensor = nested_tensor.NestedTensor
"""Their class. Its ragged size is a symbol for the tensor of offsets, as an object."""
