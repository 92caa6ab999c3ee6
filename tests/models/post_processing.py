"""What transformers makes of the results of detectors and segmenters, jitted; python -m tests.models.post_processing.

Each method gets random results, of which some pass the threshold, and is compared with PyTorch.
"""

import importlib
import sys
import types
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
import torch

from tests.models.detectors import compact
from torch2jax import t2j
from torch2jax.tools.models import define_vision_operators

_IMAGES, _QUERIES, _CLASSES, _SIZE = 2, 6, 3, 8
_SIZES = [(16, 16), (12, 20)]  # of the images


class Case(NamedTuple):
    """A method of an image processor.

    Attributes:
        model: the module in `transformers.models`.
        processor: the class.
        method: after ``post_process_``.
        outputs: a key of `_OUTPUTS`.
        options: of the method.
    """

    model: str
    processor: str
    method: str
    outputs: str
    options: Mapping[str, Any] = types.MappingProxyType({})


def _outputs() -> dict[str, dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(_IMAGES, *shape, generator=generator)
    boxes = lambda: draw(_QUERIES, 4).sigmoid()
    logits, masks = 2 * draw(_QUERIES, _CLASSES + 1), 4 * draw(_QUERIES, _SIZE, _SIZE)
    return {
        "detr": {"logits": logits, "pred_boxes": boxes(), "pred_masks": masks},
        "former": {"class_queries_logits": logits, "masks_queries_logits": masks},
        "map": {"logits": draw(_CLASSES, _SIZE, _SIZE)},
        "owl": {"logits": draw(_QUERIES, _CLASSES), "pred_boxes": boxes()},
        "sam": {
            "pred_logits": draw(_QUERIES),
            "pred_boxes": boxes(),
            "pred_masks": masks,
            "presence_logits": draw(1),
            "semantic_seg": draw(1, _SIZE, _SIZE),
        },
    }


_FEW = {"threshold": 0.4}
CASES = {
    f"{case.model} {case.method}": case
    for case in (
        Case("detr", "Detr", "object_detection", "detr", _FEW),
        Case("conditional_detr", "ConditionalDetr", "object_detection", "detr", _FEW),
        Case("deformable_detr", "DeformableDetr", "object_detection", "detr", {**_FEW, "top_k": 5}),
        Case("rt_detr", "RTDetr", "object_detection", "detr", _FEW),
        Case("rf_detr", "RfDetr", "object_detection", "detr", _FEW),
        Case("yolos", "Yolos", "object_detection", "detr", _FEW),
        Case("owlvit", "OwlViT", "object_detection", "owl", _FEW),
        Case("owlv2", "Owlv2", "object_detection", "owl", _FEW),
        Case("grounding_dino", "GroundingDino", "object_detection", "detr", _FEW),
        Case("sam3", "Sam3", "object_detection", "sam", {"threshold": 0.2}),
        Case("sam3", "Sam3", "instance_segmentation", "sam", {"threshold": 0.2}),
        Case("sam3", "Sam3", "semantic_segmentation", "sam"),
        Case("detr", "Detr", "semantic_segmentation", "detr"),
        Case("maskformer", "MaskFormer", "semantic_segmentation", "former"),
        Case("mask2former", "Mask2Former", "semantic_segmentation", "former"),
        Case("oneformer", "OneFormer", "semantic_segmentation", "former"),
        Case("segformer", "Segformer", "semantic_segmentation", "map"),
    )
}


def check(name: str) -> list[tuple[int, ...]]:
    """Compares one, jitted, with PyTorch, and returns the shapes of its results."""
    define_vision_operators()
    case = CASES[name]
    module = f"transformers.models.{case.model}.image_processing_{case.model}"
    kind = getattr(importlib.import_module(module), f"{case.processor}ImageProcessor")
    method = getattr(kind, f"post_process_{case.method}")
    outputs = _outputs()[case.outputs]

    def function(outputs):
        outputs = types.SimpleNamespace(**{key: x.clone() for key, x in outputs.items()})  # some write to them
        return method(object.__new__(kind), outputs, target_sizes=_SIZES, **case.options)

    found, wanted = compact(jax.jit(t2j(function))(t2j(outputs))), jax.tree.leaves(function(outputs))
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == tuple(other.shape), (name, one.shape, other.shape)
        np.testing.assert_allclose(one, other.numpy(), 1e-4, 1e-4, err_msg=name)
    return [one.shape for one in found]


if __name__ == "__main__":
    for each in sys.argv[1:] or CASES:
        print(each, check(each), flush=True)
