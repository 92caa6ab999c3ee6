"""Metadata: PyTorch holds it for tensors of a call as for any other, and answers itself."""

import torch

from ..rules.registry import implements_metadata, implements_tensors
from ..tensors.derived import as_class
from ..tensors.tensor import Torchish, geometry
from ..translation import current

Tensor = torch.Tensor

implements_metadata(
    Tensor.shape.__get__,
    Tensor.dtype.__get__,
    Tensor.ndim.__get__,
    Tensor.layout.__get__,
    Tensor.itemsize.__get__,
    Tensor.nbytes.__get__,
    Tensor.is_sparse.__get__,
    Tensor.is_quantized.__get__,
    Tensor.is_nested.__get__,
    Tensor.is_mkldnn.__get__,
    Tensor.size,
    Tensor.__len__,
    Tensor.dim,
    Tensor.ndimension,
    Tensor.stride,
    Tensor.numel,
    Tensor.nelement,
    Tensor.element_size,
    Tensor.is_contiguous,
    Tensor.is_floating_point,
    Tensor.is_complex,
    Tensor.is_signed,
    torch.numel,
    torch.is_floating_point,
    torch.is_complex,
    torch.is_signed,
)


@implements_tensors(Tensor.storage_offset)
def storage_offset(self):
    tensor = current().standing_for(self)
    if isinstance(tensor, Torchish):
        tensor._node.storage.memory.expect_all()
    return geometry(Tensor.storage_offset, tensor)


@implements_tensors(Tensor.as_subclass)
def as_subclass(input, cls):
    return as_class(current().lift(input), cls)
