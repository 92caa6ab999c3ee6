"""Results of branches and bodies that are not tensors: Python integers, and None."""

from collections.abc import Callable
from typing import Any

import torch

from ...branches.block import uncaptured
from ...internals.pytree import tree_flatten, tree_unflatten
from ...values.traced_numbers import Number, number_of

__all__ = ["Tensors"]


class Tensors:
    """A function whose results may also be integers and None, as one that gives tensors.

    Args:
        function: any.
        operator: PyTorch's name of what it is a part of.
        integers: whether it may give integers.
    """

    def __init__(self, function: Callable, operator: str, *, integers: bool):
        self._function, self._operator = function, operator
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
        self._kinds = [None if x is None else isinstance(x, (int, Number)) for x in leaves]
        return [number_of(x) if kind else x for x, kind in zip(leaves, self._kinds, strict=True) if kind is not None]

    @property
    def signature(self) -> tuple:
        """What two functions must have in common to have results alike."""
        return self.spec, [None if kind is None else bool(kind) for kind in self._kinds]

    def restored(self, tensors: list) -> Any:
        """The function's results, where these are its tensors."""
        found = iter(tensors)
        leaves = [None if kind is None else Number.of(next(found)) if kind else next(found) for kind in self._kinds]
        return tree_unflatten(leaves, self.spec)
