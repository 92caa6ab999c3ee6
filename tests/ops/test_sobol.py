"""``torch.quasirandom.SobolEngine`` in translated code."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.quasirandom import SobolEngine

from torch2jax import t2j


def function(x):
    engine = SobolEngine(3)
    first, second = engine.draw(4), engine.draw(3)
    engine.reset()
    engine.fast_forward(5)
    return first * x, second, engine.draw(2, dtype=torch.float64), SobolEngine(2).draw_base2(3)


@pytest.mark.parametrize("mode", [t2j, lambda function: jax.jit(t2j(function))])
def test_values(mode):
    for actual, each in zip(mode(function)(jnp.ones(3)), function(torch.ones(3)), strict=True):
        np.testing.assert_allclose(actual, each)


def test_scrambled():
    def scrambled(x):
        return SobolEngine(2, scramble=True, seed=3).draw(256) * x

    drawn = t2j(scrambled)(1.0)
    assert ((drawn > 0) & (drawn < 1)).all()
    np.testing.assert_allclose(drawn.mean(0), [0.5, 0.5], atol=0.02)
    np.testing.assert_array_equal(drawn, t2j(scrambled)(1.0))
