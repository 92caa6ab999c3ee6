"""JAX values as PyTorch tensors and back, without compilation."""

from typing import Any

import jax
import numpy as np
import torch

from ..internals.guards import DisableTorchDispatch, DisableTorchFunction
from ..internals.memory import to_dlpack_versioned
from ..tensors.interop import dense_strides
from ..tensors.known import in_pytorch, real
from ..tensors.physical import LazyArray
from ..tensors.storage import View
from ..tensors.tensor import Torchish, with_strides, wrap
from .ownership import WANTING, state_of

__all__ = ["copied_values", "in_place_of", "write"]

_to_dlpack = to_dlpack_versioned  # which translated code has something else for


def in_place_of(value: torch.Tensor, array: Any) -> Torchish:
    """An array of the values of one of PyTorch's own as a tensor of the call, which requires grad if that does."""
    tensor = wrap(array, value.dtype, strides=dense_strides(value))
    if state_of(value) == WANTING:
        tensor.descend_from_afar()
    return tensor


def copied_values(tensor: Torchish) -> torch.Tensor:
    """A new tensor of PyTorch's own with the values of a tensor of the call, for which nothing is compiled."""
    with DisableTorchFunction(), DisableTorchDispatch():
        node, dtype = tensor._node, tensor.dtype
        root = node.storage.root
        known: Any = root.known
        waits = known is not None and isinstance(root.lazy(None, None), LazyArray)
        if isinstance(node, View) and node.place is not None and not node.is_chosen:
            place = node.place._replace(bits=node.bits, dtype=node.place.dtype or dtype)
            if waits or (isinstance(known, jax.Array) and known.is_fully_addressable):
                return _in_order_of(tensor, in_pytorch(_read, place, known, root.frame).to(dtype))
        elif node is root and known is not None and waits:
            return _in_order_of(tensor, real(known).clone())
        return _in_order_of(tensor, _copied(tensor.read(), dtype))


def _in_order_of(tensor: Torchish, values: torch.Tensor) -> torch.Tensor:
    """The values in memory as PyTorch would have those of a tensor, so that what it computes of them is too."""
    strides = dense_strides(tensor)
    return values if strides is None else with_strides(values, strides)


def _read(place: Any, known: Any, frame: Any) -> torch.Tensor:
    return place.read(real(known), frame).clone().resolve_conj().resolve_neg()


def _copied(array: Any, dtype: torch.dtype) -> torch.Tensor:
    """An array as a tensor of PyTorch's own."""
    copied = torch.empty(array.shape, dtype=dtype)
    write(copied, array)
    return copied


def write(tensor: torch.Tensor, array: Any) -> None:
    """Writes an array to a tensor of PyTorch's own, in one copy that leaves it resizable: `Tensor.numpy` would not."""
    np.copyto(np.from_dlpack(_Lent(tensor)), np.asarray(array), casting="unsafe")


class _Lent:
    """A tensor of PyTorch's own, lent to numpy to be written to."""

    __slots__ = ("_tensor",)

    def __init__(self, tensor: torch.Tensor):
        self._tensor = tensor

    def __dlpack__(self, **_):
        return _to_dlpack(self._tensor)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # a CPU
