"""Subscripts of JAX's tensors around parts: views that recur are made again, and not looked for again in PyTorch."""

from typing import Any, NamedTuple

import torch

from ..tensors.storage import Storage, View, steps_to
from ..tensors.tensor import Torchish, make_view_of_shape

__all__ = ["Subscripts"]

_MOST = 1024


class _Way(NamedTuple):
    """How a view comes about."""

    steps: tuple
    """The kind and the place of each view on the way, the innermost first."""
    shape: torch.Size
    strides: tuple[int, ...]
    offset: int


class Subscripts:
    """What has been made of tensors of some geometry by some subscripts: numbers, slices, None and an ellipsis."""

    def __init__(self):
        self._ways: dict[tuple, _Way] = {}

    def again(self, args: tuple) -> tuple[Any, Torchish | None]:
        """What stands for a tensor's geometry and a subscript, None if no view is to be noted; and a noted one."""
        tensor, index = args
        key = _described(index)
        if key is None or type(tensor) is not Torchish or not _is_free(tensor):
            return None, None
        with torch._C.DisableTorchFunction():
            dtype = tensor.dtype
            key = key, tensor.shape, tensor.stride(), tensor.storage_offset(), dtype
            way = self._ways.get(key)
            if way is None:
                return key, None
            node = tensor._node
            for kind, place in way.steps:
                node = View(node, kind)
                node.place = place
            return key, make_view_of_shape(tensor, node, way.shape, dtype, way.strides, way.offset)

    def note(self, key: Any, tensor: Torchish, view: Any) -> None:
        """Notes what has been made of a tensor."""
        if type(view) is not Torchish or len(self._ways) >= _MOST:
            return
        steps = steps_to(view._node)
        if view._node.storage is tensor._node and not any(kind.traced or place is None for kind, place in steps):
            with torch._C.DisableTorchFunction():
                self._ways[key] = _Way(tuple(steps), view.shape, view.stride(), int(view.storage_offset()))


def _is_free(tensor: Torchish) -> bool:
    """Whether views of a tensor are nothing but that: no gradients, restrictions or modes have to do with them."""
    node = tensor._node
    if type(node) is not Storage or node.differentiable or node.history is not None or node.is_outgrown:
        return False
    return tensor._restriction is None and not node.memory.is_inference


def _described(index) -> tuple | None:
    """A subscript as a key; None where it has something else than numbers, slices of them, None and an ellipsis."""
    found = []
    for item in index if type(index) is tuple else (index,):
        if type(item) is slice:
            item = item.start, item.stop, item.step
            if not all(type(x) is int or x is None for x in item):
                return None
        elif not (type(item) is int or item is None or item is Ellipsis):
            return None
        found.append(item)
    return tuple(found)
