"""Order statistics of ``x[mask]`` under jit: the median, the k-th value, quantiles and the mode."""

import functools
import math

import torch

from ..rules.registry import implements_masked
from ..runtime.errors import TracedValueError
from ..tensors.dtypes import has_same_array_dtype
from ..values.masked import Masked, flattened, leads, ndim_of
from .selection import along
from .selection_order import sorted_positions, taken

Tensor = torch.Tensor


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
