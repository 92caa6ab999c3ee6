"""torchvision's detectors with few boxes on small images: the stand-in for its library goes over them one by one."""

import torch

__all__ = ["lessen"]

_PROPOSALS, _CANDIDATES, _DETECTIONS, _SIZE = 24, 12, 8, 128


def lessen(model: torch.nn.Module) -> None:
    """Lets a detector consider few boxes, and drop none for its score: with random weights all are low."""
    transform = getattr(model, "transform", None)
    if type(transform).__name__ != "GeneralizedRCNNTransform":
        return
    if transform.fixed_size is None:
        transform.min_size, transform.max_size = (_SIZE,), _SIZE
    parts = [model, *(getattr(model, name) for name in ("rpn", "roi_heads") if hasattr(model, name))]
    for part in parts:
        for name, value in (
            ("topk_candidates", _CANDIDATES),
            ("detections_per_img", _DETECTIONS),
            ("_pre_nms_top_n", {"training": 2 * _PROPOSALS, "testing": 2 * _PROPOSALS}),
            ("_post_nms_top_n", {"training": _PROPOSALS, "testing": _PROPOSALS}),
            ("score_thresh", 0.0),
        ):
            if hasattr(part, name):
                setattr(part, name, value)
