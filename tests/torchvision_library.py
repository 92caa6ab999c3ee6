"""What torchvision's compiled library computes, written in PyTorch from its documentation and the papers it names.

The library does not load beside a CPU build of PyTorch. Here its operators are defined with the same schemas, so that
torchvision's Python code runs as it is. Everything is slow, plain, and differentiable by PyTorch.
"""

import contextlib
import functools
import importlib
import itertools
import math
from unittest import mock

import torch

from torch2jax.tools.models import define_vision_operators

_ROIS = "Tensor input, Tensor rois, float spatial_scale, int pooled_height, int pooled_width"
_SCHEMAS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "roi_align": f"({_ROIS}, int sampling_ratio, bool aligned) -> Tensor",
    "roi_pool": f"({_ROIS}) -> (Tensor, Tensor)",
    "ps_roi_align": f"({_ROIS}, int sampling_ratio) -> (Tensor, Tensor)",
    "ps_roi_pool": f"({_ROIS}) -> (Tensor, Tensor)",
    "deform_conv2d": (
        "(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, int stride_h, int stride_w, "
        "int pad_h, int pad_w, int dilation_h, int dilation_w, int groups, int offset_groups, bool use_mask) -> Tensor"
    ),
}


def nms(dets, scores, iou_threshold):
    """Greedily: every box is kept that overlaps none of the kept ones by more."""
    kept: list[int] = []
    for i in scores.argsort(descending=True, stable=True).tolist():
        if not any(_iou(dets[i].tolist(), dets[j].tolist()) > iou_threshold for j in kept):
            kept.append(i)
    return torch.tensor(kept, dtype=torch.int64)


def _iou(a, b) -> float:
    inter = max(0, min(a[2], b[2]) - max(a[0], b[0])) * max(0, min(a[3], b[3]) - max(a[1], b[1]))
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - inter
    return inter / union if union else math.nan


def _between(image, y: float, x: float):
    """Bilinear interpolation of an image (C, H, W): at its border up to one element outside, zero beyond."""
    height, width = image.shape[1:]
    if not (-1 <= y <= height and -1 <= x <= width):
        return image.new_zeros(image.shape[0])
    y, x = min(max(y, 0), height - 1), min(max(x, 0), width - 1)
    top, left = min(int(y), height - 1), min(int(x), width - 1)
    bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
    down, along = y - top, x - left
    above = image[:, top, left] * (1 - along) + image[:, top, right] * along
    below = image[:, bottom, left] * (1 - along) + image[:, bottom, right] * along
    return above * (1 - down) + below * down


def _bin_mean(image, top, left, height, width, ratio):
    """The mean of regularly spaced samples in a bin: RoIAlign, He et al., Mask R-CNN, arXiv:1703.06870."""
    rows = ratio if ratio > 0 else math.ceil(height)
    columns = ratio if ratio > 0 else math.ceil(width)
    samples = [
        _between(image, top + (i + 0.5) * height / rows, left + (j + 0.5) * width / columns)
        for i, j in itertools.product(range(rows), range(columns))
    ]
    return torch.stack(samples).mean(0) if samples else image.new_zeros(image.shape[0])


def roi_align(input, rois, spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned):
    bins, results = (pooled_height, pooled_width), []
    for image, x1, y1, x2, y2 in rois.tolist():
        shift = 0.5 if aligned else 0.0
        x1, y1, x2, y2 = (v * spatial_scale - shift for v in (x1, y1, x2, y2))
        width, height = (x2 - x1, y2 - y1) if aligned else (max(x2 - x1, 1.0), max(y2 - y1, 1.0))
        height, width = height / bins[0], width / bins[1]
        for p, q in itertools.product(*map(range, bins)):
            results.append(_bin_mean(input[int(image)], y1 + p * height, x1 + q * width, height, width, sampling_ratio))
    means = torch.stack(results) if results else input.new_zeros(0)
    return means.reshape(len(rois), *bins, input.shape[1]).movedim(-1, 1)


def ps_roi_align(input, rois, spatial_scale, pooled_height, pooled_width, sampling_ratio):
    """Position-sensitive RoIAlign: Li et al., Light-Head R-CNN, arXiv:1711.07264; each bin has channels of its own."""
    bins = (pooled_height, pooled_width)
    grouped = input.unflatten(1, (-1, *bins))
    result = input.new_zeros(len(rois), grouped.shape[1], *bins)
    for k, (image, *box) in enumerate(rois.tolist()):
        x1, y1, x2, y2 = (v * spatial_scale - 0.5 for v in box)
        height, width = (y2 - y1) / bins[0], (x2 - x1) / bins[1]
        for p, q in itertools.product(*map(range, bins)):
            plane = grouped[int(image), :, p, q]
            mean = _bin_mean(plane, y1 + p * height, x1 + q * width, height, width, sampling_ratio)
            result[k, :, p, q] = mean
    return result, _channels(result)


def _channels(result):
    return torch.arange(result[0].numel(), dtype=torch.int32).reshape(result[0].shape).expand(result.shape).clone()


def _round(value: float) -> int:
    return math.floor(abs(value) + 0.5) * (1 if value >= 0 else -1)


def _bounds(start: int, size: int, bins: int, last: int):
    """The first row of each bin, and the one after its last."""
    step = size / bins
    for i in range(bins):
        first, end = math.floor(i * step) + start, math.ceil((i + 1) * step) + start
        yield min(max(first, 0), last), min(max(end, 0), last)


def roi_pool(input, rois, spatial_scale, pooled_height, pooled_width):
    """Girshick, Fast R-CNN, arXiv:1504.08083: the largest element in each bin of the rounded region."""
    height, width = input.shape[2:]
    result = input.new_zeros(len(rois), input.shape[1], pooled_height, pooled_width)
    places = torch.full(result.shape, -1, dtype=torch.int32)
    for k, (image, *box) in enumerate(rois.tolist()):
        x1, y1, x2, y2 = (_round(v * spatial_scale) for v in box)
        rows = list(_bounds(y1, max(y2 - y1 + 1, 1), pooled_height, height))
        columns = list(_bounds(x1, max(x2 - x1 + 1, 1), pooled_width, width))
        for (p, (top, bottom)), (q, (left, right)) in itertools.product(enumerate(rows), enumerate(columns)):
            if bottom <= top or right <= left:
                continue
            bin = input[int(image), :, top:bottom, left:right]
            largest, place = bin.flatten(1).max(1)
            result[k, :, p, q] = largest
            row, column = place // (right - left) + top, place % (right - left) + left
            places[k, :, p, q] = (row * width + column).int()
    return result, places


def ps_roi_pool(input, rois, spatial_scale, pooled_height, pooled_width):
    """Dai et al., R-FCN, arXiv:1605.06409; as in torchvision no bin reads the last row and column."""
    bins, (height, width) = (pooled_height, pooled_width), input.shape[2:]
    grouped = input.unflatten(1, (-1, *bins))
    result = input.new_zeros(len(rois), grouped.shape[1], *bins)
    for k, (image, *box) in enumerate(rois.tolist()):
        x1, y1, x2, y2 = (_round(v * spatial_scale) for v in box)
        rows = list(_bounds(y1, max(y2 - y1, 1), pooled_height, height - 1))
        columns = list(_bounds(x1, max(x2 - x1, 1), pooled_width, width - 1))
        for (p, (top, bottom)), (q, (left, right)) in itertools.product(enumerate(rows), enumerate(columns)):
            if bottom > top and right > left:
                result[k, :, p, q] = grouped[int(image), :, p, q, top:bottom, left:right].mean((1, 2))
    return result, _channels(result)


def deform_conv2d(
    input, weight, offset, mask, bias, stride_h, stride_w, pad_h, pad_w, dil_h, dil_w, groups, offset_groups, use_mask
):
    """Zhu et al., Deformable ConvNets v2, arXiv:1811.11168: a grid_sample for each tap of the kernel."""
    images, _, height, width = input.shape
    kernel, out = weight.shape[2:], offset.shape[2:]
    grouped = input.reshape(images * offset_groups, -1, height, width)
    moved = offset.reshape(images * offset_groups, -1, 2, *out)
    columns = []
    for tap, (i, j) in enumerate(itertools.product(*map(range, kernel))):
        y = torch.arange(out[0], dtype=input.dtype)[:, None] * stride_h - pad_h + i * dil_h + moved[:, tap, 0]
        x = torch.arange(out[1], dtype=input.dtype) * stride_w - pad_w + j * dil_w + moved[:, tap, 1]
        grid = torch.stack([(2 * x + 1) / width - 1, (2 * y + 1) / height - 1], -1)
        columns.append(torch.nn.functional.grid_sample(grouped, grid, align_corners=False))
    values = torch.stack(columns, 2).reshape(images, offset_groups, -1, len(columns), *out)
    if use_mask:
        values = values * mask.reshape(images, offset_groups, 1, len(columns), *out)
    values = values.reshape(images, groups, -1, out[0] * out[1])
    result = torch.einsum("ngkp,gok->ngop", values, weight.reshape(groups, weight.shape[0] // groups, -1))
    return result.reshape(images, -1, *out) + bias[:, None, None]


@functools.cache
def _define() -> None:
    define_vision_operators()
    for name, schema in _SCHEMAS.items():
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", schema)
        torch.library.impl(f"torchvision::{name}", "CompositeImplicitAutograd", globals()[name])


@contextlib.contextmanager
def loaded():
    """Lets torchvision take its library to be loaded."""
    _define()
    modules = [importlib.import_module(name) for name in ("torchvision.extension", "torchvision.ops.roi_align")]
    with contextlib.ExitStack() as stack:
        for module in modules:
            stack.enter_context(mock.patch.object(module, "_has_ops", return_value=True))
        yield
