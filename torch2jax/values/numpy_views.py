"""Read-only NumPy arrays of tensors' values, as from `Tensor.numpy`, that follow writes to the tensor."""

from collections.abc import Callable

import numpy as np

from ..runtime.errors import TracedValueError
from ..tensors.tensor import Torchish


class _Lent:
    """The memory of an array for a tensor, read-only because the tensor would not see writes.

    It lives as long as the array and its views, whose base it is.
    """

    def __init__(self, tensor: Torchish, read: Callable[[Torchish], np.ndarray]):
        self._tensor, self._read = tensor, read
        self.values = np.array(read(tensor), order="C")
        interface = self.values.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], True)}
        tensor._node.storage.memory.follow(self._show)

    def _show(self) -> None:
        """Copies a write to the tensor into the array, if it is known and of the same size."""
        try:
            values = self._read(self._tensor)
        except TracedValueError:
            return
        if values.shape == self.values.shape:
            self.values[...] = values


def lend(tensor: Torchish, read: Callable[[Torchish], np.ndarray]) -> np.ndarray:
    """A read-only array that follows writes to a tensor.

    Args:
        read: gives a tensor's values.

    Raises:
        TracedValueError: they depend on a traced input.
    """
    lent = _Lent(tensor, read)
    return np.asarray(lent).view(lent.values.dtype)


def is_lent(array: object) -> bool:
    """Returns True if a value is an array from `lend`, or a view of one."""
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array, _Lent)
