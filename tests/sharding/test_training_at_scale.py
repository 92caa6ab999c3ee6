"""The example of training at scale: two processes train as one does, and one goes on where they stop."""

import runpy
import sys

import numpy as np
import pytest

from torch2jax.tools.models import define_vision_operators

from .test_distributed import ROOT, free_ports, result_of, start_code

EXAMPLE = ROOT / "examples" / "train_at_scale.py"
SMALL = ["--layers=8", "--width=16", "--length=16"]
# transformers imports torchvision, which need not load beside this build of PyTorch
RUN = f"""
import runpy, sys
from torch2jax.tools.models import define_vision_operators
define_vision_operators()
runpy.run_path({str(EXAMPLE)!r}, run_name="__main__")
"""


def losses(output: str) -> dict[int, float]:
    """By the number of the step."""
    lines = [line.split() for line in output.splitlines() if line.startswith("step ")]
    return {int(words[1].rstrip(":")): float(words[3]) for words in lines}


@pytest.mark.models
@pytest.mark.slow("compiles a training step for eight devices")
@pytest.mark.usefixtures("eight_devices")
def test_two_processes_train_as_one_and_one_goes_on(tmp_path, monkeypatch, capsys):
    (port,) = free_ports(1)
    several = [*SMALL, "--steps=2", f"--folder={tmp_path}", f"--coordinator=localhost:{port}", "--processes=2"]
    processes = [start_code(RUN, *several, f"--process={i}", devices=1) for i in range(2)]

    def alone(*options: str) -> dict[int, float]:
        """In this process, on its eight devices."""
        monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *SMALL, *options])
        runpy.run_path(str(EXAMPLE), run_name="__main__")
        return losses(capsys.readouterr().out)

    define_vision_operators()
    expected = alone("--steps=3")
    first, other = [losses(result_of(process)) for process in processes]
    assert list(first) == [1, 2]
    assert not other  # the first process alone prints
    resumed = alone("--steps=3", "--tensor=2", "--remat", f"--folder={tmp_path}")
    assert list(resumed) == [3]
    together = {**first, **resumed}
    np.testing.assert_allclose(list(together.values()), list(expected.values()), rtol=2e-4)
