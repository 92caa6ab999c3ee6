"""``parametrize.cached()`` around a call and within it: a call keeps its own tensors."""

import jax
import numpy as np
import pytest
import torch
from torch.nn.utils import parametrizations, parametrize

from torch2jax import t2j


def _parametrized() -> torch.nn.Module:
    return parametrizations.orthogonal(torch.nn.Linear(3, 3))


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit])
def test_a_region_of_cached_parametrizations_around_a_call(transform):
    module = _parametrized()
    x = torch.randn(2, 3)
    states = [t2j(_parametrized().state_dict()) for _ in range(2)]
    run = transform(lambda x, state: t2j(module)(x, state_dict=state))
    expected = [run(t2j(x), state) for state in states]
    with parametrize.cached():
        kept = module.weight
        for state, wanted in zip(states, expected, strict=True):
            np.testing.assert_array_equal(transform(lambda x, s: t2j(module)(x, state_dict=s))(t2j(x), state), wanted)
        assert module.weight is kept
        assert torch.equal(module(x), torch.nn.functional.linear(x, kept, module.bias))
    assert parametrize._cache == {}
    assert parametrize._cache_enabled == 0


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit])
def test_a_region_of_cached_parametrizations_within_a_call(transform):
    class Twice(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = _parametrized()

        def forward(self, x):
            with parametrize.cached():
                assert self.layer.weight is self.layer.weight
                return self.layer(self.layer(x))

    module, x = Twice(), torch.randn(2, 3)
    run = transform(t2j(module))
    for _ in range(2):
        np.testing.assert_allclose(run(t2j(x)), module(x).detach(), rtol=1e-5, atol=1e-6)
    assert parametrize._cache == {}
    assert parametrize._cache_enabled == 0
