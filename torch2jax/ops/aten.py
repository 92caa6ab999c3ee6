"""Leaf rules for ATen operators that no torch-level rule serves."""

import torch
from jax import lax

from ..internals.prims import torch_block_diag
from ..rules.inplace import write_out
from ..rules.promotion import Promotion
from ..rules.registry import implements, implements_tensors
from ..tensors.known import in_pytorch
from .arrays import is_complex

aten = torch.ops.aten


@implements(torch.conj_physical, aten._conj_physical, torch._conj_physical, promote=Promotion.NO_OPMATH)
def conj_physical(input):
    return lax.conj(input) if is_complex(input) else input


@implements_tensors(torch.conj_physical, torch.Tensor.conj_physical, aten.conj_physical.default)
def conj_physical_of(input, *, out=None):
    result = torch._conj_physical(input) if input.is_complex() else input  # itself, as in PyTorch
    return result if out is None else write_out(result, out, (input,))


@implements_tensors(aten.copy.default)
def copy(self, src, non_blocking=False):
    return self.clone().copy_(src)


@implements_tensors(aten.meshgrid.default)
def meshgrid(tensors):
    in_pytorch(aten.meshgrid.default, [torch.empty(0, device="meta")])  # warns, once, that it will need an indexing
    return aten.meshgrid.indexing(tensors, indexing="ij")  # for which PyTorch's decomposition has no default


@implements_tensors(aten.block_diag.default)
def block_diag(tensors):
    return torch_block_diag(*tensors) if tensors else torch.empty(1, 0)
