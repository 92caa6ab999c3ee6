"""DLPack: tensors that share memory with other libraries."""

import jax
import torch

from ..calls.call import current
from ..internals.guards import DisableTorchFunction
from ..internals.memory import to_dlpack
from ..internals.modules import C
from ..patches import runs_instead_of, stands_in
from ..rules.registry import implements_tensors
from ..tensors.capsules import tensor_of
from ..tensors.interop import array_to_tensor
from ..tensors.tensor import Torchish
from .creation import on_memory
from .values import lent_values

Tensor = torch.Tensor


@runs_instead_of(torch.utils.dlpack.from_dlpack, with_original=True)
def _from_dlpack(original, ext_tensor, **options):
    if isinstance(ext_tensor, (Tensor, jax.core.Tracer)):
        return _alias(ext_tensor, **options)
    if type(ext_tensor).__name__ != "PyCapsule":
        return original(ext_tensor, **options)
    found = tensor_of(ext_tensor)
    if found is None:  # perhaps of an array that stands for a tensor's memory
        return on_memory(original, ext_tensor, **options)
    original(ext_tensor)  # so that it is used up
    return _alias(found, **options)


def _alias(ext_tensor, *, device=None, copy=None):
    tensor = current().lift(ext_tensor)
    if tensor.requires_grad:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
    if tensor.is_conj():
        raise BufferError("Can't export tensors with the conjugate bit set")
    tensor = tensor.detach() if device is None else tensor.detach().to(device)
    return tensor.clone() if copy else tensor


def _capsule(tensor, **kwargs):
    if not isinstance(tensor, Torchish):
        return to_dlpack(tensor, **kwargs)
    array = lent_values(tensor, "tensor.__dlpack__()")
    with DisableTorchFunction():
        # bfloat16 and narrower types are not numpy's own, and shared with nobody.
        return to_dlpack(torch.from_numpy(array) if array.dtype.isbuiltin == 1 else array_to_tensor(array).clone())


for _owner, _name in (
    (torch, "to_dlpack"),
    (torch.utils.dlpack, "to_dlpack"),
    (C, "_to_dlpack"),
    (C, "_to_dlpack_versioned"),
):
    stands_in(_owner, _name)(_capsule)


@implements_tensors(Tensor.__dlpack__)
def __dlpack__(self, *, stream=None, **options):
    del options  # what is wanted of the version, or of who may write: the values are handed on as they are
    if stream is not None and not isinstance(stream, int):
        raise TypeError(f"stream must be ``int`` or ``none``, got {stream!r}")
    return _capsule(self)


@implements_tensors(Tensor.__dlpack_device__)
def __dlpack_device__(self):
    return (torch.utils.dlpack.DLDeviceType.kDLCPU, 0)
