"""Random programs of mask selections, against PyTorch: a few of ``python -m tests.ops.random_selections``."""

import pytest

from tests.ops.random_selections import run


@pytest.mark.parametrize("seed", [2, 7, 13, 40, 104, 131])
def test_a_random_program(seed):
    assert run(seed) == ""
