"""Where a mask of unknown values is true: ``nonzero`` under jit, and subscripts and scatters by what it gives."""

from typing import Any

import numpy as np
import torch
from jax import lax

from ..calls.call import current
from ..errors import TracedValueError
from ..rules.inplace import write_in_place
from ..rules.registry import implements_selected, lookup, lookup_selected
from ..rules.rule import InnerRule
from ..tensors.dtypes import is_held_alike, is_integral
from ..tensors.tensor import Torchish
from ..values.selected import Selected, begin, select
from .arrays import cast
from .bounds import known_values
from .selection import getitem as getitem_of_mask, setitem as setitem_of_mask

aten = torch.ops.aten
Tensor = torch.Tensor


# The places.


def _places(mask: Torchish) -> tuple[Selected, ...]:
    """For each dimension, the index of what a mask is true for."""
    grid = torch.meshgrid(*map(torch.arange, mask.shape), indexing="ij")
    return tuple(select(index, mask) for index in grid)


def _gives_places(function, of_places) -> None:
    """Lets a function whose result is as long as values say give what `of_places` makes of unknown ones."""
    rule: Any = lookup(function)

    def of_unknown(input, **kwargs):
        if current().transformations or input.ndim == 0:
            raise TracedValueError(f"torch.{rule.name}")
        with current().inside():
            tensor = current().lift(input)
            mask: Any = tensor.clone() if tensor.dtype == torch.bool else tensor != 0
            found = of_places(_places(mask), **kwargs)
            words = f"what torch.{rule.name} found"
            return tuple(begin(x, words) for x in found) if isinstance(found, tuple) else begin(found, words)

    rule.of_unknown = of_unknown


def _together(places, as_tuple: bool = False):
    if as_tuple:
        return places
    return select(torch.stack([place.rows for place in places], -1), places[0].mask)


_gives_places(torch.nonzero, _together)
_gives_places(torch.argwhere, _together)
_gives_places(aten.where.default, lambda places: places)


@implements_selected(torch.nonzero, Tensor.nonzero)
def nonzero(input, *, as_tuple=False):
    return _together(_places_of_chosen(input), as_tuple)


@implements_selected(torch.argwhere, Tensor.argwhere)
def argwhere(input):
    return nonzero(input)


_where_of_three = lookup_selected(torch.where)


@implements_selected(torch.where)
def where(condition, *others, **named):
    if others or named:
        return _where_of_three(condition, *others, **named)
    return _places_of_chosen(condition)


def _places_of_chosen(condition: Selected) -> tuple[Selected, ...]:
    """As `_places`, of what a mask chose: which of those that were chosen."""
    of_row = condition.rows.shape[condition.mask.ndim :]
    mask: Any = condition.spread_mask() & (condition.rows if condition.dtype == torch.bool else condition.rows != 0)
    ranks = (condition.mask.reshape(-1).cumsum(0) - 1).reshape(condition.mask.shape)
    spread = ranks.reshape(*ranks.shape, *[1] * len(of_row)).expand(mask.shape)
    places = [select(spread, mask)]
    places[0].places_in = condition.mask if not of_row else None
    for dim, size in enumerate(of_row):
        index = torch.arange(size).reshape(-1, *[1] * (len(of_row) - 1 - dim)).expand(mask.shape)
        places.append(select(index, mask))
    return tuple(places)


# Subscripts.


def _led_by_places(index) -> tuple[list[Selected], list] | None:
    """The places of one mask that a subscript begins with, and what else it has; None if it does not begin so."""
    items = list(index) if isinstance(index, tuple) else [index]
    count = next((i for i, item in enumerate(items) if not isinstance(item, Selected)), len(items))
    places, rest = items[:count], items[count:]
    if not places or not all(is_integral(x.dtype) and x.row_ndim == 0 and x.is_like(places[0]) for x in places):
        return None
    if any(isinstance(item, (Tensor, list, tuple)) for item in rest):
        return None
    return places, rest


def _is_where_mask_is(target: Tensor, places: list[Selected]) -> bool:
    """Whether places are those of a tensor's own elements for which the mask over it is true."""
    shape = tuple(places[0].mask.shape)
    if len(places) != len(shape) or tuple(target.shape[: len(shape)]) != shape:
        return False
    known = (known_values(current().lift(place.rows)) for place in places)
    return all(x is not None and np.array_equal(x, y) for x, y in zip(known, np.indices(shape), strict=True))


@implements_selected(Tensor.__getitem__)
def getitem(self, index):
    led = None if isinstance(self, Selected) else _led_by_places(index)
    if led is None:
        return getitem_of_mask(self, index)
    places, rest = led
    if _is_where_mask_is(self, places):
        chosen = select(current().lift(self).clone(), places[0].mask)
    else:
        chosen = select(self[tuple(place.safe() for place in places)], places[0].mask, True)
    return getitem_of_mask(chosen, (slice(None), *rest)) if rest else chosen


@implements_selected(torch.index_select, Tensor.index_select)
def index_select(input, dim, index):
    if isinstance(input, Selected) or dim % input.ndim:
        raise TracedValueError("torch.index_select of, or by, what a boolean mask chose")
    return getitem(input, index)


def _scatter(array, values, mask, accumulate: bool, *indices):
    """An array with values at indices, where the mask is true."""
    outside = array.shape[0]  # of which nothing is written
    first = lax.select(mask, indices[0], lax.full_like(indices[0], outside))
    first = lax.select(lax.lt(first, lax.full_like(first, 0)), lax.add(first, lax.full_like(first, outside)), first)
    at = array.at[(first, *indices[1:])]
    values = cast(values, array.dtype)
    return at.add(values, mode="drop") if accumulate else at.set(values, mode="drop")


_SCATTER = InnerRule(_scatter, "index_put")


def _scattered(target, places: list[Selected], values, accumulate: bool):
    """A tensor with values at places of one mask."""
    mask, of_row = places[0].mask, target.shape[len(places) :]
    if isinstance(values, Selected):
        if not values.is_like(places[0]):
            raise TracedValueError("writing what another boolean mask chose to where one is true")
        values = values.rows
    else:
        values = torch.as_tensor(values, dtype=target.dtype)
        if values.ndim > len(of_row):
            raise TracedValueError("writing a tensor to where a boolean mask is true, which is not one row for all,")
    if not is_held_alike(values.dtype, target.dtype):
        raise RuntimeError(
            f"Index put requires the source and destination dtypes match, got {target.dtype} for the destination and "
            f"{values.dtype} for the source."
        )
    values = values.expand(*mask.shape, *of_row)
    return _SCATTER((target, values, mask, accumulate, *(place.rows for place in places)), {})


@implements_selected(Tensor.__setitem__)
def setitem(self, index, value):
    led = None if isinstance(self, Selected) else _led_by_places(index)
    if led is None:
        setitem_of_mask(self, index, value)
        return
    places, rest = led
    if rest:
        self = self[(*[slice(None)] * len(places), *rest)]
    if _is_where_mask_is(self, places):
        self[places[0].mask] = value
    else:
        write_in_place(self, _scattered(self, places, value, False))


def _as_places(indices) -> list[Selected]:
    led = _led_by_places(tuple(indices))
    if led is None or led[1]:
        raise TracedValueError("these indices, some of which a boolean mask chose,")
    return led[0]


@implements_selected(torch.index_put, Tensor.index_put)
def index_put(input, indices, values, accumulate=False):
    return _scattered(input, _as_places(indices), values, accumulate)


@implements_selected(torch.index_add, Tensor.index_add)
def index_add(input, dim, index, source, *, alpha=1):
    if dim % input.ndim:
        raise TracedValueError("torch.index_add along a later dimension, of what a boolean mask chose,")
    return _scattered(input, _as_places([index]), source if alpha == 1 else source * alpha, True)


@implements_selected(torch.scatter_add, Tensor.scatter_add)
def scatter_add(input, dim, index, src):
    if input.ndim != 1:
        raise TracedValueError("torch.scatter_add to more than one dimension, of what a boolean mask chose,")
    return _scattered(input, _as_places([index]), src, True)


@implements_selected(torch.index_copy, Tensor.index_copy)
def index_copy(input, dim, index, source):
    if dim % input.ndim:
        raise TracedValueError("torch.index_copy along a later dimension, of what a boolean mask chose,")
    return _scattered(input, _as_places([index]), source, False)


def _in_place(function):
    return lambda self, *args, **kwargs: write_in_place(self, function(self, *args, **kwargs))


for _name, _function in (
    ("index_put_", index_put),
    ("index_add_", index_add),
    ("scatter_add_", scatter_add),
    ("index_copy_", index_copy),
):
    implements_selected(getattr(Tensor, _name))(_in_place(_function))
