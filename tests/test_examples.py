"""Every example runs, on a small problem."""

import runpy
import sys
from pathlib import Path

import pytest

from torch2jax.tools.models import define_vision_operators

define_vision_operators()  # libraries import torchvision, which need not load beside this build of PyTorch

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
SMALL = {
    "generate": ["--tokens", "4"],
    "train_at_scale": ["--steps", "1", "--width", "16", "--length", "16"],
    "train_resnet18": ["--steps", "2", "--batch", "2"],
    "train_torch_loop": ["--steps", "20"],
}


@pytest.mark.models
@pytest.mark.slow("compiles a real model, or trains one")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path: Path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(path), *SMALL.get(path.stem, [])])
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out
