"""An object detector of torchvision, from the image to the boxes."""

import jax
import numpy as np
import pytest
import torch

from tests.torchvision_library import loaded
from torch2jax import t2j

pytest.importorskip("torchvision")


def test_a_detector_finds_the_same_objects():
    from torchvision.models import ResNet
    from torchvision.models.detection import FasterRCNN
    from torchvision.models.detection.backbone_utils import BackboneWithFPN
    from torchvision.models.detection.rpn import AnchorGenerator
    from torchvision.models.resnet import BasicBlock
    from torchvision.ops import FrozenBatchNorm2d, MultiScaleRoIAlign

    torch.manual_seed(0)
    resnet = ResNet(BasicBlock, [1, 1, 1, 1], norm_layer=FrozenBatchNorm2d)
    backbone = BackboneWithFPN(resnet, {"layer3": "0", "layer4": "1"}, [256, 512], out_channels=16)
    levels = {
        "rpn_anchor_generator": AnchorGenerator(((16,), (32,), (64,)), ((0.5, 1.0, 2.0),) * 3),
        "box_roi_pool": MultiScaleRoIAlign(["0", "1"], 7, 2),
    }
    sizes = {"min_size": 64, "max_size": 96, "rpn_pre_nms_top_n_test": 30, "rpn_post_nms_top_n_test": 10}
    model = FasterRCNN(backbone, num_classes=3, box_score_thresh=0.01, **levels, **sizes)
    # In float64, so that rounding decides neither which boxes are kept nor in which order.
    model, image = model.eval().double(), torch.rand(3, 60, 80, dtype=torch.float64)
    with loaded(), jax.enable_x64(True):
        (expected,) = model([image])
        (actual,) = t2j(model)([t2j(image)])
    assert len(expected["boxes"]) > 5
    assert actual.keys() == expected.keys()
    for name, want in expected.items():
        np.testing.assert_allclose(actual[name], want.detach().numpy(), 1e-8, 1e-8, err_msg=name)
