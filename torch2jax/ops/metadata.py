"""Metadata: PyTorch holds it, for tensors of a translated call as for any, and answers itself."""

import torch

from ..rules.registry import implements_metadata

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
    Tensor.dim,
    Tensor.ndimension,
    Tensor.stride,
    Tensor.numel,
    Tensor.nelement,
    Tensor.storage_offset,
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
