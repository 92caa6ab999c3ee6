"""Where a translation first differs: wrong rules, writes, failures, random numbers, other ways through the code."""

import jax.numpy as jnp
import pytest
import torch
from torch import nn

from torch2jax import implements, implements_tensors, tools


@torch.library.custom_op("test_bisection::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@implements(torch.ops.test_bisection.double)
def _(x):
    return x * 3  # wrong on purpose


@torch.library.custom_op("test_bisection::odd", mutates_args=())
def odd(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@implements(torch.ops.test_bisection.odd)
def _(x):
    return jnp.where(x > 1, x * 2, x * (2 + 1e-3))  # wrong for some


@torch.library.custom_op("test_bisection::clear", mutates_args={"x"})
def clear(x: torch.Tensor) -> None:
    x.zero_()


@torch.library.custom_op("test_bisection::raises", mutates_args=())
def raises(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@implements(torch.ops.test_bisection.raises)
def _(x):
    raise ValueError("no such thing")


class Block(nn.Module):
    def __init__(self, operator=None):
        super().__init__()
        self.fc, self.norm, self.operator = nn.Linear(4, 4), nn.BatchNorm1d(4), operator

    def forward(self, x):
        y = torch.relu(self.norm(self.fc(x)))
        y[0] = 1
        y.add_(1)
        return y if self.operator is None else self.operator(y)


X = torch.ones(3, 4) * torch.arange(1.0, 4)[:, None]


def test_everything_agrees():
    model = nn.Sequential(Block(), Block())
    before = {name: x.clone() for name, x in model.state_dict().items()}
    for train in (False, True):
        found = tools.bisect(model, (X,), train=train)
        assert found.agrees
        assert found.verdict == "every operator agrees with PyTorch"
        assert found.agreed >= 10
    assert all(torch.equal(before[name], x) for name, x in model.state_dict().items())
    assert not any(part._forward_hooks for part in model.modules())


def test_a_wrong_operator_is_named_with_its_module_and_line():
    found = tools.bisect(nn.Sequential(Block(), Block(torch.ops.test_bisection.double), Block()), (X,))
    assert found.step.operator == "test_bisection.double"
    assert found.step.module == "1 (Block)"
    assert "test_bisection.py:" in found.step.line
    assert found.step.line.endswith(" in forward")
    assert found.step.inputs == "float32[3,4]"
    assert found.step.index == found.agreed + 1
    assert [found.agreement.relative, found.alone.relative] == pytest.approx([0.5, 0.5], rel=1e-4)
    assert "the operator itself is wrong" in found.verdict


def test_errors_that_have_grown():
    def grows(x):
        y = torch.ops.test_bisection.odd(x)  # within the tolerance
        return (y - x * 2) * 1000 + x

    found = tools.bisect(grows, (torch.full((3,), 0.5),), tolerance=1e-2)
    assert found.step.operator == "Tensor.mul"
    assert found.alone.agrees
    assert "errors have grown" in found.verdict


def test_a_write_that_is_missing():
    @implements_tensors(torch.ops.test_bisection.clear)
    def _(x):
        return None

    def cleared(x):
        y = x * 2
        torch.ops.test_bisection.clear(y)
        return y + 1

    found = tools.bisect(cleared, (X,))
    assert not found.agrees
    assert found.step.operator == "test_bisection.clear"


def test_an_operator_that_fails():
    found = tools.bisect(Block(torch.ops.test_bisection.raises), (X,))
    assert found.step.operator == "test_bisection.raises"
    assert found.error.startswith("it fails: ValueError: no such thing")
    assert found.verdict == found.error


def test_another_way_through_the_code():
    def asks(x):
        y = torch.ops.test_bisection.odd(x)
        return y + 1 if y.sum().item() > 3.0005 else y * 2

    found = tools.bisect(asks, (torch.full((3,), 0.5),), tolerance=1e-2)
    assert found.step.operator == "Tensor.mul"
    assert found.error == "the translation calls Tensor.add here"


def test_random_numbers_are_those_of_pytorch():
    def draws(x):
        noise = torch.empty_like(x).normal_()
        return torch.ops.test_bisection.double(x + noise + torch.rand(3, 4))

    state = torch.get_rng_state()
    found = tools.bisect(draws, (X,))
    assert torch.equal(state, torch.get_rng_state())
    assert found.drawn == 2
    assert found.step.operator == "test_bisection.double"
    assert found.alone.relative == pytest.approx(0.5)


def test_a_translation_that_ends_before():
    def asks(x):
        y = torch.ops.test_bisection.odd(x)
        return y if y.sum().item() > 3.0005 else y * 2

    found = tools.bisect(asks, (torch.full((3,), 0.5),), tolerance=1e-2)
    assert found.step.operator == "Tensor.mul"
    assert found.error == "the translation ends before it"


def test_tolerance_and_bad_inputs():
    assert tools.bisect(torch.ops.test_bisection.double, (X,), tolerance=1).agrees
    with pytest.raises(tools.SpecError, match="wanted a relative error"):
        tools.bisect(torch.sin, (X,), tolerance=-1)
    with pytest.raises(tools.SpecError, match="PyTorch itself fails"):
        tools.bisect(nn.Linear(3, 3), (X,))
