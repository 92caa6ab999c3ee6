"""Interpolation, grids, padding and pixel shuffling."""

import itertools
import math

import jax.numpy as jnp
import numpy as np
import torch
import torch.nn.functional as F
from jax import lax

from ...internals.dispatch import nn as _nn
from ...rules.options import Tag
from ...rules.pointwise import as_input
from ...rules.registry import implements
from ...tensors.dtypes import FLOATS, NUMBERS, expect_fits, number_in_dtype
from .. import bounds
from ..arrays import is_inexact, like, where, widened

aten = torch.ops.aten

_IMAGES = FLOATS | {torch.uint8}

# Padding.


def _padded_dtypes(input, pad, mode="constant", value=None):
    if value is not None:
        expect_fits(float(value), input.dtype)
    return NUMBERS if mode in ("reflect", "replicate") else None


def _padded_strides(shape, input, pad, mode="constant", value=None):
    return None if mode == "circular" else as_input(shape, input)


@implements(
    F.pad, _nn.pad, takes=_padded_dtypes, channels_last=("follow", 4), strides=_padded_strides, tags=[Tag.LINEAR]
)
def pad(input, pad, mode="constant", value=None, *, channels_last=False):
    if len(pad) % 2 or len(pad) > 2 * input.ndim:
        raise RuntimeError(
            f"Padding length must be even and at most twice the number of dimensions ({input.ndim}), got {list(pad)}"
        )
    widths = [(0, 0)] * (input.ndim - len(pad) // 2) + list(zip(pad[-2::-2], pad[-1::-2], strict=True))
    if channels_last:
        widths = [widths[0], *widths[2:], widths[1]]
    for size, (low, high) in zip(input.shape, widths, strict=True):
        if size + low + high < 0:
            raise RuntimeError(
                f"The input size {size}, plus negative padding {low} and {high}, resulted in a negative output size"
            )
    if mode == "constant":
        fill = (value or 0.0) if is_inexact(input) else int(value or 0)
        return lax.pad(input, number_in_dtype(fill, input.dtype), [(low, high, 0) for low, high in widths])
    if mode not in _EDGES:
        raise NotImplementedError(f"Unrecognised padding mode {mode}; it may be constant, {', '.join(_EDGES)}")
    if value:
        raise ValueError(f'Padding mode "{mode}" doesn\'t take in value argument')
    if len(pad) > 6 or input.ndim - len(pad) // 2 not in (1, 2):
        raise NotImplementedError(
            "Only 2D, 3D, 4D, 5D padding with non-constant padding are supported for now; got padding "
            f"{list(pad)} of an input of {input.ndim} dimensions"
        )
    expected = len(pad) // 2 + 1
    if mode != "circular" and 0 in input.shape[-expected:]:
        raise RuntimeError(
            f"Expected {expected}D or {expected + 1}D (batch mode) tensor with possibly 0 batch size and other "
            f"non-zero dimensions for input, but got: {list(input.shape)}"
        )
    for dim, (low, high) in enumerate(widths):
        if low or high:
            input = _pad_one(input, dim, low, high, mode)
    return input


def _pad_one(x, dim, low, high, mode):
    size = x.shape[dim]
    before, after = max(low, 0), max(high, 0)
    if mode == "circular":  # here negative padding comes first
        x = lax.slice_in_dim(x, max(-low, 0), size - max(-high, 0), axis=dim)
        low, high, size = before, after, x.shape[dim]
    limit = {"reflect": size - 1, "circular": size, "replicate": math.inf if size else 0}[mode]
    if max(before, after) > limit:
        raise RuntimeError(
            f"Padding ({low}, {high}) at dimension {dim} is too large for mode '{mode}' of an input of shape "
            f"{list(x.shape)}: it may be at most {limit}"
        )
    if before or after:
        edges = _EDGES[mode](x, dim, before, after)
        parts = [part for part in (edges[0], x, edges[1]) if part.shape[dim]]
        x = lax.concatenate(parts, dim)
    return lax.slice_in_dim(x, max(-low, 0), x.shape[dim] - max(-high, 0), axis=dim)


def _reflect(x, dim, before, after):
    end = x.shape[dim] - 1
    low = lax.slice_in_dim(x, 1, before + 1, axis=dim)
    high = lax.slice_in_dim(x, end - after, end, axis=dim)
    return lax.rev(low, (dim,)), lax.rev(high, (dim,))


def _replicate(x, dim, before, after):
    end = x.shape[dim]
    low, high = lax.slice_in_dim(x, 0, 1, axis=dim), lax.slice_in_dim(x, end - 1, end, axis=dim)
    return [
        jnp.broadcast_to(edge, (*x.shape[:dim], count, *x.shape[dim + 1 :]))
        for edge, count in ((low, before), (high, after))
    ]


def _circular(x, dim, before, after):
    end = x.shape[dim]
    return lax.slice_in_dim(x, end - before, end, axis=dim), lax.slice_in_dim(x, 0, after, axis=dim)


_EDGES = {"reflect": _reflect, "replicate": _replicate, "circular": _circular}


def _pad_rule(mode, dims):
    def body(input, padding):
        if len(padding) != 2 * dims:
            raise RuntimeError(f"padding size is expected to be {2 * dims}, but got: {len(padding)}")
        return pad(input, padding, mode)

    return body


for _dims in (1, 2, 3):
    implements(getattr(_nn, f"reflection_pad{_dims}d"), takes=NUMBERS, strides=as_input)(_pad_rule("reflect", _dims))
    implements(getattr(_nn, f"replication_pad{_dims}d"), takes=NUMBERS, strides=as_input)(_pad_rule("replicate", _dims))


@implements(torch.constant_pad_nd, aten.constant_pad_nd, fits=("value",), strides=as_input)
def constant_pad_nd(input, pad_, value=0):
    return pad(input, pad_, value=value)


# Interpolation. ``F.interpolate`` checks its arguments, and comes here for each mode and number of dimensions.


def _sizes(spatial, output_size, scales):
    """The output size and the given scale, or None, of each spatial dimension.

    ATen spells the scales in two ways: one list, or one argument for each dimension.
    """
    flat = [scale for item in scales for scale in (item if isinstance(item, (list, tuple)) else [item])]
    factors = flat if len(flat) == len(spatial) else [None] * len(spatial)
    if output_size is None:
        output_size = [math.floor(size * factor) for size, factor in zip(spatial, factors, strict=True)]
    if len(output_size) != len(spatial):
        raise RuntimeError(f"It is expected output_size equals to {len(spatial)}, but got size {len(output_size)}")
    if min(*spatial, *output_size) <= 0:
        raise RuntimeError(
            "Input and output sizes should be greater than 0, but got input of spatial size "
            f"{list(spatial)} and output of {list(output_size)}"
        )
    return list(zip(output_size, factors, strict=True))


def _ratio(size, output_size, factor, real=np.float32):
    """The number of input elements for one output element, rounded as PyTorch rounds it."""
    return real(1 / factor) if factor is not None and factor > 0 else real(size) / real(output_size)


def _interpolate_nearest(offset: float):
    def body(input, output_size=None, *scales, channels_last=False, **named_scales):
        first = 1 if channels_last else 2
        spatial = input.shape[first : first + input.ndim - 2]
        sizes = _sizes(spatial, output_size, (*scales, *named_scales.values()))
        for dim, (size, factor) in enumerate(sizes, first):
            before = input.shape[dim]
            if size == before and input.ndim == 4 and offset == 0:
                continue  # here alone PyTorch passes over a scale that changes no size
            ratio = _ratio(before, size, factor)
            positions = np.floor((np.arange(size, dtype=np.float32) + np.float32(offset)) * ratio)
            input = _select(input, dim, np.minimum(positions.astype(np.int32), before - 1))
        return input

    return body


def _select(x, dim, indices):
    """``x[..., indices, ...]`` for known indices: repeated elements, every nth one, or a gather."""
    size, count = x.shape[dim], len(indices)
    if count % size == 0 and (indices == np.arange(count) // (count // size)).all():
        return _repeat(x, dim, count // size)
    step = -(-size // count)
    if (indices == np.arange(count) * step).all():
        return lax.slice_in_dim(x, 0, size, step, dim)
    return x.at[(slice(None),) * dim + (indices,)].get(mode="clip", wrap_negative_indices=False)


def _repeat(x, dim, times):
    if times == 1:
        return x
    shape = x.shape
    dims = [i for i in range(x.ndim + 1) if i != dim + 1]
    repeated = lax.broadcast_in_dim(x, (*shape[: dim + 1], times, *shape[dim + 1 :]), dims)
    return lax.reshape(repeated, (*shape[:dim], shape[dim] * times, *shape[dim + 1 :]))


for _dims in (1, 2, 3):
    for _name, _offset in (("upsample_nearest", 0.0), ("_upsample_nearest_exact", 0.5)):
        _functions = [getattr(namespace, f"{_name}{_dims}d") for namespace in (_nn, aten)]
        implements(*_functions, takes=_IMAGES, channels_last=("follow", 4), strides=as_input)(
            _interpolate_nearest(_offset)
        )


def _interpolate_weighted(taps_of):
    """A rule that makes every output element a weighted sum of input elements, along one dimension after the other."""

    def body(input, output_size, align_corners, *scales, **named_scales):
        sizes = _sizes(input.shape[2:], output_size, (*scales, *named_scales.values()))
        if input.dtype == np.uint8 and input.ndim == 4:
            return _interpolate_bytes(input, sizes, taps_of, align_corners)
        x = lax.convert_element_type(input, jnp.promote_types(input.dtype, jnp.float32))
        for size, factor in sizes:
            # The third dimension is used up, and its result appended: after all of them the order is back.
            x = _weighted_sums(x, *_taps(taps_of, x.shape[2], size, factor, align_corners, x.dtype.type))
        return _rounded(x, input.dtype)

    return body


def _taps(taps_of, before, size, factor, align_corners, real):
    ratio = _ratio(before, size, factor, real)
    if align_corners:
        ratio = real((before - 1) / (size - 1) if size > 1 else 0)
    return taps_of(before, size, ratio, align_corners)


def _interpolate_bytes(images, sizes, taps_of, align_corners):
    """Bytes are rounded after each dimension, rows before columns, and weights are of 16 bits: as PyTorch has it."""
    x = lax.transpose(lax.convert_element_type(images, np.float32), (0, 1, 3, 2))
    for size, factor in reversed(sizes):
        taps, weights = _taps(taps_of, x.shape[2], size, factor, align_corners, np.float64)
        bits = next(bits for bits in range(23) if bits == 22 or int(0.5 + weights.max() * 2 ** (bits + 1)) >= 2**15)
        integers = np.trunc(weights * 2**bits + np.where(weights < 0, -0.5, 0.5))
        sums = _weighted_sums(x, taps, integers / 2**bits)  # exact, as every number here has at most 24 bits
        x = lax.clamp(np.float32(0), lax.floor(sums + np.float32(0.5)), np.float32(255))
    return lax.convert_element_type(lax.transpose(x, (0, 1, 3, 2)), np.uint8)


def _weighted_sums(x, taps, weights):
    """The sums of ``weights[i, k] * x[:, :, taps[i, k]]`` over k, appended as the last dimension."""
    size, count = x.shape[2], len(taps)
    if size == count and (taps == np.arange(size)[:, None])[weights != 0].all():
        return lax.transpose(x, (0, 1, *range(3, x.ndim), 2)) if x.ndim > 3 else x
    # A product with a matrix: its transpose is a product too, and not a scatter.
    shape = (size, *taps.shape)
    hit = lax.eq(lax.broadcasted_iota(np.int32, shape, 0), jnp.broadcast_to(taps.astype(np.int32), shape))
    matrix = lax.reduce_sum(where(hit, weights.astype(x.dtype), x.dtype.type(0)), (2,))
    return lax.dot_general(x, matrix, (((2,), (0,)), ((), ())), precision=lax.Precision.HIGHEST)


def _rounded(x, dtype):
    if jnp.issubdtype(dtype, jnp.integer):
        info = jnp.iinfo(dtype)
        x = lax.clamp(x.dtype.type(info.min), lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN), x.dtype.type(info.max))
    return lax.convert_element_type(x, dtype)


def _centers(count, ratio, align_corners):
    """The coordinates in the input, in elements, of the output elements."""
    index = np.arange(count, dtype=ratio.dtype)
    half = ratio.dtype.type(0.5)
    return index * ratio if align_corners else (index + half) * ratio - half


def _linear_taps(size, count, ratio, align_corners):
    ratio = ratio if count != size else ratio.dtype.type(1)  # PyTorch passes over a scale that changes no size
    center = np.maximum(_centers(count, ratio, align_corners), 0)
    first = np.minimum(center.astype(np.int32), size - 1)
    fraction = np.clip(center - first, 0, 1)
    return np.stack([first, np.minimum(first + 1, size - 1)], 1), np.stack([1 - fraction, fraction], 1)


def _cubic_taps(size, count, ratio, align_corners):
    center = _centers(count, ratio, align_corners)
    first = np.minimum(np.floor(center), size - 1)
    fraction = np.clip(center - first, 0, 1)
    taps = first.astype(np.int32)[:, None] + np.arange(-1, 3)
    weights = _cubic(fraction[:, None] - np.arange(-1, 3, dtype=fraction.dtype), -0.75)
    return np.clip(taps, 0, size - 1), weights


def _cubic(x, a, namespace=np):
    """The cubic convolution kernel of Keys (1981)."""
    x = namespace.abs(x)
    inner = ((a + 2) * x - (a + 3)) * x * x + 1
    outer = (((x - 5) * x + 8) * x - 4) * a
    return namespace.where(x < 1, inner, namespace.where(x < 2, outer, 0))


def _antialiased_taps(kernel, radius):
    """The kernel, widened to cover every input element where the image shrinks."""

    def taps_of(size, count, ratio, align_corners):
        ratio = ratio if count != size else ratio.dtype.type(1)
        stretch = max(ratio, ratio.dtype.type(1))
        center = ratio * (np.arange(count, dtype=ratio.dtype) + ratio.dtype.type(0.5))
        low = np.maximum((center - radius * stretch + 0.5).astype(np.int32), 0)
        high = np.minimum((center + radius * stretch + 0.5).astype(np.int32), size)
        taps = low[:, None] + np.arange((high - low).max())
        weights = np.where(taps < high[:, None], kernel((taps - center[:, None] + 0.5) / stretch), 0)
        return np.minimum(taps, size - 1), weights / weights.sum(1, keepdims=True)

    return taps_of


_antialiased_linear = _antialiased_taps(lambda x: np.maximum(1 - np.abs(x), 0), 1)
_antialiased_cubic = _antialiased_taps(lambda x: _cubic(x, -0.5), 2)
_antialiased_lanczos = _antialiased_taps(lambda x: np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0), 3)

for _name, _taps_of, _takes in (
    ("upsample_linear1d", _linear_taps, FLOATS),
    ("upsample_bilinear2d", _linear_taps, _IMAGES),
    ("upsample_trilinear3d", _linear_taps, FLOATS),
    ("upsample_bicubic2d", _cubic_taps, _IMAGES),
    ("_upsample_bilinear2d_aa", _antialiased_linear, _IMAGES),
    ("_upsample_bicubic2d_aa", _antialiased_cubic, _IMAGES),
):
    implements(getattr(_nn, _name), getattr(aten, _name), takes=_takes, strides=as_input)(
        _interpolate_weighted(_taps_of)
    )
implements("aten::_upsample_lanczos2d_aa", takes=_IMAGES, strides=as_input)(_interpolate_weighted(_antialiased_lanczos))


# Sampling at the points of a grid.

_BILINEAR, _NEAREST, _BICUBIC = 0, 1, 2  # the values of `interpolation_mode`
_ZEROS, _BORDER, _REFLECTION = 0, 1, 2  # and of `padding_mode`


def _expect_grid(input, grid) -> None:
    sizes = f"input with sizes {list(input.shape)} and grid with sizes {list(grid.shape)}"
    if input.shape[0] != grid.shape[0]:
        raise RuntimeError(f"grid_sampler(): expected grid and input to have same batch size, but got {sizes}")
    if grid.shape[-1] != input.ndim - 2:
        raise RuntimeError(
            f"grid_sampler(): expected grid to have size {input.ndim - 2} in last dimension, but got grid with sizes "
            f"{list(grid.shape)}"
        )
    if input.ndim != grid.ndim:
        raise RuntimeError(f"grid_sampler(): expected input and grid with same number of dimensions, but got {sizes}")
    if input.dtype != grid.dtype:
        raise RuntimeError(f"grid_sampler(): expected grid of the dtype of the input, {input.dtype}, got {grid.dtype}")


@implements(
    *(aten.grid_sampler_2d, aten.grid_sampler_3d, aten._grid_sampler_2d_cpu_fallback),
    torch._grid_sampler_2d_cpu_fallback,
    takes=FLOATS,
)
def grid_sampler(input, grid, interpolation_mode, padding_mode, align_corners):
    _expect_grid(input, grid)
    x, points = widened(input), widened(grid)
    sizes = x.shape[2:]
    # The last dimension of a grid counts the input's dimensions from the innermost one.
    centers = [_unnormalized(points[..., -1 - i], size, align_corners) for i, size in enumerate(sizes)]
    if interpolation_mode == _BICUBIC:
        if len(sizes) != 2 and not bounds.ARE_VOLUMES_BICUBIC:
            raise RuntimeError("grid_sampler(): bicubic interpolation only supports 4D input")
        taps = [_bicubic_points(c, size, padding_mode, align_corners) for c, size in zip(centers, sizes, strict=True)]
    else:
        find = _nearest_point if interpolation_mode == _NEAREST else _bilinear_points
        taps = [find(_inside(c, size, padding_mode, align_corners)) for c, size in zip(centers, sizes, strict=True)]
    batch = np.arange(len(x)).reshape((-1,) + (1,) * len(sizes))
    total = 0
    for corner in itertools.product(*taps):
        index = (batch, slice(None), *(position.astype(np.int32) for position, _ in corner))
        picked = x.at[index].get(mode="fill", fill_value=0, wrap_negative_indices=False)
        total += picked * math.prod(weight for _, weight in corner)[..., None]
    return jnp.moveaxis(total, -1, 1).astype(input.dtype)


def _unnormalized(points, size, align_corners):
    return (points + 1) / 2 * (size - 1) if align_corners else ((points + 1) * size - 1) / 2


def _inside(points, size, padding_mode, align_corners):
    """Points outside the image moved into it, as the padding mode says."""
    if padding_mode == _ZEROS:
        return points
    if padding_mode == _REFLECTION:
        points = _reflected(points, *((0, size - 1) if align_corners else (-0.5, size - 0.5)))
    return lax.clamp(like(points, 0), points, like(points, size - 1))


def _reflected(points, low, high):
    span = like(points, high - low)
    if span == 0:
        return lax.full_like(points, 0)
    distance = lax.abs(points - like(points, low))
    rest = lax.rem(distance, span)
    is_even = lax.eq(lax.rem(lax.floor(distance / span), like(points, 2)), like(points, 0))
    return where(is_even, rest, span - rest) + like(points, low)


def _nearest_point(center):
    return [(lax.round(center, lax.RoundingMethod.TO_NEAREST_EVEN), lax.full_like(center, 1))]


def _bilinear_points(center):
    low = lax.stop_gradient(lax.floor(center))
    return [(low, low + 1 - center), (low + 1, center - low)]


def _bicubic_points(center, size, padding_mode, align_corners):
    low = lax.stop_gradient(lax.floor(center))
    positions = [low + offset for offset in range(-1, 3)]
    return [
        (_inside(position, size, padding_mode, align_corners), _cubic(center - position, -0.75, jnp))
        for position in positions
    ]
