"""Parts of a tensor along one dimension."""

from typing import Any

from jax import lax

from .journal import Journaled
from .storage import Storage, View
from .traced import is_at_once

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
        """Whether nothing has been written since; after that, reading all parts anew for each would not pay."""
        return self._version == self._node.storage.memory.version

    @property
    def is_apart(self) -> bool:
        """Whether each part is read by itself: XLA takes seconds to compile a program that gives very many."""
        return len(self._sizes) > _MANY and is_at_once(self._node.read())

    def part(self, index: int) -> Any:
        """The array of one part."""
        if self._arrays is None:
            self._touch()
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
        self.place = view.place
        self._split, self._index, self._squeezed = split, index, squeezed

    def _read(self) -> Any:
        if not self._split.is_current or self._split.is_apart:
            return super()._read()
        part = self._split.part(self._index)
        return part if self._squeezed is None else lax.squeeze(part, (self._squeezed,))
