"""The script that trains models in both frameworks."""

import pytest
import torch

from scripts.models import training
from scripts.models.families import FAMILIES
from scripts.models.training import Training, train


def small(dropout: float = 0.5):
    layers = (torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(dropout), torch.nn.Linear(8, 2))
    return torch.nn.Sequential(*layers), (torch.randn(6, 4),), {}


def test_a_network_with_batch_norm_and_dropout(monkeypatch):
    monkeypatch.setitem(FAMILIES, "small", small)
    found = train("small")
    assert found.agrees, found
    assert (found.model, found.parameters) == ("Sequential", 74)
    assert found.losses[1] < 0.99 * found.losses[0]
    assert found.row().startswith("| small | Sequential | 74 |")


def test_another_step_is_noticed(monkeypatch):
    monkeypatch.setitem(FAMILIES, "small", small)
    in_jax = training._in_jax

    def slower(*args):
        monkeypatch.setattr(training, "_RATE", 0.99 * training._RATE)
        return in_jax(*args)

    monkeypatch.setattr(training, "_in_jax", slower)
    found = train("small")
    assert not found.agrees
    assert found.moved > 1e-3


def test_a_row_says_why_there_is_nothing_to_compare():
    row = Training("speech", "Model", failure="a|b").row()
    assert row.count("|") == training.HEAD.count("|")
    assert "`a/b`" in row


@pytest.mark.models
def test_a_language_model():
    from torch2jax.tools.models import define_vision_operators

    define_vision_operators()
    pytest.importorskip("transformers")
    assert train("causal language model", steps=5).agrees
