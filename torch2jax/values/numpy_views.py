"""NumPy arrays of tensors' values, as from `Tensor.numpy`: read-only, and up to date with what tensors hold."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import TracedValueError
from ..tensors.tensor import Torchish


class _Lent:
    """The memory of an array that stands for a tensor's: who writes to it is refused, as the tensor would not see it.

    It lives as long as the array and its views, whose base it is.
    """

    def __init__(self, tensor: Torchish, read: Callable[[Torchish], np.ndarray]):
        self._tensor, self._read = tensor, read
        self.values = np.array(read(tensor), order="C")
        interface = self.values.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], True)}
        tensor._node.storage.memory.follow(self._show)

    def _show(self) -> None:
        """Takes over what has been written to the tensor, if that is not traced and as large as before."""
        try:
            values = self._read(self._tensor)
        except TracedValueError:
            return
        if values.shape == self.values.shape:
            self.values[...] = values


def lend(tensor: Torchish, read: Callable[[Torchish], np.ndarray]) -> np.ndarray:
    """A read-only array that shows what is written to a tensor.

    Args:
        read: gives a tensor's values.

    Raises:
        TracedValueError: they depend on a traced input.
    """
    lent = _Lent(tensor, read)
    return np.asarray(lent).view(lent.values.dtype)


def is_lent(array: Any) -> bool:
    """Returns True if a value is an array from `lend`, or a view of one."""
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array, _Lent)
