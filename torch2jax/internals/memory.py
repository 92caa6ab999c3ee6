"""Tensors and storages as objects: how they are made, exchanged and passed on."""

import torch
from torch import _tensor
from torch._subclasses import fake_tensor

__all__ = [
    "FakeTensorMode",
    "StorageBase",
    "convert",
    "make_wrapper_subclass",
    "storage_use_count",
    "swap_tensor_impl",
    "to_dlpack",
    "to_dlpack_versioned",
]

make_wrapper_subclass = torch.Tensor._make_wrapper_subclass  # pyright: ignore[reportAttributeAccessIssue]
"""A tensor of a class with a shape, a dtype, strides and a device, and no data."""

convert = _tensor._convert
"""A function's results, with its tensors of a derived class."""

swap_tensor_impl = torch._C._swap_tensor_impl  # pyright: ignore[reportAttributeAccessIssue]
"""Exchanges what two objects are tensors of."""

StorageBase = torch._C.StorageBase
"""The class of C++ below ``torch.UntypedStorage``, with its methods."""

storage_use_count = torch._C._storage_Use_Count
"""How many own a storage, by its ``_cdata``."""

to_dlpack = torch._C._to_dlpack
"""A tensor's memory as a capsule of DLPack, without a version."""

to_dlpack_versioned = torch._C._to_dlpack_versioned  # pyright: ignore[reportAttributeAccessIssue]
"""The same with one."""

FakeTensorMode = fake_tensor.FakeTensorMode
"""The mode in which tensors have a device and no values; its ``from_tensor`` makes them."""
