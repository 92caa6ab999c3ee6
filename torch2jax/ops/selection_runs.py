"""What a traced mask or traced values select: indices, unique values, their counts, and repetition."""

import math
from typing import Any

import torch
from jax import lax

from ..internals.tensors import canonicalize_dim
from ..rules.array_rule import InnerRule
from ..rules.inplace import write_in_place
from ..rules.registry import implements_masked, lookup
from ..runtime.errors import TracedValueError
from ..runtime.translation import current, lift
from ..tensors.dtypes import canonical
from ..tracing.value_ranges import range_of
from ..values.lengths import expect_capacity, hinted_bound
from ..values.masked import (
    Masked,
    aligned_along,
    at_axis,
    axes_of,
    filled,
    first,
    in_compact_order,
    in_flat_masks,
    leads,
    like,
    masks_of,
    merged,
    ndim_of,
    packed,
    select,
    unknown_dims,
    unmasked_of,
    with_leading,
    with_masks,
)
from ..values.masked_functions import begin, broadcast
from . import shape as shape, sorting as sorting  # whose rules give what is found here, where values are traced
from .arrays import cast
from .selection_subscripts import by_mask, scattered, write

aten = torch.ops.aten
Tensor = torch.Tensor

_MOST_KEYS = 64
"""Columns that one sort takes as keys."""


def _lexicographic(rows, is_there):
    """The order of rows ``(n, c)`` by their columns, the first before the others; those not there come last."""
    positions = lax.iota(canonical(torch.int64), len(rows))
    rows = cast(rows, canonical(torch.uint8)) if rows.dtype == bool else rows
    if rows.shape[1] > _MOST_KEYS:  # by the last first, each time in the order that there is
        by = lambda keys, order: lax.sort((keys[order], order), num_keys=1, is_stable=True)[1]
        last = rows.shape[1] - 1
        order = lax.fori_loop(0, last + 1, lambda i, order: by(rows[:, last - i], order), positions)
        return by(~is_there, order)
    keys = [rows[:, i] for i in range(rows.shape[1])]
    return lax.sort((~is_there, *keys, positions), num_keys=1 + len(keys), is_stable=True)[-1]


_LEXICOGRAPHIC = InnerRule(_lexicographic, "sort", dtype=torch.int64)


def _runs(rows: torch.Tensor, mask, order, return_inverse: bool, return_counts: bool):
    """The first row of each run of equal rows; the run of each row; and the lengths of the runs.

    Args:
        rows: ``(n, ...)``.
        mask: which of them are there: those that come first.
        order: the places of the rows that runs are sought in; None for the rows as they are.
    """
    count = len(rows)
    if order is not None:
        rows = rows[order]
    flat = rows.reshape(count, math.prod(rows.shape[1:]))
    differs: Any = torch.ones(count, dtype=torch.bool)
    if count > 1:
        differs = torch.cat([differs[:1], (flat[1:] != flat[:-1]).any(1)])
    begins = differs & mask
    found = select(rows, begins)
    run = (begins.cumsum(0) - 1).clamp(min=0)
    nothing = torch.empty(0, dtype=torch.int64)
    inverse = counts = nothing
    if return_inverse:
        inverse = run if order is None else torch.zeros_like(run).scatter(0, order, run)
    if return_counts:
        lengths = torch.zeros(count, dtype=torch.int64).index_add(0, run, mask.long())
        counts = first(lengths, found.length)
    return found, inverse, counts


def _of_all(input, return_inverse: bool, return_counts: bool, is_sorted: bool):
    if isinstance(input, Masked):
        if return_inverse and input.ndim > 1:
            raise TracedValueError("torch.unique(return_inverse=True) of rows that a boolean mask selected")
        return _along(merged(input, input.ndim), 0, return_inverse, return_counts, is_sorted)
    found, inverse, counts = _along(input.reshape(-1), 0, return_inverse, return_counts, is_sorted)
    return found, inverse.reshape(input.shape) if return_inverse else inverse, counts


def _along(input, dim: int, return_inverse: bool, return_counts: bool, is_sorted: bool):
    dim = canonicalize_dim(input.ndim, dim)
    input = with_leading(input, dim)
    if unknown_dims(input) not in ([], [0]):
        raise TracedValueError("torch.unique of rows that are as long as data decide")
    chosen = packed(input) if leads(input) else None
    rows = input if chosen is None else chosen.rows
    mask = torch.ones(len(rows), dtype=torch.bool) if chosen is None else chosen.mask
    flat = rows.detach().reshape(len(rows), math.prod(rows.shape[1:]))
    order = _LEXICOGRAPHIC((flat, mask), {}) if is_sorted else None
    found, inverse, counts = _runs(rows, mask, order, return_inverse, return_counts)
    return at_axis(found, dim), like(inverse, chosen) if return_inverse and chosen is not None else inverse, counts


def _inside(function, what: str = "torch.unique"):
    def of_unknown(input, *args, **kwargs):
        if current().transformations:
            raise TracedValueError(
                f"{what}, within a transformation that the code has begun,",
                instead="give it x.detach(), without jit",
            )
        with current().inside():
            return function(lift(input), *args, **kwargs)

    return of_unknown


def unique(input, sorted=True, return_inverse=False, return_counts=False):
    del sorted  # PyTorch sorts in any case
    return _of_all(input, return_inverse, return_counts, True)


def unique_of_two(input, sorted=True, return_inverse=False):
    return unique(input, sorted, return_inverse)[:2]


def unique_dim(input, dim, sorted=True, return_inverse=False, return_counts=False):
    del sorted
    return _along(input, dim, return_inverse, return_counts, True)


def unique_consecutive(input, return_inverse=False, return_counts=False, dim=None):
    if dim is None:
        return _of_all(input, return_inverse, return_counts, False)
    return _along(input, dim, return_inverse, return_counts, False)


for _functions, _body in (
    ((torch._unique2, aten._unique2), unique),
    ((torch._unique, aten._unique), unique_of_two),
    ((aten.unique_dim,), unique_dim),
    ((aten.unique_consecutive,), unique_consecutive),
):
    implements_masked(*_functions)(_body)
    for _function in _functions:
        _rule: Any = lookup(_function)
        _rule.of_unknown = _inside(_body)


def _requested(found: tuple, *is_requested: bool):
    """The values, and the inverse and counts if they are asked for, as PyTorch's Python functions return them."""
    rest = tuple(part for part, is_requested in zip(found[1:], is_requested, strict=True) if is_requested)
    return (found[0], *rest) if rest else found[0]


@implements_masked(torch.unique, Tensor.unique)
def unique_of_chosen(input, sorted=True, return_inverse=False, return_counts=False, dim=None):
    options = return_inverse, return_counts
    found = unique(input, sorted, *options) if dim is None else unique_dim(input, dim, sorted, *options)
    return _requested(found, *options)


@implements_masked(torch.unique_consecutive, Tensor.unique_consecutive)
def unique_consecutive_of_chosen(input, return_inverse=False, return_counts=False, dim=None):
    found = unique_consecutive(input, return_inverse, return_counts, dim)
    return _requested(found, return_inverse, return_counts)


# Repetitions.


def repeat_interleave(input, repeats=None, dim=None, *, output_size=None):
    """`torch.repeat_interleave` with traced counts: a selection with room for the most rows possible."""
    del output_size
    if repeats is None:
        input, repeats, dim = torch.arange(len(input), dtype=input.dtype), input, 0
    elif dim is None:
        input, dim = input.reshape(-1), 0
    bound = range_of(repeats.sum().read())[1]
    hinted = hinted_bound() if bound >= 2**31 - 1 else None
    bound = bound if hinted is None else hinted
    if dim % input.ndim:
        return at_axis(repeat_interleave(input.movedim(dim, 0), repeats, 0), dim % input.ndim)
    if leads(input) or bound >= 2**31 - 1:
        raise TracedValueError("torch.repeat_interleave without output_size, or a bound that is said (t2j(bounds=)),")
    if repeats.numel() == 1:
        repeats = repeats.expand(len(input))
        bound = bound * len(input) if hinted is None else hinted
    ends = repeats.long().cumsum(0)
    rows = torch.searchsorted(ends, torch.arange(bound), right=True).clamp(max=max(len(input) - 1, 0))
    count = ends[-1] if len(ends) else torch.tensor(0)
    return first(input[rows], count if hinted is None else expect_capacity(count, bound))


_rule = lookup(torch.repeat_interleave)
_rule.of_unknown = _inside(repeat_interleave, "torch.repeat_interleave")


@implements_masked(torch.repeat_interleave, Tensor.repeat_interleave)
def repeat_interleave_of_chosen(input, repeats=None, dim=None, *, output_size=None):
    """`torch.repeat_interleave` of selections, or with counts that are selections, as those of `unique`."""
    if repeats is None:
        counts = packed(input)
        return repeat_interleave(torch.where(counts.mask, counts.rows, 0), output_size=output_size)
    if dim is None:
        input, dim = input.reshape(-1), 0
    dim = canonicalize_dim(input.ndim, dim)
    if type(repeats) is int and dim not in unknown_dims(input):
        return with_masks(input.unmasked.repeat_interleave(repeats, input.axis(dim)), input)
    if dim:
        return torch.repeat_interleave(input.movedim(dim, 0), repeats, 0).movedim(0, dim)
    is_one = not leads(repeats) and (not isinstance(repeats, Tensor) or repeats.numel() == 1)
    rows = _in_order(input)
    counts = (
        first(torch.ones(len(rows.rows), dtype=torch.int64) * repeats, rows.length) if is_one else _in_order(repeats)
    )
    size = min(len(rows.rows), len(counts.rows))
    numbers = torch.where(rows.mask[:size] & counts.mask[:size], counts.rows[:size], 0)
    return repeat_interleave(rows.rows[:size], numbers, 0, output_size=output_size)


def _in_order(tensor) -> Masked:
    """A tensor, or a mask selection, in compact order."""
    return packed(tensor) if leads(tensor) else first(tensor, torch.tensor(len(tensor)))


# Counts.


def counted(numbers, weights, minlength: int):
    """The counts of integers, up to the largest value, with room for the largest one possible.

    Raises:
        TracedValueError: nothing tells which that is.
    """
    is_selected = leads(numbers)
    rows = numbers.rows if is_selected else numbers
    least, most = range_of(rows.read())
    hinted = hinted_bound() if most >= 2**31 - 1 else None
    least, most = (least, most) if hinted is None else (0, hinted - 1)
    if least < 0 or most >= 2**31 - 1:
        raise TracedValueError(
            "the number of results of torch.bincount(x), of which no bound is seen, or said (t2j(bounds=)),"
        )
    bound = max(most + 1, minlength)
    if weights is None:
        weights = torch.ones_like(numbers, dtype=torch.int64)
    elif weights.dtype != torch.float32:
        weights = weights.double()
    counts = torch.zeros(bound, dtype=weights.dtype).index_add(0, numbers.long(), weights)
    held = numbers.filled(-1) if is_selected else rows
    largest = held.max().long() + 1 if held.numel() else torch.tensor(0)
    largest = largest if hinted is None else expect_capacity(largest, hinted)
    return first(counts, largest.clamp(min=minlength))


# The places.


def _indices_of(condition) -> tuple[Masked, ...]:
    """For each dimension, the indices of the elements that are true, or not zero."""
    unmasked, masks, ndim = unmasked_of(condition), masks_of(condition), ndim_of(condition)
    where: Any = unmasked if unmasked.dtype == torch.bool else unmasked != 0
    if masks:
        where = merged(condition, ndim).masks[0].where & where
    found = []
    for dim in range(ndim):
        axes = axes_of(condition, dim)
        index = masks[dim].ranks() if dim in masks else torch.arange(unmasked.shape[axes[0]])
        sizes = [unmasked.shape[axis] for axis in axes]
        spread = index.reshape(*sizes, *[1] * (unmasked.ndim - axes[-1] - 1)).expand(unmasked.shape)
        found.append(select(spread, where))
    if masks and ndim == 1:
        found[0].indices_in = masks[0].where
    return tuple(found)


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
            tensor: Any = lift(input)
            found = of_indices(_indices_of(tensor.clone() if tensor.dtype == torch.bool else tensor), **kwargs)
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


@implements_masked(torch.nonzero, Tensor.nonzero, torch.argwhere, Tensor.argwhere)
def nonzero(input, *, as_tuple=False):
    return _together(_indices_of(input), as_tuple)


@implements_masked(torch.where)
def where(condition, *others, **named):
    if not others and not named:
        return _indices_of(condition)
    return broadcast(torch.where, (condition, *others), named, "torch.where", safe=False)


# Scatters.


@implements_masked(torch.index_put, Tensor.index_put)
def index_put(input, indices, values, accumulate=False):
    indices = [each for x in indices for each in (torch.where(x) if x is not None and x.dtype == torch.bool else (x,))]
    return scattered(input, [(dim, x) for dim, x in enumerate(indices) if x is not None], values, accumulate)


@implements_masked(torch.index_add, Tensor.index_add)
def index_add(input, dim, index, source, *, alpha=1):
    source = source if alpha == 1 else source * alpha
    return scattered(input, [(canonicalize_dim(input.ndim, dim), index)], source, True)


@implements_masked(torch.index_copy, Tensor.index_copy)
def index_copy(input, dim, index, source):
    return scattered(input, [(canonicalize_dim(input.ndim, dim), index)], source)


@implements_masked(torch.index_fill, Tensor.index_fill)
def index_fill(input, dim, index, value):
    return index_copy(input, dim, index, torch.as_tensor(value, dtype=input.dtype))


@implements_masked(torch.masked_scatter, Tensor.masked_scatter)
def masked_scatter(input, mask, source):
    if isinstance(input, Masked) or isinstance(mask, Masked):
        raise TracedValueError("torch.masked_scatter into a boolean-mask selection")
    found = input.clone()
    write(by_mask(found, 0, mask.expand(input.shape)), source.flatten())
    return found


def _in_dims(x, sizes: tuple[int, ...], dim: int) -> Any:
    """A tensor in compact order, with room for no more than so many along all dimensions but one."""
    for each in unknown_dims(x):
        x = packed(x, None if each == dim else sizes[each], each)
    return x


def _scattering(function):
    """A function that scatters, with one more element along its dimension, for the indices that are not there."""

    def scatter(input, dim, index, src, *args, **kwargs):
        dim = canonicalize_dim(input.ndim, dim)
        target = in_compact_order(input)
        divides = function is torch.scatter_reduce and isinstance(target, Masked)  # in derivatives of products
        padded = target.copied() if divides else unmasked_of(target)
        if isinstance(src, Tensor) and ndim_of(src):
            if unknown_dims(src) != unknown_dims(index):
                raise TracedValueError(
                    f"torch.{function.__name__} of tensors one of which is a boolean-mask selection,"
                )
            for each in unknown_dims(index):
                index, src = aligned_along([index, src], [each, each], "torch.scatter")
            src = _in_dims(src, padded.shape, dim)
            src = filled(src, 1) if isinstance(src, Masked) else src  # as products of zeros have no derivatives
        index = _in_dims(index, padded.shape, dim)
        size = padded.shape[dim]
        index = filled(in_flat_masks(index), size) if isinstance(index, Masked) else index
        more = padded.new_zeros((*padded.shape[:dim], 1, *padded.shape[dim + 1 :]))
        made = function(torch.cat([padded, more], dim), dim, index, src, *args, **kwargs).narrow(dim, 0, size)
        return with_masks(made, target)

    return scatter


for _function in (torch.scatter_add, torch.scatter, torch.scatter_reduce):
    implements_masked(_function, getattr(Tensor, _function.__name__))(_scattering(_function))


@implements_masked(torch.index_reduce, Tensor.index_reduce)
def index_reduce(input, dim, index, source, reduce, *, include_self=True):
    dim = canonicalize_dim(input.ndim, dim)
    places = index.reshape(-1, *[1] * (input.ndim - 1 - dim)).expand_as(source)
    return torch.scatter_reduce(input, dim, places, source, reduce, include_self=include_self)


def _write(target, result):
    """Writes a function's result for a target to that target."""
    if not isinstance(target, Masked):
        return write_in_place(target, result)
    target.assign(result)
    return target


for _name in (
    *("index_put", "index_add", "index_copy", "scatter", "scatter_add", "scatter_reduce", "index_fill"),
    "index_reduce",
    "masked_scatter",
):
    _function = getattr(torch, _name)
    implements_masked(getattr(Tensor, f"{_name}_"))(
        lambda self, *args, _function=_function, **kwargs: _write(self, _function(self, *args, **kwargs))
    )
