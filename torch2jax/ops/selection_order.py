"""Functions along ``x[mask]`` under jit: scans, softmax, sorting, neighbours, reductions, and order statistics."""

import functools
import math

import numpy as np
import torch
import torch.nn.functional as F
from jax import lax

from ..rules.array_rule import InnerRule
from ..rules.registry import implements_masked
from ..runtime.errors import TracedValueError
from ..tensors.dtypes import canonical, has_same_array_dtype
from ..values.lengths import is_traced_number
from ..values.masked import (
    Masked,
    at_axis,
    first,
    flattened,
    leads,
    ndim_of,
    packed,
    select,
    with_leading,
    with_masks,
)
from ..values.masked_functions import broadcast
from .arrays import cast, highest, lowest
from .selection import along, dims_of, mean, reduced, std, var
from .selection_subscripts import sliced

Tensor = torch.Tensor


def _flat(chosen: Masked, fill=None) -> torch.Tensor:
    """All rows, one after the other, with `fill`, if it is given, in place of those that were not chosen."""
    rows = chosen.rows if fill is None else chosen.filled(fill)
    return rows.flatten(0, chosen.mask.ndim - 1)


def _like(chosen: Masked, rows: torch.Tensor) -> Masked:
    """A selection of rows, from rows in one dimension."""
    return select(rows.unflatten(0, tuple(chosen.mask.shape)) if chosen.mask.ndim > 1 else rows, chosen.mask)


def _ranks(chosen: Masked) -> torch.Tensor:
    """The place among those that were chosen, of each row."""
    return chosen.mask.flatten().cumsum(0) - 1


# Scans.


def _scan(function, neutral):
    return along(function, lambda input, **kwargs: _like(input, function(_flat(input, neutral), 0, **kwargs)))


implements_masked(torch.cumsum, Tensor.cumsum)(_scan(torch.cumsum, 0))
implements_masked(torch.cumprod, Tensor.cumprod)(_scan(torch.cumprod, 1))
implements_masked(torch.logcumsumexp, Tensor.logcumsumexp)(_scan(torch.logcumsumexp, -math.inf))


def _running(function, least):
    def of_chosen(input):
        values, positions = function(_flat(input, least(input.unmasked.read())), 0)
        return getattr(torch.return_types, function.__name__)(
            (_like(input, values), _like(input, _ranks(input)[positions]))
        )

    return along(function, of_chosen)


implements_masked(torch.cummax, Tensor.cummax)(_running(torch.cummax, lowest))
implements_masked(torch.cummin, Tensor.cummin)(_running(torch.cummin, highest))


def _softmax(function):
    def of_chosen(input, *args, dtype=None, **kwargs):
        rows = input.rows if dtype is None else input.rows.to(dtype)
        nothing = torch.where(input.mask.any(), -math.inf, 0.0)  # of which there may be no softmax
        rows = torch.where(input.spread_mask(), rows, nothing.to(rows.dtype))
        return _like(input, function(rows.flatten(0, input.mask.ndim - 1), 0, *args, **kwargs))

    return along(function, of_chosen)


for _functions in (
    (torch.softmax, Tensor.softmax, F.softmax),
    (torch.log_softmax, Tensor.log_softmax, F.log_softmax),
):
    implements_masked(*_functions)(_softmax(_functions[-1]))


# Orders.


def _in_order(rows, mask, descending: bool):
    """The indices of the chosen rows in the order of each column; then those of the others."""
    mask = lax.broadcast_in_dim(cast(mask, np.int8), rows.shape, (0,))
    positions = lax.broadcasted_iota(canonical(torch.int64), rows.shape, 0)
    operands = (mask if descending else 1 - mask, lax.stop_gradient(rows), positions)
    if descending:  # equal ones keep their order
        operands = tuple(lax.rev(x, (0,)) for x in operands)
    order = lax.sort(operands, dimension=0, num_keys=2)[-1]
    return lax.rev(order, (0,)) if descending else order


_SORT = InnerRule(_in_order, "sort", dtype=torch.int64)


def sorted_positions(input: Masked, descending: bool = False) -> torch.Tensor:
    """The indices of the chosen rows in the order of each column; then those of the others."""
    order = lambda rows: _SORT((rows, input.mask.flatten(), descending), {})
    rows = _flat(input)
    return broadcast(order, (rows,), {}, "torch.sort", copies=True) if isinstance(rows, Masked) else order(rows)


def _first(input: Masked, rows: torch.Tensor) -> Masked:
    """A selection of the first rows, as many as were chosen."""
    return first(rows, input.length)


def _sort(input, descending=False, *, stable=False):
    del stable
    positions = sorted_positions(input, descending)
    parts = (_first(input, _flat(input).gather(0, positions)), _first(input, _ranks(input)[positions]))
    return torch.return_types.sort(parts)


def _argsort(input, descending=False, stable=False):
    return _sort(input, descending, stable=stable).indices


def _with_names(function):
    """A function whose arguments PyTorch takes by their names alone where one of them is ``stable``."""

    @functools.wraps(function, assigned=["__name__"], updated=[])
    def named(rows, dim, descending=False, stable=False):
        return function(rows, dim=dim, descending=descending, stable=stable)

    return named


implements_masked(torch.sort, Tensor.sort)(along(_with_names(torch.sort), _sort))
implements_masked(torch.argsort, Tensor.argsort)(along(_with_names(torch.argsort), _argsort))


def taken(input: Masked, positions: torch.Tensor):
    """The values at some places, and which of those that were chosen they are."""
    return _flat(input).gather(0, positions), _ranks(input)[positions]


def _topk(input, k, largest=True, sorted=True):
    del sorted
    values, indices = taken(input, sorted_positions(input, largest)[:k])
    if values.is_floating_point():  # PyTorch refuses more than there are
        is_there = (torch.arange(k) < input.mask.sum()).reshape(k, *[1] * input.row_ndim)
        values = torch.where(is_there, values, math.nan)
    return torch.return_types.topk((values, indices))


@implements_masked(torch.topk, Tensor.topk)
def topk(input, k, dim=-1, largest=True, sorted=True):
    def of_chosen(x, *args):
        if is_traced_number(k):
            return torch.return_types.topk([sliced(part, 0, slice(None, k)) for part in _sort(x, *args[:1])])
        if not 0 <= k <= x.mask.numel():
            raise RuntimeError(f"selected index k out of range: k={k} of at most {x.mask.numel()} that a mask selected")
        return _topk(x, k, *args)

    of_rows = functools.wraps(torch.topk, updated=[])(lambda x, dim, *args: torch.topk(x, k, dim, *args))
    return along(of_rows, of_chosen)(input, dim, largest, sorted)


# Neighbours.


@implements_masked(torch.flip, Tensor.flip)
def flip(input, *args, dims=None):
    dims = args if dims is None else (dims,)
    dims = dims_of(input, dims[0] if len(dims) == 1 and isinstance(dims[0], (tuple, list)) else dims)
    of_rows = [input.axis(dim) for dim in dims if dim not in input.masks]
    flipped = with_masks(input.unmasked.flip(of_rows), input) if of_rows else input
    for dim in input.masks.keys() & dims:
        flipped = at_axis(_backwards(with_leading(flipped, dim)), dim)
    return flipped


def _backwards(input: Masked) -> Masked:
    """The chosen elements in reverse order, at the same places."""
    from_the_end = (input.mask.sum() - 1 - _ranks(input)).clamp(min=0)
    return _like(input, packed(input).rows[from_the_end])


@implements_masked(torch.diff, Tensor.diff)
def diff(input, n=1, dim=-1, prepend=None, append=None):
    if not isinstance(input, Masked):
        raise TracedValueError("torch.diff beside a boolean-mask selection")

    def of_chosen(x, prepend, append):
        if append is not None or isinstance(prepend, Masked):
            raise TracedValueError("torch.diff of a boolean-mask selection, with more behind it,")
        rows, count = packed(x).rows, x.length
        if prepend is not None:
            prepend = prepend.movedim(dim, 0)
            rows, count = torch.cat([prepend, rows]), count + len(prepend)
        return first(torch.diff(rows, n, 0), (count - n).clamp(min=0))

    @functools.wraps(torch.diff, updated=[])
    def of_rows(rows, dim, prepend, append):
        return torch.diff(rows, n, dim, prepend, append)

    return along(of_rows, of_chosen)(input, dim, prepend, append)


# Extrema with their places: that of the first, or of what is no number.


def _position_of_extreme(function, input: Masked) -> torch.Tensor:
    rows = _flat(input).detach()
    least = (lowest if function is torch.amax else highest)(input.unmasked.read())
    is_chosen = input.mask.reshape(-1, *[1] * input.row_ndim)
    is_extreme = (rows == function(torch.where(is_chosen, rows, least), 0, True)) | (rows != rows)
    return (is_extreme & is_chosen).to(torch.uint8).argmax(0, True)


def _argument(function, name: str):
    def of_chosen(input, keepdim=False):
        indices = _ranks(input)[_position_of_extreme(function, input)]
        return indices if keepdim else indices[0]

    def argument(input, dim=None, keepdim=False):
        if dim is None:
            index = of_chosen(flattened(input))
            return index.reshape([1] * ndim_of(input)) if keepdim else index
        return along(getattr(torch, name), of_chosen)(input, dim, keepdim)

    return argument


implements_masked(torch.argmax, Tensor.argmax)(_argument(torch.amax, "argmax"))
implements_masked(torch.argmin, Tensor.argmin)(_argument(torch.amin, "argmin"))


def _extreme(function, of_two, name: str):
    def of_chosen(input, keepdim=False):
        values, indices = taken(input, _position_of_extreme(function, input))
        return getattr(torch.return_types, name)((values, indices) if keepdim else (values[0], indices[0]))

    def extreme(input, dim=None, keepdim=False, *, other=None):
        other = dim if isinstance(dim, torch.Tensor) else other
        if other is not None:
            return of_two(input, other)
        return function(input) if dim is None else along(getattr(torch, name), of_chosen)(input, dim, keepdim)

    return extreme


implements_masked(torch.max, Tensor.max)(_extreme(torch.amax, torch.maximum, "max"))
implements_masked(torch.min, Tensor.min)(_extreme(torch.amin, torch.minimum, "min"))


# Further reductions.


@implements_masked(torch.linalg.vector_norm)
def vector_norm(x, ord=2, dim=None, keepdim=False, *, dtype=None):
    neutral = math.inf if ord < 0 else 0
    norm = torch.linalg.vector_norm
    return reduced(lambda x, dims, keep: norm(x, ord, dims, keep, dtype=dtype), x, dims_of(x, dim), keepdim, neutral)


@implements_masked(torch.norm, Tensor.norm)
def norm(input, p="fro", dim=None, keepdim=False, out=None, dtype=None):
    if out is not None:
        raise TracedValueError("torch.norm(out=) of a boolean-mask selection")
    if p == "nuc":
        raise TracedValueError("torch.norm(p='nuc') of a boolean-mask selection")
    return vector_norm(input, 2 if p in (None, "fro") else p, dim, keepdim, dtype=dtype)


def _with_mean(spread):
    def with_mean(input, dim=None, unbiased=True, keepdim=False, *, correction=None):
        if isinstance(dim, bool):
            dim, unbiased = None, dim
        return spread(input, dim, unbiased, keepdim, correction=correction), mean(input, dim, keepdim)

    return with_mean


implements_masked(torch.var_mean)(_with_mean(var))
implements_masked(torch.std_mean)(_with_mean(std))


def _found(input: Masked, positions: torch.Tensor, keepdim: bool):
    """The value at one place of each column, and which of those that were chosen it is."""
    values, indices = taken(input, positions)
    return (values, indices) if keepdim else (values[0], indices[0])


def _at(input: Masked, number: torch.Tensor, keepdim: bool):
    """The value of this number in each column's order, and which of those that were chosen it is."""
    of_columns = number.clamp(min=0).expand(1, *input.rows.shape[input.mask.ndim :])
    return _found(input, sorted_positions(input).gather(0, of_columns), keepdim)


def _count_of_numbers(input: Masked) -> torch.Tensor:
    """The number of chosen elements of each column that are not NaN."""
    is_number = input.rows.eq(input.rows) & input.spread_mask()
    return is_number.flatten(0, input.mask.ndim - 1).sum(0)


def _median(input, keepdim=False, *, ignores_nan: bool):
    count = input.mask.sum()
    if not input.rows.is_floating_point():
        return _at(input, (count - 1) // 2, keepdim)
    found = _count_of_numbers(input)
    middle = (found - 1) // 2
    values, indices = _at(input, middle if ignores_nan else torch.where(found == count, middle, found), keepdim)
    return torch.where(count > 0, values, math.nan), indices


def _median_of(function, ignores_nan: bool):
    def median(input, dim=None, keepdim=False):
        if dim is None:
            return _median(flattened(input), ignores_nan=ignores_nan)[0]
        return along(function, of_chosen)(input, dim, keepdim)

    def of_chosen(input, keepdim=False):
        return getattr(torch.return_types, function.__name__)(_median(input, keepdim, ignores_nan=ignores_nan))

    return median


implements_masked(torch.median, Tensor.median)(_median_of(torch.median, False))
implements_masked(torch.nanmedian, Tensor.nanmedian)(_median_of(torch.nanmedian, True))


@implements_masked(torch.kthvalue, Tensor.kthvalue)
def kthvalue(input, k, dim=-1, keepdim=False):
    def of_chosen(input, keepdim=False):
        return torch.return_types.kthvalue(_at(input, torch.tensor(k - 1), keepdim))

    return along(lambda x, dim, *args: torch.kthvalue(x, k, dim, *args), of_chosen)(input, dim, keepdim)


@implements_masked(torch.mode, Tensor.mode)
def mode(input, dim=-1, keepdim=False):
    return along(torch.mode, _mode)(input, dim, keepdim)


def _mode(input: Masked, keepdim=False):
    """The end of the first of the longest runs of equal values, in order, as `torch.mode` has it."""
    order = sorted_positions(input)
    values = taken(input, order)[0].detach()
    positions = torch.arange(len(values)).reshape(-1, *[1] * input.row_ndim).expand(values.shape)
    before = torch.cat([values[:1], values[:-1]])
    starts = torch.where(values != before, positions, 0).cummax(0).values
    lengths = torch.where(positions < input.mask.sum(), positions - starts, -1)  # those that were chosen come first
    return torch.return_types.mode(_found(input, order.gather(0, lengths.argmax(0, True)), keepdim))


# Quantiles: of nothing they are nan, which PyTorch refuses.

_INTERPOLATIONS = ("linear", "lower", "higher", "midpoint", "nearest")


def _quantile_of(function, ignores_nan: bool):
    def quantile(input, q, dim=None, keepdim=False, *, interpolation="linear"):
        if interpolation not in _INTERPOLATIONS:
            raise RuntimeError(
                f"{function.__name__}() interpolation must be one of linear, lower, higher, midpoint or nearest, but "
                f"got {interpolation}"
            )
        if leads(q):
            raise TracedValueError(f"torch.{function.__name__} by a boolean-mask selection")
        q = _as_fractions(function.__name__, input, q)
        if q.ndim:  # each by itself: they share the order
            each = lambda one: quantile(input, one, dim, keepdim, interpolation=interpolation)
            return torch.stack([each(one) for one in q])

        @functools.wraps(function)
        def of_rows(input, dim, keepdim):
            return function(input, q, dim, keepdim, interpolation=interpolation)

        def of_chosen(input, keepdim=False):
            return _quantile(input, q, interpolation, ignores_nan, keepdim)

        if dim is not None:
            return along(of_rows, of_chosen)(input, dim, keepdim)
        found = of_chosen(flattened(input))
        return found.reshape([1] * ndim_of(input)) if keepdim else found

    return quantile


def _as_fractions(name: str, input: Masked, q) -> torch.Tensor:
    """The argument `q`, refused as PyTorch does."""
    if not input.dtype.is_floating_point:
        raise RuntimeError(f"{name}() input tensor must be either float or double dtype, got {input.dtype}")
    if isinstance(q, (int, float)):
        if not 0 <= q <= 1:
            raise RuntimeError(f"{name}() q must be in the range [0, 1] but got {q}")
        return torch.tensor(q, dtype=input.dtype)
    if q.ndim > 1:
        raise RuntimeError(f"{name}() q must be a scalar or 1D tensor, got {q.ndim} dimensions")
    if not has_same_array_dtype(q.dtype, input.dtype):
        raise RuntimeError(f"{name}() q tensor must be same dtype as the input tensor, got {q.dtype} and {input.dtype}")
    return q.to(input.dtype)


def _quantile(input: Masked, q: torch.Tensor, interpolation: str, ignores_nan: bool, keepdim: bool) -> torch.Tensor:
    """The quantile of each column."""
    count, found = input.mask.sum(), _count_of_numbers(input)
    rank = (q * (found - 1).clamp(min=0)).unsqueeze(0)
    if not ignores_nan:
        rank = torch.where(found == count, rank, found)  # the first nan, which all numbers come before
    if interpolation in ("lower", "higher", "nearest"):
        rank = {"lower": torch.floor, "higher": torch.ceil, "nearest": torch.round}[interpolation](rank)
    below, above = rank.floor(), rank.ceil()
    weight = torch.full_like(rank, 0.5) if interpolation == "midpoint" else rank - below
    positions = sorted_positions(input)
    values, others = (taken(input, positions.gather(0, at.long()))[0] for at in (below, above))
    if interpolation in ("linear", "midpoint"):
        values = torch.lerp(values, others, weight)
    values = torch.where(found > 0, values, math.nan)
    return values if keepdim else values[0]


implements_masked(torch.quantile, Tensor.quantile)(_quantile_of(torch.quantile, False))
implements_masked(torch.nanquantile, Tensor.nanquantile)(_quantile_of(torch.nanquantile, True))
