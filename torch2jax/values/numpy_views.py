"""NumPy arrays on the memory of tensors, as from `Tensor.numpy`: a write to one shows in the other."""

import weakref
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import torch

from ..errors import TracedValueError
from ..internals.guards import DisableTorchDispatch, DisableTorchFunction
from ..rules.features import NEXT, Feature
from ..tensors.dtypes import canonical
from ..tensors.memory import Memory
from ..tensors.tensor import Torchish, make_region
from .call import this_call

__all__ = ["NumpyViews"]


class NumpyViews(Feature):
    """The NumPy arrays that share memory with tensors of a call, as long as somebody has them.

    Before a function runs, the tensors have what has been written to the arrays.
    """

    rank, is_shared = 30, True

    def __init__(self):
        self.views: list[_NumpyView] = []

    def lend(self, tensor: Torchish, read: Callable[[Torchish], np.ndarray]) -> np.ndarray:
        """An array that stands for a tensor's memory.

        Args:
            read: gives a tensor's values.

        Raises:
            TracedValueError: they depend on a traced input.
        """
        loan = _NumpyView(tensor, read)
        array = loan.array()
        self.views.append(loan)
        this_call().features.push(self)
        return array

    def on_its_memory(self, real: torch.Tensor) -> Torchish | None:
        """The view of a tensor that a real one stands for, which PyTorch has made on the memory of a lent array."""
        with DisableTorchFunction(), DisableTorchDispatch():
            address = real.data_ptr()
        found = (loan.view(address, real) for loan in self.views)
        return next((view for view in found if view is not None), None)

    def place_of(self, memory: Memory) -> tuple[int, Any] | None:
        """The address of the array that stands for a tensor's memory, and what to keep for it to stay that."""
        return next((loan.place for loan in self.views if loan.is_of(memory)), None)

    def run_first(self, call: Any, function: Any, types: Collection[type], args: tuple, kwargs: dict) -> Any:
        del call, function, types, args, kwargs
        self.settle()
        return NEXT

    def settle(self) -> None:
        """Writes to the tensors what has been written to arrays, and forgets the arrays that nobody has any more."""
        loans, self.views = self.views, []  # to settle is to call PyTorch
        ended = [loan for loan in loans if loan.is_over]
        for loan in loans:
            loan.settle()
        self.views += [loan for loan in loans if loan not in ended]
        if not self.views:
            this_call().features.pop(self)
        else:
            this_call().features.push(self)


class _NumpyView:
    def __init__(self, tensor: Torchish, read: Callable[[Torchish], np.ndarray]):
        self._tensor, self._read = tensor, read
        values = read(tensor)
        self._shape, self._dtype = values.shape, values.dtype
        self._before = values.tobytes()
        self._memory = bytearray(self._before)
        self._address = np.frombuffer(self._memory, np.uint8).__array_interface__["data"][0]
        self._is_whole = tensor.is_contiguous()  # so that the array is laid out as the tensor is
        self._array: Any = None
        tensor._node.storage.memory.follow(self._show)

    def array(self) -> np.ndarray:
        array = self._of(self._memory)
        self._array = weakref.ref(array)  # lives as long as its views, whose base it is: what is below is no array
        return array

    @property
    def place(self) -> tuple[int, Any]:
        start = self._tensor.storage_offset() * self._tensor.itemsize
        return self._address - start, self._memory

    def is_of(self, memory: Memory) -> bool:
        return self._is_whole and self._tensor._node.storage.memory is memory

    def view(self, address: int, real: torch.Tensor) -> Torchish | None:
        """The part of the tensor that is at an address, in the shape and dtype of a real tensor."""
        tensor, dtype, begin = self._tensor, real.dtype, address - self._address
        if not (self._is_whole and real.numel() and 0 <= begin < len(self._memory)):
            return None
        at = tensor.storage_offset() * tensor.itemsize + begin
        held_as_they_are = all(canonical(x).itemsize == x.itemsize for x in (dtype, tensor.dtype))
        if at % dtype.itemsize or not (dtype == tensor.dtype or held_as_they_are):
            return None
        base: Any = tensor.detach()
        return make_region(base, real.shape, real.stride(), at // dtype.itemsize, dtype)

    @property
    def is_over(self) -> bool:
        return self._array() is None

    def settle(self) -> None:
        if self._memory == self._before:  # pyright: ignore[reportUnnecessaryComparison] - they compare by their bytes
            return
        before, self._before = self._before, bytes(self._memory)
        changed = (_by_bytes(before, self._shape) != _by_bytes(self._before, self._shape)).any(-1)
        values = self._of(self._before)
        writes = self._tensor._writes[0]
        with torch.no_grad(), this_call().inside():
            tensor = self._tensor.detach()
            if changed.all():
                tensor.copy_(torch.tensor(values))
            else:
                tensor[torch.tensor(changed)] = torch.tensor(values[changed])
        self._tensor._writes[0] = writes  # PyTorch does not see such a write either

    def _show(self) -> None:
        """Writes to the array what has been written to the tensor, if that is not traced."""
        try:
            values = self._read(self._tensor)
        except TracedValueError:
            return
        self._before = values.tobytes()
        self._memory[:] = self._before

    def _of(self, memory: bytes | bytearray) -> np.ndarray:
        return np.ndarray(self._shape, self._dtype, memory)


def _by_bytes(memory: bytes, shape: tuple[int, ...]) -> np.ndarray:
    return np.frombuffer(memory, np.uint8).reshape(*shape, -1)
