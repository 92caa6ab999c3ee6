"""Costs by module: those that are known by hand, in loops and branches, of gradients and compiled programs."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from torch2jax import tools


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16, bias=False), nn.Linear(16, 8, bias=False)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x * 2


X = torch.ones(4, 8)
OF_LINEAR = 2 * 4 * 8 * 16


def test_each_module_has_its_cost():
    root = tools.explain(Net(), (X,)).root
    assert root.kind == "Net"
    assert list(root.scopes) == ["blocks.0", "blocks.1", "mul"]
    block = root.scopes["blocks.1"]
    assert block.kind == "Block"
    assert [(name, each.kind, each.cost.flops) for name, each in block.scopes.items()] == [
        ("first", "Linear", OF_LINEAR),
        ("tanh", "", 0),
        ("second", "Linear", OF_LINEAR),
    ]
    assert block.scopes["first"].cost.bytes == 4 * (4 * 8 + 8 * 16 + 4 * 16)
    assert root.cost.flops == 4 * OF_LINEAR + 4 * 8
    assert root.cost.operations == sum(each.cost.operations for each in root.scopes.values()) == 7


def test_gradients_belong_to_the_modules_that_they_are_of():
    model = Net()
    root = tools.explain(model, (X,), grad=True).root
    with FlopCounterMode(display=False) as counter:
        model(X.clone().requires_grad_()).sum().backward()
    products = sum(root.scopes[f"blocks.{i}"].scopes[name].cost.flops for i in (0, 1) for name in ("first", "second"))
    assert products == counter.get_total_flops() == 3 * 4 * OF_LINEAR
    assert set(root.scopes) <= {"blocks.0", "blocks.1", "mul", "sum"}


def test_a_loop_counts_as_often_as_it_iterations():
    def iterations(x, weight):
        def iteration(carry, _):
            return carry @ weight, carry.clone()

        return torch._higher_order_ops.scan(iteration, x, torch.zeros(5, 1))[0]

    assert tools.explain(iterations, (torch.ones(8, 8), torch.ones(8, 8))).root.cost.flops >= 5 * 2 * 8**3


def test_of_branches_the_dearest_counts():
    def asks(x):
        return x @ x if x.sum() > 0 else x + 1

    explanation = tools.explain(asks, (torch.ones(8, 8),))
    assert 2 * 8**3 <= explanation.root.cost.flops < 2 * 2 * 8**3
    assert any("branches" in note for note in explanation.notes)


def test_compiled():
    explanation = tools.explain(Net(), (X,), compile=True)
    assert explanation.compiled.flops >= 4 * OF_LINEAR
    assert explanation.compiled.results == 4 * 8 * 4
    assert explanation.compiled.arguments >= 4 * (4 * 8 * 16 + 4 * 8)


def test_refusals():
    with pytest.raises(tools.SpecError, match="PyTorch itself fails"):
        tools.explain(Net(), (torch.ones(3, 3),))
    with pytest.raises(tools.SpecError, match="got no inputs"):
        tools.explain(Net())
    unknown = lambda x: torch.ops.aten._test_optional_floatlist(x, [1.0, 2.0, 3.0])
    with pytest.raises(tools.TranslationError, match=r"cannot be translated: NoRuleError"):
        tools.explain(unknown, (torch.ones(3),))
