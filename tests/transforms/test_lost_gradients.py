"""A gradient of zero that comes of values taken out of PyTorch: PyTorch raises, and here a warning says it."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from torch2jax import t2j

X = jnp.arange(3.0)


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return torch.from_numpy(np.sin((x * self.weight).detach().numpy())).sum()


def without_grad(x):
    with torch.no_grad():
        values = x.numpy()
    return torch.from_numpy(values).sum()


HEAD = t2j(Head())
LOST = {
    "detached": lambda x: torch.from_numpy(np.sin(x.detach().numpy())).sum(),
    "data": lambda x: torch.from_numpy(np.asarray(x.data)).sum(),
    "without grad": without_grad,
    "a list": lambda x: torch.tensor(x.detach().tolist()).sum(),
}


@pytest.mark.parametrize("name", LOST)
def test_a_gradient_that_is_lost_is_told_with_the_line(name):
    function = LOST[name]
    with pytest.raises(RuntimeError, match="does not require grad"):
        function(torch.arange(3.0).requires_grad_()).backward()
    with pytest.warns(UserWarning, match=r"the gradient is zero.*test_lost_gradients.py:\d+") as caught:
        assert not jax.grad(t2j(function))(X).any()
    assert {warning.filename for warning in caught} == {__file__}


def test_a_gradient_of_weights_that_is_lost_is_told():
    params, _ = HEAD.split()
    with pytest.warns(UserWarning, match="the gradient is zero"):
        jax.grad(lambda params: HEAD(X, state_dict=params))(params)


def other(x):
    return (x * torch.from_numpy(np.sin(x.detach().numpy()))).sum()


SILENT = {
    "a factor": lambda: jax.grad(t2j(other))(X),
    "no derivative": lambda: t2j(LOST["detached"])(X),
    "a number beside": lambda: jax.grad(lambda x: (x * t2j(LOST["detached"])(X)).sum())(X),
    "what is stopped": lambda: jax.grad(lambda x: (x * t2j(LOST["detached"])(jax.lax.stop_gradient(x))).sum())(X),
    "a constant under jit": lambda: jax.jit(t2j(lambda x: torch.tensor(np.sin(torch.arange(3.0).numpy()))))(X),
    "detached alone": lambda: jax.grad(t2j(lambda x: x.detach().sum()))(X),
    "a number shown": lambda: jax.grad(t2j(lambda x: (x * len(str(x.detach().numpy()))).sum()))(X),
}


@pytest.mark.parametrize("name", SILENT)
def test_nothing_is_told_where_pytorch_has_the_same_gradient(name):
    with warnings.catch_warnings(action="error"):
        SILENT[name]()
