"""Image classifiers of torchvision."""

import pytest
import torch

from .agreement import assert_agrees

torchvision = pytest.importorskip("torchvision")

SIZES = {"resnet18": 64, "resnet50": 64, "vit_b_16": 224, "efficientnet_b0": 64, "swin_t": 64, "convnext_tiny": 64}


@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", SIZES)
def test_agrees(name, train):
    torch.manual_seed(0)
    model = getattr(torchvision.models, name)(weights=None)
    for module in model.modules():  # randomness has its own tests
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(module, torchvision.ops.StochasticDepth):
            module.p = 0.0
    model.train(train)
    images = torch.randn(2, 3, SIZES[name], SIZES[name])
    assert_agrees(model, images, tolerance=2e-4, gradient_tolerance=2e-2, eager=not train)
