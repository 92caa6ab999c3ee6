"""Arrays that the programs of parts made for tensors they write to, and may overwrite."""

import sys
import weakref
from typing import Any

import jax
import numpy as np

from ..tensors.storage import Storage
from .reordered import Reordered

__all__ = ["DonatedArrays", "references_alone"]


class DonatedArrays:
    """The arrays that programs have made for what they write to, and may be given to the next one to be destroyed."""

    def __init__(self):
        self._arrays: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    def add(self, array: Any) -> None:
        self._arrays[id(array)] = array

    def has(self, array: Any) -> bool:
        return self._arrays.get(id(array)) is array

    def given(self, storage: Storage, array: Any, alone: int) -> Any:
        """The array of a storage, or a copy of it, for a program that destroys it.

        Args:
            array: what the storage holds, or what that puts in another order.
            alone: what `references_alone` tells.
        """
        if isinstance(array, np.ndarray):  # JAX destroys none of numpy's
            return array
        physical: Any = storage._physical
        if type(physical) is Reordered:
            own = physical.array is array
        else:
            own = (storage._array is array) + (storage._known is array) + (physical.array is array)
        if self.has(array) and sys.getrefcount(array) <= alone + own:
            return array
        return jax.numpy.array(array, copy=True)


def references_alone() -> int:
    """What `sys.getrefcount` tells of an argument that the caller has in one variable, and nobody else.

    Asked each time: it is more while another evaluator of Python's frames is in force, as that of ``torch.compile``.
    """

    def references(array: Any) -> int:
        return sys.getrefcount(array)

    array = object()
    return references(array)
