"""Draws from the Dirichlet distribution, and their derivative."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import torch

from torch2jax import t2j

CONCENTRATIONS = [0.03, 1.0, 3.0, 50.0]


def test_the_derivative_is_pytorchs():
    a, b = (
        torch.tensor(x, dtype=torch.float32) for x in zip(*itertools.product(CONCENTRATIONS, repeat=2), strict=True)
    )
    x = torch.tensor([[0.02], [0.3], [0.6], [0.97]]) * torch.ones(len(a))
    a, total = a.expand_as(x), (a + b).expand_as(x)
    likely = (x - a / total).abs() < 4 * (a * b / total**2 / (total + 1)).sqrt()  # elsewhere PyTorch's is not exact
    expected = torch._dirichlet_grad(x, a, total)
    actual = t2j(torch._dirichlet_grad)(t2j(x), t2j(a), t2j(total))
    np.testing.assert_allclose(actual[likely.numpy()], expected[likely], rtol=5e-3)  # so far PyTorch approximates


def test_a_draw_follows_its_concentration_as_in_pytorch():
    concentration = jnp.array([[0.5, 2.0, 3.0], [4.0, 0.1, 1.0]])

    def draw(concentration):
        return t2j(lambda c: torch.distributions.Dirichlet(c).rsample())(concentration, rng=jax.random.key(0))

    x, pull = jax.vjp(draw, concentration)
    weights = jnp.arange(6.0).reshape(2, 3)
    c, w, at = (torch.tensor(np.asarray(array)) for array in (concentration, weights, x))
    grad = torch._dirichlet_grad(at, c, c.sum(-1, True).expand_as(c))
    np.testing.assert_allclose(pull(weights)[0], grad * (w - (at * w).sum(-1, True)), rtol=5e-3)


def test_draws_of_small_concentrations_have_finite_logarithms_and_derivatives():
    def log(concentration):
        draw = t2j(lambda c: torch.distributions.Beta(c, c).rsample((50,)))(concentration, rng=jax.random.key(0))
        return jnp.log(draw).sum() + jnp.log1p(-draw).sum()

    value, gradient = jax.value_and_grad(log)(jnp.float32(1e-2))
    assert jnp.isfinite(value)
    assert jnp.isfinite(gradient)
