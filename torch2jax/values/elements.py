"""Elements of known values at known positions, as most subscripts in a loop over a schedule are."""

from typing import Any

import torch

from ..internals.guards import DisableTorchFunction
from ..tensors.known import Geometry, LazyConstant, evaluate, in_pytorch, is_small
from ..tensors.physical import LazyArray, PhysicalArray
from ..tensors.storage import Storage, View
from ..tensors.tensor import Torchish, make_view_of_shape
from ..tensors.view_kind import element
from .call import this_call
from .known import is_free

__all__ = ["known_element", "write_known_element"]


def known_element(self: Torchish, index: object) -> Torchish | None:
    """The view of one element of known values, at known places; None if it is none, or not so plain."""
    with DisableTorchFunction():
        place = _known_place(self, index)
        if place is None:
            return None
        node = View(self._node, element(self.shape, place))
        return make_view_of_shape(self, node, (), self.dtype, (), _offset(self, place))


def write_known_element(self: Torchish, index: object, value: float) -> bool:
    """Writes a number to one element of known values at a known position; false if it is not such a write."""
    with DisableTorchFunction():
        place = _known_place(self, index)
        if place is None or not is_free(self):
            return False
        node = self._node
        try:
            if type(node) is Storage and not node.has_grown and is_small(node.memory.size):
                known: Any = node.known
                made = known.clone()
                made[place] = value
                node.write(_changed(node, made, place), made)
            else:
                number = in_pytorch(torch.full, (), value, dtype=self.dtype)
                view = View(node, element(self.shape, place))
                known = view.known_after(number, Geometry((), (), _offset(self, place), self.dtype))
                if not isinstance(known, torch.Tensor):
                    return False
                view.write(LazyConstant(number), known)
        except RuntimeError:  # with the words of the rule
            return False
        self.count_write()
        return True


def _changed(storage: Storage, made: torch.Tensor, place: tuple[int, ...]) -> LazyArray:
    """What holds `made`, which is what a storage holds but for one element."""
    before, kind = storage.lazy(None, None), element(made.shape, place)

    def change() -> PhysicalArray:
        number = evaluate(in_pytorch(made.__getitem__, place))
        return PhysicalArray(kind.write(before.physical.arranged(None), number), None)

    changed = LazyArray(change, made.shape, before.dtype, 1 + getattr(before, "depth", 1))
    return LazyConstant(made) if changed.is_long else changed


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


def _offset(self: Torchish, place: tuple[int, ...]) -> int:
    """Where an element is in memory."""
    return int(self.storage_offset()) + sum([i * stride for i, stride in zip(place, self.stride(), strict=True)])


def _known_integer(item: object) -> int | None:
    if not isinstance(item, torch.Tensor) or item.ndim or item.dtype not in (torch.int64, torch.int32):
        return None
    known = this_call().lift(item).known
    return int(known.item()) if type(known) is torch.Tensor else None
