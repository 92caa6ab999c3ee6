"""Strided regions of flat memory in any dtype, as in `as_strided`.

Also here: the parts of a tensor along one dimension.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..runtime.caches import remembered
from .journal import Journaled
from .storage import Storage, View
from .traced import is_at_once
from .view_kind import ViewKind, element_offsets, reshape


def _pointwise(function: Callable[..., Any], bit: str) -> ViewKind:
    """A view through a function that is its own inverse."""
    return ViewKind(function, lambda _, value: function(value), covers=True, bit=bit)


CONJUGATE = _pointwise(lax.conj, "conj")
NEGATIVE = _pointwise(lax.neg, "neg")


def region(
    node: Storage | View, shape: Sequence[int], strides: Sequence[int], offset: int | torch.SymInt, dtype: np.dtype
) -> View:
    """A region of the memory that `node` is on, with its bits.

    Args:
        node: any view of the memory.
        shape, strides, offset: of the region, in elements of `dtype`.
        dtype: what the bytes stand for.

    Raises:
        RuntimeError: the region is not within the memory.
    """
    storage, offset = node.storage, int(offset)
    held, flat = storage.dtype, storage.flat
    size = storage.memory.size * held.itemsize // dtype.itemsize
    _check_bounds(shape, strides, offset, size, dtype.itemsize)
    if held != dtype:
        count = size * dtype.itemsize // held.itemsize
        if count < storage.memory.size:  # the last bytes are less than one more element
            flat = View(flat, _block((count,), 0, storage.memory.size))
        flat = View(flat, _bitcasting(held, (count,), dtype, (size,)))
    found = View(flat, _region(tuple(shape), tuple(strides), offset, size))
    for bit, kind in (("conj", CONJUGATE), ("neg", NEGATIVE)):
        if bit in node.bits:
            found = View(found, kind)
    return found


def _check_bounds(shape: Sequence[int], strides: Sequence[int], offset: int, size: int, itemsize: int) -> None:
    last = sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) + offset
    if math.prod(shape) and last >= size:
        raise RuntimeError(
            f"setStorage: sizes {list(shape)}, strides {list(strides)}, storage offset {offset}, and itemsize "
            f"{itemsize} requiring a storage size of {(last + 1) * itemsize} are out of bounds for storage of size "
            f"{size * itemsize}"
        )


@remembered(1024)
def _region(shape: Sequence[int], strides: Sequence[int], offset: int, memory_size: int) -> ViewKind:
    if _is_contiguous(shape, strides) or 0 in shape:
        return _block(shape, 0 if 0 in shape else offset, memory_size)
    indices, overlaps = element_offsets(shape, strides, offset), overlaps_itself(shape, strides)

    return gathered((indices,), unique=not overlaps)


def gathered(index: tuple, *, unique: bool) -> ViewKind:
    """A view of the elements at an index of slices and arrays of numbers that are all within bounds."""

    def read(array: jax.Array):
        return array.at[index].get(mode="promise_in_bounds", unique_indices=unique, wrap_negative_indices=False)

    def write(array: jax.Array, value: jax.Array):
        return array.at[index].set(value, mode="promise_in_bounds", unique_indices=unique, wrap_negative_indices=False)

    return ViewKind(read, write, overlaps=not unique)


@remembered(1024)
def overlaps_itself(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Returns True if two elements of a strided tensor share a place in memory."""
    if any(size > 1 and stride == 0 for size, stride in zip(shape, strides, strict=True)):
        return 0 not in shape
    return np.unique(element_offsets(shape, strides, 0)).size < math.prod(shape)


def _is_contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    expected = 1
    for size, stride in reversed(list(zip(shape, strides, strict=True))):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _block(shape: Sequence[int], offset: int, memory_size: int) -> ViewKind:
    size = math.prod(shape)
    if size == memory_size:
        return ViewKind(lambda flat: reshape(flat, shape), lambda _, value: reshape(value, (size,)), covers=True)

    def read(flat: jax.Array):
        return reshape(lax.slice(flat, (offset,), (offset + size,)), shape)

    def write(flat: jax.Array, value: jax.Array):
        return lax.dynamic_update_slice(flat, reshape(value, (size,)), (np.int32(offset),))

    return ViewKind(read, write)


def _bitcasting(before: np.dtype, shape: Sequence[int], after: np.dtype, new_shape: Sequence[int]) -> ViewKind:
    return ViewKind(
        lambda array: bitcast(array, after, new_shape), lambda _, value: bitcast(value, before, shape), covers=True
    )


def bitcast(array: jax.Array, dtype: np.dtype, shape: Sequence[int]):
    """The same bytes as another dtype, in `shape`."""
    if array.dtype == dtype:
        return reshape(array, shape)
    if 0 in shape:
        return lax.full(shape, 0, dtype)
    for complex_dtype, part in ((np.complex64, np.float32), (np.complex128, np.float64)):
        if array.dtype == complex_dtype:
            parts = jnp.stack([lax.real(array), lax.imag(array)], axis=-1)
            return bitcast(parts.reshape(*array.shape[:-1], -1) if array.ndim else parts, dtype, shape)
        if dtype == complex_dtype:
            parts = bitcast(array, np.dtype(part), (*shape, 2))
            return lax.complex(parts[..., 0], parts[..., 1])
    if array.dtype == bool:
        array = array.astype(np.uint8)
    if np.issubdtype(dtype, np.bool_):
        return bitcast(array, np.dtype(np.uint8), shape).astype(bool)
    if array.dtype.itemsize < dtype.itemsize:
        array = array.reshape(*array.shape[:-1], -1, dtype.itemsize // array.dtype.itemsize)
    return lax.bitcast_convert_type(array, dtype).reshape(shape)


_MANY = 16


class Split(Journaled):
    """All parts of a node along one dimension, read by one operation, whose derivative is one concatenation."""

    __slots__ = ("_arrays", "_axis", "_node", "_sizes", "_version")
    changing = ("_arrays",)

    def __init__(self, node: Storage | View, sizes: tuple[int, ...], axis: int):
        self._begin()
        self._node, self._sizes, self._axis = node, sizes, axis
        self._arrays: Any = None
        self._version = node.storage.memory.version

    def forget(self) -> None:
        self._arrays = None

    @property
    def is_current(self) -> bool:
        """True if nothing has been written since; after that, reading all parts anew for each would not pay."""
        return self._version == self._node.storage.memory.version

    @property
    def is_apart(self) -> bool:
        """True if each part is read by itself: XLA takes seconds to compile a program with very many outputs."""
        return len(self._sizes) > _MANY and is_at_once(self._node.read())

    def part(self, index: int) -> Any:
        """The array of one part."""
        if self._arrays is None:
            self._record()
            self._arrays = lax.split(self._node.read(), self._sizes, self._axis)
        return self._arrays[index]


class SplitPart(View):
    """A view that is one part of a `Split` of its parent.

    Args:
        view: the same part as a view of its own, as it is written.
        squeezed: the dimension of size one that the view does without.
    """

    __slots__ = ("_index", "_split", "_squeezed")

    def __init__(self, view: View, split: Split, index: int, squeezed: int | None):
        super().__init__(view.parent, view.kind)
        self.region = view.region
        self._split, self._index, self._squeezed = split, index, squeezed

    def _read(self) -> object:
        if not self._split.is_current or self._split.is_apart:
            return super()._read()
        part = self._split.part(self._index)
        return part if self._squeezed is None else lax.squeeze(part, (self._squeezed,))
