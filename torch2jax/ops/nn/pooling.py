"""Pooling.

A window is folded from strided slices, one for each of its places: XLA fuses them, and on a CPU their gradient runs
ten times faster than that of ``lax.reduce_window``. Large windows are folded one dimension at a time.
"""

import functools
import itertools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ...internals.tensors import alert_not_deterministic
from ...rules.options import Tag
from ...rules.pointwise import as_input, as_volume
from ...rules.registry import implements, tag
from ...tensors.dtypes import FLOATS, REALS
from ..arrays import cast, lowest, widened
from ..bounds import outside
from ..views import reshape
from .convolution import per_dimension

F = torch.nn.functional

_AVERAGED = FLOATS | {torch.int64, torch.int32}  # int32 is what int64 becomes with jax_enable_x64 off
_FOLDED_AT_ONCE = 16  # places in a window


class _Span(NamedTuple):
    """The windows along one dimension."""

    size: int
    window: int
    stride: int
    dilation: int
    low: int
    high: int
    count: int

    def positions(self) -> np.ndarray:
        """The input index of each place of each window, clamped to the input: ``(window, count)``."""
        indices = np.arange(self.window)[:, None] * self.dilation + np.arange(self.count) * self.stride - self.low
        return np.clip(indices, 0, self.size - 1)

    def first_inside(self) -> np.ndarray:
        """The mask of each window's first place that is no padding: ``(window, count)``."""
        inside = np.arange(self.window)[:, None] * self.dilation + np.arange(self.count) * self.stride >= self.low
        return inside & ~np.concatenate([np.zeros_like(inside[:1]), inside[:-1]])

    def within(self) -> "_Span":
        """The windows without the places that lie outside of the input in all of them: a window may be far larger."""
        reach = (self.count - 1) * self.stride
        last = min(self.window - 1, (self.size - 1 + self.low) // self.dilation)
        first = min(max(0, -((reach - self.low) // self.dilation)), last)
        if (first, last) == (0, self.window - 1):
            return self
        window, low = last - first + 1, self.low - first * self.dilation
        high = reach + self.dilation * (window - 1) + 1 - self.size - low
        return self._replace(window=window, low=low, high=high)


def _spans(sizes, kernel_size, stride, padding, dilation, ceil_mode: bool) -> list[_Span]:
    count = len(sizes)
    window = per_dimension(kernel_size, count, "kernel_size")
    stride = window if stride is None or stride == () or stride == [] else per_dimension(stride, count, "stride")
    padding, dilation = per_dimension(padding, count, "padding"), per_dimension(dilation, count, "dilation")
    return [_span(*each, ceil_mode) for each in zip(sizes, window, stride, padding, dilation, strict=True)]


def _span(size: int, window: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> _Span:
    for what, value in (("stride", stride), ("kernel size", window), ("dilation", dilation)):
        if value < 1:
            negative = "should not be zero" if what == "stride" and value == 0 else "should be greater than zero"
            raise RuntimeError(f"{what} {negative}, but got {value}")
    reach = dilation * (window - 1) + 1
    if not 0 <= padding <= reach // 2:
        raise RuntimeError(
            f"pad should be non-negative and at most half of effective kernel size, but got pad={padding}, "
            f"kernel_size={window} and dilation={dilation}"
        )
    extent = size + 2 * padding - reach
    count = extent // stride + 1
    if ceil_mode and extent % stride and count * stride < size + padding:
        count += 1
    if count < 1:
        raise RuntimeError(
            f"Output size is too small: a dimension of size {size}, with kernel_size={window} and dilation={dilation}, "
            f"gives {count}"
        )
    high = max(padding, (count - 1) * stride + reach - size - padding)
    return _Span(size, window, stride, dilation, padding, high, count)


def _axes(array, count: int, channels_last: bool, error: type[Exception] = RuntimeError) -> tuple[int, ...]:
    """The spatial dimensions; raises `error` if there are more or fewer."""
    if array.ndim not in (count + 1, count + 2):
        raise error(
            f"Expected {count + 1}D or {count + 2}D (batch mode) tensor for pooling over {count} dimensions, but got: "
            f"{list(array.shape)}"
        )
    return tuple(range(1, 1 + count)) if channels_last else tuple(range(array.ndim - count, array.ndim))


def _expect_elements(array, count: int) -> None:
    """Refuses an input without elements, except along the batch."""
    if 0 in array.shape[array.ndim - count - 1 :]:
        raise RuntimeError(
            f"Expected {count + 1}D or {count + 2}D (batch mode) tensor with optional 0 dim batch size for input. "
            f"Expected input to have non-zero size for non-batch dimensions, but got: {list(array.shape)}"
        )


def _sizes(array, axes) -> tuple[int, ...]:
    return tuple(array.shape[axis] for axis in axes)


def _padded(array, axes, spans, value):
    margins = [(0, 0, 0)] * array.ndim
    for axis, span in zip(axes, spans, strict=True):
        margins[axis] = (span.low, span.high, 0)
    if not any(low or high for low, high, _ in margins):
        return array
    return lax.pad(array, np.asarray(value, array.dtype), margins)


def _slices(array, axes, spans) -> list:
    """The places of the windows, one array for each, in order; `array` is padded."""
    parts = []
    for offsets in itertools.product(*(range(span.window) for span in spans)):
        start, end, step = [0] * array.ndim, list(array.shape), [1] * array.ndim
        for axis, span, offset in zip(axes, spans, offsets, strict=True):
            start[axis] = offset * span.dilation
            end[axis] = start[axis] + (span.count - 1) * span.stride + 1
            step[axis] = span.stride
        parts.append(lax.slice(array, start, end, step))
    return parts


def _folded(array, axes, spans, fold):
    """Folds the places of each window of a padded array; `fold` gets them, their dimensions and spans."""
    if math.prod(span.window for span in spans) <= _FOLDED_AT_ONCE:
        return fold(_slices(array, axes, spans), axes, tuple(spans))
    for axis, span in reversed(list(zip(axes, spans, strict=True))):
        array = fold(_slices(array, (axis,), (span,)), (axis,), (span,))
    return array


# The largest of each window.


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _first_largest(parts, axes=(), spans=()):
    return functools.reduce(lax.max, parts)


@_first_largest.defjvp
def _(axes, spans, primals, tangents):
    # The first of several largest takes the whole gradient, where that of lax.max would be shared.
    ((largest, *parts),), ((tangent, *tangents),) = primals, tangents
    begins = _begins(axes, spans, largest.shape) if spans else itertools.repeat(None)
    for part, d_part, begin in zip(parts, tangents, begins, strict=False):
        tangent = lax.select(_either(lax.gt(part, largest), begin), d_part, tangent)
        largest = lax.max(largest, part)
    return _first_largest(primals[0], axes, spans), tangent


def _begins(axes, spans, shape) -> list:
    """For each place after the first, the windows in which all places before it are padding; or None.

    Padding is the lowest of numbers, and equal to an element that is minus infinity: it must not count as the first.
    """
    begins = []
    for along in itertools.product(*(span.first_inside() for span in spans)):
        if all(each.any() for each in along):
            begins.append(lax.broadcast_in_dim(functools.reduce(np.logical_and.outer, along), shape, axes))
        else:
            begins.append(None)
    return begins[1:]


def _either(mask, other):
    return mask if other is None else lax.bitwise_or(mask, other)


def _position_of_largest(parts, positions, begins=None):
    """The position in the input of each window's largest."""
    return _largest_and_position(parts, positions, begins)[1]


def _largest_and_position(parts, positions, begins=None):
    """The first of each window's largest values, or the last NaN, as in PyTorch, and its position."""
    (largest, *parts), (position, *positions) = parts, positions
    for part, other, begin in zip(parts, positions, begins or itertools.repeat(None), strict=False):
        is_larger = _either(lax.bitwise_or(lax.gt(part, largest), lax.ne(part, part)), begin)
        largest, position = lax.select(is_larger, part, largest), lax.select(is_larger, other, position)
    return largest, position


def _flat_positions(per_axis: list[np.ndarray], sizes, axes, shape) -> list:
    """For each place of the windows its position in the flattened input, from the positions along each dimension."""
    steps = [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
    flat = []
    for rows in itertools.product(*per_axis):
        along = [np.asarray(row * step, np.int32) for row, step in zip(rows, steps, strict=True)]
        spread = [lax.broadcast_in_dim(row, shape, (axis,)) for row, axis in zip(along, axes, strict=True)]
        flat.append(functools.reduce(lax.add, spread))
    return flat


def _max_pool(input, count, kernel_size, stride, padding, dilation, ceil_mode, return_indices, channels_last=False):
    axes = _axes(input, count, channels_last)
    _expect_elements(input, count)
    spans = _spans(_sizes(input, axes), kernel_size, stride, padding, dilation, ceil_mode)
    spans = [span.within() for span in spans]
    padded = _padded(input, axes, spans, lowest(input))
    output = _folded(padded, axes, spans, _first_largest)
    if not return_indices:
        return output
    return output, _indices_of_largest(lax.stop_gradient(padded), axes, spans)


def _indices_of_largest(padded, axes, spans):
    """The position in the flattened input of each window's largest."""
    sizes = [span.size for span in spans]
    if math.prod(span.window for span in spans) <= _FOLDED_AT_ONCE:
        parts = _slices(padded, axes, spans)
        positions = [span.positions() for span in spans]
        shape = parts[0].shape
        flat = _flat_positions(positions, sizes, axes, shape)
        return _position_of_largest(parts, flat, _begins(axes, spans, shape))
    indices = lax.full(padded.shape, 0, np.int32)
    for i, (axis, span) in reversed(list(enumerate(zip(axes, spans, strict=True)))):
        parts, inner = (_slices(x, (axis,), (span,)) for x in (padded, indices))
        rows = np.asarray(span.positions() * math.prod(sizes[i + 1 :]), np.int32)
        own = [lax.broadcast_in_dim(row, parts[0].shape, (axis,)) for row in rows]
        begins = _begins((axis,), (span,), parts[0].shape)
        padded, indices = _largest_and_position(parts, [*map(lax.add, inner, own)], begins)
    return indices


def _with_indices(*args, **kwargs):
    indices = kwargs.get("return_indices", args[6] if len(args) > 6 else False)
    return (None, torch.int64) if indices else None


def _max_pool_of(count: int):
    def max_pool(
        input,
        kernel_size,
        stride=None,
        padding=0,
        dilation=1,
        ceil_mode=False,
        return_indices=False,
        *,
        channels_last=False,
    ):
        return _max_pool(input, count, kernel_size, stride, padding, dilation, ceil_mode, return_indices, channels_last)

    return max_pool


def _max_pool_with_indices_of(count: int):
    def max_pool_with_indices(input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False):
        return _max_pool(input, count, kernel_size, stride, padding, dilation, ceil_mode, True)

    return max_pool_with_indices


for _count, _strides, _takes, _with_both in (
    (1, None, FLOATS, torch.max_pool1d_with_indices),
    (2, as_input, REALS, torch._C._nn.max_pool2d_with_indices),
    (3, as_volume, REALS, torch._C._nn.max_pool3d_with_indices),
):
    implements(
        getattr(F, f"max_pool{_count}d"),
        getattr(torch, f"max_pool{_count}d"),
        takes=_takes,
        dtype=_with_indices,
        channels_last=("follow", _count + 2),
        strides=_strides,
    )(_max_pool_of(_count))
    implements(_with_both, takes=REALS, dtype=(None, torch.int64), strides=_strides)(_max_pool_with_indices_of(_count))


# The mean of each window.


def _sum_of_slices(parts, *_):
    return functools.reduce(lax.add, parts)


def _avg_pool(
    input, count, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override=None, channels_last=False
):
    axes = _axes(input, count, channels_last)
    _expect_elements(input, count)
    spans = _spans(_sizes(input, axes), kernel_size, stride, padding, 1, ceil_mode)
    if divisor_override == 0:
        raise RuntimeError("divisor must be not zero")
    summed = [span.within() for span in spans]
    total = _folded(_padded(widened(input), axes, summed, 0), axes, summed, _sum_of_slices)
    if divisor_override is not None:
        mean = _divided(total, [divisor_override])
    else:
        mean = _divided(total, [_counted(span, count_include_pad) for span in spans], axes)
    return cast(mean, input.dtype)


def _counted(span: _Span, count_include_pad: bool) -> np.ndarray:
    """The number of elements that each window's sum along one dimension is divided by."""
    start = np.arange(span.count) * span.stride - span.low
    end = np.minimum(start + span.window, span.size + span.low)
    if not count_include_pad:
        start, end = np.maximum(start, 0), np.minimum(end, span.size)
    return end - start


def _divided(total, counts, axes=()):
    """Divides by the product of the counts along each dimension."""
    constant = math.prod(int(np.ravel(each)[0]) for each in counts if np.ptp(each) == 0)
    divisor = np.asarray(constant, total.dtype)
    varying = [(axis, each) for axis, each in zip(axes, counts, strict=False) if np.ptp(each)]
    if not varying:
        return _quotient(total, divisor)
    spread = [lax.broadcast_in_dim(np.asarray(each, total.dtype), total.shape, (axis,)) for axis, each in varying]
    return _quotient(total, lax.mul(functools.reduce(lax.mul, spread), divisor))


def _quotient(total, divisor):
    return total if np.ndim(divisor) == 0 and divisor == 1 else lax.div(total, divisor)


@implements(torch.avg_pool1d, F.avg_pool1d, takes=_AVERAGED, channels_last=("follow", 3))
def avg_pool1d(
    input, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, *, channels_last=False
):
    return _avg_pool(input, 1, kernel_size, stride, padding, ceil_mode, count_include_pad, None, channels_last)


@implements(F.avg_pool2d, takes=_AVERAGED, channels_last=("follow", 4), strides=as_input)
def avg_pool2d(
    input,
    kernel_size,
    stride=None,
    padding=0,
    ceil_mode=False,
    count_include_pad=True,
    divisor_override=None,
    *,
    channels_last=False,
):
    return _avg_pool(
        input, 2, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override, channels_last
    )


@implements(F.avg_pool3d, takes=_AVERAGED, channels_last=("follow", 5))
def avg_pool3d(
    input,
    kernel_size,
    stride=None,
    padding=0,
    ceil_mode=False,
    count_include_pad=True,
    divisor_override=None,
    *,
    channels_last=False,
):
    return _avg_pool(
        input, 3, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override, channels_last
    )


# Adaptive pooling: as many windows as the output is large.


def _output_sizes(sizes, output_size) -> tuple[int, ...]:
    wanted = output_size if isinstance(output_size, (tuple, list)) else (output_size,) * len(sizes)
    if len(wanted) not in (1, len(sizes)):
        raise RuntimeError(f"expected output_size of {len(sizes)} values, but got {tuple(wanted)}")
    wanted = tuple(wanted) * (len(sizes) // len(wanted))
    wanted = tuple(size if each is None else int(each) for size, each in zip(sizes, wanted, strict=True))
    if min(wanted) < 0:
        raise RuntimeError(f"elements of output_size must be greater than or equal to 0, but got {wanted}")
    if math.prod(wanted) >= 2**60:
        raise RuntimeError(f"Storage size calculation overflowed with output_size={wanted}")
    return wanted


def _adaptive_bounds(size: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The first index of each window, and the one after its last."""
    index = np.arange(count)
    return index * size // count, -(-(index + 1) * size // count)


def _adaptive_positions(size: int, count: int) -> np.ndarray:
    """The position of each place of each window, ``(window, count)``; shorter windows repeat their last."""
    start, end = _adaptive_bounds(size, count)
    window = int(max(end - start, default=0))
    return np.minimum(start + np.arange(window)[:, None], end - 1)


def _taken(array, axis: int, index: np.ndarray):
    return array.at[(slice(None),) * axis + (index,)].get(mode="promise_in_bounds", indices_are_sorted=True)


def _adaptive_avg_pool(input, count, output_size, channels_last=False):
    # PyTorch's Python function raises another exception type for this than its operators.
    axes = _axes(input, count, channels_last, RuntimeError if count == 1 else ValueError)
    wanted = dict(zip(axes, _output_sizes(_sizes(input, axes), output_size), strict=True))
    if 0 in wanted.values():
        return lax.full([wanted.get(axis, size) for axis, size in enumerate(input.shape)], 0, input.dtype)
    even = {axis: size for axis, size in wanted.items() if size and input.shape[axis] % size == 0}
    output = _mean_of_equal_parts(widened(input), even)
    for axis in wanted.keys() - even.keys():
        output = _mean_of_parts(output, axis, wanted[axis])
    return cast(output, input.dtype)


def _mean_of_equal_parts(array, counts: dict[int, int]):
    """The means of equal parts along some dimensions; each has a number of parts."""
    if all(array.shape[axis] == count for axis, count in counts.items()):
        return array
    shape, inner = [], []
    for axis, size in enumerate(array.shape):
        shape.append(counts.get(axis, size))
        if counts.get(axis, size) != size:
            inner.append(len(shape))
            shape.append(size // counts[axis])
    total = lax.reduce_sum(reshape(array, tuple(shape)), inner)
    return lax.div(total, np.asarray(math.prod(shape[axis] for axis in inner), array.dtype))


def _mean_of_parts(array, axis: int, count: int):
    """The means of `count` parts along one dimension, which may overlap and differ in size."""
    start, end = _adaptive_bounds(array.shape[axis], count)
    total = jnp.zeros((*array.shape[:axis], count, *array.shape[axis + 1 :]), array.dtype)
    for offset, index in enumerate(_adaptive_positions(array.shape[axis], count)):
        part = _taken(array, axis, index)
        inside = lax.broadcast_in_dim(start + offset < end, total.shape, (axis,))
        total = lax.add(total, lax.select(inside, part, lax.full_like(part, 0)))
    return _divided(total, [end - start], (axis,))


@implements(torch.adaptive_avg_pool1d, F.adaptive_avg_pool1d, takes=FLOATS, channels_last=("follow", 3))
def adaptive_avg_pool1d(input, output_size, *, channels_last=False):
    return _adaptive_avg_pool(input, 1, output_size, channels_last)


@implements(
    F.adaptive_avg_pool2d,
    torch._C._nn.adaptive_avg_pool2d,
    torch.ops.aten._adaptive_avg_pool2d,
    takes=FLOATS,
    channels_last=("follow", 4),
    strides=as_input,
)
def adaptive_avg_pool2d(input, output_size, *, channels_last=False):
    return _adaptive_avg_pool(input, 2, output_size, channels_last)


@implements(
    F.adaptive_avg_pool3d,
    torch._C._nn.adaptive_avg_pool3d,
    torch.ops.aten._adaptive_avg_pool3d,
    takes=FLOATS,
    channels_last=("follow", 5),
)
def adaptive_avg_pool3d(input, output_size, *, channels_last=False):
    return _adaptive_avg_pool(input, 3, output_size, channels_last)


def _adaptive_max_pool(input, count, output_size):
    axes = _axes(input, count, False)
    _expect_elements(input, count)
    sizes = _sizes(input, axes)
    wanted = _output_sizes(sizes, output_size)
    if 0 in (*input.shape, *wanted):
        shape = (*input.shape[: axes[0]], *wanted)
        return jnp.zeros(shape, input.dtype), jnp.zeros(shape, np.int32)
    output, positions = input, lax.full(input.shape, 0, np.int32)
    for i, (axis, parts) in reversed(list(enumerate(zip(axes, wanted, strict=True)))):
        output, positions = _largest_of_parts(output, positions, axis, parts, math.prod(sizes[i + 1 :]))
    return output, positions


def _largest_of_parts(array, positions, axis: int, count: int, step: int):
    """The largest of each of `count` parts along one dimension, and where it lies, `step` after `step`.

    The first of several is taken, and the last NaN, as in PyTorch.
    """
    index = _adaptive_positions(array.shape[axis], count).T
    along = axis, axis + 1
    array, positions = (_parts(x, axis, index) for x in (array, positions))
    positions = lax.add(positions, lax.broadcast_in_dim(np.asarray(index * step, np.int32), array.shape, along))
    values, numbers = lax.stop_gradient(array), lax.broadcasted_iota(np.int32, array.shape, axis + 1)
    last_nan = lax.reduce_max(lax.select(lax.ne(values, values), numbers, lax.full_like(numbers, -1)), (axis + 1,))
    first = lax.argmax(values, axis + 1, np.int32)
    chosen = lax.select(lax.lt(last_nan, np.int32(0)), first, last_nan)
    is_chosen = lax.eq(numbers, lax.expand_dims(chosen, (axis + 1,)))
    return tuple(lax.reduce_sum(lax.select(is_chosen, x, lax.full_like(x, 0)), (axis + 1,)) for x in (array, positions))


def _parts(array, axis: int, index: np.ndarray):
    """The elements of each part along one dimension, in a dimension after it; `index` tells where they lie."""
    if index.size == array.shape[axis]:
        return reshape(array, (*array.shape[:axis], *index.shape, *array.shape[axis + 1 :]))
    return _taken(array, axis, index)


@implements(torch.adaptive_max_pool1d, takes=FLOATS, dtype=(None, torch.int64))
def adaptive_max_pool1d(input, output_size):
    return _adaptive_max_pool(input, 1, output_size)


@implements(torch._C._nn.adaptive_max_pool2d, takes=FLOATS, dtype=(None, torch.int64), strides=as_input)
def adaptive_max_pool2d(input, output_size):
    return _adaptive_max_pool(input, 2, output_size)


@implements(torch._C._nn.adaptive_max_pool3d, takes=FLOATS, dtype=(None, torch.int64))
def adaptive_max_pool3d(input, output_size):
    return _adaptive_max_pool(input, 3, output_size)


# Fractional pooling: where the windows start is drawn at random.


def _fractional_max_pool(input, count, kernel_size, output_size, random_samples):
    axes = _axes(input, count, False)
    _expect_elements(input, count)
    sizes, lead = _sizes(input, axes), input.shape[:-count]
    for what, value in (("kernel_size", kernel_size), ("output_size", output_size)):
        if not isinstance(value, int) and len(value) != count:
            raise RuntimeError(f"{what} must either be a single Int or a tuple of {count} Ints, but got {value}")
    window, wanted = per_dimension(kernel_size, count, "kernel_size"), per_dimension(output_size, count, "output_size")
    named = zip(("time", "height", "width")[-count:], wanted, window, sizes, strict=True)
    for what, start, kernel, size in named:
        if start + kernel - 1 > size:
            raise RuntimeError(
                f"pool {what} {kernel} too large relative to input {what} {size}, for an output of {start}"
            )
    samples = _fractional_samples(random_samples, lead, count)
    order = (1, 0) if count == 2 else (0, 1, 2)  # which sample serves which dimension
    shape = (*lead, *wanted)
    starts = [
        lax.broadcast_in_dim(
            _fractional_starts(samples[..., order[i]], sizes[i], wanted[i], window[i]), shape, (*range(len(lead)), axis)
        )
        for i, axis in enumerate(axes)
    ]
    flat = reshape(input, (*lead, math.prod(sizes)))
    parts, positions = [], []
    for offsets in itertools.product(*map(range, window)):
        position = jnp.zeros(shape, np.int32)
        for start, offset, size in zip(starts, offsets, sizes, strict=True):
            position = position * size + start + offset
        positions.append(position)
        index = reshape(position, (*lead, math.prod(wanted)))
        parts.append(reshape(jnp.take_along_axis(flat, index, axis=-1), shape))
    return _first_largest(parts), _position_of_largest([lax.stop_gradient(kernel) for kernel in parts], positions)


def _fractional_samples(random_samples, lead: tuple[int, ...], count: int):
    """The samples of each batch and channel, from samples that may be for a larger batch."""
    batch, channels = (1, *lead)[-2:]
    shape = random_samples.shape
    if len(shape) != 3 or shape[0] < batch or shape[1:] != (channels, count):
        raise RuntimeError(
            f"Expect _random_samples of shape ({batch} or more, {channels}, {count}), got {tuple(shape)}"
        )
    return reshape(random_samples[:batch] if shape[0] > batch else random_samples, (*lead, count))


def _fractional_starts(sample, size: int, count: int, window: int):
    """The first index of each window along one dimension: ``(..., count)``."""
    last = jnp.full((*sample.shape, 1), size - window, np.int32)
    if count == 1:
        return last
    step = (size - window) / (count - 1)
    index = np.arange(count - 1, dtype=sample.dtype)
    starts = ((index + sample[..., None]) * step).astype(np.int32) - (sample * step).astype(np.int32)[..., None]
    return jnp.concatenate([starts, last], axis=-1)


@implements(torch._C._nn.fractional_max_pool2d, takes=FLOATS, dtype=(None, torch.int64))
def fractional_max_pool2d(input, kernel_size, output_size, random_samples):
    return _fractional_max_pool(input, 2, kernel_size, output_size, random_samples)


@implements(torch._C._nn.fractional_max_pool3d, takes=FLOATS, dtype=(None, torch.int64))
def fractional_max_pool3d(input, kernel_size, output_size, random_samples):
    return _fractional_max_pool(input, 3, kernel_size, output_size, random_samples)


tag(F.fractional_max_pool2d, F.fractional_max_pool3d, tags=[Tag.RANDOM])


# Unpooling.


def _unpool(input, indices, output_size, count):
    """Puts each value where it was taken from, and zeros elsewhere."""
    if input.ndim not in (count + 1, count + 2):
        raise RuntimeError(
            f"Input to max_unpooling{count}d should be a {count + 1}d or {count + 2}d Tensor, but got a tensor with "
            f"{input.ndim} dimensions."
        )
    if input.shape != indices.shape:
        raise RuntimeError(
            f"expected shape of indices to be same as that of the input ({list(input.shape)}), but got indices tensor "
            f"with shape {list(indices.shape)}"
        )
    lead, size = input.shape[:-count], math.prod(input.shape[-count:])
    rows, area = math.prod(lead), math.prod(output_size)
    output = _put(reshape(input, (rows, size)), reshape(indices, (rows, size)), area)
    return reshape(output, (*lead, *output_size))


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _put(values, indices, area: int):
    rows, target = np.arange(len(values))[:, None], jnp.zeros((len(values), area), values.dtype)
    return target.at[rows, indices].set(values)


@_put.defjvp
def _(area, primals, tangents):
    # Of values put in the same place the last one stays, yet in PyTorch each gets the gradient of that place.
    (values, indices), (d_values, _) = primals, tangents
    rows, target = np.arange(len(values))[:, None], jnp.zeros((len(values), area), values.dtype)
    return _put(values, indices, area), target.at[rows, indices].add(d_values)


def _check_unpooled(count: int, input, indices, output_size, *args, **kwargs) -> None:
    output_size = per_dimension(output_size, count, "output_size")
    bad = outside(indices, 0, math.prod(output_size) - 1)
    if bad is not None:
        volume = "x".join(map(str, output_size))
        raise RuntimeError(f"Found an invalid max index: {bad} (output volumes are of size {volume})")


def _alerting(name: str):
    """Makes a `prepare` that gives PyTorch's alert for an operation with results that may differ from run to run."""

    def prepare(*args, **kwargs):
        alert_not_deterministic(name)
        return args, kwargs

    return prepare


@implements(
    torch._C._nn.max_unpool2d,
    takes=FLOATS,
    strides=as_input,
    check=functools.partial(_check_unpooled, 2),
    prepare=_alerting("max_unpooling2d_forward_out"),
)
def max_unpool2d(input, indices, output_size):
    return _unpool(input, indices, per_dimension(output_size, 2, "output_size"), 2)


@implements(
    torch._C._nn.max_unpool3d,
    takes=FLOATS,
    check=functools.partial(_check_unpooled, 3),
    prepare=_alerting("max_unpooling3d_forward_out"),
)
def max_unpool3d(input, indices, output_size, stride, padding):
    if any(step <= 0 for step in stride):
        raise RuntimeError(f"strides should be greater than zero, but got stride: {list(stride)}")
    return _unpool(input, indices, per_dimension(output_size, 3, "output_size"), 3)
