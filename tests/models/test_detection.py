"""An object detector of torchvision, from the image to the boxes."""

import jax
import numpy as np
import pytest
import torch

from tests.models import detectors
from tests.torchvision_library import loaded
from torch2jax import t2j

pytest.importorskip("torchvision")


class TwoLevels(torch.nn.Module):
    """A backbone whose features have two resolutions."""

    out_channels = 16

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(3, 16, 5, 16, 2), torch.nn.Conv2d(16, 16, 3, 2, 1)

    def forward(self, x):
        first = torch.relu(self.first(x))
        return {"0": first, "1": self.second(first)}


@pytest.mark.slow("compiles a whole detector")
def test_a_detector_finds_the_same_objects():
    from torchvision.models.detection import FasterRCNN
    from torchvision.models.detection.rpn import AnchorGenerator
    from torchvision.ops import MultiScaleRoIAlign

    torch.manual_seed(0)
    backbone = TwoLevels()
    levels = {
        "rpn_anchor_generator": AnchorGenerator(((16,), (32,)), ((0.5, 1.0, 2.0),) * 2),
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


@pytest.fixture
def double():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("name", ["ssd", "faster"])  # all of them: python -m tests.models.detectors
def test_a_whole_detector_is_one_program(name, double):
    (many, none), _ = detectors.check(detectors.small(name), detectors.images_of())
    assert many > 10
    assert none == 0


def test_losses_of_a_whole_detector_are_one_program(double):
    losses, _ = detectors.check_losses(detectors.small("faster"), detectors.images_of())
    assert len(losses) == 4
    assert all(x > 0 for x in losses.values())


@pytest.mark.slow("compiles a whole detector")
def test_a_whole_detector_is_mapped_and_loaded_without_pytorch(double):
    model = detectors.small("ssd")
    found, _ = detectors.check_mapped(model, detectors.batch_of())
    assert min(found) > 0
    assert detectors.check_loaded(model, detectors.images_of()).difference == 0
