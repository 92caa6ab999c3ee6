"""Operators of torchvision for object detection: suppression of boxes, pooling of regions, deformable convolution.

They are known by their names, since torchvision need not be installed.
"""

import itertools

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ...rules.registry import implements
from ...tensors.traced import is_traced
from ..arrays import cast, like, widened

# Boxes.


@implements("torchvision::nms", concrete=True, dtype=torch.int64)
def nms(dets, scores, iou_threshold):
    expect_boxes(dets.shape, scores.shape)
    boxes, order = np.asarray(dets), np.argsort(_descending(np.asarray(scores)), kind="stable")
    kept = []
    while order.size:  # how many boxes are left is known only here, where values are
        best, order = order[0], order[1:]
        kept.append(best)
        overlap = _overlap(boxes[best], boxes[order])
        order = order[~(overlap.astype(np.float64) > iou_threshold)]
    return np.asarray(kept, np.int32)


def expect_boxes(boxes, scores) -> None:
    if len(boxes) != 2 or boxes[1] != 4 or tuple(scores) != tuple(boxes[:1]):
        raise RuntimeError(
            f"nms: wanted boxes of shape [N, 4] and scores of shape [N], got {list(boxes)} and {list(scores)}"
        )


def _descending(scores):
    """Sort keys for a descending order of scores, with NaNs first."""
    return np.where(np.isnan(scores), -np.inf, -scores) if scores.size else scores


def _overlap(box, others):
    """The intersection of a box with others, over their union."""
    lib = np if isinstance(others, np.ndarray) else jnp
    sides = lib.minimum(box[2:], others[:, 2:]) - lib.maximum(box[:2], others[:, :2])
    intersection = lib.maximum(sides, 0).prod(-1)
    with np.errstate(invalid="ignore"):  # boxes without an area
        return intersection / ((box[2:] - box[:2]).prod() + (others[:, 2:] - others[:, :2]).prod(-1) - intersection)


def greedy(boxes, scores, groups, is_there, iou_threshold: float):
    """Non-maximum suppression among the valid boxes, each in its group, with a data-dependent number of results.

    It takes as many iterations as boxes are kept, and no memory for pairs.

    Returns:
        The places of those that are kept, in the order of their scores, ``(N,)``, and how many they are.
    """
    count = len(scores)
    if not count:
        return lax.full((0,), np.int32(0)), np.int32(0)
    boxes, scores = lax.stop_gradient(boxes), lax.stop_gradient(scores)
    keys = jnp.where(jnp.isnan(scores), -jnp.inf, -scores)
    positions = lax.iota(np.int32, count)
    order = lax.sort((~is_there, keys, positions), num_keys=2, is_stable=True)[-1]
    boxes, groups = boxes[order], groups[order]
    # The largest number of this precision that is no larger: a quotient is above both, or above none of them.
    limit = np.asarray(iou_threshold, boxes.dtype)
    if float(limit) > iou_threshold:
        limit = jnp.nextafter(limit, np.asarray(-np.inf, boxes.dtype))

    def iteration(state):
        left, kept, found = state
        best = lax.argmax(left, 0, np.int32)
        is_over = (_overlap(boxes[best], boxes) > limit) & (groups == groups[best])
        return left & ~is_over & (positions != best), kept.at[found].set(order[best]), found + 1

    left = positions < is_there.sum(dtype=np.int32)
    start = left, jnp.zeros_like(order), np.int32(0)
    _, kept, found = lax.while_loop(lambda state: state[0].any(), iteration, start)
    return kept, found


# Regions of interest. Each is cut into bins, along either dimension by itself.


def _regions(name: str, input, rois):
    """The image of each region, and its first and last coordinates: ``(2, K)`` for height and width."""
    if input.ndim != 4 or rois.ndim != 2 or rois.shape[1] != 5:
        raise RuntimeError(
            f"{name}: wanted an input of shape [N, C, H, W] and rois of shape [K, 5], got {list(input.shape)} and "
            f"{list(rois.shape)}"
        )
    if input.dtype != rois.dtype:
        raise RuntimeError(f"{name}: wanted input and rois of one dtype, got {input.dtype} and {rois.dtype}")
    rois = lax.stop_gradient(widened(rois))
    return rois[:, 0].astype(np.int32), rois[:, (2, 1)].T, rois[:, (4, 3)].T


def _samples(start, size, bins: int, limit: int, sampling_ratio: int):
    """The sampling points along one dimension, ``(K, bins, samples)``, and the weight of each one.

    A sampling ratio that is not positive asks for as many samples as a bin is long, rounded up. These are at least half
    an element apart, so that no more than twice as many as there are rows are inside the input.
    """
    step = size / bins
    count = jnp.full_like(size, sampling_ratio) if sampling_ratio > 0 else jnp.ceil(step)
    spacing = (step / jnp.maximum(count, 1))[:, None]
    first = start[:, None] + np.arange(bins) * step[:, None] + spacing / 2
    if sampling_ratio > 0:
        index = np.arange(sampling_ratio)
    else:
        most = 2 * limit + 4 if is_traced(count) else min(int(count.max(initial=0)), 2 * limit + 4)
        skipped = jnp.maximum(jnp.floor((-1 - first) / jnp.maximum(spacing, 0.5)), 0)
        index = skipped[..., None] + np.arange(most)
    positions = first[..., None] + index * spacing[..., None]
    counted = (index < count[:, None, None]) & (positions >= -1) & (positions <= limit)
    weights = jnp.where(counted, 1 / jnp.maximum(count, 1)[:, None, None], 0)
    return jnp.clip(jnp.where(counted, positions, 0), 0, limit - 1), weights


def _interpolation(positions, weights, size: int):
    """The weight of each of `size` rows in the mean of samples: ``(K, bins, size)``."""
    distances = lax.abs(positions[..., None] - np.arange(size, dtype=positions.dtype))
    return jnp.sum(jnp.maximum(1 - distances, 0) * weights[..., None], axis=-2)


def _bilinear(pick, y, x):
    """Values between the elements of an image; ``pick(rows, columns)`` gives elements, channels last."""
    total = 0
    for row, column in itertools.product(_neighbours(y), _neighbours(x)):
        total += pick(row[0], column[0]) * (row[1] * column[1])[..., None]
    return total


def _neighbours(position):
    low = lax.stop_gradient(lax.floor(position))
    index = cast(low, np.int32)
    return (index, low + 1 - position), (index + 1, position - low)


def _pooled(input, images, rows, columns, equation: str):
    """Sums over each region, weighted by its bins' weights of rows and columns; one region after the other."""

    def pool(region):
        image, rows, columns = region
        features = lax.dynamic_index_in_dim(input, image, keepdims=False)
        return jnp.einsum(equation, rows, columns, features, precision=lax.Precision.HIGHEST)

    return lax.map(pool, (images, rows, columns))


@implements("torchvision::roi_align")
def roi_align(input, rois, spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned):
    images, start, end = _regions("roi_align", input, rois)
    features, shift = widened(input), 0.5 if aligned else 0.0
    start, end = start * spatial_scale - shift, end * spatial_scale - shift
    size = end - start if aligned else jnp.maximum(end - start, 1)
    bins = (pooled_height, pooled_width)
    y, x = (_samples(start[i], size[i], bins[i], input.shape[2 + i], sampling_ratio) for i in range(2))
    if sampling_ratio > 0:
        result = _sampled(features, images, y, x)
    else:
        rows, columns = _interpolation(*y, input.shape[2]), _interpolation(*x, input.shape[3])
        result = _pooled(features, images, rows, columns, "py,qx,cyx->cpq")
    return cast(result, input.dtype)


def _sampled(features, images, y, x):
    """The sums of a few samples in each bin, by their weights."""
    (y, y_weights), (x, x_weights) = y, x
    channels_last = jnp.moveaxis(features, 1, -1)
    images = images.reshape(-1, 1, 1, 1, 1)

    def pick(row, column):
        return channels_last.at[images, row, column].get(mode="fill", fill_value=0, wrap_negative_indices=False)

    # Regions, bins and samples of the rows, bins and samples of the columns; channels.
    values = _bilinear(pick, y[:, :, :, None, None], x[:, None, None])
    weights = y_weights[:, :, :, None, None] * x_weights[:, None, None]
    return jnp.einsum("kpiqjc,kpiqj->kcpq", values, weights, precision=lax.Precision.HIGHEST)


@implements("torchvision::ps_roi_align", dtype=(None, torch.int32))
def ps_roi_align(input, rois, spatial_scale, pooled_height, pooled_width, sampling_ratio):
    images, start, end = _regions("ps_roi_align", input, rois)
    features = _by_position("ps_roi_align", widened(input), pooled_height, pooled_width)
    start, end = start * spatial_scale - 0.5, end * spatial_scale - 0.5
    bins = (pooled_height, pooled_width)
    rows, columns = (
        _interpolation(
            *_samples(start[i], end[i] - start[i], bins[i], input.shape[2 + i], sampling_ratio), input.shape[2 + i]
        )
        for i in range(2)
    )
    result = _pooled(features, images, rows, columns, "py,qx,cpqyx->cpq")
    return cast(result, input.dtype), _channels(result)


def _by_position(name: str, input, pooled_height: int, pooled_width: int):
    """The input with its channels split into those of the result, and one for each bin."""
    images, channels, height, width = input.shape
    if channels % (pooled_height * pooled_width):
        raise RuntimeError(
            f"{name}: input channels must be a multiple of pooling height * pooling width, got {channels} channels for "
            f"{pooled_height} x {pooled_width} bins"
        )
    return input.reshape(images, -1, pooled_height, pooled_width, height, width)


def _channels(result):
    """The input channel of each element of the result."""
    count = result.size // max(len(result), 1)
    return jnp.broadcast_to(np.arange(count, dtype=np.int32).reshape(result.shape[1:]), result.shape)


def _rounded(positions, spatial_scale: float):
    """Whole numbers, halves away from zero."""
    return lax.round(positions * spatial_scale, lax.RoundingMethod.AWAY_FROM_ZERO)


def _within(start, size, bins: int, last: int, count: int):
    """The mask of the rows in each bin, ``(K, bins, count)``; bins end at the row `last`."""
    step, index = (size / bins)[:, None], np.arange(bins + 1)
    first = jnp.clip(jnp.floor(index[:-1] * step) + start[:, None], 0, last)
    end = jnp.clip(jnp.ceil(index[1:] * step) + start[:, None], 0, last)
    rows = np.arange(count, dtype=start.dtype)
    return (rows >= first[..., None]) & (rows < end[..., None])


@implements("torchvision::roi_pool", dtype=(None, torch.int32))
def roi_pool(input, rois, spatial_scale, pooled_height, pooled_width):
    images, start, end = _regions("roi_pool", input, rois)
    start, end = _rounded(start, spatial_scale), _rounded(end, spatial_scale)
    size, limits = jnp.maximum(end - start + 1, 1), input.shape[2:]
    rows, columns = (
        _within(start[i], size[i], bins, limits[i], limits[i]) for i, bins in enumerate((pooled_height, pooled_width))
    )
    positions = _positions_of_largest(lax.stop_gradient(input), images, rows, columns)
    flat = input.reshape(*input.shape[:2], -1)
    channels = np.arange(input.shape[1]).reshape(-1, 1, 1)
    picked = flat.at[images.reshape(-1, 1, 1, 1), channels, jnp.maximum(positions, 0)].get(mode="clip")
    return jnp.where(positions < 0, like(picked, 0), picked), positions


def _positions_of_largest(input, images, rows, columns):
    """The place of the largest element in each bin, counted through the image, or -1; the first one in a tie."""
    lowest, width = like(input, -jnp.inf), input.shape[3]

    def find(region):
        image, rows, columns = region
        features = lax.dynamic_index_in_dim(input, image, keepdims=False)
        in_columns = jnp.where(columns, features[:, :, None, :], lowest)  # (C, H, bins, W)
        column = jnp.argmax(in_columns, -1)
        largest = jnp.moveaxis(jnp.max(in_columns, -1), 1, 2)[:, None]  # (C, 1, bins, H)
        row = jnp.argmax(jnp.where(rows[:, None, :], largest, lowest), -1)  # (C, bins, bins)
        chosen = jnp.take_along_axis(column, row, 1)
        filled = rows.any(-1)[:, None] & columns.any(-1)
        return jnp.where(filled, row * width + chosen, -1).astype(np.int32)

    return lax.map(find, (images, rows, columns))


@implements("torchvision::ps_roi_pool", dtype=(None, torch.int32))
def ps_roi_pool(input, rois, spatial_scale, pooled_height, pooled_width):
    images, start, end = _regions("ps_roi_pool", input, rois)
    features = _by_position("ps_roi_pool", widened(input), pooled_height, pooled_width)
    start, end = _rounded(start, spatial_scale), _rounded(end, spatial_scale)
    size, limits = jnp.maximum(end - start, 1), input.shape[2:]
    rows, columns = (
        _mean(_within(start[i], size[i], bins, limits[i] - 1, limits[i]), features.dtype)
        for i, bins in enumerate((pooled_height, pooled_width))
    )
    result = _pooled(features, images, rows, columns, "py,qx,cpqyx->cpq")
    return cast(result, input.dtype), _channels(result)


def _mean(chosen, dtype):
    """The weights of a mean over the chosen rows."""
    return chosen / jnp.maximum(chosen.sum(-1, keepdims=True), 1).astype(dtype)


# Deformable convolution: Dai et al., arXiv:1703.06211, and with a mask Zhu et al., arXiv:1811.11168.


@implements("torchvision::deform_conv2d")
def deform_conv2d(
    input,
    weight,
    offset,
    mask,
    bias,
    stride_h,
    stride_w,
    pad_h,
    pad_w,
    dilation_h,
    dilation_w,
    groups,
    offset_groups,
    use_mask,
):
    images, channels, *size = input.shape
    out_channels, _, *kernel = weight.shape
    steps = zip(size, kernel, (stride_h, stride_w), (pad_h, pad_w), (dilation_h, dilation_w), strict=True)
    positions = [_taps(*each) for each in steps]
    taps, out = len(positions[0]) * len(positions[1]), (positions[0].shape[1], positions[1].shape[1])
    _check_deformation(input, weight, offset, mask if use_mask else None, groups, offset_groups, taps, out)
    # Images, groups of offsets, taps, rows and columns of the result; channels last.
    offsets = offset.reshape(images, offset_groups, taps, 2, *out)
    y = offsets[:, :, :, 0] + np.repeat(positions[0], kernel[1], 0)[:, :, None]
    x = offsets[:, :, :, 1] + np.tile(positions[1], (kernel[0], 1))[:, None, :]
    features = jnp.moveaxis(input.reshape(images, offset_groups, -1, *size), 2, -1)
    image, group = np.ogrid[:images, :offset_groups]
    of_all = (..., None, None, None)

    def pick(row, column):
        index = (image[of_all], group[of_all], row, column)
        return features.at[index].get(mode="fill", fill_value=0, wrap_negative_indices=False)

    values = _bilinear(pick, y, x)
    if use_mask:
        values = values * mask.reshape(images, offset_groups, taps, *out, 1)
    columns = jnp.moveaxis(values, -1, 2).reshape(images, groups, channels // groups, taps, *out)
    kernels = weight.reshape(groups, out_channels // groups, channels // groups, taps)
    result = jnp.einsum("ngctyx,goct->ngoyx", columns, kernels, precision=lax.Precision.HIGHEST)
    return cast(result.reshape(images, out_channels, *out) + bias[:, None, None], input.dtype)


def _taps(size: int, kernel: int, stride: int, padding: int, dilation: int):
    """The coordinates that a convolution reads along one dimension, for each tap and element of the result."""
    count = (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    return np.arange(kernel)[:, None] * dilation + np.arange(count) * stride - np.float32(padding)


def _check_deformation(input, weight, offset, mask, groups, offset_groups, taps, out) -> None:
    images, channels = input.shape[:2]
    wanted = (images, 2 * offset_groups * taps, *out)
    if offset.shape != wanted:
        raise RuntimeError(f"deform_conv2d: wanted offset of shape {list(wanted)}, got {list(offset.shape)}")
    wanted = (images, offset_groups * taps, *out)
    if mask is not None and mask.shape != wanted:
        raise RuntimeError(f"deform_conv2d: wanted mask of shape {list(wanted)}, got {list(mask.shape)}")
    if weight.shape[1] * groups != channels or weight.shape[0] % groups or channels % offset_groups:
        raise RuntimeError(
            f"deform_conv2d: an input of {channels} channels, weight of shape {list(weight.shape)} and "
            f"{offset_groups} groups of offsets do not fit together"
        )
