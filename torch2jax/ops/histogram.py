"""Counting values: into bins, and by their number."""

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..rules.registry import implements, implements_masked, implements_tensors
from ..runtime.errors import TracedValueError
from ..runtime.layers import SELECTIONS
from ..runtime.translation import current, lift
from ..tensors.dtypes import FLOATS, INTEGERS, REALS
from ..tensors.traced import is_traced
from ..tracing.value_ranges import range_of
from ..transforms.vmap import of_all_examples
from ..values.lengths import hinted_bound
from ..values.masked import flattened
from .arrays import cast, is_float, like, where
from .bounds import known_values

aten = torch.ops.aten


def _limits(values, low, high, margin: float):
    """The outer edges: those asked for, or the extrema of the values where they are equal."""
    low, high = (
        lax.reshape(cast(x, values.dtype), ()) if isinstance(x, jax.Array) else like(values, x) for x in (low, high)
    )
    if values.size and (is_traced(low) or is_traced(high) or low == high):
        are_given = lax.ne(low, high)
        low = where(are_given, low, lax.reduce_min(values, (0,)))
        high = where(are_given, high, lax.reduce_max(values, (0,)))
    same, margin = lax.eq(low, high), like(values, margin)
    return where(same, lax.sub(low, margin), low), where(same, lax.add(high, margin), high)


@implements(torch.histc, takes=REALS)
def histc(input, bins=100, min=0, max=0):
    if bins <= 0:
        raise RuntimeError("bins must be > 0")
    if not is_traced(min) and not is_traced(max) and max < min:
        raise RuntimeError("max must be larger than min")
    values = lax.reshape(input, (input.size,))
    low, high = _limits(values, min, max, 1)
    offset, width = lax.sub(values, low), lax.sub(high, low)
    positions = lax.div(lax.mul(offset, like(offset, bins)), width) if is_float(values) else offset * (bins / width)
    positions = lax.convert_element_type(positions, np.int32)
    inside = lax.bitwise_and(lax.ge(values, low), lax.le(values, high))
    positions = where(inside, lax.min(positions, np.int32(bins - 1)), np.int32(bins))
    return lax.full((bins,), 0, input.dtype).at[positions].add(1, mode="drop")


def _density_of(hist, edges):
    """The counts as a density: they sum to one over the volume of the bins."""
    hist = hist / hist.sum()
    for axis, edge in enumerate(edges):
        hist = hist / jnp.expand_dims(jnp.diff(edge), [i for i in range(hist.ndim) if i != axis])
    return hist


def _count(points, edges, weight, density: bool):
    """Counts the points (one a row) in a grid of bins; the last bin of a dimension has its right edge too."""
    shape = tuple(len(edge) - 1 for edge in edges)
    positions, inside = [], True
    for column, edge in zip(points.T, edges, strict=True):
        bin_of = jnp.searchsorted(edge, column, side="right") - 1
        positions.append(lax.min(bin_of, like(bin_of, len(edge) - 2)))
        inside = inside & (column >= edge[0]) & (column <= edge[-1])
    positions[0] = where(inside, positions[0], like(positions[0], shape[0]))
    weight = like(points, 1) if weight is None else lax.reshape(weight, (len(points),))
    hist = lax.full(shape, 0, points.dtype).at[tuple(positions)].add(weight, mode="drop")
    return _density_of(hist, edges) if density else hist


def _edges(points, bins, range):
    """Edges of equal bins, for each dimension."""
    if len(bins) != points.shape[1]:
        raise RuntimeError(
            f"histogramdd: The size of bins must be equal to the innermost dimension of the input, got {len(bins)} "
            f"and {points.shape[1]}"
        )
    edges = []
    for i, (column, count) in enumerate(zip(points.T, bins, strict=True)):
        low, high = (0, 0) if range is None else range[2 * i : 2 * i + 2]
        low, high = _limits(column, low, high, 0.5) if column.size or range is not None else (0.0, 1.0)
        edges.append(jnp.linspace(low, high, count + 1, dtype=points.dtype))
    return edges


def _points(input, dimensions: int):
    return lax.reshape(input, (input.size // dimensions, dimensions))


@implements(torch.histogram, aten.histogram, takes=FLOATS)
def histogram(input, bins, *, range=None, weight=None, density=False):
    points = _points(input, 1)
    edges = _edges(points, [bins], range) if isinstance(bins, int) else [bins]
    return _count(points, edges, weight, density), edges[0]


@implements(aten._histogramdd_bin_edges, takes=FLOATS)
def histogramdd_bin_edges(input, bins, *, range=None, weight=None, density=False):
    return _edges(_points(input, input.shape[-1]), bins, range)


@implements(aten._histogramdd_from_bin_cts, takes=FLOATS)
def histogramdd_from_bin_counts(input, bins, *, range=None, weight=None, density=False):
    points = _points(input, input.shape[-1])
    return _count(points, _edges(points, bins, range), weight, density)


@implements(aten._histogramdd_from_bin_tensors, takes=FLOATS)
def histogramdd_from_bin_tensors(input, bins, *, weight=None, density=False):
    return _count(_points(input, input.shape[-1]), bins, weight, density)


def _length(input, minlength: int) -> int:
    """The number of counts. The bounds of traced values may show that it is `minlength`."""
    examples = lift(of_all_examples(input))  # of which all are counted up to the same number
    refusal = "bincount only supports 1-d non-negative integral inputs, got a negative number"
    if examples.numel() and is_traced(examples.read()) and known_values(examples) is None:
        least, most = range_of(examples.read())
        if most < 0:
            raise RuntimeError(refusal)
        if least >= 0 and most < minlength:
            return minlength
        way = f"; minlength={minlength} does where x is seen to be less, as x.clamp(0, {minlength - 1}) is"
        what = "the number of results of torch.bincount(x), of which no bound is seen, or said (t2j(bounds=))"
        raise TracedValueError(f"{what}{way if minlength else ''},")
    if examples.numel() and int(examples.min()) < 0:
        raise RuntimeError(refusal)
    return max(minlength, int(examples.max()) + 1 if examples.numel() else 0)


@implements_tensors(torch.bincount, torch.Tensor.bincount, aten.bincount.default, takes=INTEGERS)
def bincount(input, weights=None, minlength=0):
    if input.ndim != 1:
        raise RuntimeError(f"bincount only supports 1-d non-negative integral inputs, got shape {list(input.shape)}")
    if minlength < 0:
        raise RuntimeError(f"minlength should be >= 0, got {minlength}")
    if weights is not None and weights.shape != input.shape:
        raise RuntimeError(f"weights should be 1-d and have the same length as input, got {list(weights.shape)}")
    try:
        size = _length(input, minlength)
    except TracedValueError:
        if current().transformations or not _has_bound(input):
            raise
        return SELECTIONS.counted(lift(input), weights, minlength)
    if weights is None:
        weights = torch.ones_like(input, dtype=torch.int64)
    elif weights.dtype != torch.float32:
        weights = weights.double()
    return torch.zeros(size, dtype=weights.dtype).index_add(0, input.long(), weights)


def _has_bound(input) -> bool:
    least, most = range_of(lift(input).read())
    return (least >= 0 and most < 2**31 - 1) or hinted_bound() is not None


@implements_masked(torch.bincount, torch.Tensor.bincount)
def bincount_of_chosen(input, weights=None, minlength=0):
    try:
        size = _length(flattened(input).rows.flatten(), minlength)
    except TracedValueError:
        if not _has_bound(input.rows):
            raise
        return SELECTIONS.counted(flattened(input), weights, minlength)
    if weights is None:
        weights = torch.ones_like(input, dtype=torch.int64)
    elif weights.dtype != torch.float32:
        weights = weights.double()
    return torch.zeros(size, dtype=weights.dtype).index_add(0, input.long(), weights)
