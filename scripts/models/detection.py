"""torchvision's detectors as it builds them: boxes, losses and gradients, mapped over images, and without PyTorch."""

import dataclasses
from collections.abc import Iterable

import jax
import torch

from scripts.models.detectors import lessen
from scripts.models.variation import vary
from tests.models import detectors
from tests.torchvision_library import loaded

__all__ = ["DETECTORS", "HEAD", "Detection", "detection"]

DETECTORS = (
    "fcos_resnet50_fpn",
    "retinanet_resnet50_fpn",
    "ssd300_vgg16",
    "ssdlite320_mobilenet_v3_large",
    "fasterrcnn_mobilenet_v3_large_fpn",
    "maskrcnn_resnet50_fpn",
    "keypointrcnn_resnet50_fpn",
)
HEAD = "| detector | parameters | boxes | difference | losses | gradients | `vmap` | difference | loaded | what fails |"
_SIZE = 64


@dataclasses.dataclass
class Detection:
    """One detector.

    Attributes:
        name: torchvision's.
        parameters: how many.
        boxes: how many are found in two images, with weights for which there are some, and none.
        difference: the largest of a result, relative to its largest element.
        losses: how many.
        gradient: the largest difference of a gradient, relative to its largest element.
        mapped: how many boxes are found in each image of a batch.
        mapped_difference: the largest of a result then.
        loaded: the difference of the exported program, loaded without PyTorch.
        failure: what does not agree.
    """

    name: str
    parameters: int = 0
    boxes: Iterable[int] = ()
    difference: float | None = None
    losses: int = 0
    gradient: float | None = None
    mapped: Iterable[int] = ()
    mapped_difference: float | None = None
    loaded: float | None = None
    failure: str = ""

    def row(self) -> str:
        """The line of the table."""
        cells = (
            f"{self.parameters:,}",
            " / ".join(map(str, self.boxes)),
            _number(self.difference),
            str(self.losses or ""),
            _number(self.gradient),
            " / ".join(map(str, self.mapped)),
            _number(self.mapped_difference),
            _number(self.loaded),
            f"`{self.failure.replace('|', '/')}`" if self.failure else "",
        )
        return f"| {self.name} | {' | '.join(cells)} |"


def _number(x: float | None) -> str:
    return "" if x is None else f"{x:.0e}"


def detection(name: str) -> Detection:
    """Compares one in double precision, in which rounding decides neither which boxes are kept nor in which order."""
    with jax.enable_x64(True):
        model = _built(name).double()
        found = Detection(name, sum(parameter.numel() for parameter in model.parameters()))
        images = detectors.images_of(_SIZE)
        found.boxes, found.difference = detectors.check(model, images)
        found.mapped, found.mapped_difference = detectors.check_mapped(model, detectors.batch_of(_SIZE))
        found.loaded = detectors.check_loaded(model, images).difference
        losses, found.gradient = detectors.check_losses(model, images)
        found.losses = len(losses)
    return found


def _built(name: str) -> torch.nn.Module:
    """One that finds about half of the boxes that it considers."""
    from torchvision.models import get_model

    torch.manual_seed(0)
    with loaded():
        model = get_model(name, weights=None, weights_backbone=None, num_classes=5).eval()
        lessen(model)
        vary(model)
        (found,) = model([torch.rand(3, _SIZE, _SIZE)])
    part = model.roi_heads if hasattr(model, "roi_heads") else model
    part.score_thresh = found["scores"].median().item()
    return model
