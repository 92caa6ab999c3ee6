"""PyTorch's jagged tensors, which wrap their values and offsets."""

from typing import Any

import torch
from torch.nested._internal import nested_tensor

__all__ = ["NestedTensor", "nested_view_from_jagged"]

NestedTensor = nested_tensor.NestedTensor
"""Their class. Its ragged size is a symbol for the tensor of offsets, as an object."""

nested_view_from_jagged: Any = torch._nested_view_from_jagged  # pyright: ignore[reportAttributeAccessIssue]
"""The jagged tensor of values and offsets: to PyTorch's autograd, a view of the values."""
