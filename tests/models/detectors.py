"""torchvision's detectors, small and whole: ``python -m tests.models.detectors`` compiles each, and compares.

Each is compiled once, for images of two sizes, and runs with weights for which many boxes are found, and none. Then in
training mode: its losses, and their gradients for all parameters. Samplers draw the same in PyTorch and as translated.
Last, it is mapped over images, and exported for accelerators.
"""

import functools
import sys
import time
from unittest import mock

import jax
import numpy as np
import torch
from torch import nn

from tests.torchvision_library import loaded
from torch2jax import Padded, export, t2j

NAMES = ("fcos", "retinanet", "ssd", "ssdlite", "faster", "mask", "keypoint")


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
    if name.startswith("ssd"):
        head = detection.ssd.SSDHead([16, 16], [4, 4], 3)
        if name == "ssdlite":
            head = detection.ssdlite.SSDLiteHead([16, 16], [4, 4], 3, nn.BatchNorm2d)
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
        if name in ("faster", "mask", "keypoint", "ssd", "ssdlite"):
            of_scores = "classification_head" in key and "bias" in key and value.numel() % 3 == 0
            if key.endswith("cls_score.bias") or (name.startswith("ssd") and of_scores):
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


def check_mapped(name: str) -> list[int]:
    """Compares one under `vmap` over images, exports it for accelerators, and gives how many boxes were found."""
    with loaded(), torch.random.fork_rng():
        torch.manual_seed(0)
        model = make(name).eval()
        images = torch.rand(3, 3, 32, 32)
        state = {k: t2j(v) for k, v in model.state_dict().items()}
        of_one = lambda state, image: t2j(model)([image], state_dict=state)[0]
        found = jax.jit(jax.vmap(of_one, (None, 0)))(state, t2j(images))
        for i, image in enumerate(images):
            with torch.no_grad():
                (wanted,) = model([image])
            for key, other in wanted.items():
                one = found[key].compact()[i]
                assert one.shape == tuple(other.shape), (name, key, one.shape, other.shape)
                np.testing.assert_allclose(one, other.numpy(), 1e-3, 1e-4, err_msg=f"{name}: {key}")
        exported = export(of_one, platforms=["tpu", "cuda"])(state, t2j(images[0]))
        assert exported.platforms == ("tpu", "cuda")
        assert exported.serialize()
        return [len(boxes) for boxes in found["boxes"].compact()]


def _targets(name: str) -> list[dict]:
    """Boxes in two images, with what else the detector learns of them."""
    targets = []
    for count, (height, width) in ((2, (28, 32)), (3, (32, 32))):
        corner = torch.rand(count, 2) * 14
        boxes = torch.cat([corner, corner + 5 + torch.rand(count, 2) * 9], 1)
        target = {"boxes": boxes, "labels": torch.randint(1, 2 if name == "keypoint" else 3, (count,))}
        if name == "mask":
            target["masks"] = (torch.rand(count, height, width) > 0.4).to(torch.uint8)
        if name == "keypoint":
            seen = torch.tensor([1.0, 1.0, 0.0]).expand(count, 3)[..., None]
            target["keypoints"] = torch.cat([corner[:, None] + torch.rand(count, 3, 2) * 5, seen], 2)
        targets.append(target)
    return targets


def check_losses(name: str) -> dict[str, float]:
    """Compares the losses of one, and their gradients, and gives the losses."""
    drawn = torch.rand(5000, generator=torch.Generator().manual_seed(3))
    in_an_order = lambda n, **options: drawn[:n].argsort()
    with loaded(), torch.random.fork_rng(), mock.patch.object(torch, "randperm", in_an_order):
        torch.manual_seed(0)
        model = make(name).train()
        images, targets = [torch.rand(3, 28, 32), torch.rand(3, 32, 32)], _targets(name)
        parameters, state = dict(model.named_parameters()), {k: t2j(v) for k, v in model.state_dict().items()}
        translated = t2j(model, dtypes={torch.int32: torch.int64})

        @jax.jit
        @functools.partial(jax.value_and_grad, has_aux=True)
        def gradients(trained, images, targets):
            losses = translated(images, targets, state_dict=state | trained, rng=jax.random.key(0))
            return sum(losses.values()), losses

        trained = {k: state[k] for k in parameters}
        (_, losses), found = gradients(trained, [t2j(x) for x in images], jax.tree.map(t2j, targets))
        wanted = model(images, targets)
        total: torch.Tensor = sum(wanted.values())  # pyright: ignore[reportAssignmentType]
        total.backward()
    assert losses.keys() == wanted.keys()
    for loss, value in wanted.items():
        np.testing.assert_allclose(losses[loss], value.item(), 1e-4, err_msg=f"{name}: {loss}")
    largest = max(x.grad.abs().max().item() for x in parameters.values() if x.grad is not None)
    for key, parameter in parameters.items():
        grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        scale = max(grad.abs().max().item(), 1e-3 * largest)  # some would be zero but for rounding
        np.testing.assert_allclose(found[key] / scale, grad.numpy() / scale, 1e-3, 2e-4, err_msg=f"{name}: {key}")
    return {loss: float(value) for loss, value in losses.items()}


if __name__ == "__main__":
    for each in sys.argv[1:] or NAMES:
        start = time.perf_counter()
        print(each, check(each), f"{time.perf_counter() - start:.1f} s", flush=True)
        start = time.perf_counter()
        losses = ", ".join(f"{loss} {value:.4f}" for loss, value in check_losses(each).items())
        print(f"{each} {losses}: {time.perf_counter() - start:.1f} s", flush=True)
        print(each, "mapped", check_mapped(each), flush=True)
