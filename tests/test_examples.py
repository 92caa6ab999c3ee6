"""Every example runs, on a small problem."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
SMALL = {
    "generate": ["--tokens", "4"],
    "train_resnet18": ["--steps", "2", "--batch", "2"],
    "train_torch_loop": ["--steps", "20"],
}


@pytest.mark.models
@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path: Path):
    arguments = SMALL.get(path.stem, [])
    done = subprocess.run([sys.executable, path, *arguments], capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert done.stdout
