"""The arrays in storages: their dimensions in some order, in the graph or not yet."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jax import lax

from ..runtime.translation import this_call

_MOST_STEPS = 24


class ArrayBuffer(NamedTuple):
    """A tensor's values as one jax array, whose dimensions may be in another order than the tensor's.

    Operators that do not care for the order of dimensions work on the physical array: a transposition is emitted only
    where one is needed, and a convolution net stays in channels-last order from its first layer to its last.
    """

    array: Any
    layout: tuple[int, ...] | None
    """The tensor's dimension at each place of `array`, None if they are in order."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape."""
        if self.layout is None:
            return self.array.shape
        return tuple(size for _, size in sorted(zip(self.layout, self.array.shape, strict=True)))

    @property
    def dtype(self) -> np.dtype:
        return self.array.dtype

    @property
    def size(self) -> int:
        return self.array.size

    @property
    def buffer(self) -> "ArrayBuffer":
        return self

    def arranged(self, layout: tuple[int, ...] | None):
        """The array with its dimensions in the order of `layout`."""
        if layout == self.layout:
            return self.array
        own = self.layout or range(self.array.ndim)
        wanted = range(self.array.ndim) if layout is None else layout
        return lax.transpose(self.array, [list(own).index(dim) for dim in wanted])


class LazyArray:
    """The array of a known value that is not in the graph yet: it enters the graph at most once, or never.

    Args:
        emit: gives the array, in what JAX traces outside of all transformations that the code has begun.
        shape: the tensor's.
        dtype: the array's.
        depth: how many others `emit` asks in turn.
        source: the operation that it comes from, and which of its results it is.
    """

    __slots__ = ("_buffer", "_emit", "depth", "dtype", "shape", "source")

    def __init__(
        self,
        emit: Callable[[], ArrayBuffer],
        shape: tuple[int, ...],
        dtype: np.dtype,
        depth: int = 1,
        source: tuple[Any, int] | None = None,
    ):
        self._emit: Callable[[], ArrayBuffer] | None = emit
        self._buffer: Any = None
        self.shape, self.dtype, self.depth, self.source = shape, dtype, depth, source

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def is_long(self) -> bool:
        """True if a constant is shorter than the steps that lead to it; this also bounds `buffer`'s recursion."""
        return self.depth > _MOST_STEPS

    @property
    def buffer(self) -> ArrayBuffer:
        """The array; this puts it into the graph."""
        if self._emit is not None:
            with this_call().outside():
                self._buffer = self._emit()
            self._emit = None
        return self._buffer

    def then(
        self, change: Callable[[ArrayBuffer], ArrayBuffer], shape: tuple[int, ...], dtype: np.dtype
    ) -> "LazyArray":
        """The result of `change` on the array, computed when the graph needs it."""
        return LazyArray(lambda: change(self.buffer), shape, dtype, self.depth + 1)
