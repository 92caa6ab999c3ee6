"""Results of branches and bodies that are not ordinary tensors: Python integers, None, and selections."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from ...branches.block import uncaptured
from ...internals.pytree import tree_flatten, tree_unflatten
from ...values.moved import in_compact_order, nested, unnested
from ...values.selected import Chosen, first
from ...values.traced_numbers import Number, number_of

__all__ = ["Rooms", "Tensors"]


class _PaddedDims(NamedTuple):
    """The kind of a result of which data decide how long some dimensions are: it is an array with these lengths."""

    dims: tuple[int, ...]


class Rooms:
    """How much room the selections among the results of some branches have, so that all have as much."""

    def __init__(self):
        self._rooms: dict[int, dict[int, int]] = {}
        self.has_grown = False
        """Whether a branch has needed more than was known."""

    def opened(self, place: int, result: Any) -> tuple[_PaddedDims | None, list]:
        """A result as tensors that have the room of all branches: it, and a length for each such dimension."""
        known = self._rooms.get(place, {})
        if not isinstance(result, Chosen) and not known:
            return None, [result]
        tensor, fronts = unnested(in_compact_order(result))
        rooms = {dim: max(known.get(dim, 0), tensor.shape[dim]) for dim in sorted({*known, *fronts})}
        self.has_grown, self._rooms[place] = self.has_grown or rooms != known, rooms
        lengths = [fronts[dim].length if dim in fronts else torch.tensor(tensor.shape[dim]) for dim in rooms]
        pads = [rooms.get(dim, size) - size for dim, size in enumerate(tensor.shape)]
        padded = torch.nn.functional.pad(tensor, [x for size in reversed(pads) for x in (0, size)])
        return _PaddedDims(tuple(rooms)), [padded, *lengths]


def _closed(kind: _PaddedDims, tensors: list) -> Any:
    tensor, *lengths = tensors
    fronts = {dim: first(torch.arange(tensor.shape[dim]), x) for dim, x in zip(kind.dims, lengths, strict=True)}
    return nested(tensor, fronts, is_safe=False)


class Tensors:
    """A function whose results may also be integers, None and selections, as one that gives tensors.

    Args:
        function: any.
        operator: PyTorch's name of what it is a part of.
        integers: whether it may give integers.
        rooms: for the selections that it may give, which others give as well.
    """

    def __init__(self, function: Callable, operator: str, *, integers: bool, rooms: Rooms | None = None):
        self._function, self._operator, self._rooms = function, operator, rooms
        self._allowed = (torch.Tensor, int) if integers else torch.Tensor
        self._kinds: list[Any] = []
        self.spec: Any = None
        """The structure of its results."""

    def __call__(self, *args) -> list[torch.Tensor]:
        leaves, self.spec = tree_flatten(self._function(*args))
        for leaf in leaves:
            if not (leaf is None or isinstance(leaf, self._allowed)):
                wanted = "tensors" if self._allowed is torch.Tensor else "tensors and integers"
                raise uncaptured(self._operator, f"got {leaf!r} among the results; wanted {wanted}")
        self._kinds, tensors = [], []
        for place, leaf in enumerate(leaves):
            kind, found = None if leaf is None else isinstance(leaf, (int, Number)), [leaf]
            if kind is None:
                found = []
            elif kind:
                found = [number_of(leaf)]
            elif self._rooms is not None:
                lengths, found = self._rooms.opened(place, leaf)
                kind = kind if lengths is None else lengths
            self._kinds.append(kind)
            tensors += found
        return tensors

    @property
    def signature(self) -> tuple:
        """What two functions must have in common to have results alike."""
        return self.spec, [
            kind if isinstance(kind, _PaddedDims) or kind is None else bool(kind) for kind in self._kinds
        ]

    def restored(self, tensors: list) -> Any:
        """The function's results, where these are its tensors."""
        found = iter(tensors)
        leaves = []
        for kind in self._kinds:
            if isinstance(kind, _PaddedDims):
                leaves.append(_closed(kind, [next(found) for _ in range(1 + len(kind.dims))]))
            else:
                leaves.append(None if kind is None else Number.of(next(found)) if kind else next(found))
        return tree_unflatten(leaves, self.spec)
