"""torchvision's detectors, small and whole: ``python -m tests.models.detectors`` compiles each, and compares.

Each is compiled once, for images of two sizes, and runs with weights for which many boxes are found, and none. Then in
training mode: its losses, and their gradients for all parameters. Samplers draw the same in PyTorch and as translated.
Last, it is mapped over images, and its exported program is loaded without PyTorch.
"""

import functools
import sys
import time
from collections.abc import Sequence
from unittest import mock

import jax
import numpy as np
import torch
from torch import nn

from scripts.models.exports import Loading, loaded_alone
from tests.torchvision_library import loaded
from torch2jax import Padded, t2j

NAMES = ("fcos", "retinanet", "ssd", "ssdlite", "faster", "mask", "keypoint")
_TOLERANCE = 1e-6  # the places of key points are of single precision, whatever the images are


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


def small(name: str) -> nn.Module:
    """One with random weights, whose scores are far from each other.

    It is of double precision, in which rounding decides neither which boxes are kept nor in which order.
    """
    with loaded(), torch.random.fork_rng():
        torch.manual_seed(0)
        model = make(name)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.05)
        return model.double()


def images_of(width: int = 32) -> list[torch.Tensor]:
    """Images of two sizes."""
    return [_image(height, width, i) for i, height in enumerate((width * 7 // 8, width))]


def batch_of(width: int = 32) -> torch.Tensor:
    """Three images, as one tensor."""
    return torch.stack([_image(width, width, i) for i in range(2, 5)])


def _image(height: int, width: int, seed: int) -> torch.Tensor:
    return torch.rand(3, height, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _classes(model: nn.Module) -> int:
    """How many classes a detector tells apart, the background among them if its scores have that."""
    if hasattr(model, "roi_heads"):
        return model.roi_heads.box_predictor.cls_score.out_features
    head = model.head.classification_head
    return head.num_columns if hasattr(head, "num_columns") else head.num_classes


def without_boxes(model: nn.Module) -> dict[str, torch.Tensor]:
    """A state with which no box is found."""
    changed = {key: value.clone() for key, value in model.state_dict().items()}
    is_ssd = hasattr(getattr(getattr(model, "head", None), "classification_head", None), "module_list")
    for key, value in changed.items():
        if key.endswith("cls_score.bias") or (is_ssd and key in _last_biases(model)):
            value.fill_(0)
            value.reshape(-1, _classes(model))[:, 0] = 100.0
        elif key.endswith("cls_logits.bias"):
            value.fill_(-100.0)
    return changed


def _last_biases(ssd: nn.Module) -> set[str]:
    """The names of the biases that are added to the scores of an SSD, one for each level."""
    prefix, last = "head.classification_head.", {}
    for name, _ in ssd.head.classification_head.named_parameters():
        if name.endswith("bias"):
            last[name.split(".")[1]] = prefix + name
    return set(last.values())


def compact(tree) -> list[np.ndarray]:
    leaves = jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, Padded))
    return [np.asarray(x.compact() if isinstance(x, Padded) else x) for x in leaves]


def _differences(found: Sequence, wanted: Sequence[torch.Tensor], scales: Sequence[float] | None = None) -> float:
    """The largest difference, relative to the largest element of what is wanted, or to a scale."""
    worst = 0.0
    for i, (one, other) in enumerate(zip(found, wanted, strict=True)):
        assert one.shape == tuple(other.shape), (one.shape, other.shape)
        if other.numel():
            scale = other.abs().max().item() if scales is None else scales[i]
            worst = max(worst, np.abs(np.asarray(one, np.float64) - other.double().numpy()).max() / (scale or 1.0))
    return float(worst)


def check(model: nn.Module, images: Sequence[torch.Tensor]) -> tuple[list[int], float]:
    """Compares one, compiled once, with its weights and with such that no box is found.

    Returns how many boxes were found with each, and the largest difference.
    """
    model.eval()
    states = ({key: value.clone() for key, value in model.state_dict().items()}, without_boxes(model))
    found, worst = [], 0.0
    with loaded():
        function = jax.jit(lambda state, images: t2j(model)(images, state_dict=state))
        for state in states:
            model.load_state_dict(state)
            with torch.no_grad():
                wanted = model([image.clone() for image in images])
            got = compact(function(t2j(state), [t2j(image) for image in images]))
            worst = max(worst, _differences(got, jax.tree.leaves(wanted)))
            found.append(sum(len(x["boxes"]) for x in wanted))
        model.load_state_dict(states[0])
    assert worst < _TOLERANCE, f"results: {worst:.0e}"
    return found, worst


def check_mapped(model: nn.Module, images: torch.Tensor) -> tuple[list[int], float]:
    """Compares one under `vmap` over images.

    Returns how many boxes were found in each image, and the largest difference.
    """
    model.eval()
    state, worst = t2j(model.state_dict()), 0.0
    with loaded():
        of_one = lambda state, image: t2j(model)([image], state_dict=state)[0]
        found = jax.jit(jax.vmap(of_one, (None, 0)))(state, t2j(images))
        for i, image in enumerate(images):
            with torch.no_grad():
                (wanted,) = model([image])
            assert found.keys() == wanted.keys()
            got = [np.asarray(found[key].compact()[i]) for key in wanted]
            worst = max(worst, _differences(got, list(wanted.values())))
    assert worst < _TOLERANCE, f"under vmap: {worst:.0e}"
    return [len(boxes) for boxes in found["boxes"].compact()], worst


def check_loaded(model: nn.Module, images: Sequence[torch.Tensor]) -> Loading:
    """Compares one with its exported program, loaded without PyTorch."""
    model.eval()
    with loaded():
        function = lambda state, images: t2j(model)(images, state_dict=state)
        found = loaded_alone(function, (t2j(model.state_dict()), [t2j(image) for image in images]))
    assert found.agrees, found
    return found


def targets_of(model: nn.Module, images: Sequence[torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    """Two boxes in the first image and three in the second, with what else a detector learns of them."""
    generator, targets, heads = torch.Generator().manual_seed(2), [], getattr(model, "roi_heads", None)
    has_points, has_masks = heads is not None and heads.has_keypoint(), heads is not None and heads.has_mask()

    def draw(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator, dtype=images[0].dtype)

    for count, image in enumerate(images, 2):
        height, width = image.shape[1:]
        size = torch.tensor([width, height], dtype=image.dtype)
        corner = draw(count, 2) * 0.45 * size
        boxes = torch.cat([corner, corner + (0.16 + 0.3 * draw(count, 2)) * size], 1)
        labels = torch.randint(1, 2 if has_points else 3, (count,), generator=generator)
        target = {"boxes": boxes, "labels": labels}
        if has_masks:
            target["masks"] = (draw(count, height, width) > 0.4).to(torch.uint8)
        if has_points:
            points = model.roi_heads.keypoint_predictor.kps_score_lowres.out_channels
            seen = (torch.arange(points) % 3 < 2).to(image.dtype).expand(count, points)[..., None]
            keypoints = torch.cat([corner[:, None] + draw(count, points, 2) * 0.16 * size, seen], 2)
            target["keypoints"] = keypoints.float()  # which torchvision asks for, whatever the images are
        targets.append(target)
    return targets


def check_losses(model: nn.Module, images: Sequence[torch.Tensor]) -> tuple[dict[str, float], float]:
    """Compares the losses of one in training mode, and their gradients for all parameters.

    Returns the losses, and the largest difference of a gradient, relative to its largest element.
    """
    drawn = torch.rand(5000, generator=torch.Generator().manual_seed(3))
    in_an_order = lambda n, **options: drawn[:n].argsort()
    model.train()
    model.zero_grad()
    targets = targets_of(model, images)
    with loaded(), mock.patch.object(torch, "randperm", in_an_order):
        parameters = {key: x for key, x in model.named_parameters() if x.requires_grad}
        state = t2j(model.state_dict())
        translated = t2j(model, dtypes={torch.int32: torch.int64})

        @jax.jit
        @functools.partial(jax.value_and_grad, has_aux=True)
        def gradients(trained, images, targets):
            losses = translated(images, targets, state_dict=state | trained, rng=jax.random.key(0))
            return sum(losses.values()), losses

        trained = {key: state[key] for key in parameters}
        (_, losses), found = gradients(trained, [t2j(x) for x in images], jax.tree.map(t2j, targets))
        wanted = model(images, targets)
        total: torch.Tensor = sum(wanted.values())  # pyright: ignore[reportAssignmentType]
        total.backward()
    assert losses.keys() == wanted.keys()
    apart = _differences([losses[key] for key in wanted], [x.detach() for x in wanted.values()])
    assert apart < _TOLERANCE, (apart, losses, wanted)
    grads = {key: torch.zeros_like(x) if x.grad is None else x.grad for key, x in parameters.items()}
    largest = max(x.abs().max().item() for x in grads.values())
    scales = [max(x.abs().max().item(), 1e-3 * largest) for x in grads.values()]  # some would be zero but for rounding
    worst = _differences([found[key] for key in grads], list(grads.values()), scales)
    assert worst < _TOLERANCE, f"gradients: {worst:.0e}"
    return {loss: float(value) for loss, value in losses.items()}, worst


def main(names: Sequence[str]) -> None:
    jax.config.update("jax_enable_x64", True)
    for name in names:
        start = time.perf_counter()
        model, images = small(name), images_of()
        print(name, *check(model, images), flush=True)
        losses, worst = check_losses(model, images)
        print(name, ", ".join(f"{loss} {value:.4f}" for loss, value in losses.items()), worst, flush=True)
        print(name, "mapped", *check_mapped(model, batch_of()), flush=True)
        print(name, check_loaded(model, images), f"{time.perf_counter() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or NAMES)
