"""Times of a model: which ways are timed, what they compute, and what fails."""

import pytest
import torch
from torch import nn

from torch2jax import tools

X = torch.ones(4, 3)


def _named(found: tools.Bench) -> dict[str, tools.Timing]:
    return {timing.name: timing for timing in found.timings}


@pytest.mark.parametrize("grad", [False, True])
def test_every_way_is_timed(monkeypatch, grad):
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda model: compiled.append(model) or model)  # which takes a minute
    model = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5))
    found = tools.bench(model, (X,), grad=grad, seconds=0.03)
    ways = _named(found)
    assert list(ways) == ["PyTorch", "torch.compile", "torch2jax"]
    assert all(timing.first > 0 and timing.seconds > 0 and timing.spread >= 0 for timing in found.timings)
    assert ways["PyTorch"].speedup == 1
    assert ways["torch2jax"].speedup == pytest.approx(ways["PyTorch"].seconds / ways["torch2jax"].seconds)
    assert found.agreement.agrees
    assert len(compiled) == 1
    assert compiled[0] is not model
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_compiler_that_fails(monkeypatch):
    def compile(model):
        raise RuntimeError("no compiler\nand more")

    monkeypatch.setattr(torch, "compile", compile)
    ways = _named(tools.bench(torch.sin, (X,), seconds=0.03))
    assert ways["torch.compile"].error == "RuntimeError: no compiler"
    assert ways["torch2jax"].seconds > 0
    assert "torch.compile" not in _named(tools.bench(torch.sin, (X,), seconds=0.03, compile=False))


def test_refusals():
    with pytest.raises(tools.SpecError, match="PyTorch itself fails"):
        tools.bench(nn.Linear(8, 2), (X,), compile=False)
    unknown = lambda x: torch.ops.aten._test_optional_floatlist(x, [1.0, 2.0, 3.0])
    with pytest.raises(tools.TranslationError, match=r"cannot be translated: NoRuleError"):
        tools.bench(unknown, (torch.ones(3),), compile=False)
