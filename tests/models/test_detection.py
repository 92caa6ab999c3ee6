"""An object detector of torchvision, from the image to the boxes."""

import jax
import numpy as np
import pytest
import torch

from tests.torchvision_library import loaded
from torch2jax import t2j

pytest.importorskip("torchvision")


def test_a_detector_finds_the_same_objects():
    from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn

    torch.manual_seed(0)
    sizes = {"min_size": 64, "max_size": 96, "rpn_pre_nms_top_n_test": 30, "rpn_post_nms_top_n_test": 10}
    model = fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None, weights_backbone=None, num_classes=3, box_score_thresh=0.01, **sizes
    )
    # In float64, so that rounding decides neither which boxes are kept nor in which order.
    model, image = model.eval().double(), torch.rand(3, 60, 80, dtype=torch.float64)
    with loaded(), jax.enable_x64(True):
        (expected,) = model([image])
        (actual,) = t2j(model)([t2j(image)])
    assert len(expected["boxes"]) > 5
    assert actual.keys() == expected.keys()
    for name, want in expected.items():
        np.testing.assert_allclose(actual[name], want.detach().numpy(), 1e-8, 1e-8, err_msg=name)
