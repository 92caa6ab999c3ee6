"""PyTorch's operator database of what masks chose: a few of ``python -m tests.ops.chosen_database``."""

import pytest

from tests.ops.chosen_database import trials
from tests.ops.hidden_rows import KINDS

NAMES = (
    "flip",
    "squeeze.multiple",
    "expand",
    "amax",
    "softmax",
    "cumsum",
    "isposinf",
    "bool",
    "atan2",
    "nn.functional.pad",
)
NAMES += ("take_along_dim", "nn.functional.hinge_embedding_loss", "linalg.cross", "atleast_3d")
NAMES += ("special.zeta", "masked_fill", "nn.functional.grid_sample", "acos", "corrcoef", "std", "linalg.vector_norm")


@pytest.mark.parametrize("name", NAMES)
def test_an_entry(name):
    found = [text for trial in trials(name, 1) for text in trial.run(tuple(KINDS)).values()]
    assert found
    assert not [text for text in found if text and not text.startswith(("refused", "left out"))]


def test_what_is_served():
    """Of most entries nothing is refused."""
    assert [trial.run() for trial in trials("amax", 1)] == [{"nan": ""}] * len(trials("amax", 1))
