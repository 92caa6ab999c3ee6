"""Scans (running sums, products and extrema), and reductions of the segments that a dimension is cut into."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..rules.array_rule import InnerRule
from ..rules.options import Tag
from ..rules.registry import implements, implements_tensors
from ..tensors.dtypes import FLOAT8, FLOATS, INEXACT, NUMBERS, REALS_AND_BOOL, canonical
from .arithmetic import sum_of_powers
from .arrays import axis_of, cast, is_complex, widened
from .bounds import seen
from .reduction import in_dtype, integers_to_int64


def _scan(function, array, dim: int):
    axis = axis_of(array, dim)
    return cast(function(widened(array), axis), array.dtype) if array.ndim else array


def _accumulated_dtypes(input, dim, *, dtype=None):
    return None if dtype is None else NUMBERS  # bool alone becomes int64


@implements(torch.cumsum, takes=_accumulated_dtypes, dtype=integers_to_int64, tags=[Tag.LINEAR])
def cumsum(input, dim, *, dtype=None):
    return _scan(lax.cumsum, in_dtype(input, dtype), dim)


@implements(torch.cumprod, takes=_accumulated_dtypes, dtype=integers_to_int64)
def cumprod(input, dim, *, dtype=None):
    return _scan(lax.cumprod, in_dtype(input, dtype), dim)


@implements(torch.logcumsumexp, takes=INEXACT)
def logcumsumexp(input, dim):
    if is_complex(input):  # the running maximum orders real numbers only
        return _scan(_complex_logcumsumexp, input, dim)
    return _scan(_cumlogsumexp, input, dim)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _cumlogsumexp(array, axis):
    """``lax.cumlogsumexp``, whose own derivatives are wrong behind an infinity."""
    return lax.cumlogsumexp(array, axis)


@_cumlogsumexp.defjvp
def _(axis, primals, tangents):
    combine = functools.partial(sum_of_powers, 1.0)
    return jax.jvp(lambda x: lax.associative_scan(combine, x, axis=axis), primals, tangents)


def _complex_logcumsumexp(array, axis):
    return lax.associative_scan(_complex_logaddexp, array, axis=axis)


def _complex_logaddexp(one, other):
    """Complex `logaddexp`, also of two infinite numbers: where PyTorch's result is one of them, so is this."""
    ordered = lax.ge(lax.real(one), lax.real(other))
    high, low = lax.select(ordered, one, other), lax.select(ordered, other, one)
    is_nothing = lax.real(low) == -math.inf  # its exponential is zero, whatever its imaginary part
    both = lax.real(low) == math.inf
    usual = lax.bitwise_not(lax.bitwise_or(is_nothing, both))
    finite = lax.select(usual, lax.sub(low, high), lax.full_like(low, 0))
    sums = lax.add(high, lax.log1p(lax.exp(finite)))
    infinite = lax.log(lax.add(*map(_exp_of_infinity, lax.stop_gradient((high, low)))))
    return lax.select(is_nothing, high, lax.select(both, infinite, sums))


def _exp_of_infinity(array):
    """The exponential of numbers whose real part is infinite: a zero in their imaginary part stays."""
    angle = lax.imag(array)
    sine = lax.select(angle == 0, angle, lax.sin(angle) * math.inf)
    return lax.complex(lax.cos(angle) * math.inf, sine)


def _running_extremum(scan, input, dim):
    """The extrema so far and the last index of each, whose element gets the gradient."""
    axis, index_dtype = axis_of(input, dim), canonical(torch.int64)
    if input.ndim == 0:
        return input, jnp.zeros((), index_dtype)
    array = lax.stop_gradient(cast(input, jnp.int8) if input.dtype == bool else input)
    is_extremum = lax.bitwise_or(lax.eq(array, scan(array, axis)), lax.ne(array, array))
    positions = lax.broadcasted_iota(index_dtype, input.shape, axis)
    indices = lax.cummax(lax.select(is_extremum, positions, lax.full_like(positions, 0)), axis)
    return jnp.take_along_axis(input, indices, axis), indices


@implements(torch.cummax, takes=REALS_AND_BOOL, dtype=(None, torch.int64))
def cummax(input, dim):
    return _running_extremum(lax.cummax, input, dim)


@implements(torch.cummin, takes=REALS_AND_BOOL, dtype=(None, torch.int64))
def cummin(input, dim):
    return _running_extremum(lax.cummin, input, dim)


_REDUCTIONS = ("sum", "mean", "prod", "max", "min")
_ALSO = {"amax": "max", "amin": "min"}


@implements_tensors(torch.segment_reduce, torch.ops.aten.segment_reduce.default, takes=FLOATS - FLOAT8)
def segment_reduce(data, reduce, *, lengths=None, indices=None, offsets=None, axis=0, unsafe=False, initial=None):
    reduce = _ALSO.get(reduce, reduce)
    if reduce not in _REDUCTIONS:
        raise RuntimeError(f"Unsupported reduction: got {reduce!r}, wanted one of {', '.join(_REDUCTIONS)}")
    if indices is not None or (lengths is None) == (offsets is None):
        raise RuntimeError("segment_reduce() wants either lengths or offsets, and no indices")
    axis = axis_of(data, axis)
    bounds = _bounds(lengths, axis) if offsets is None else offsets
    if bounds.ndim != axis + 1 or bounds.shape[:-1] != data.shape[:axis]:
        given = "lengths" if offsets is None else "offsets"
        raise RuntimeError(
            f"segment_reduce(): wanted {given} of the shape of data before axis {axis} and one dimension more, got "
            f"{list((lengths if offsets is None else offsets).shape)} for data of shape {list(data.shape)}"
        )
    counts = None if offsets is None else seen(offsets)
    if counts is not None and (np.diff(counts) < 0).any():
        raise RuntimeError(f"segment_reduce(): wanted offsets that do not decrease, got {counts.tolist()}")
    if not unsafe and lengths is not None:
        _check_lengths(lengths, data.shape[axis])
    return _reduced(data, reduce, bounds, axis, initial)


def _bounds(lengths, axis: int):
    """The first index of each segment, and the end of the last one."""
    return torch.nn.functional.pad(lengths.cumsum(axis), (1, 0))


def _check_lengths(lengths, size: int) -> None:
    counts = seen(lengths)  # what is beyond the data's end is left out where nothing is, as with unsafe=True
    if counts is not None and counts.size and (counts.min() < 0 or (counts.sum(-1) != size).any()):
        raise RuntimeError(
            f"segment_reduce(): Expected all rows of lengths along axis to sum to data.size(lengths.dim()-1) ({size}) "
            f"when !unsafe, and none to be negative; got {counts.tolist()}"
        )


def _reduced(data, reduce: str, bounds, axis: int, initial):
    size, segments = data.shape[axis], bounds.shape[-1] - 1
    positions = torch.arange(size).unsqueeze(-1)
    # Counted from one: those before the first segment and after the last have places of their own, cut off below.
    segment = (positions >= bounds.unsqueeze(-2)).sum(-1)
    if reduce in ("max", "min"):
        return _EXTREME((data, segment, reduce, segments + 2, initial), {}).narrow(axis, 1, segments)
    if reduce == "prod":
        result = _PRODUCT((data, segment, segments + 2), {}).narrow(axis, 1, segments)
        return result if initial is None else result * initial
    shape = (*data.shape[:axis], segments + 2, *data.shape[axis + 1 :])
    index = segment.reshape(*segment.shape, *(1,) * (data.ndim - axis - 1)).expand(data.shape)
    result = torch.zeros(shape, dtype=data.dtype).scatter_add(axis, index, data).narrow(axis, 1, segments)
    if reduce == "mean":
        lengths = bounds.diff(dim=-1).reshape(*bounds.shape[:-1], segments, *(1,) * (data.ndim - axis - 1))
        empty = float("nan") if initial is None else initial
        return torch.where(lengths > 0, (result + (initial or 0)) / lengths.clamp(min=1), empty)
    return result if initial is None else result + initial


def _along(function, data, segment, segments: int):
    """A reduction of segments along the first axis that data does not share with the segment numbers."""
    function = functools.partial(function, num_segments=segments)
    for _ in range(segment.ndim - 1):
        function = jax.vmap(function)
    return function(data, segment)


def _largest(data, segment, segments: int, initial):
    result = _along(jax.ops.segment_max, data, segment, segments)
    return result if initial is None else lax.max(result, jnp.full_like(result, initial))


@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3))
def _winner(data, segment, segments, initial):
    return _largest(data, segment, segments, initial)


@_winner.defjvp
def _(segments, initial, primals, tangents):
    data, segment = primals
    result = _winner(data, segment, segments, initial)
    # The largest share the gradient, also with the initial value in a tie, and the NaNs where there are any.
    reached = jnp.take_along_axis(result, _expanded(segment, data), segment.ndim - 1)
    won = lax.eq(data, reached) | jnp.isnan(data)
    count = _along(jax.ops.segment_sum, won.astype(data.dtype), segment, segments)
    total = _along(jax.ops.segment_sum, jnp.where(won, tangents[0], 0), segment, segments)
    return result, total / jnp.maximum(count, 1)


def _expanded(segment, data):
    return jnp.broadcast_to(segment.reshape(*segment.shape, *(1,) * (data.ndim - segment.ndim)), data.shape)


def _extreme(data, segment, reduce, segments, initial):
    if reduce == "max":
        return _winner(data, segment, segments, initial)
    return -_winner(-data, segment, segments, None if initial is None else -initial)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _product(data, segment, segments):
    return _along(jax.ops.segment_prod, data, segment, segments)


@_product.defjvp
def _(segments, primals, tangents):
    data, segment = primals
    own = _expanded(segment, data)
    # The factor of a tangent is the product of the others, before it and behind it: no division by a zero or a NaN.
    factor = _before(data, own, segment.ndim - 1) * _before(data, own, segment.ndim - 1, reverse=True)
    return _product(data, segment, segments), _along(jax.ops.segment_sum, factor * tangents[0], segment, segments)


def _before(data, segment, axis: int, *, reverse: bool = False):
    """The product of the elements before each element in its segment."""

    def joined(left, right):
        return right[0], jnp.where(left[0] == right[0], left[1] * right[1], right[1])

    _, product = lax.associative_scan(joined, (segment, data), axis=axis, reverse=reverse)
    step = -1 if reverse else 1
    first = np.arange(data.shape[axis]).reshape(-1, *(1,) * (data.ndim - axis - 1)) == (data.shape[axis] - 1) * reverse
    begins = (segment != jnp.roll(segment, step, axis)) | first
    return jnp.where(begins, 1, jnp.roll(product, step, axis))


_PRODUCT = InnerRule(_product, "segment_reduce")
_EXTREME = InnerRule(_extreme, "segment_reduce")
