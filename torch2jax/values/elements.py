"""Elements of known values at known positions, as most subscripts in a loop over a schedule are."""

import torch

from ..internals.guards import DisableTorchFunction
from ..tensors.storage import View
from ..tensors.tensor import Torchish, make_view_of_shape
from ..tensors.view_kind import element
from .call import this_call

__all__ = ["known_element"]


def known_element(self: Torchish, index: object) -> Torchish | None:
    """The view of one element of known values, at known places; None if it is none, or not so plain."""
    with DisableTorchFunction():
        place = _known_place(self, index)
        if place is None:
            return None
        node = View(self._node, element(self.shape, place))
        offset = int(self.storage_offset()) + sum([i * stride for i, stride in zip(place, self.stride(), strict=True)])
        return make_view_of_shape(self, node, (), self.dtype, (), offset)


def _known_place(self: Torchish, index: object) -> tuple[int, ...] | None:
    """Where one element of known values is along each dimension; None if it is none, or not so plain."""
    items = index if type(index) is tuple else (index,)
    if type(self) is not Torchish or type(self.known) is not torch.Tensor or self._node.overlaps:
        return None
    shape, place = self.shape, []
    if len(items) != len(shape):
        return None
    for item, size in zip(items, shape, strict=True):
        number = item if type(item) is int else _known_integer(item)
        if number is None or not -size <= number < size:
            return None
        place.append(number if number >= 0 else number + size)
    return tuple(place)


def _known_integer(item: object) -> int | None:
    if not isinstance(item, torch.Tensor) or item.ndim or item.dtype not in (torch.int64, torch.int32):
        return None
    known = this_call().lift(item).known
    return int(known.item()) if type(known) is torch.Tensor else None
