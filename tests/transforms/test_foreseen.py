"""The tape that names in the code ask for: the first run has it, and the code runs once."""

import functools

import pytest
import torch
from torch.autograd import grad

from torch2jax.transforms.runs import foreseen_depth


def stepped(x):
    x.sum().backward()
    return x.grad


class Trainer:
    def step(self, x):
        return stepped(x)

    def other(self, x):
        return x


class Model(torch.nn.Module):
    def forward(self, x):
        return self.force(x)

    def force(self, x):
        return torch.autograd.grad(x.sum(), x)[0]


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2


def twice(x):
    (g,) = torch.autograd.grad(x.square().sum(), x, create_graph=True)
    return torch.autograd.grad(g.sum(), x)[0]


def closing_over(value):
    return lambda x: value(x)


TRAINER = Trainer()
CASES = {
    "backward": (stepped, 1),
    "a global": (lambda x: stepped(x), 1),
    "a name of autograd's": (lambda x: grad(x.sum(), x), 1),
    "a method": (TRAINER.step, 1),
    "a method of a global": (lambda x: TRAINER.step(x), 1),
    "a part": (functools.partial(stepped), 1),
    "a variable": (closing_over(stepped), 1),
    "a module": (torch.nn.Sequential(Model()), 1),
    "a module in a variable": (closing_over(Model()), 1),
    "second derivatives": (twice, 2),
    "none": (lambda x: x.grad, 0),
    "a method that nobody names": (lambda x: TRAINER.other(x), 0),
    "a function with its own": (Doubled.apply, 0),
    "a layer": (torch.nn.Linear(1, 1), 0),
}


@pytest.mark.parametrize("name", CASES)
def test_depths_that_code_names(name):
    thing, depth = CASES[name]
    assert foreseen_depth((thing,)) == depth
