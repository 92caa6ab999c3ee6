"""Specs of image models: ``torchvision:NAME`` and ``timm:NAME``."""

import difflib
import functools
import importlib
import inspect
from collections.abc import Iterable

import torch

from .subject import SpecError, Subject, tensors_of_shapes

__all__ = ["build_timm", "build_torchvision", "define_vision_operators"]

_DETECTORS = ("rcnn", "retinanet", "fcos", "ssd")


@functools.cache
def define_vision_operators() -> bool:
    """Lets torchvision, if there, be imported though its compiled library does not load beside this build of PyTorch.

    The library defines operators that the package looks up when it is imported; their schemas are enough for that.
    Other libraries import torchvision when it is installed, so this comes before them.

    Returns whether that was necessary.
    """
    try:
        importlib.import_module("torchvision")
    except ModuleNotFoundError:
        return False
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        for name in ("nms", "qnms"):
            schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            torch.library.define(f"torchvision::{name}", schema)
        importlib.import_module("torchvision")
        return True
    return False


def build_torchvision(name: str) -> Subject:
    """A model of torchvision with random weights, on one random image."""
    from torchvision import models

    if name not in models.list_models():
        raise SpecError(f"torchvision has no model {name!r}{_nearest(name, models.list_models())}")
    takes = inspect.signature(models.get_model_builder(name)).parameters
    options = {"weights_backbone": None} if "weights_backbone" in takes else {}
    model = models.get_model(name, weights=None, **options)
    if name.startswith(_DETECTORS) or any(part in name for part in _DETECTORS):
        return Subject(f"torchvision:{name}", model, ([image[0] for image in tensors_of_shapes(["1,3,224,224"])],))
    if "optical_flow" in type(model).__module__:
        shapes = ["1,3,128,128"] * 2  # from one image to the next
    elif "video" in type(model).__module__:
        shapes = ["1,3,16,224,224"]
    else:
        size = 299 if name == "inception_v3" else 224
        shapes = [f"1,3,{size},{size}"]
    return Subject(f"torchvision:{name}", model, tensors_of_shapes(shapes))


def build_timm(name: str) -> Subject:
    """A model of timm with random weights, on one random image of the size it was made for."""
    import timm
    from timm.data.config import resolve_model_data_config

    if not timm.is_model(name):
        raise SpecError(f"timm has no model {name!r}{_nearest(name, timm.list_models())}")
    model = timm.create_model(name, pretrained=False)
    sizes = resolve_model_data_config(model)["input_size"]
    return Subject(f"timm:{name}", model, tensors_of_shapes([",".join(map(str, (1, *sizes)))]))


def _nearest(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, names, n=3)
    return f" (nearest: {', '.join(near)})" if near else ""
