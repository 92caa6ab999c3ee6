"""Functions that give a tensor other memory or another shape: ``set_``, ``resize_``, ``swap_tensors``.

A journal is told of each change, since that is of an object of Python's, which no storage knows.
"""

import functools
from collections.abc import Sequence

import torch

from ..internals.guards import DisableTorchDispatch, DisableTorchFunction
from ..internals.memory import swap_tensor_impl
from .call import this_call
from .dtypes import canonical
from .history import Source
from .journal import journal
from .tensor import Torchish, make_region, make_tensor

__all__ = [
    "at_the_place_of",
    "become",
    "keep_geometry",
    "resize",
    "set_geometry",
    "swap",
    "swap_objects",
    "swap_with_meta",
]


def become(tensor: Torchish, other: Torchish) -> None:
    """Puts `tensor` itself where `other` is; to PyTorch it has other's dtype, shape and strides from now on."""
    keep_geometry(tensor)
    set_geometry(tensor, other)
    tensor.change("_node", other._node)


def swap(tensor: Torchish, other: Torchish) -> None:
    """Puts each of two tensors, with all that is known of it, where the other is."""
    sources = [_own_source(tensor), _own_source(other)]
    before = at_the_place_of(tensor)
    before.__dict__ = dict(vars(tensor))  # pyright: ignore[reportAttributeAccessIssue]
    for place, like, source in ((tensor, other, sources[1]), (other, before, sources[0])):
        keep_geometry(place)
        set_geometry(place, like)
        active = journal()
        if active is not None:
            active.note_change(place._node, functools.partial(setattr, place, "__dict__", place.__dict__))
        place.__dict__ = dict(vars(like))  # pyright: ignore[reportAttributeAccessIssue]
        if source is not None:
            source.variable = place


def swap_with_meta(tensor: Torchish, other: torch.Tensor) -> None:
    """Puts a tensor and one on the meta device, which is PyTorch's own, where the other is, until the call ends."""
    source, active, changes = _own_source(tensor), journal(), this_call().settings.changes

    def undo() -> None:
        if undo in changes:
            changes.remove(undo)
            swap_objects(tensor, other)
            if source is not None:
                source.variable = tensor

    if active is not None:
        active.note_change(tensor._node, undo)
    swap_objects(tensor, other)
    changes.append(undo)
    if source is not None:
        source.variable = other


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


def _own_source(tensor: Torchish) -> Source | None:
    """The history that begins with `tensor` itself."""
    history = tensor.history
    return history if isinstance(history, Source) and history.variable is tensor else None


def keep_geometry(tensor: Torchish) -> None:
    """Is called before shape, strides or dtype of `tensor` itself change, so that a journal may undo it."""
    active = journal()
    if active is not None:
        active.note_change(tensor._node, functools.partial(set_geometry, tensor, at_the_place_of(tensor)))


def at_the_place_of(tensor: Torchish) -> Torchish:
    """Another tensor with the geometry and the values of `tensor`."""
    with DisableTorchFunction(), DisableTorchDispatch():
        shape, strides, offset = tensor.shape, tensor.stride(), tensor.storage_offset()
        return make_tensor(tensor._node, shape, tensor.dtype, strides, offset, tensor._label)


def set_geometry(tensor: Torchish, other: Torchish) -> None:
    """Lets `tensor` itself have the dtype, shape and strides of another."""
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
