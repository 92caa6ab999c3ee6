"""Sorting, order statistics, searching in sorted values, sets of values, and counts of them."""

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..rules.options import Tag
from ..rules.pointwise import like_input
from ..rules.promotion import Promotion, kind_of, promoted
from ..rules.registry import implements, implements_masked, implements_tensors
from ..rules.rule import of_metadata
from ..runtime.errors import TracedValueError
from ..runtime.layers import SELECTIONS
from ..runtime.translation import current, lift
from ..tensors.dtypes import FLOATS, INTEGERS, REALS, REALS_AND_BOOL, canonical
from ..tensors.interop import tensor_to_array
from ..tensors.known import in_pytorch, real
from ..tensors.traced import is_traced
from ..tracing.value_ranges import range_of
from ..transforms.vmap import of_all_examples
from ..values.lengths import hinted_bound
from ..values.masked import flattened
from .arrays import axis_of, cast, is_float, kept, like, where
from .bounds import known_values, outside
from .reduction import at_index, shared

aten = torch.ops.aten

values_and_indices = (None, torch.int64)


def _positions(array, axis: int):
    return lax.broadcasted_iota(canonical(torch.int64), array.shape, axis)


def _first_index():
    return np.zeros((), canonical(torch.int64))


# Sorting. XLA's order has nan last, as PyTorch's ascending order has.


def _sort(array, axis: int, descending: bool):
    """The sorted values and where they came from; equal ones keep their order."""
    positions = _positions(array, axis)
    if not descending:
        return lax.sort((array, positions), dimension=axis, num_keys=1)
    flipped = lax.sort((lax.rev(array, (axis,)), lax.rev(positions, (axis,))), dimension=axis, num_keys=1)
    return tuple(lax.rev(part, (axis,)) for part in flipped)


@implements(torch.sort, takes=REALS_AND_BOOL, dtype=values_and_indices, strides=like_input, exact_out=True)
def sort(input, dim=-1, descending=False, *, stable=False):
    axis = axis_of(input, dim)
    return _sort(input, axis, descending) if input.ndim else (input, _first_index())


@implements(torch.argsort, takes=REALS_AND_BOOL, dtype=torch.int64, strides=like_input)
def argsort(input, dim=-1, descending=False, stable=False):
    return sort(lax.stop_gradient(input), dim, descending)[1]


@implements(torch.msort, takes=REALS_AND_BOOL, strides=like_input, exact_out=True)
def msort(input):
    return sort(input, 0)[0]


@implements(torch.topk, takes=REALS, dtype=values_and_indices, has_own_values=True)
def topk(input, k, dim=-1, largest=True, sorted=True):
    axis = axis_of(input, dim)
    if not 0 <= k <= (input.shape[axis] if input.ndim else 1):
        raise RuntimeError(f"selected index k out of range: k={k} of dimension {dim} of shape {list(input.shape)}")
    if input.ndim == 0:
        return input, _first_index()
    reverse = _identity if largest else lax.neg if is_float(input) else lax.bitwise_not
    values, indices = lax.top_k(reverse(input), k, axis=axis)
    return reverse(values), indices


def _identity(array):
    return array


# Order statistics along a dimension: the index is found without a gradient, which goes to the element there.


def _element(input, indices, axis: int, keepdim: bool):
    return kept(at_index(input, indices, axis), (axis,), keepdim), kept(indices, (axis,), keepdim)


def _order(input, axis: int):
    return _sort(lax.stop_gradient(input), axis, descending=False)[1]


@implements(torch.kthvalue, takes=REALS, dtype=values_and_indices, has_own_values=True, tags=[Tag.READS_BY_INDEX])
def kthvalue(input, k, dim=-1, keepdim=False):
    axis = axis_of(input, dim)
    if not 1 <= k <= (input.shape[axis] if input.ndim else 1):
        raise RuntimeError(f"kthvalue(): selected number k out of range for dimension {axis}")
    if input.ndim == 0:
        return input, _first_index()
    return _element(input, lax.index_in_dim(_order(input, axis), k - 1, axis, keepdims=False), axis, keepdim)


def _median_index(input, axis: int, ignore_nan: bool):
    """The index of the lower median of each line: of its first nan, if it has one that is not ignored."""
    _expect_line(input, axis)
    order, length = _order(input, axis), input.shape[axis]
    middle = lax.index_in_dim(order, (length - 1) // 2, axis, keepdims=False)
    if not is_float(input):
        return middle
    is_number = cast(lax.eq(input, input), order.dtype)
    numbers = lax.reduce_sum(is_number, (axis,))
    if ignore_nan:
        return at_index(order, lax.max(lax.div(numbers - 1, like(numbers, 2)), like(numbers, 0)), axis)
    return where(lax.eq(numbers, like(numbers, length)), middle, lax.argmin(is_number, axis, order.dtype))


def _expect_line(input, axis: int) -> None:
    if input.shape[axis] == 0:
        raise IndexError(f"median(): Expected reduction dim {axis} to have non-zero size.")


def _median_along(input, dim, keepdim, ignore_nan):
    axis = axis_of(input, dim)
    if input.ndim == 0:
        return input, _first_index()
    return _element(input, _median_index(input, axis, ignore_nan), axis, keepdim)


@implements(aten.median.dim, takes=REALS, dtype=values_and_indices, has_own_values=True)
def median_dim(input, dim, keepdim=False):
    return _median_along(input, dim, keepdim, ignore_nan=False)


@implements(aten.nanmedian.dim, takes=REALS, dtype=values_and_indices, has_own_values=True)
def nanmedian_dim(input, dim, keepdim=False):
    return _median_along(input, dim, keepdim, ignore_nan=True)


def _median_of_all(input, ignore_nan):
    if input.size == 0:
        return lax.full((), np.nan if is_float(input) else np.iinfo(input.dtype).min, input.dtype)
    array = lax.reshape(input, (input.size,))
    fixed = lax.stop_gradient(array)
    value = at_index(fixed, _median_index(fixed, 0, ignore_nan), 0)
    return shared(array, value) if is_float(input) else value


@implements(aten.median.default, takes=REALS)
def median_all(input):
    return _median_of_all(input, ignore_nan=False)


@implements(aten.nanmedian.default, takes=REALS)
def nanmedian_all(input):
    return _median_of_all(input, ignore_nan=True)


@implements(torch.mode, takes=REALS_AND_BOOL, dtype=values_and_indices, has_own_values=True)
def mode(input, dim=-1, keepdim=False):
    axis = axis_of(input, dim)
    if input.ndim == 0:
        return input, _first_index()
    values, order = _sort(lax.stop_gradient(input), axis, descending=False)
    positions = _positions(input, axis)
    before = lax.concatenate(
        [lax.slice_in_dim(values, 0, 1, axis=axis), lax.slice_in_dim(values, 0, -1, axis=axis)], axis
    )
    starts = lax.cummax(where(lax.ne(values, before), positions, like(positions, 0)), axis)
    longest = lax.argmax(lax.sub(positions, starts), axis, positions.dtype)  # the end of the first longest run
    return _element(input, at_index(order, longest, axis), axis, keepdim)


# Searching.


def _search(sorted_sequence, values, right: bool):
    def search(sequence, line):
        return jnp.searchsorted(sequence, line, side="right" if right else "left")

    for _ in range(sorted_sequence.ndim - 1):
        search = jax.vmap(search)
    return search(sorted_sequence, values)


def _index_dtype(*_, out_int32=False, **__) -> torch.dtype:
    return torch.int32 if out_int32 else torch.int64


@of_metadata
def _in_one_dtype(first, second, *args, **kwargs) -> tuple[tuple, dict]:
    """The keyword of the dtype that operands are compared in, by PyTorch's promotion: 0-d ones count less."""
    _, dtype = promoted(Promotion.NO_OPMATH, (kind_of(first), kind_of(second)))
    return (first, second, *args), {"common": canonical(dtype), **kwargs}


def _check_sorter(sorted_sequence, input, *args, sorter=None, **kwargs) -> None:
    if sorter is not None and outside(sorter, 0, sorted_sequence.shape[-1] - 1) is not None:
        raise RuntimeError("torch.searchsorted(): sorter index out of range")


@implements(torch.searchsorted, aten.searchsorted, dtype=_index_dtype, check=_check_sorter, prepare=_in_one_dtype)
def searchsorted(sorted_sequence, input, *, out_int32=False, right=False, side=None, sorter=None, common=None):
    if side not in (None, "left", "right"):
        raise RuntimeError(f"torch.searchsorted(): side can only be 'left' or 'right' but got {side}")
    if side == "left" and right:
        raise RuntimeError(
            "torch.searchsorted(): side and right can't be set to opposites, got side of left while right was True"
        )
    if sorted_sequence.ndim != 1 and sorted_sequence.shape[:-1] != np.shape(input)[:-1]:
        raise RuntimeError(
            "torch.searchsorted(): boundaries tensor should be 1 dimension or the first N-1 dimensions of boundaries "
            f"tensor and input value tensor must match, but we got boundaries tensor {list(sorted_sequence.shape)} and "
            f"input value tensor {list(np.shape(input))}"
        )
    if sorter is not None:
        sorted_sequence = jnp.take_along_axis(sorted_sequence, sorter, -1)
    return _search(cast(sorted_sequence, common), jnp.asarray(input, common), right or side == "right")


@implements(torch.bucketize, aten.bucketize, takes=REALS, dtype=_index_dtype, prepare=_in_one_dtype)
def bucketize(input, boundaries, *, out_int32=False, right=False, common=None):
    if boundaries.ndim != 1:
        raise RuntimeError(f"boundaries tensor must be 1 dimension, but got dim({boundaries.ndim})")
    return _search(cast(boundaries, common), jnp.asarray(input, common), right)


# Sets.


@implements(torch.isin, aten.isin, takes=REALS, dtype=torch.bool)
def isin(elements, test_elements, *, assume_unique=False, invert=False):
    elements, test_elements = jnp.asarray(elements), jnp.asarray(test_elements).reshape(-1)
    equal = jnp.expand_dims(elements, -1) == test_elements
    found = lax.reduce_or(equal, (elements.ndim,))
    return lax.bitwise_not(found) if invert else found


# The shapes of unique values depend on all values, and so do the places of those that are NaN: PyTorch finds them.

unique_parts = (None, torch.int64, torch.int64)


def _by_pytorch(function, input, *args) -> tuple:
    return tuple(tensor_to_array(part, copy=False) for part in in_pytorch(function, real(input), *args))


@implements(torch._unique2, aten._unique2, takes=REALS_AND_BOOL, concrete=True, dtype=unique_parts)
def unique(input, sorted=True, return_inverse=False, return_counts=False):
    return _by_pytorch(torch._unique2, input, sorted, return_inverse, return_counts)


@implements(torch._unique, aten._unique, takes=REALS_AND_BOOL, concrete=True, dtype=unique_parts[:2])
def _unique(input, sorted=True, return_inverse=False):
    return _by_pytorch(torch._unique, input, sorted, return_inverse)


@implements(aten.unique_dim, takes=REALS_AND_BOOL, concrete=True, dtype=unique_parts)
def unique_dim(input, dim, sorted=True, return_inverse=False, return_counts=False):
    return _by_pytorch(aten.unique_dim, input, dim, sorted, return_inverse, return_counts)


@implements(aten.unique_consecutive, takes=REALS_AND_BOOL, concrete=True, dtype=unique_parts)
def unique_consecutive(input, return_inverse=False, return_counts=False, dim=None):
    return _by_pytorch(aten.unique_consecutive, input, return_inverse, return_counts, dim)


# Comparison of whole tensors: a Python bool.


@implements_tensors(torch.equal, torch.Tensor.equal, aten.equal.default, tags=[Tag.READS])
def equal(input, other):
    return input.shape == other.shape and bool(torch.eq(input, other).all())


@implements_tensors(torch.allclose, torch.Tensor.allclose, aten.allclose.default, tags=[Tag.READS])
def allclose(input, other, rtol=1e-05, atol=1e-08, equal_nan=False):
    return bool(torch.isclose(input, other, rtol, atol, equal_nan).all())


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
