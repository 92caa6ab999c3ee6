"""What a mask of unknown values chose along a later dimension: a selection, and where the dimension is that it chose.

The selection is held as any other, with its rows in front, so that nothing that is done with rows has to know of this.
Here is what changes the place of the dimension, and what aligns several tensors by it: elementwise functions.
"""

from collections.abc import Callable
from typing import Any

import torch

from ..errors import TracedValueError, user_location
from ..internals.memory import make_wrapper_subclass
from ..rules.inplace import InPlace, WithFlag
from ..tensors.trees import flatten, map_arguments
from .selected import Chosen, Selected, apply_elementwise as apply_to_rows, like

__all__ = ["Moved", "apply_elementwise", "broadcast", "front_of", "moved", "needs_broadcast"]


class Moved(Chosen):
    """A selection as code sees it whose first dimension is at a later place.

    It stands for ``front.movedim(0, at)``, where `at` is no less than one, and at most ``front.row_ndim``.
    """

    words = "a boolean mask chose along a later dimension"
    front: Selected
    at: int

    def __repr__(self, *, tensor_contents: object = None) -> str:
        del tensor_contents
        return f"<along dimension {self.at}: {self.front!r}>"

    @property
    def origin(self):
        return self.front.origin

    @property
    def others(self) -> tuple[int, ...]:
        """The sizes of the dimensions beside the one that was chosen."""
        return tuple(self.front.rows.shape[self.front.mask.ndim :])


def moved(chosen: Selected, at: int) -> Any:
    """A selection with its first dimension at a place."""
    if at == 0:
        return chosen
    sizes = list(chosen.rows.shape[chosen.mask.ndim :])
    made = make_wrapper_subclass(Moved, (*sizes[:at], 0, *sizes[at:]), dtype=chosen.rows.dtype)
    made.front, made.at = chosen, at
    return made


def front_of(x: Any) -> tuple[Selected, int]:
    """What was chosen with its dimension in front, and where that is."""
    return (x.front, x.at) if isinstance(x, Moved) else (x, 0)


def _ndim(x: Any) -> int:
    return front_of(x)[0].row_ndim + 1 if isinstance(x, Chosen) else x.ndim


def _from_the_end(x: Any) -> int:
    """Where the dimension is that was chosen, counted from the last, which is one."""
    front, at = front_of(x)
    return front.row_ndim + 1 - at


def needs_broadcast(args: tuple, kwargs: dict) -> bool:
    """Whether operands have to be brought into one shape before a function of rows takes them."""
    tensors = [x for x in flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
    if any(isinstance(x, Moved) for x in tensors):
        return True
    most = max((x.row_ndim for x in tensors if isinstance(x, Selected)), default=0)
    return any(_ndim(x) > most + 1 or (isinstance(x, Selected) and x.row_ndim < most) for x in tensors)


def _aligned(args: tuple, kwargs: dict, what: str) -> tuple[tuple, dict, int]:
    """Operands of a function of rows, and where the dimension is in its result that was chosen.

    Raises:
        RuntimeError: several dimensions of the result would be as long as data decide, or it has no such shape.
    """
    tensors = [x for x in flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
    places = {_from_the_end(x) for x in tensors if isinstance(x, Chosen)}
    if len(places) > 1:
        raise RuntimeError(
            f"{what} got tensors of which data decide how long they are along different dimensions, at "
            f"{user_location()}; wanted one such dimension: no array has a bound for each of two"
        )
    (place,) = places
    ndim = max(map(_ndim, tensors))

    def operand(x: Any):
        if isinstance(x, Chosen):
            front, _ = front_of(x)
            missing = ndim - front.row_ndim - 1
            if not missing:
                return front
            shape = front.mask.shape
            return like(
                front.rows.reshape(*shape, *[1] * missing, *front.rows.shape[len(shape) :]), front, front.is_safe
            )
        if not isinstance(x, torch.Tensor) or x.ndim < place:
            return x
        if x.shape[-place] != 1:
            raise RuntimeError(
                f"{what} got what a boolean mask chose along dimension {ndim - place}, and a tensor of size "
                f"{x.shape[-place]} there, at {user_location()}; wanted what the same mask chose, or a size of one"
            )
        return x.select(-place, 0)

    args, kwargs = map_arguments(operand, (args, kwargs))
    return args, kwargs, ndim - place


def broadcast(function: Callable, args: tuple, kwargs: dict, what: str) -> Any:
    """A function of rows that broadcasts its operands, whichever of their dimensions was chosen."""
    args, kwargs, at = _aligned(args, kwargs, what)
    return map_arguments(lambda x: moved(x, at) if isinstance(x, Selected) else x, function(*args, **kwargs))


def apply_elementwise(rule: Any, args: tuple, kwargs: dict) -> Any:
    """An elementwise rule, in one of its forms, of what masks chose."""
    if not needs_broadcast(args, kwargs):
        return apply_to_rows(rule, args, kwargs)
    if isinstance(rule, WithFlag):
        rule, args, kwargs = rule.form(args, kwargs)
    what = f"torch.{rule.name}"
    if not isinstance(rule, InPlace):
        return broadcast(lambda *args, **kwargs: apply_to_rows(rule, args, kwargs), args, kwargs, what)
    target = args[0]
    if not isinstance(target, Chosen):
        raise TracedValueError(f"{what} into a tensor of what a boolean mask chose")
    operands, kwargs, at = _aligned(args, kwargs, what)
    front, there = front_of(target)
    if operands[0] is not front or at != there:
        raise RuntimeError(f"{what}: got a target that does not have the shape of the result, at {user_location()}")
    apply_to_rows(rule, operands, kwargs)
    return target
