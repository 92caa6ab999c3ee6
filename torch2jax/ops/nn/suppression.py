"""Non-maximum suppression if a traced input decides which boxes are kept, and how many."""

from typing import Any

import torch

from ...patches import runs_instead_of
from ...rules.array_rule import InnerRule
from ...tensors.tensor import Torchish
from ...tensors.traced import is_traced
from ...values.selected import Selected, aligned, compacted, first
from .detection import expect_boxes, greedy

_GREEDY = InnerRule(greedy, "nms", dtype=(torch.int64, torch.int64))
_FEW = {"cpu": 4000}
_FEW_ELSEWHERE = 100_000


def _kept(boxes, scores, groups, iou_threshold) -> Selected:
    """What is kept of boxes, each in its group, or all in one."""
    given = [x for x in (boxes, scores, groups) if isinstance(x, Selected)]
    if given:
        given = aligned(given, "torchvision::nms")
        given = given if given[0].mask.ndim == 1 else [compacted(x) for x in given]
        found = iter(given)
        boxes, scores, groups = (next(found).rows if isinstance(x, Selected) else x for x in (boxes, scores, groups))
        mask = given[0].mask
    else:
        mask = torch.ones(len(scores), dtype=torch.bool)
    if groups is None:
        groups = torch.zeros(scores.shape, dtype=torch.int64)
    places, length = _GREEDY((boxes.detach(), scores.detach(), groups, mask, iou_threshold), {})
    if given and not given[0].is_compact:
        places = (mask.cumsum(0) - 1)[places]
    return first(places, length)


def is_unknown(*tensors) -> bool:
    """Whether some tensors have values that are traced, or a data-dependent length."""
    return any(isinstance(x, Selected) or (isinstance(x, Torchish) and is_traced(x.read())) for x in tensors)


@runs_instead_of("torchvision.ops.boxes.nms", with_original=True)
def nms(original, boxes, scores, iou_threshold):
    if not is_unknown(boxes, scores):
        return original(boxes, scores, iou_threshold)
    if not isinstance(boxes, Selected) and not isinstance(scores, Selected):
        expect_boxes(boxes.shape, scores.shape)
    return _kept(boxes, scores, None, iou_threshold)


@runs_instead_of("torchvision.ops.boxes.batched_nms", with_original=True)
def batched_nms(original, boxes, scores, idxs, iou_threshold):
    """As torchvision's, which moves the boxes of each class apart where they are few, and else asks for the classes."""
    if not is_unknown(boxes, scores, idxs):
        return original(boxes, scores, idxs, iou_threshold)
    few = _FEW.get(boxes.device.type, _FEW_ELSEWHERE)
    is_selected = isinstance(boxes, Selected)
    most = boxes.rows.numel() if is_selected else boxes.numel()
    if not is_selected and most == 0:
        return original(boxes, scores, idxs, iou_threshold)
    if most > few and not is_selected:
        return _kept(boxes, scores, idxs, iou_threshold)
    moved = boxes + (idxs.to(boxes.dtype) * (boxes.max() + 1))[:, None]
    if most <= few:
        return _kept(moved, scores, idxs * 0, iou_threshold)
    is_few: Any = boxes.length * 4 <= few
    return _kept(torch.where(is_few, moved, boxes), scores, torch.where(is_few, 0, idxs), iou_threshold)
