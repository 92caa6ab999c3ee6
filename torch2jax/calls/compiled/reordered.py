"""Reordered rows of arrays that parts have written: the next part's program reorders them if it takes them.

Between two steps of a search by beams each cache goes on with the rows of those that were chosen. An expert does this
within the step, where it costs no call and no copy.

Also here: arrays that the programs of parts have made for tensors that they write to, and may overwrite.
"""

import dataclasses
import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch

from ...internals.dispatch import DisableTorchDispatch, DisableTorchFunction
from ...rules import registry
from ...rules.inline import call_inlined
from ...runtime.translation import this_call
from ...tensors.array_buffer import ArrayBuffer, LazyArray
from ...tensors.dtypes import canonical
from ...tensors.known import defer_body, in_pytorch, real
from ...tensors.storage import Storage
from ...tensors.tensor import Torchish, make_tensor

REORDERING = {torch.index_select: 3, torch.Tensor.index_select: 3, torch.Tensor.__getitem__: 2}
"""The functions that may reorder rows, with the number of their arguments."""
_INDICES = (torch.int64, torch.int32)


@functools.partial(jax.tree_util.register_dataclass, data_fields=("rows",), meta_fields=("dim",))
@dataclasses.dataclass(frozen=True)
class RowOrder:
    """An order of rows along a dimension."""

    rows: jax.Array
    dim: int

    def of(self, array: object) -> Any:
        """An array in this order."""
        rule: Any = registry.lookup(torch.index_select)
        return call_inlined(rule.body, (array, self.dim, self.rows), {}, rule.name)


class Reordered(LazyArray):
    """A lazy array that puts the rows of another one in order when it is needed.

    Args:
        array: no tracer.
        order: as many rows as it has.
    """

    __slots__ = ("array", "order")
    layout = None

    def __init__(self, array: jax.Array, order: RowOrder):
        self.array, self.order, self._buffer = array, order, None
        self.shape, self.dtype, self.depth, self.source = array.shape, array.dtype, 1, None

    @property
    def buffer(self) -> ArrayBuffer:
        if self._buffer is None:
            with this_call().outside():
                self._buffer = ArrayBuffer(self.order.of(self.array), None)
        return self._buffer

    def values(self, dtype: torch.dtype) -> torch.Tensor:
        """The values as a tensor of PyTorch's own, for which nothing is compiled."""
        if self._buffer is not None:
            return in_pytorch(real(self._buffer.array).to, dtype)
        return in_pytorch(torch.index_select, real(self.array), self.order.dim, real(self.order.rows)).to(dtype)


def buffer_of(storage: Storage) -> ArrayBuffer | Reordered:
    """The contents of a storage; a `Reordered` array stays as it is."""
    buffer = storage.lazy(None, None)
    return buffer if type(buffer) is Reordered else storage.buffer


def shown(storage: Storage) -> object:
    """The contents of a storage: an array, or a `Reordered` one."""
    buffer = buffer_of(storage)
    return buffer if type(buffer) is Reordered else buffer.array


class Orders:
    """A detector of reorderings among the functions that are called around parts.

    Args:
        is_written: tells whether an array is what a part has written to.
        is_around: tells whether a tensor is one of PyTorch's own that has come about there.
    """

    def __init__(self, is_written: Callable[[object], bool], is_around: Callable[[object], bool]):
        self._is_written, self._is_host = is_written, is_around
        self._last: tuple[torch.Tensor, jax.Array, int, int] | None = None  # all caches get the same order

    def reordered(self, args: tuple) -> Torchish | None:
        """A tensor that waits to be put in order; None if one of `REORDERING` does something else, or is to refuse."""
        tensor, dim, rows = args if len(args) == 3 else (args[0], 0, _row_index(args[1]))
        if type(tensor) is not Torchish or type(dim) is not int or not self._is_host(rows):
            return None
        node, label = tensor._node, tensor._label
        if type(node) is not Storage or node.history is not None or node.memory.foreign or node.is_outgrown:
            return None
        with DisableTorchFunction(), DisableTorchDispatch():
            buffer, shape, dtype = node.lazy(None, None), tensor.shape, tensor.dtype
            if not isinstance(buffer, ArrayBuffer) or buffer.layout is not None or not self._is_written(buffer.array):
                return None
            dim = dim + len(shape) if dim < 0 else dim
            if not dtype.is_floating_point or not tensor.is_contiguous() or buffer.array.dtype != canonical(dtype):
                return None
            if not 0 <= dim < len(shape) or rows.shape != shape[dim : dim + 1] or rows.dtype not in _INDICES:
                return None
            array, least, most = self._taken(rows)
            if least < 0 or most >= shape[dim]:
                return None
            waiting = Reordered(buffer.array, RowOrder(array, dim))
            storage = Storage.waiting(waiting, defer_body(waiting.values, dtype))
            return make_tensor(storage, shape, dtype, None, None, label)

    def _taken(self, rows: torch.Tensor) -> tuple[jax.Array, int, int]:
        """An array of row indices, with the least and the greatest of them."""
        if self._last is None or self._last[0].dtype != rows.dtype or not torch.equal(self._last[0], rows):
            copied = rows.clone()  # PyTorch cannot resize what numpy has
            array = jax.numpy.asarray(copied.numpy().astype(canonical(rows.dtype)))
            least, most = torch.aminmax(rows) if len(rows) else (0, -1)
            self._last = copied, array, int(least), int(most)
        return self._last[1:]


def _row_index(index: object) -> Any:
    """The tensor that an index has for the first dimension, if it is nothing else."""
    if type(index) is tuple and len(index) == 2 and index[1] is Ellipsis:
        return index[0]
    return index


class DonatedArrays:
    """The arrays that programs have made for storages that they write to: the next program may destroy them."""

    def __init__(self):
        self._arrays: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    def add(self, array: object) -> None:
        self._arrays[id(array)] = array

    def has(self, array: object) -> bool:
        return self._arrays.get(id(array)) is array

    def given(self, storage: Storage, array: object, alone: int) -> Any:
        """The array of a storage, or a copy of it, for a program that destroys it.

        Args:
            array: what the storage holds, or what that puts in another order.
            alone: what `references_alone` tells.
        """
        if isinstance(array, np.ndarray):  # JAX destroys none of numpy's
            return array
        buffer: Any = storage._buffer
        if type(buffer) is Reordered:
            own = buffer.array is array
        else:
            own = (storage._array is array) + (storage._known is array) + (buffer.array is array)
        if self.has(array) and sys.getrefcount(array) <= alone + own:
            return array
        return jax.numpy.array(array, copy=True)


def references_alone() -> int:
    """The result of `sys.getrefcount` for an argument to which the caller's variable is the only reference.

    Asked each time: it is more while another evaluator of Python's frames is in force, as that of ``torch.compile``.
    """

    def references(array: object) -> int:
        return sys.getrefcount(array)

    array = object()
    return references(array)
