"""The script that compares whole libraries of models: what it chooses, what it keeps, and a model of each kind."""

import pytest
import torch

from scripts.models import choice, diffusion, worker
from scripts.models.outcome import Outcome
from scripts.models.page import page, read, summary
from scripts.zoo import wanted

AGREES = Outcome("torchvision:alexnet", 61_000_000, 1e-6, 2e-6, 0.5, 1.5, 1234, True)
FAILS = Outcome("timm:a_b", 5, None, failure="outputs: E: a|`b`")
ABSENT = Outcome("transformers:x", pytorch=False, failure="ValueError: no")
OUTCOMES = {outcome.spec: outcome for outcome in (AGREES, FAILS, ABSENT)}
SPECS = [*OUTCOMES, "scripts.models.diffusion:VQModel"]


def test_the_page_is_what_is_kept():
    text = "\n".join(page(OUTCOMES, SPECS))
    found = read(text)
    assert found["torchvision:alexnet"] == AGREES
    assert found["timm:a_b"].failure == "outputs: E: a/'b'"
    assert found["transformers:x"] == ABSENT
    assert "\n".join(page(found, SPECS)) == text
    assert "| all | 4 | 3 | 2 | 1 | 50.0 | 1 |" in summary(found, SPECS)


def test_what_is_wanted():
    assert wanted(SPECS, OUTCOMES, "", None) == SPECS[3:]
    assert wanted(SPECS, OUTCOMES, "", "failed") == SPECS[1:]
    assert wanted(SPECS, OUTCOMES, "timm", "all") == SPECS[1:2]


def test_small_models_are_chosen():
    assert choice._smallest(["resnet50", "resnet101", "resnet18"]) == "resnet18"
    assert choice._smallest(["vit_h_14", "vit_b_16"]) == "vit_b_16"
    assert choice._smallest(["a_base", "a_tiny_large", "a_small"]) == "a_tiny_large"
    choice.define_vision_operators()
    pytest.importorskip("torchvision")
    assert len(choice._torchvision()) > 25


@pytest.mark.parametrize("name", ["VQModel", "DDIMScheduler"])
def test_a_model_of_diffusers(name):
    choice.define_vision_operators()
    pytest.importorskip("diffusers")
    assert name in diffusion.names()
    model, inputs = getattr(diffusion, name)()
    result = model(*inputs)
    assert isinstance(result if isinstance(result, torch.Tensor) else result[0], torch.Tensor)


def linear():
    return torch.nn.Linear(2, 1), (torch.ones(1, 2),)


def test_a_model_is_compared_and_exported():
    found = worker._outcome(f"{__name__}:linear")
    assert found.agrees, found.failure
    assert found.exports
    assert (found.parameters, bool(found.operations), found.gradient is not None) == (3, True, True)


def branching():
    class Branching(torch.nn.Module):
        def forward(self, x):
            return x * float(x.detach().sum())

    return Branching(), (torch.ones(2),)


def refusing():
    return torch.nn.Linear(2, 1), (torch.ones(1, 3),)


def test_what_fails_has_its_reason():
    found = worker._outcome(f"{__name__}:branching")
    assert found.pytorch
    assert "TracedValueError" in found.failure
    found = worker._outcome(f"{__name__}:refusing")
    assert not found.pytorch
    assert found.failure.startswith("RuntimeError: PyTorch itself fails")
    assert not worker._outcome(f"{__name__}:nothing").pytorch
