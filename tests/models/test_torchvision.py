"""Image classifiers of torchvision, in small."""

import jax
import pytest
import torch

from .agreement import assert_agrees

torchvision = pytest.importorskip("torchvision")

from torchvision import models  # noqa: E402
from torchvision.models.convnext import CNBlockConfig  # noqa: E402
from torchvision.models.efficientnet import MBConvConfig  # noqa: E402
from torchvision.models.resnet import BasicBlock, Bottleneck  # noqa: E402


def resnet18():
    return models.ResNet(BasicBlock, [1, 1, 1, 1], num_classes=10)


def resnet50():
    return models.ResNet(Bottleneck, [1, 1, 1, 1], num_classes=10)


def vit():
    return models.VisionTransformer(32, 8, 2, num_heads=4, hidden_dim=32, mlp_dim=64, num_classes=10)


def efficientnet():
    blocks = [MBConvConfig(1, 3, 1, 8, 8, 1, 1.0, 1.0), MBConvConfig(6, 5, 2, 8, 16, 2, 1.0, 1.0)]
    return models.EfficientNet(blocks, dropout=0.0, num_classes=10)


def swin():
    return models.SwinTransformer([4, 4], 16, [2, 2], [2, 4], [4, 4], num_classes=10)


def convnext():
    return models.ConvNeXt([CNBlockConfig(16, 32, 1), CNBlockConfig(32, None, 2)], num_classes=10)


# All kinds of layers, and few of each; `torch2jax check` and the examples run models as they are published.
SMALL = [resnet18, resnet50, vit, efficientnet, swin, convnext]


def build(make) -> torch.nn.Module:
    torch.manual_seed(0)
    model = make()
    for module in model.modules():  # randomness has its own tests
        if isinstance(module, (torch.nn.Dropout, torchvision.ops.StochasticDepth)):
            module.p = 0.0
    return model


@pytest.mark.parametrize("make", SMALL, ids=lambda make: make.__name__)
def test_evaluation_agrees(make):
    images, tolerances = torch.randn(2, 3, 32, 32), {"tolerance": 2e-4, "gradient_tolerance": 2e-2}
    assert_agrees(build(make).eval(), images, **tolerances, eager=make is resnet18)


@pytest.mark.parametrize("make", SMALL, ids=lambda make: make.__name__)
def test_training_agrees(make):
    # In float64, for batch norm over a few pixels amplifies the rounding of float32, in PyTorch as here.
    model, images = build(make).double().train(), torch.randn(2, 3, 32, 32, dtype=torch.float64)
    with jax.enable_x64(True):
        assert_agrees(model, images, tolerance=1e-8, gradient_tolerance=1e-6, eager=False)
