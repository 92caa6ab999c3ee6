"""The code of torchvision's detectors that needs the number of boxes, or loops over them.

They differ from torchvision only if the number of boxes depends on data.
"""

import sys

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ...rules.array_rule import InnerRule
from ...runtime.patches import runs_instead_of
from ...tensors.tensor import Torchish
from ...tensors.traced import is_traced
from ...values.lengths import is_traced_number
from ...values.masked import Masked, aligned, first, leads, like, packed
from .detection import expect_boxes, greedy

_GREEDY = InnerRule(greedy, "nms", dtype=(torch.int64, torch.int64))
_FEW = {"cpu": 4000}
_FEW_ELSEWHERE = 100_000


def _kept(boxes, scores, groups, iou_threshold) -> Masked:
    """The boxes that non-maximum suppression keeps, each in its group, or all in one."""
    given = [x for x in (boxes, scores, groups) if leads(x)]
    if given:
        given = aligned(given, "torchvision::nms")
        given = given if given[0].mask.ndim == 1 else [packed(x) for x in given]
        found = iter(given)
        boxes, scores, groups = (next(found).rows if leads(x) else x for x in (boxes, scores, groups))
        mask = given[0].mask
    else:
        mask = torch.ones(len(scores), dtype=torch.bool)
    if groups is None:
        groups = torch.zeros(scores.shape, dtype=torch.int64)
    positions, length = _GREEDY((boxes.detach(), scores.detach(), groups, mask, iou_threshold), {})
    if given and not given[0].is_compact:
        positions = (mask.cumsum(0) - 1)[positions]
    return first(positions, length)


def is_unknown(*tensors) -> bool:
    """Returns True if some tensors are traced, or have a data-dependent length."""
    return any(isinstance(x, Masked) or (isinstance(x, Torchish) and is_traced(x.read())) for x in tensors)


@runs_instead_of("torchvision.ops.boxes.nms", with_original=True)
def nms(original, boxes, scores, iou_threshold):
    if not is_unknown(boxes, scores):
        return original(boxes, scores, iou_threshold)
    if not leads(boxes) and not leads(scores):
        expect_boxes(boxes.shape, scores.shape)
    return _kept(boxes, scores, None, iou_threshold)


@runs_instead_of("torchvision.ops.boxes.batched_nms", with_original=True)
def batched_nms(original, boxes, scores, idxs, iou_threshold):
    """As torchvision's, which moves the boxes of each class apart where they are few, and else asks for the classes."""
    if not is_unknown(boxes, scores, idxs):
        return original(boxes, scores, idxs, iou_threshold)
    few = _FEW.get(boxes.device.type, _FEW_ELSEWHERE)
    is_selected = leads(boxes)
    most = boxes.rows.numel() if is_selected else boxes.numel()
    if not is_selected and most == 0:
        return original(boxes, scores, idxs, iou_threshold)
    if most > few and not is_selected:
        return _kept(boxes, scores, idxs, iou_threshold)
    shifted = boxes + (idxs.to(boxes.dtype) * (boxes.max() + 1))[:, None]
    if most <= few:
        return _kept(shifted, scores, idxs * 0, iou_threshold)
    is_few = boxes.length * 4 <= few
    return _kept(torch.where(is_few, shifted, boxes), scores, torch.where(is_few, 0, idxs), iou_threshold)


@runs_instead_of("torchvision.models.detection._utils:BoxCoder.decode", with_original=True)
def decode(original, self, rel_codes, boxes):
    """Without the check whether there are boxes: also none have a shape here."""
    if not any(is_traced_number(x.shape[0]) for x in boxes):
        return original(self, rel_codes, boxes)
    count = sum(x.shape[0] for x in boxes)
    decoded = self.decode_single(rel_codes.reshape(count, -1), torch.cat(boxes, dim=0))
    return decoded.reshape(count, -1, 4)


@runs_instead_of("torchvision.models.detection.transform:GeneralizedRCNNTransform.torch_choice", with_original=True)
def torch_choice(original, self, k):
    """Returns a single size without a draw: the choice among several would be random."""
    return k[0] if len(k) == 1 else original(self, k)


# Masks.


def _pasted(masks, boxes, height: int, width: int):
    """Each mask ``(K, M, M)``, enlarged to its box of whole numbers as by bilinear `interpolate`, in an image."""
    dtype = torch.promote_types(masks.dtype, torch.float32)
    across = _enlarged(boxes[:, 0], boxes[:, 2], width, masks.shape[2], dtype)
    down = _enlarged(boxes[:, 1], boxes[:, 3], height, masks.shape[1], dtype)
    columns = [position[:, None].expand(-1, masks.shape[1], -1) for position in across[:2]]
    share = across[2][:, None]
    lines = masks.gather(2, columns[0]) * (1 - share) + masks.gather(2, columns[1]) * share
    rows = [position[:, :, None].expand(-1, -1, width) for position in down[:2]]
    share = down[2][:, :, None]
    image = lines.gather(1, rows[0]) * (1 - share) + lines.gather(1, rows[1]) * share
    return torch.where(down[3][:, :, None] & across[3][:, None], image, 0.0)


def _enlarged(first, last, size: int, count: int, dtype: torch.dtype):
    """For each element along an image: the two of `count` around it, the share of the second, and if it is inside."""
    position = torch.arange(size)
    index = position - first[:, None]
    step = count / (last - first + 1).clamp(min=1)[:, None].to(dtype)
    source = ((index + 0.5) * step - 0.5).clamp(min=0)
    low = source.floor().long().clamp(max=count - 1)
    is_inside = (index >= 0) & (position < last[:, None] + 1)
    return low, (low + 1).clamp(max=count - 1), source - low, is_inside


@runs_instead_of("torchvision.models.detection.roi_heads.paste_masks_in_image", with_original=True)
def paste_masks_in_image(original, masks, boxes, img_shape, padding=1):
    """Pastes all masks at once, also where their sizes are traced."""
    if not is_unknown(masks, boxes):
        return original(masks, boxes, img_shape, padding)
    code = sys.modules["torchvision.models.detection.roi_heads"]
    masks, scale = code.expand_masks(masks, padding=padding)
    boxes = code.expand_boxes(boxes, scale).to(torch.int64)
    return _of_each(lambda masks, boxes: _pasted(masks[:, 0], boxes, *map(int, img_shape))[:, None], masks, boxes)


def _of_each(function, *operands):
    """A function of tensors that have a row for each box, or of selections of such."""
    if not all(leads(x) for x in operands):
        return function(*operands)
    found = aligned(list(operands), "torchvision")
    found = found if found[0].mask.ndim == 1 else [packed(x) for x in found]
    made = function(*(x.copied() for x in found))
    return tuple(like(x, found[0]) for x in made) if isinstance(made, tuple) else like(made, found[0])


# Keypoints.

_COLUMNS = 128
_A = -0.75


def _cubic(index, sizes, count: int):
    """Bicubic `interpolate` from `count` elements to others: the four around each index, and their weights.

    Args:
        index: ``(..., n)`` whole numbers.
        sizes: ``(..., 1)``, how many there are to be.
    """
    source = (index.astype(np.float32) + 0.5) * (count / sizes.astype(np.float32)) - 0.5
    low = jnp.floor(source)
    t = (source - low)[..., None]
    near = lambda t: ((_A + 2) * t - (_A + 3)) * t * t + 1
    far = lambda t: ((_A * t - 5 * _A) * t + 8 * _A) * t - 4 * _A
    weights = jnp.concatenate([far(t + 1), near(t), near(1 - t), far(2 - t)], -1)
    positions = jnp.clip(low.astype(np.int32)[..., None] + np.arange(-1, 3), 0, count - 1)
    return positions, weights


def _peaks(maps, heights, widths):
    """The positions and values of the maxima of maps, each enlarged by bicubic interpolation to a size of its own.

    No enlarged map is ever there: it is computed row by row, of some columns each.

    Args:
        maps: ``(K, N, H, W)``.
        heights, widths: ``(K,)`` whole numbers.

    Returns:
        Rows, columns and values: ``(K, N)``.
    """
    count, points, height, width = maps.shape
    fixed = lax.stop_gradient(maps)
    of_map = np.arange(count)[:, None]

    def iteration(state):
        row, first, best, positions = state
        rows, of_rows = _cubic(jnp.broadcast_to(row, (count,)), heights, height)
        lines = jnp.einsum("kr,krnw->knw", of_rows, fixed[of_map, :, rows], precision=lax.Precision.HIGHEST)
        index = jnp.broadcast_to(first + np.arange(_COLUMNS, dtype=np.int32), (count, _COLUMNS))
        columns, of_columns = _cubic(index, widths[:, None], width)
        picked = lines[of_map[..., None], :, columns]  # K, columns, four, N
        values = jnp.einsum("kcf,kcfn->knc", of_columns, picked, precision=lax.Precision.HIGHEST)
        is_there = (index < widths[:, None]) & (row < heights)[:, None]
        values = jnp.where(is_there[:, None], values, -jnp.inf)
        found = values.max(-1)
        at = jnp.stack([jnp.broadcast_to(row, found.shape), first + values.argmax(-1).astype(np.int32)])
        positions = jnp.where(found > best, at, positions)
        is_last = first + _COLUMNS >= widths.max(initial=0)
        return (
            jnp.where(is_last, row + 1, row),
            jnp.where(is_last, 0, first + _COLUMNS),
            jnp.maximum(best, found),
            positions,
        )

    start = (
        np.int32(0),
        np.int32(0),
        jnp.full((count, points), -jnp.inf, maps.dtype),
        jnp.zeros((2, count, points), int),
    )
    start = (*start[:3], start[3].astype(np.int32))
    row, column = lax.while_loop(lambda state: state[0] < heights.max(initial=0), iteration, start)[3]
    rows, of_rows = _cubic(row, heights[:, None], height)
    columns, of_columns = _cubic(column, widths[:, None], width)
    point = np.arange(points)[:, None, None]
    picked = maps[of_map[..., None, None], point, rows[..., :, None], columns[..., None, :]]
    values = jnp.einsum("knr,knc,knrc->kn", of_rows, of_columns, picked, precision=lax.Precision.HIGHEST)
    return row, column, values


_PEAKS = InnerRule(_peaks, "interpolate", dtype=(torch.int64, torch.int64, None))


def _keypoints(maps, rois):
    starts, sizes = rois[:, :2], (rois[:, 2:] - rois[:, :2]).clamp(min=1)
    enlarged = sizes.ceil()
    rows, columns, scores = _PEAKS((maps, enlarged[:, 1].long(), enlarged[:, 0].long()), {})
    positions = torch.stack([columns, rows], 2).to(torch.float32)  # K, N, 2
    positions = (positions + 0.5) * (sizes / enlarged)[:, None] + starts[:, None]
    return torch.cat([positions, torch.ones_like(positions[..., :1])], 2).to(torch.float32), scores.to(torch.float32)


@runs_instead_of("torchvision.models.detection.roi_heads.heatmaps_to_keypoints", with_original=True)
def heatmaps_to_keypoints(original, maps, rois):
    """Processes all regions at once, also where their sizes are traced."""
    return _of_each(_keypoints, maps, rois) if is_unknown(maps, rois) else original(maps, rois)
