"""What transformers makes of the results of detectors and segmenters, jitted. All: tests/models/post_processing.py."""

import pytest

from tests.models.post_processing import CASES, Case, check, run
from torch2jax import BranchError

pytest.importorskip("transformers")


@pytest.mark.parametrize("name", ["rt_detr object_detection", "sam3 instance_segmentation"])
def test_it_is_one_program(name):
    shapes = check(name)
    assert any(shape[0] > 0 for shape in shapes if shape)


def test_a_list_of_segments_is_an_error_that_says_what_to_write():
    case = Case("maskformer", "MaskFormer", "instance_segmentation", "former", {"threshold": 0.4})
    assert case.model in {known.model for known in CASES.values()}
    with pytest.raises(BranchError, match="keep a mask of what it would hold"):
        run(case)
