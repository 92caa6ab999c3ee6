"""torchvision's detectors, small and whole: ``python -m tests.models.detectors`` compiles each, and compares.

Each is compiled once, for images of two sizes, and runs with weights for which many boxes are found, and none.
"""

import sys
import time

import jax
import numpy as np
import torch
from torch import nn

from tests.torchvision_library import loaded
from torch2jax import Padded, t2j

NAMES = ("fcos", "retinanet", "ssd", "faster", "mask", "keypoint")


class Pyramid(nn.Module):
    """A backbone of two levels."""

    def __init__(self, channels: int = 16):
        super().__init__()
        self.out_channels = channels
        self.fine, self.coarse = nn.Conv2d(3, channels, 4, 4), nn.Conv2d(channels, channels, 2, 2)

    def forward(self, x):
        fine = self.fine(x).relu()
        return {"0": fine, "1": self.coarse(fine)}


def make(name: str) -> nn.Module:
    from torchvision.models import detection
    from torchvision.models.detection.anchor_utils import AnchorGenerator, DefaultBoxGenerator
    from torchvision.ops import MultiScaleRoIAlign

    def anchors(*ratios):
        return AnchorGenerator(sizes=((8,), (16,)), aspect_ratios=(ratios,) * 2)

    few = {"topk_candidates": 20, "detections_per_img": 10}
    size = {"min_size": 32, "max_size": 32}
    if name == "fcos":
        return detection.FCOS(Pyramid(32), 3, anchor_generator=anchors(1.0), score_thresh=0.005, **few, **size)
    if name == "retinanet":
        return detection.RetinaNet(
            Pyramid(32), 3, anchor_generator=anchors(0.5, 1.0, 2.0), score_thresh=0.01, **few, **size
        )
    if name == "ssd":
        head = detection.ssd.SSDHead([16, 16], [4, 4], 3)
        boxes = DefaultBoxGenerator([[2], [2]])
        return detection.ssd.SSD(Pyramid(), boxes, (32, 32), 3, head=head, score_thresh=0.1, **few)
    proposals = {"rpn_pre_nms_top_n_test": 30, "rpn_post_nms_top_n_test": 12, "box_score_thresh": 0.2}
    options = {
        "rpn_anchor_generator": anchors(0.5, 1.0, 2.0),
        "box_roi_pool": MultiScaleRoIAlign(["0", "1"], 3, 2),
        "box_detections_per_img": 8,
        **proposals,
        **size,
    }
    pool = MultiScaleRoIAlign(["0", "1"], 4, 2)
    if name == "faster":
        return detection.FasterRCNN(Pyramid(), 3, **options)
    if name == "mask":
        return detection.MaskRCNN(Pyramid(), 3, mask_roi_pool=pool, **options)
    return detection.KeypointRCNN(Pyramid(), 2, num_keypoints=3, keypoint_roi_pool=pool, **options)


def _without_boxes(name: str, state: dict) -> dict:
    """Weights with which no box is found."""
    changed = {key: value.clone() for key, value in state.items()}
    for key, value in changed.items():
        if name in ("faster", "mask", "keypoint", "ssd"):
            if key.endswith("cls_score.bias") or (name == "ssd" and "classification_head" in key and "bias" in key):
                value.fill_(0)
                classes = 2 if name == "keypoint" else 3
                value.reshape(-1, classes)[:, 0] = 100.0
        elif key.endswith("cls_logits.bias"):
            value.fill_(-100.0)
    return changed


def compact(tree) -> list[np.ndarray]:
    leaves = jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, Padded))
    return [np.asarray(x.compact() if isinstance(x, Padded) else x) for x in leaves]


def check(name: str) -> list[int]:
    """Compares one, and gives how many boxes were found in each run."""
    with loaded(), torch.random.fork_rng():
        torch.manual_seed(0)
        model = make(name).eval()
        with torch.no_grad():
            for parameter in model.parameters():  # scores that are far from each other
                parameter.add_(torch.randn_like(parameter) * 0.05)
        images = [torch.rand(3, 28, 32), torch.rand(3, 32, 32)]
        many = {key: value.clone() for key, value in model.state_dict().items()}
        function = jax.jit(lambda state, images: t2j(model)(images, state_dict=state))
        found = []
        for state in (many, _without_boxes(name, many)):
            model.load_state_dict(state)
            with torch.no_grad():
                wanted = model([image.clone() for image in images])
            got = compact(function({k: t2j(v) for k, v in state.items()}, [t2j(image) for image in images]))
            for one, other in zip(got, jax.tree.leaves(wanted), strict=True):
                assert one.shape == tuple(other.shape), (name, one.shape, other.shape)
                np.testing.assert_allclose(one, other.numpy(), 1e-3, 1e-4, err_msg=name)
            found.append(sum(len(x["boxes"]) for x in wanted))
        return found


if __name__ == "__main__":
    for each in sys.argv[1:] or NAMES:
        start = time.perf_counter()
        print(each, check(each), f"{time.perf_counter() - start:.1f} s")
