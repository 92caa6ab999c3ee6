"""Samples of ``torch.distributions``: their support, their distribution, and their gradients."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.distributions as D

from tests.ops.distribution_cases import CASES
from torch2jax import t2j

COUNT = 2000

# PyTorch takes samples that are not singular for such, and warns.
pytestmark = pytest.mark.filterwarnings("ignore:Singular sample detected")


@pytest.mark.parametrize("name", CASES)
def test_samples(name):
    build, *parameters = CASES[name]
    distribution = build(*parameters)
    draw = t2j(lambda *given: build(*given).sample((COUNT,)))
    samples = np.array(jax.jit(draw)(*map(t2j, parameters), rng=jax.random.key(0)))
    assert samples.shape == distribution.sample((COUNT,)).shape
    assert samples.dtype == np.float32 or name.startswith("Categorical")
    assert distribution.support.check(torch.from_numpy(samples)).all()
    if name == "VonMises":  # its mean and variance are circular
        length = np.cos(samples - distribution.loc.numpy()).mean(0)
        np.testing.assert_allclose(1 - length, distribution.variance.numpy(), atol=0.06)
    else:
        _assert_moments(distribution, samples)
    _assert_distributed(distribution, samples)


def _assert_moments(distribution, samples) -> None:
    try:
        mean, std = distribution.mean.numpy(), distribution.stddev.numpy()
    except NotImplementedError:
        return
    finite = np.isfinite(mean) & np.isfinite(std)
    error = np.abs(samples.mean(0) - mean)[finite]
    assert (error <= 5 * std[finite] / math.sqrt(COUNT) + 1e-6).all(), (samples.mean(0), mean)


def _assert_distributed(distribution, samples) -> None:
    """The test of Kolmogorov and Smirnov, where there is a continuous distribution function."""
    if distribution.support.is_discrete or distribution.event_shape:
        return
    try:
        quantiles = np.sort(distribution.cdf(torch.from_numpy(samples)).numpy(), axis=0)
    except NotImplementedError:
        return
    uniform = ((np.arange(COUNT) + 0.5) / COUNT).reshape(-1, *[1] * (samples.ndim - 1))
    assert np.abs(quantiles - uniform).max() < 2.2 / math.sqrt(COUNT)


@pytest.mark.parametrize(
    "name",
    [
        "Beta",
        "ContinuousBernoulli",
        "Dirichlet",
        "Kumaraswamy",
        "LowRankMultivariateNormal",
        "MultivariateNormal",
        "RelaxedOneHotCategorical",
        "StudentT",
        "Wishart",
    ],
)
def test_samples_carry_gradients(name):
    build, *parameters = CASES[name]
    weights = jax.random.normal(jax.random.key(1), build(*parameters).rsample((5,)).shape)

    def loss(*parameters):
        samples = t2j(lambda *given: build(*given).rsample((5,)))(*parameters, rng=jax.random.key(0))
        return (samples * weights).sum()

    gradients = jax.jit(jax.grad(loss, tuple(range(len(parameters)))))(*map(t2j, parameters))
    for gradient in gradients:
        assert np.isfinite(gradient).all()
        assert np.any(gradient)


def test_gamma_gradients_are_implicit():
    # Figurnov et al., arXiv:1805.08498, as PyTorch's.
    concentration = torch.tensor([0.3, 1.0, 2.5, 10.0, 200.0]).expand(300, 5)
    draw = functools.partial(t2j(torch._standard_gamma), rng=jax.random.key(0))
    samples, vjp = jax.vjp(draw, t2j(concentration.contiguous()))
    expected = torch._standard_gamma_grad(concentration, torch.from_numpy(np.array(samples)))
    np.testing.assert_allclose(vjp(jnp.ones_like(samples))[0], expected.numpy(), rtol=2e-3)


def test_dirichlet_gradients_are_unbiased():
    concentration = jnp.array([0.5, 1.0, 2.5])
    draw = t2j(lambda c: D.Dirichlet(c).rsample((20000,)))
    jacobian = jax.jit(jax.jacobian(lambda c: draw(c, rng=jax.random.key(0)).mean(0)))(concentration)
    total = concentration.sum()
    np.testing.assert_allclose(jacobian, jnp.eye(3) / total - concentration[:, None] / total**2, atol=5e-3)


def test_small_gamma_samples_are_not_zero():
    samples = t2j(lambda c: D.Gamma(c, torch.ones(())).sample((1000,)))(jnp.asarray(0.01), rng=jax.random.key(0))
    assert (samples > 0).all()


def test_von_mises_of_small_and_large_concentrations():
    concentration = jnp.array([1e-6, 1e-3, 1e4, jnp.nan])
    draw = t2j(lambda c: D.VonMises(torch.zeros(4), c, validate_args=False).sample((COUNT,)))
    samples = np.asarray(jax.jit(draw)(concentration, rng=jax.random.key(0)))
    np.testing.assert_allclose(samples[:, :2].var(0), np.pi**2 / 3, rtol=0.1)
    np.testing.assert_allclose(samples[:, 2].std(), 0.01, rtol=0.1)
    assert np.isnan(samples[:, 3]).all()
