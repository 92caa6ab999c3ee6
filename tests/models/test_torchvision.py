"""Image classifiers of torchvision."""

import jax
import pytest
import torch

from .agreement import assert_agrees

torchvision = pytest.importorskip("torchvision")

SIZES = {"resnet18": 64, "resnet50": 64, "vit_b_16": 224, "efficientnet_b0": 64, "swin_t": 64, "convnext_tiny": 64}


def build(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    model = getattr(torchvision.models, name)(weights=None)
    for module in model.modules():  # randomness has its own tests
        if isinstance(module, (torch.nn.Dropout, torchvision.ops.StochasticDepth)):
            module.p = 0.0
    return model


@pytest.mark.parametrize("name", SIZES)
def test_evaluation_agrees(name):
    model = build(name).eval()
    images = torch.randn(2, 3, SIZES[name], SIZES[name])
    assert_agrees(model, images, tolerance=2e-4, gradient_tolerance=2e-2)


@pytest.mark.parametrize("name", SIZES)
def test_training_agrees(name):
    # In float64, for batch norm over a few pixels amplifies the rounding of float32, in PyTorch as here.
    model = build(name).double().train()
    images = torch.randn(2, 3, SIZES[name], SIZES[name], dtype=torch.float64)
    with jax.enable_x64(True):
        assert_agrees(model, images, tolerance=1e-8, gradient_tolerance=1e-6, eager=False)
