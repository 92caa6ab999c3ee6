"""The memory that a DLPack capsule stands for, if PyTorch made it from a tensor without memory."""

import ctypes
import functools
import gc

import torch

from ..internals.guards import DisableTorchDispatch, DisableTorchFunction
from ..internals.memory import to_dlpack, to_dlpack_versioned
from .tensor import Torchish

__all__ = ["tensor_of"]

_PLACES = {b"dltensor": (48, 56), b"dltensor_versioned": (8, 16)}  # of the owner and of what frees it, in bytes
_MAKE = {b"dltensor": to_dlpack, b"dltensor_versioned": to_dlpack_versioned}

_name_of = ctypes.pythonapi.PyCapsule_GetName
_name_of.argtypes, _name_of.restype = [ctypes.py_object], ctypes.c_char_p
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.argtypes, _pointer_of.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p


def tensor_of(capsule: object) -> Torchish | None:
    """The tensor of a translated call that PyTorch has made `capsule` of, whatever name it was called by."""
    name = _name_of(capsule)
    address = _owner(capsule, name) if name in _PLACES else None
    if address is None:
        return None
    tensors = [x for x in gc.get_objects() if issubclass(type(x), Torchish)]
    with DisableTorchFunction():  # among them are those of other calls, which may stand for no value
        return next((x for x in tensors if x._cdata == address), None)  # pyright: ignore[reportAttributeAccessIssue]


def _owner(capsule: object, name: bytes) -> int | None:
    """The address of the tensor that PyTorch keeps for a capsule of its own."""
    owner, free = (_word(_pointer_of(capsule, name) + place) for place in _PLACES[name])
    return _word(owner) if owner and free == _free(name) else None


@functools.cache
def _free(name: bytes) -> int | None:
    """What PyTorch's own capsules are freed with, if they begin with the address of their tensor."""
    with DisableTorchFunction(), DisableTorchDispatch():
        tensor = torch.empty(1, device="cpu")
        capsule = _MAKE[name](tensor)
        owner, free = (_word(_pointer_of(capsule, name) + place) for place in _PLACES[name])
        return free if _word(owner) == tensor._cdata else None


def _word(address: int) -> int:
    return ctypes.c_size_t.from_address(address).value
