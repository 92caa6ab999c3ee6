"""What translated code sets on modules that it closes over is there as long as the call."""

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from torch2jax import t2j

X = torch.arange(6.0).reshape(2, 3)


class Running(nn.Module):
    """A buffer that is set anew, what is made once, a parameter, and a number."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.weight = nn.Parameter(torch.ones(3))
        self.cache, self.calls = None, 0

    def forward(self, x):
        self.calls += 1
        self.mean = self.mean * 0.9 + x.mean(0) * 0.1
        if self.cache is None:
            self.cache = torch.arange(3.0)
        if not hasattr(self, "scale"):
            self.scale = x.sum()
        self.weight = nn.Parameter(self.weight.detach() * 2)
        self.bias = nn.Parameter(x[0])
        return (x - self.mean) * self.weight + self.cache * self.scale + self.bias


@pytest.mark.parametrize("jit", [False, True])
def test_a_module_has_what_it_had(jit):
    layer = Running()
    buffer, weight, expected = layer.mean, layer.weight, Running()(X).detach()

    def call(x):
        return layer(x)

    translated = jax.jit(t2j(call)) if jit else t2j(call)
    for _ in range(2):
        np.testing.assert_allclose(translated(t2j(X)), expected, rtol=1e-6)
    assert layer.mean is buffer
    assert layer.weight is weight
    assert type(layer.cache) is torch.Tensor  # which no input decides
    assert not hasattr(layer, "scale")
    assert list(layer._parameters) == ["weight"]
    assert layer.calls == (1 if jit else 2)  # which is no tensor
    np.testing.assert_allclose(layer(X).detach(), expected, rtol=1e-6)


def test_also_after_an_exception():
    class Failing(nn.Module):
        def forward(self, x):
            self.seen = x * 2
            raise ValueError("as it says")

    layer = Failing()
    with pytest.raises(ValueError, match="as it says"):
        t2j(lambda x: layer(x))(t2j(X))
    assert not hasattr(layer, "seen")


def test_a_run_that_starts_anew_finds_what_was_there():
    layer = Running()

    def gradient(x):
        x = x.clone().requires_grad_()
        layer(x).sum().backward()  # which starts the run anew, with a tape
        return x.grad

    def expected():
        x = X.clone().requires_grad_()
        Running()(x).sum().backward()
        return x.grad

    np.testing.assert_allclose(t2j(gradient)(t2j(X)), expected(), rtol=1e-6)


def test_modules_that_are_made_in_the_call_keep_what_is_set():
    def function(x):
        layer = nn.Linear(3, 2, bias=False)
        layer.weight = nn.Parameter(x[:2] + 1)
        layer.extra = x.sum()
        return layer(x) * layer.extra

    np.testing.assert_allclose(t2j(function)(t2j(X), rng=jax.random.key(0)), (X @ (X[:2] + 1).T) * X.sum())


def test_nothing_is_kept_of_modules():
    references = []

    def function(x):
        layer = Running()
        references.append(weakref.ref(layer))
        return layer(x)

    t2j(function)(jnp.asarray(X.numpy()))
    gc.collect()
    assert references[0]() is None


def test_lazy_modules_are_made_before_the_call():
    for make in (lambda: nn.LazyLinear(2), nn.LazyBatchNorm1d):
        with pytest.raises(RuntimeError, match=r"made within a translated call.*wanted a module of known sizes"):
            t2j(lambda make=make: make())()
    lazy = nn.LazyLinear(2)
    lazy(torch.ones(1, 3))
    assert t2j(lazy)(jnp.ones((4, 3))).shape == (4, 2)
