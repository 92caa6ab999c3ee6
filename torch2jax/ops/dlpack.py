"""DLPack: tensors that share memory with other libraries."""

import jax
import torch

from ..internals.dispatch import DisableTorchFunction
from ..internals.modules import C
from ..internals.tensors import to_dlpack
from ..rules.registry import implements_tensors
from ..runtime.patches import replaces, runs_instead_of
from ..runtime.translation import lift
from ..tensors.interop import array_to_tensor
from ..tensors.tensor import Torchish
from .values import values

Tensor = torch.Tensor


@runs_instead_of(torch.utils.dlpack.from_dlpack, with_original=True)
def _from_dlpack(original, ext_tensor, **options):
    if isinstance(ext_tensor, (Tensor, jax.core.Tracer)):
        return _alias(ext_tensor, **options)
    if type(ext_tensor).__name__ != "PyCapsule":
        return original(ext_tensor, **options)
    with DisableTorchFunction():
        real = original(ext_tensor, **options)
        if real.numel() and not real.data_ptr():
            raise RuntimeError(_NO_MEMORY)
    return lift(real)


def _alias(ext_tensor, *, device=None, copy=None):
    tensor = lift(ext_tensor)
    if tensor.requires_grad:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
    if tensor.is_conj():
        raise BufferError("Can't export tensors with the conjugate bit set")
    tensor = tensor.detach() if device is None else tensor.detach().to(device)
    return tensor.clone() if copy else tensor


_NO_MEMORY = (
    "a DLPack capsule was asked for of a tensor of a translated call, which has no memory that others may write to: "
    "hand the tensor itself to torch.from_dlpack, which shares it, or return it from the call"
)


def _expect_memory(tensor, **kwargs):
    if isinstance(tensor, Torchish):
        raise RuntimeError(_NO_MEMORY)
    return to_dlpack(tensor, **kwargs)


for _owner, _name in (
    (torch, "to_dlpack"),
    (torch.utils.dlpack, "to_dlpack"),
    (C, "_to_dlpack"),
    (C, "_to_dlpack_versioned"),
):
    replaces(_owner, _name)(_expect_memory)


@implements_tensors(Tensor.__dlpack__)
def __dlpack__(self, *, stream=None, **options):
    """A copy of known values, for libraries that read them."""
    del options  # what is wanted of the version, or of who may write: the values are handed on as they are
    if stream is not None and not isinstance(stream, int):
        raise TypeError(f"stream must be ``int`` or ``none``, got {stream!r}")
    array = values(self, "tensor.__dlpack__()", leaves_pytorch=True)
    with DisableTorchFunction():
        is_numpys = array.dtype.isbuiltin == 1  # bfloat16 and narrower types are not
        return to_dlpack(torch.from_numpy(array.copy()) if is_numpys else array_to_tensor(array).clone())


@implements_tensors(Tensor.__dlpack_device__)
def __dlpack_device__(self):
    return (torch.utils.dlpack.DLDeviceType.kDLCPU, 0)
