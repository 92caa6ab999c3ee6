"""What transformers makes of the results of detectors and segmenters, jitted. All: tests/models/post_processing.py."""

import pytest

from tests.models.post_processing import check

pytest.importorskip("transformers")


@pytest.mark.parametrize("name", ["rt_detr object_detection", "sam3 instance_segmentation"])
def test_it_is_one_program(name):
    shapes = check(name)
    assert any(shape[0] > 0 for shape in shapes if shape)
