"""Selections along a later dimension, or along several.

A selection is held with its rows in front, so that nothing that is done with rows has to know of places. Here is what
says where its dimension is, what gives a nested selection with one or another dimension in front, and what aligns
several tensors by such dimensions: elementwise functions.
"""

import functools
import operator
import types
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch
from jax import lax

from ..errors import TracedValueError
from ..errors.locations import user_location
from ..internals.dispatch import DisableAutocast
from ..internals.tensors import make_wrapper_subclass
from ..rules import autocast, registry
from ..rules.features import handles
from ..rules.inplace import InPlace, WithFlag, check_cast
from ..rules.keywords import Rule
from ..runtime.translation import Call, lift
from ..tensors.tensor import wrap
from ..tensors.trees import flatten, map_arguments
from .selected import (
    Chosen,
    Selected,
    aligned,
    apply_elementwise as apply_to_rows,
    first,
    like,
    packed,
    pass_on_origin,
    select,
    write_elementwise,
)


class SelectedAtAxis(Chosen):
    """A selection as code sees it whose first dimension is at a later place.

    It stands for ``leading.movedim(0, at)``, where `at` is no less than one, and at most ``leading.row_ndim``. The
    first dimension is never one that data decide: a nested selection with such a one is a `Selected`.
    """

    words = "a boolean mask chose along a later dimension"
    leading: Selected
    at: int

    def __repr__(self, *, tensor_contents: object = None) -> str:
        del tensor_contents
        return f"<along dimension {self.at}: {self.leading!r}>"

    @property
    def origin(self):
        return self.leading.origin

    @property
    def base(self):
        return self.leading.base

    @property
    def axis(self) -> int | None:
        return None if self.leading.axis is None else self.at

    @property
    def parts(self):
        return {"leading": self.leading}

    @property
    def others(self) -> tuple[int, ...]:
        """The sizes of the dimensions other than the selected one."""
        return tuple(self.leading.rows.shape[self.leading.mask.ndim :])


def at_axis(chosen: Selected, at: int) -> Any:
    """A selection with its first dimension at a place."""
    if at == 0:
        return chosen
    sizes = chosen.sizes[1:]
    made = make_wrapper_subclass(SelectedAtAxis, (*sizes[:at], 0, *sizes[at:]), dtype=chosen.rows.dtype)
    made.leading, made.at = chosen, at
    return with_leading(made, 0) if 0 in unknown_dims(made) else made


def leading_of(x: Any) -> tuple[Selected, int]:
    """The selection with its dimension first, and the position of that dimension."""
    return (x.leading, x.at) if isinstance(x, SelectedAtAxis) else (x, 0)


def ndim_of(x: Any) -> int:
    """The number of dimensions of a tensor or a selection."""
    return leading_of(x)[0].row_ndim + 1 if isinstance(x, Chosen) else x.ndim


# Several dimensions.


def unknown_dims(x: Any) -> list[int]:
    """The dimensions of a data-dependent tensor, the outermost first."""
    if not isinstance(x, Chosen):
        return []
    leading, at = leading_of(x)
    lead = leading.mask.ndim
    inner = [dim - lead for dim in unknown_dims(leading.rows)]
    return [at, *(dim if dim < at else dim + 1 for dim in inner)]


def with_leading(x: Any, dim: int) -> Selected:
    """The selection with one of its data-dependent dimensions first, as the outermost."""
    leading, at = leading_of(x)
    if dim == at:
        return leading
    lead = leading.mask.ndim
    inner = with_leading(leading.rows, lead + (dim if dim < at else dim - 1))
    count = inner.mask.ndim
    of_inner = [*range(count, count + lead), *range(count), *range(count + lead, inner.rows.ndim)]
    outer = like(inner.rows.permute(of_inner), leading)
    return like(at_axis(outer, count + at - (dim < at)), inner)


def unnested(x: Any, held: Callable[[Selected], Any] = operator.attrgetter("rows")) -> tuple[Any, dict[int, Selected]]:
    """A plain tensor with room for the bounds, and the selection along each data-dependent dimension.

    The mask of each has one dimension.

    Args:
        held: gives all rows of a selection, if those that were not chosen are to be zero, or copies.
    """
    if not isinstance(x, Chosen):
        return x, {}
    leading, at = leading_of(x)
    leading = packed(leading) if leading.mask.ndim > 1 else leading
    rows, inner = unnested(held(leading), held)
    by_dim = {at: leading, **{dim if dim > at else dim - 1: each for dim, each in inner.items()}}
    return rows.movedim(0, at) if at else rows, by_dim


def nested(tensor: torch.Tensor, by_dim: dict[int, Selected]) -> Any:
    """A tensor with the masks of selections applied along several of its dimensions."""
    if not by_dim:
        return tensor
    at = min(by_dim)
    rows = tensor.movedim(at, 0) if at else tensor
    rows = nested(rows, {dim: each for dim, each in by_dim.items() if dim != at})
    return at_axis(like(rows, by_dim[at]), at)


def merged(x: Any, count: int | None = None) -> Selected:
    """The first dimensions merged; elements of the first index come first.

    Args:
        count: how many, of which data decide some; None for those up to the last that data decide.
    """
    tensor, by_dim = unnested(x)
    count = max(by_dim) + 1 if count is None else count
    mask: Any = torch.ones((), dtype=torch.bool)
    for dim, leading in by_dim.items():
        if dim < count:
            mask = mask & leading.mask.reshape(-1, *[1] * (count - 1 - dim))
    rows = nested(tensor, {dim: leading for dim, leading in by_dim.items() if dim >= count})
    chosen = select(rows, mask.expand(tensor.shape[:count]), x.origin)
    lengths = [by_dim[dim].length if dim in by_dim else tensor.shape[dim] for dim in range(count)]
    chosen._length = functools.reduce(lambda one, other: one * other, lengths)
    return chosen


def zeroed(chosen: Selected) -> torch.Tensor:
    """All rows of a selection, with zeros in place of those not chosen."""
    return chosen.filled(torch.zeros((), dtype=chosen.dtype))


def in_compact_order(x: object) -> object:
    """The same with each data-dependent dimension in compact order."""
    for dim in unknown_dims(x):
        x = at_axis(packed(with_leading(x, dim)), dim)
    return x


def aligned_along(operands: list, dims: list[int | None], what: str) -> list:
    """Tensors in one order under one mask along data-dependent dimensions of equal lengths.

    Args:
        dims: which, for each of the tensors; None for one that has none such.
    """
    found = iter(
        aligned([with_leading(x, dim) for x, dim in zip(operands, dims, strict=True) if dim is not None], what)
    )
    return [x if dim is None else at_axis(next(found), dim) for x, dim in zip(operands, dims, strict=True)]


def over_padded(function: Callable, *operands: Any) -> "torch.Tensor | SelectedAtAxis":
    """A function of tensors with room for all that there may be, whose results have the dimensions of the first.

    None of them is one that the function acts along. What was not chosen is a copy.
    """
    tensor, by_dim = unnested(operands[0], Selected.copied)
    made = function(tensor, *(unnested(x, Selected.copied)[0] for x in operands[1:]))
    return map_arguments(lambda x: nested(x, by_dim) if isinstance(x, torch.Tensor) else x, made)


# Operands of functions of each element.


def _from_the_end(x: torch.Tensor | Selected | SelectedAtAxis) -> list[int]:
    """The data-dependent dimensions, counted from the last, which is 1."""
    return [ndim_of(x) - dim for dim in unknown_dims(x)]


def needs_broadcast(args: tuple, kwargs: dict) -> bool:
    """Returns True if operands must be broadcast to one shape before a function of rows takes them."""
    tensors = [x for x in flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
    if any(isinstance(x, SelectedAtAxis) for x in tensors):
        return True
    most = max((x.row_ndim for x in tensors if isinstance(x, Selected)), default=0)
    return any(ndim_of(x) > most + 1 or (isinstance(x, Selected) and x.row_ndim < most) for x in tensors)


def _aligned(args: tuple, kwargs: dict, what: str) -> tuple[tuple, dict, int]:
    """Operands of a function of rows, and where the dimension is in its result that was chosen.

    It is the first of those that data decide. Others are of each row.

    Raises:
        RuntimeError: the result has no such shape.
    """
    tensors = [x for x in flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
    position = max(position for x in tensors for position in _from_the_end(x))
    ndim = max(map(ndim_of, tensors))

    def operand(x: Any):
        if isinstance(x, Chosen) and position in _from_the_end(x):
            leading = with_leading(x, ndim_of(x) - position)
            missing = ndim - leading.row_ndim - 1
            rows = leading.rows
            for _ in range(missing):
                rows = rows.unsqueeze(leading.mask.ndim)
            return like(rows, leading) if missing else leading
        if not isinstance(x, torch.Tensor) or ndim_of(x) < position:
            return x
        if x.shape[-position] != 1:
            raise RuntimeError(
                f"{what} got a boolean-mask selection along dimension {ndim - position}, and a tensor of size "
                f"{x.shape[-position]} there, at {user_location()}; wanted what the same mask chose, or a size of one"
            )
        return x.select(-position, 0)

    args, kwargs = map_arguments(operand, (args, kwargs))
    return args, kwargs, ndim - position


def broadcast(function: Callable, args: tuple, kwargs: dict, what: str) -> "Selected | SelectedAtAxis":
    """A function of rows that broadcasts its operands, whichever of their dimensions was chosen."""
    args, kwargs, at = _aligned(args, kwargs, what)
    return map_arguments(lambda x: at_axis(x, at) if isinstance(x, Selected) else x, function(*args, **kwargs))


def apply_elementwise(rule: Rule, args: tuple, kwargs: dict) -> Any:
    """An elementwise rule, in one of its forms, of tensors or of mask selections."""
    if isinstance(rule, WithFlag):
        rule, args, kwargs = rule.form(args, kwargs)
    if not any(isinstance(x, Chosen) for x in (*args, *kwargs.values())):
        return rule(args, kwargs)
    is_plain = not needs_broadcast(args, kwargs)
    if isinstance(rule, InPlace):
        if is_plain:
            return write_elementwise(rule, args, kwargs, apply_elementwise)
        return _write_at_axis(rule, args, kwargs)
    if is_plain:
        return apply_to_rows(rule, args, kwargs, apply_elementwise)
    apply = lambda *args, **kwargs: apply_to_rows(rule, args, kwargs, apply_elementwise)
    return broadcast(apply, args, kwargs, f"torch.{rule.name}")


def _write_at_axis(rule: InPlace, args: tuple, kwargs: dict) -> object:
    target = args[0]
    if not isinstance(target, Chosen) or "out" in kwargs:
        raise TracedValueError(f"torch.{rule.name} into a tensor of a boolean-mask selection")
    result = apply_elementwise(rule.rule, args, kwargs)
    if sorted(unknown_dims(result)) != sorted(unknown_dims(target)) or ndim_of(result) != ndim_of(target):
        raise RuntimeError(
            f"torch.{rule.name}: got a target that does not have the shape of the result, at {user_location()}"
        )
    check_cast(result.base, target.base)
    return target.copy_(result)


# Functions of selections: by a declared rule, an elementwise one, or a body.


@handles(Selected, 0)
def run_selected(call: Call, function: Callable[..., object], args: tuple, kwargs: dict) -> object:
    """The result of a function of a selection by a traced mask."""
    return _run(call, function, args, kwargs, registry.lookup_selected, Selected.words)


@handles(SelectedAtAxis, -1)  # also beside a selection
def run_at_axis(call: Call, function: Callable[..., object], args: tuple, kwargs: dict) -> object:
    """The result of a function of a selection by a traced mask along a later dimension."""
    return _run(call, function, args, kwargs, registry.lookup_at_axis, SelectedAtAxis.words)


def _run(call: Call, function: Any, args: tuple, kwargs: dict, lookup: Callable, words: str) -> Any:
    rule = registry.lookup(function)
    device = autocast.region()
    if device is not None and rule is not None:
        treatment = autocast.of_function(function, rule, device)
        if treatment.is_operator:
            with DisableAutocast():
                return _run(call, function, *treatment.cast(args, kwargs), lookup, words)
    declared = lookup(function)
    if declared is not None:
        with call.inside():
            return pass_on_origin(declared(*args, **kwargs), args, kwargs)
    if rule is not None and rule.elementwise:
        with call.inside():
            return apply_elementwise(rule, *rule.names.placed(function, args, kwargs))
    if rule is None and isinstance(function, types.FunctionType) and not call.is_own_body(function, args):
        return call.run_body(function, args, kwargs)
    name = function.__self__.__name__ if function.__name__ == "__get__" else function.__name__
    raise TracedValueError(f"torch.{name} of what {words}")


# Tensors that a loop carries though their size changes between iterations: room for the most, and a length.


def with_length(array: jax.Array, length: Any, axis: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor whose dimension `axis` is as long as a traced number says.

    Args:
        array: ``(room, ...)``, with that dimension in front.
        length: an integer that is not beyond the room.
    """
    return at_axis(first(wrap(array, dtype), wrap(length, torch.int64)), axis)


def rows_and_length(tensor: torch.Tensor, axis: int) -> tuple[Any, Any] | None:
    """The array of a tensor with its dimension `axis` in front, in compact order, and how long that is.

    None where another dimension is as long as data decide.
    """
    if not isinstance(tensor, Chosen):
        array = lift(tensor).read()
        order = (axis, *(dim for dim in range(array.ndim) if dim != axis))
        return lax.transpose(array, order), array.shape[axis]
    leading, at = leading_of(tensor)
    if at != axis:
        return None
    found: Selected = packed(leading)
    rows: Any = found.rows
    if isinstance(rows, Chosen):
        return None
    length: Any = found.length
    return rows.read(), length.read()


def padded_to(rows: jax.Array, capacity: int) -> jax.Array:
    """The first `capacity` of rows ``(n, ...)``, with zeros after them if there are fewer."""
    if len(rows) >= capacity:
        return lax.slice_in_dim(rows, 0, capacity)
    return lax.pad(rows, np.zeros((), rows.dtype), [(0, capacity - len(rows), 0), *[(0, 0, 0)] * (rows.ndim - 1)])
