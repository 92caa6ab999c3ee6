"""What a type checker knows of `t2j` and `j2t`: `pyright` reads this file, and it is right when it runs."""

from typing import Any, assert_type

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import nn

from torch2jax import j2t, t2j
from torch2jax.bridge.j2t import JaxFunction
from torch2jax.modules.training.stateful import StatefulFunction
from torch2jax.modules.translated import TranslatedFunction, TranslatedModule


@t2j
def scaled(x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
    return x * scale


@t2j
def untyped(x, scale=2.0):
    return {"x": x * scale}


@t2j
def counted(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    return x, x.numel()


@j2t
def squared(x: jax.Array) -> jax.Array:
    return x**2


class Pair(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return x, 2


def test_values():
    assert isinstance(assert_type(t2j(torch.ones(2)), jax.Array), jax.Array)
    assert isinstance(assert_type(t2j(nn.Parameter(torch.ones(2)), copy=False), jax.Array), jax.Array)
    assert isinstance(assert_type(t2j(torch.float32), np.dtype), np.dtype)
    assert isinstance(assert_type(j2t(jnp.ones(2)), torch.Tensor), torch.Tensor)
    assert isinstance(assert_type(j2t(np.ones(2)), torch.Tensor), torch.Tensor)
    assert isinstance(assert_type(j2t(np.dtype("float32")), torch.dtype), torch.dtype)


def test_trees():
    linear = nn.Linear(2, 2)
    parameters = assert_type(t2j(dict(linear.named_parameters())), dict[str, jax.Array])
    assert assert_type(j2t(parameters), dict[str, torch.Tensor]).keys() == parameters.keys()
    assert assert_type(t2j(linear.state_dict()), Any).keys() == parameters.keys()  # PyTorch has it as a dict of Any
    assert isinstance(assert_type(t2j([torch.ones(2)]), list[jax.Array]), list)
    assert isinstance(assert_type(j2t((jnp.ones(2), jnp.ones(2))), tuple[torch.Tensor, ...]), tuple)


def test_modules():
    x = jnp.ones((1, 2))
    linear = t2j(nn.Linear(2, 2))
    assert isinstance(linear, TranslatedModule)
    assert isinstance(assert_type(linear(x), jax.Array), jax.Array)
    assert isinstance(assert_type(linear(x, state_dict=t2j(nn.Linear(2, 2).state_dict())), jax.Array), jax.Array)
    result, state = assert_type(linear(x, return_state_dict=True), tuple[jax.Array, dict[str, jax.Array]])
    assert len(state) == 2
    method = t2j(nn.Linear(2, 2).forward)
    _, state = assert_type(method(x, return_state_dict=True), tuple[jax.Array, dict[str, jax.Array]])
    assert len(state) == 2
    assert isinstance(assert_type(t2j(nn.Dropout())(result, rng=jax.random.key(0)), jax.Array), jax.Array)
    assert assert_type(t2j(Pair())(x), Any)[1] == 2
    module: nn.Module = Pair()
    assert assert_type(t2j(module), TranslatedModule[..., Any])(x)[1] == 2


def test_functions():
    x = jnp.ones(2)
    assert isinstance(scaled, TranslatedFunction)
    assert isinstance(assert_type(scaled(x, scale=3.0), jax.Array), jax.Array)
    assert isinstance(assert_type(scaled(x, rng=jax.random.key(0)), jax.Array), jax.Array)
    assert isinstance(assert_type(untyped(x), Any), dict)
    assert assert_type(counted(x), Any)[1] == 2
    assert isinstance(squared, JaxFunction)
    assert isinstance(assert_type(squared(torch.ones(2)), torch.Tensor), torch.Tensor)


def test_steps():
    step = t2j(lambda linear, x: linear(x), state=(nn.Linear(2, 2),))
    assert isinstance(step, StatefulFunction)
    state = step.init(jnp.ones(2))
    result, state = assert_type(step(state, jnp.ones(2)), tuple[Any, dict[str, dict[str, Any]]])
    assert result.shape == (2,)
    step.load(state)
