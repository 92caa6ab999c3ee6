"""The indices of a traced mask's true elements: ``nonzero`` under jit, and subscripts and scatters by them."""

import functools
from typing import Any

import numpy as np
import torch
from jax import lax

from ..rules.array_rule import InnerRule
from ..rules.inplace import write_in_place
from ..rules.registry import implements_masked, implements_rows, lookup, lookup_masked
from ..runtime.errors import TracedValueError
from ..runtime.errors.locations import user_location
from ..runtime.translation import current, lift
from ..tensors.dtypes import has_same_array_dtype
from ..tensors.tensor import Torchish
from ..values.masked import Masked, aligned, in_order_of, leads, like, packed, select
from ..values.masked_functions import begin
from .arrays import cast
from .bounds import known_values
from .selection import getitem as getitem_of_mask, is_integer_index, setitem as setitem_of_mask
from .selection_nested import indices_in

aten = torch.ops.aten
Tensor = torch.Tensor


# The places.


def _indices_of(mask: Torchish) -> tuple[Masked, ...]:
    """For each dimension, the indices of a mask's true elements."""
    grid = torch.meshgrid(*map(torch.arange, mask.shape), indexing="ij")
    return tuple(select(index, mask) for index in grid)


def _gives_indices(function, of_indices) -> None:
    """Makes a function like ``nonzero`` return the result of `of_indices` for traced values."""
    rule: Any = lookup(function)

    def of_unknown(input, **kwargs):
        if input.ndim == 0:
            raise TracedValueError(f"torch.{rule.name} of one number")
        if current().transformations:
            raise TracedValueError(
                f"torch.{rule.name}, within a transformation that the code has begun,",
                instead="subscript by the mask itself, as x[x != 0], or give it x.detach(), without jit",
            )
        with current().inside():
            tensor = lift(input)
            mask: Any = tensor.clone() if tensor.dtype == torch.bool else tensor != 0
            found = of_indices(_indices_of(mask), **kwargs)
            words = f"what torch.{rule.name} found"
            return tuple(begin(x, words) for x in found) if isinstance(found, tuple) else begin(found, words)

    rule.of_unknown = of_unknown


def _together(indices, as_tuple: bool = False):
    if as_tuple:
        return indices
    return select(torch.stack([position.rows for position in indices], -1), indices[0].mask)


_gives_indices(torch.nonzero, _together)
_gives_indices(torch.argwhere, _together)
_gives_indices(aten.where.default, lambda indices: indices)


@implements_masked(torch.nonzero, Tensor.nonzero)
def nonzero(input, *, as_tuple=False):
    return _together(_indices_of_chosen(input), as_tuple)


@implements_masked(torch.argwhere, Tensor.argwhere)
def argwhere(input):
    return nonzero(input)


_where_of_three = lookup_masked(torch.where).body


@implements_masked(torch.where)
def where(condition, *others, **named):
    if others or named:
        return _where_of_three(condition, *others, **named)
    return _indices_of_chosen(condition)


def _indices_of_chosen(condition: Masked) -> tuple[Masked, ...]:
    """As `_indices_of`, for a selection: indices into it."""
    if not leads(condition) or isinstance(condition.rows, Masked):
        return indices_in(condition)
    of_row = condition.rows.shape[condition.mask.ndim :]
    mask: Any = condition.spread_mask() & (condition.rows if condition.dtype == torch.bool else condition.rows != 0)
    ranks = (condition.mask.reshape(-1).cumsum(0) - 1).reshape(condition.mask.shape)
    spread = ranks.reshape(*ranks.shape, *[1] * len(of_row)).expand(mask.shape)
    indices = [select(spread, mask)]
    indices[0].indices_in = condition.mask if not of_row else None
    for dim, size in enumerate(of_row):
        index = torch.arange(size).reshape(-1, *[1] * (len(of_row) - 1 - dim)).expand(mask.shape)
        indices.append(select(index, mask))
    return tuple(indices)


# Subscripts.


def _split_indices(index, of_one: bool = True) -> tuple[list[Masked], list] | None:
    """The indices that a subscript begins with, and the rest of it; None if it does not begin so.

    Args:
        of_one: whether they are to be of one mask.
    """
    items = list(index) if isinstance(index, tuple) else [index]
    count = next((i for i, item in enumerate(items) if not leads(item)), len(items))
    indices, rest = items[:count], items[count:]
    if not indices or not all(is_integer_index(x) and x.row_ndim == 0 for x in indices):
        return None
    if of_one and not all(x.is_like(indices[0]) for x in indices):
        return None
    if any(isinstance(item, (Tensor, list, tuple)) for item in rest):
        return None
    return indices, rest


def _without_numbers(target, index):
    """A tensor, and a subscript that begins with places: Python's numbers before or among these are taken first."""
    if not isinstance(index, tuple) or leads(target):
        return target, index
    count = next((i for i, x in enumerate(index) if not leads(x) and type(x) is not int), len(index))
    lead = index[:count]
    if all(leads(x) for x in lead) or not any(leads(x) for x in lead):
        return target, index
    taken = tuple(x if type(x) is int else slice(None) for x in lead)
    return target[taken], (*(x for x in lead if type(x) is not int), *index[count:])


def has_mask(index) -> bool:
    """Returns True if a traced mask is one of several items of a subscript."""
    return isinstance(index, tuple) and any(map(_is_unknown_mask, index))


def _is_unknown_mask(item) -> bool:
    if not isinstance(item, Tensor) or item.dtype != torch.bool or item.ndim == 0:
        return False
    return leads(item) or known_values(lift(item)) is None


def with_indices(index: tuple) -> tuple:
    """A subscript with indices in place of traced masks."""
    items = []
    for item in index:
        items.extend(torch.where(item) if _is_unknown_mask(item) else [item])
    return tuple(items)


def _is_where_mask_is(target: Tensor, indices: list[Masked]) -> bool:
    """Returns True if indices are those of a tensor's own elements for which the mask over it is true."""
    shape = tuple(indices[0].mask.shape)
    if len(indices) != len(shape) or tuple(target.shape[: len(shape)]) != shape:
        return False
    known = (known_values(lift(position.rows)) for position in indices)
    return all(x is not None and np.array_equal(x, y) for x, y in zip(known, np.indices(shape), strict=True))


@implements_rows(Tensor.__getitem__)
def getitem(self, index):
    self, index = _without_numbers(self, index)
    split = None if leads(self) else _split_indices(index)
    if split is None:
        return getitem_of_mask(self, index)
    indices, rest = split
    if _is_where_mask_is(self, indices):
        chosen = select(lift(self).clone(), indices[0].mask)
    else:
        positions = tuple(position.within(self.shape[dim]) for dim, position in enumerate(indices))
        chosen = select(self[positions], indices[0].mask)
    return getitem_of_mask(chosen, (slice(None), *rest)) if rest else chosen


def _scatter(array, values, mask, accumulate: bool, *indices):
    """An array with values at indices, where the mask is true."""
    outside = array.shape[0]  # of which nothing is written
    first = lax.select(mask, indices[0], lax.full_like(indices[0], outside))
    first = lax.select(lax.lt(first, lax.full_like(first, 0)), lax.add(first, lax.full_like(first, outside)), first)
    at = array.at[(first, *indices[1:])]
    values = cast(values, array.dtype)
    return at.add(values, mode="drop") if accumulate else at.set(values, mode="drop")


_SCATTER = InnerRule(_scatter, "index_put")


def _scattered(target, indices: list[Masked], values, accumulate: bool):
    """A tensor with values at the indices of one mask, or of masks with equally many true elements."""
    of_row = target.shape[len(indices) :]
    values = _for_row(target, values, len(of_row))
    found = [*indices, values] if leads(values) else indices
    if any(not x.is_like(found[0]) for x in found):
        found = aligned(found, "writing by a subscript")
        indices, values = found[: len(indices)], found[-1] if leads(values) else values
    mask = indices[0].mask
    if leads(values):
        values = values.rows
    elif values.ndim > len(of_row):  # one for each, in order
        values = in_order_of(values, mask)
    values = values.expand(*mask.shape, *of_row)
    return _SCATTER((target, values, mask, accumulate, *(position.rows for position in indices)), {})


def _for_row(target, values, row_ndim: int):
    """The values to write at indices: a selection or a tensor of a checked dtype and number of dimensions."""
    if not leads(values):
        values = torch.as_tensor(values, dtype=None if isinstance(values, Tensor) else target.dtype)
        if values.ndim == 0:
            values = values.to(target.dtype)
        elif len(values) == 1 and values.ndim == row_ndim + 1:
            values = values[0]
    if values.ndim > row_ndim + 1 or (leads(values) and values.row_ndim != row_ndim):
        raise RuntimeError(
            f"shape mismatch: got values of {values.ndim} dimensions, and an indexing result of {row_ndim + 1}, the "
            f"first of which data decide, at {user_location()}"
        )
    if not has_same_array_dtype(values.dtype, target.dtype):
        raise RuntimeError(
            f"Index put requires the source and destination dtypes match, got {target.dtype} for the destination and "
            f"{values.dtype} for the source."
        )
    return values


@implements_rows(Tensor.__setitem__)
def setitem(self, index, value):
    self, index = _without_numbers(self, index)
    split = None if leads(self) else _split_indices(index, of_one=False)
    if split is None:
        setitem_of_mask(self, index, value)
        return
    indices, rest = split
    if rest:
        self = self[(*[slice(None)] * len(indices), *rest)]
    if _is_where_mask_is(self, indices):
        self[indices[0].mask] = value
    else:
        write_in_place(self, _scattered(self, indices, value, False))


def _as_indices(indices) -> list[Masked]:
    split = _split_indices(tuple(indices), of_one=False)
    if split is None or split[1]:
        raise TracedValueError("these indices, some of which are boolean-mask selections,")
    return split[0]


@implements_rows(torch.index_put, Tensor.index_put)
def index_put(input, indices, values, accumulate=False):
    return _scattered(input, _as_indices(indices), values, accumulate)


def _into_chosen(function):
    """A scatter whose target may itself be as long as data decide: in compact order it is one as any other."""

    def scatter(input, dim, *args, **kwargs):
        if not leads(input):
            return function(input, dim, *args, **kwargs)
        if dim % input.ndim:
            raise TracedValueError(f"torch.{function.__name__} along a later dimension into a boolean-mask selection")
        target = packed(input)
        written = getattr(torch, function.__name__)(target.rows, dim, *args, **kwargs)
        return like(written, target)

    return functools.wraps(function)(scatter)


def _write(target, result):
    """Writes a function's result for a target to that target."""
    if not isinstance(target, Masked):
        return write_in_place(target, result)
    target.assign(result)
    return target


@implements_rows(torch.index_add, Tensor.index_add)
@_into_chosen
def index_add(input, dim, index, source, *, alpha=1):
    if dim % input.ndim:
        raise TracedValueError("torch.index_add along a later dimension, of a boolean-mask selection,")
    return _scattered(input, _as_indices([index]), source if alpha == 1 else source * alpha, True)


def _scattering(function, what: str):
    """A function that scatters along the first dimension, with one more row for the elements that were not chosen."""

    @_into_chosen
    @functools.wraps(function, assigned=["__name__"], updated=[])
    def scatter(input, dim, index, src, *args, **kwargs):
        is_plain = isinstance(src, Tensor) and not leads(src)
        if dim % input.ndim or not leads(index) or is_plain:
            raise TracedValueError(
                f"{what} along a later dimension, or of tensors one of which is a boolean-mask selection,"
            )
        index, *given = aligned([index, src] if leads(src) else [index], what)
        if given:  # of rows that were not chosen ones, as products of zeros have no derivatives
            src = given[0].filled(1).flatten(0, index.mask.ndim - 1)
        indices = index.filled(len(input)).flatten(0, index.mask.ndim - 1)
        target = torch.cat([input, input.new_zeros((1, *input.shape[1:]))])
        return function(target, 0, indices, src, *args, **kwargs)[: len(input)]

    return scatter


for _function in (torch.scatter_add, torch.scatter, torch.scatter_reduce):
    implements_rows(_function, getattr(Tensor, _function.__name__))(
        _scattering(_function, f"torch.{_function.__name__}")
    )


@implements_rows(torch.index_copy, Tensor.index_copy)
@_into_chosen
def index_copy(input, dim, index, source):
    if dim % input.ndim:
        raise TracedValueError("torch.index_copy along a later dimension, of a boolean-mask selection,")
    return _scattered(input, _as_indices([index]), source, False)


for _name in ("index_put", "index_add", "index_copy", "scatter", "scatter_add", "scatter_reduce", "index_fill"):
    _function = getattr(torch, _name)
    implements_masked(getattr(Tensor, f"{_name}_"))(
        lambda self, *args, _function=_function, **kwargs: _write(self, _function(self, *args, **kwargs))
    )
