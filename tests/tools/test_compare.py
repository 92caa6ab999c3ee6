"""How far arrays are from tensors, and which distance is accepted."""

import numpy as np
import pytest
import torch

from torch2jax.tools.trial import compare


def test_missing_results():
    agreement = compare({}, {"output 0": torch.ones(3)}, 1e-4)
    assert not agreement.agrees
    assert "0 tensors instead of 1" in agreement.problem


def test_other_shape():
    assert "shape [2] instead of [3]" in compare({"x": np.ones(2)}, {"x": torch.ones(3)}, 1e-4).problem


def test_nan_and_infinity_in_the_same_places():
    values = torch.tensor([1.0, float("nan"), float("inf")])
    assert compare({"x": values.numpy()}, {"x": values}, 1e-4).agrees
    assert not compare({"x": np.ones(3)}, {"x": values}, 1e-4).agrees


def test_nothing_but_zeros():
    assert compare({"x": np.zeros(2)}, {"x": torch.zeros(2)}, 1e-4).agrees
    assert not compare({"x": np.ones(2)}, {"x": torch.zeros(2)}, 1e-4).agrees


def test_noise_beside_large_tensors():
    expected = {"large": torch.full((2,), 1e3), "zero": torch.zeros(2)}
    assert compare({"large": np.full(2, 1e3), "zero": np.full(2, 1e-5)}, expected, 1e-4).agrees
    assert not compare({"large": np.full(2, 1e3), "zero": np.full(2, 1.0)}, expected, 1e-4).agrees


def test_differences_that_rounding_makes_in_pytorch_too():
    expected = {"x": torch.tensor([1.0, 0.0])}
    nudged = [expected, {"x": torch.tensor([1.0, 0.4])}, {"x": torch.tensor([1.0, float("nan")])}]
    assert not compare({"x": np.array([1.0, 0.5])}, expected, 1e-3).agrees
    agreement = compare({"x": np.array([1.0, 0.5])}, expected, 1e-3, nudged[:2])
    assert agreement.agrees
    assert agreement.moved == pytest.approx(0.4)
    assert not compare({"x": np.array([1.0, 0.9])}, expected, 1e-3, nudged[:2]).agrees
    assert not compare({"x": np.array([1.0, 0.5])}, expected, 1e-3, nudged).agrees
