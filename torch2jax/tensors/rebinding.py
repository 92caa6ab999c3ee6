"""Functions that give a tensor other memory or another shape: ``set_``, ``resize_``.

A journal is told of each change, since that is of an object of Python's, which no storage knows.
"""

import functools
from collections.abc import Sequence

import torch

from ..internals.dispatch import DisableTorchDispatch, DisableTorchFunction
from ..internals.tensors import swap_tensor_impl
from .dtypes import canonical
from .journal import journal
from .tensor import Torchish, make_region, make_tensor


def become(tensor: Torchish, other: Torchish) -> None:
    """Makes `tensor` itself read what `other` reads, with its dtype, shape and strides."""
    keep_geometry(tensor)
    set_geometry(tensor, other)
    tensor.change("_node", other._node)


def swap_objects(a: torch.Tensor, b: torch.Tensor) -> None:
    """Puts each of two objects of Python, whatever tensors they are, where the other is.

    Raises:
        RuntimeError: PyTorch has one in use elsewhere.
    """
    with DisableTorchFunction():
        _swap_kinds(a, b)
        try:
            swap_tensor_impl(a, b)
        except RuntimeError:
            _swap_kinds(a, b)
            raise


def _swap_kinds(a: torch.Tensor, b: torch.Tensor) -> None:
    a.__class__, b.__class__ = b.__class__, a.__class__
    a.__dict__, b.__dict__ = b.__dict__, a.__dict__  # pyright: ignore[reportAttributeAccessIssue]


def keep_geometry(tensor: Torchish) -> None:
    """Called before the shape, strides or dtype of `tensor` itself change, so that a journal can undo that."""
    active = journal()
    if active is not None:
        active.note_change(tensor._node, functools.partial(set_geometry, tensor, alias_of(tensor)))


def alias_of(tensor: Torchish) -> Torchish:
    """Another tensor with the geometry and the values of `tensor`."""
    with DisableTorchFunction(), DisableTorchDispatch():
        shape, strides, offset = tensor.shape, tensor.stride(), tensor.storage_offset()
        return make_tensor(tensor._node, shape, tensor.dtype, strides, offset, tensor._label)


def set_geometry(tensor: Torchish, other: Torchish) -> None:
    """Sets the dtype, shape and strides of `tensor` itself to those of another."""
    with DisableTorchFunction(), DisableTorchDispatch():
        torch.Tensor.data.__set__(tensor, other)  # pyright: ignore[reportAttributeAccessIssue]


def resize(tensor: Torchish, shape: Sequence[int], strides: Sequence[int]) -> None:
    """Gives `tensor` itself another shape, at the same place in its memory, which grows as needed."""
    storage, offset = tensor._node.storage, tensor.storage_offset()
    storage.memory.expect_all()
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    bytes_needed = (last + 1) * canonical(tensor.dtype).itemsize if 0 not in shape else 0
    needed = -(-bytes_needed // storage.dtype.itemsize)
    if needed > storage.memory.size:
        storage.grow(needed)
    with torch.enable_grad():
        become(tensor, make_region(tensor, shape, strides, offset))
