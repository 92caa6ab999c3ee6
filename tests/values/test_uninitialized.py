"""Lazy modules made and used within a translated call."""

import copy
import pickle

import jax
import jax.numpy as jnp
import pytest
import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter, is_lazy

from torch2jax import t2j

X = jnp.ones((2, 3, 5, 5))


def test_a_lazy_network_takes_its_shapes_from_the_first_input():
    def f(x):
        linear = nn.LazyLinear(2)
        lazy = copy.deepcopy(linear)
        net = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), linear)
        assert isinstance(net[0].weight, UninitializedParameter)
        assert isinstance(net[1].running_mean, UninitializedBuffer)
        net(x).sum().backward()
        assert not any(map(is_lazy, net.parameters()))
        assert is_lazy(lazy.weight)
        assert type(net[0]) is nn.Conv2d
        return net[3].weight.grad, net[1].running_mean

    gradient, mean = t2j(f)(X, rng=jax.random.key(0))
    assert gradient.shape == (2, 36)
    assert jnp.abs(gradient).max() > 0
    assert mean.shape == (4,)


def test_what_needs_a_shape_is_refused():
    def f(question):
        return question(UninitializedParameter(dtype=torch.float64))

    assert t2j(f)(lambda p: p.double().dtype is torch.float64 and p.requires_grad)
    with pytest.raises(RuntimeError, match="Can't access the shape"):
        t2j(f)(lambda p: p.shape)
    with pytest.raises(ValueError, match="Attempted to use an uninitialized parameter"):
        t2j(f)(lambda p: p + 1)


def test_pickles_are_pytorchs_own():
    dump = t2j(lambda: pickle.dumps(nn.LazyLinear(2)))()
    assert type(pickle.loads(dump).weight) is UninitializedParameter
