"""``torch.distributions``: what every distribution says of itself, divergences, and checks of arguments."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.distributions as D

from tests.ops.distribution_cases import CASES
from torch2jax import t2j

pytestmark = pytest.mark.filterwarnings("ignore:Singular sample detected")


def test_every_distribution_has_a_case():
    classes = {name for name in D.__all__ if inspect.isclass(getattr(D, name))}
    distributions = {name for name in classes if issubclass(getattr(D, name), D.Distribution)}
    assert distributions - {"Distribution", "ExponentialFamily"} == {name.split()[0] for name in CASES}


def _described(distribution, value) -> dict:
    """Everything that a distribution answers."""
    questions = {
        "log_prob": lambda: distribution.log_prob(value),
        "cdf": lambda: distribution.cdf(value),
        "icdf": lambda: distribution.icdf(torch.full(distribution.batch_shape, 0.3)),
        "entropy": distribution.entropy,
        "perplexity": distribution.perplexity,
        "support": distribution.enumerate_support,
        **{name: lambda name=name: getattr(distribution, name) for name in ("mean", "mode", "variance", "stddev")},
    }
    answers = {}
    for question, ask in questions.items():
        try:
            answers[question] = ask()
        except (NotImplementedError, AttributeError):
            continue  # it has none
    return answers


@pytest.mark.parametrize("name", CASES)
def test_descriptions_and_gradients_of_densities(name):
    build, *parameters = CASES[name]
    torch.manual_seed(0)
    value = build(*parameters).sample()
    expected = _described(build(*parameters), value)
    leaves = [parameter.clone().requires_grad_() for parameter in parameters]
    density = build(*leaves).log_prob(value).sum()
    expected_gradients = torch.autograd.grad(density, leaves, allow_unused=True)

    def described(*parameters):
        answers = t2j(lambda value, *given: _described(build(*given), value))(t2j(value), *parameters)
        return answers["log_prob"].sum(), answers

    places = tuple(range(len(parameters)))
    (_, answers), gradients = jax.jit(jax.value_and_grad(described, places, has_aux=True))(*map(t2j, parameters))
    assert answers.keys() == expected.keys()
    for question, want in expected.items():
        np.testing.assert_allclose(answers[question], want.numpy(), 1e-4, 1e-5, err_msg=question)
    for got, want in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(got, 0 if want is None else want.numpy(), 1e-3, 1e-4)


# Divergences.

PAIRS = [
    (p.__name__, q.__name__)
    for p, q in torch.distributions.kl._KL_REGISTRY
    if p.__name__ in CASES and q.__name__ in CASES  # not ExponentialFamily, which is no distribution by itself
]


def test_divergences():
    assert len(PAIRS) > 80

    def divergences(parameters):
        results = {}
        for p, q in PAIRS:
            others = [0.9 * parameter for parameter in parameters[q]]
            results[p, q] = D.kl_divergence(CASES[p][0](*parameters[p]), CASES[q][0](*others))
        return results

    parameters = {name: CASES[name][1:] for pair in PAIRS for name in pair}
    expected = divergences(parameters)
    actual = jax.jit(t2j(divergences))(jax.tree.map(t2j, parameters))
    for pair, want in expected.items():
        np.testing.assert_allclose(actual[pair], want.numpy(), 1e-4, 1e-4, err_msg=str(pair))


# Checks of arguments.


def test_known_values_are_checked():
    with pytest.raises(ValueError, match="scale"):
        t2j(lambda x: D.Normal(x, -1.0).log_prob(x))(jnp.zeros(2))
    with pytest.raises(ValueError, match="scale"):
        jax.jit(t2j(lambda x: D.Normal(x, torch.tensor(-1.0)).log_prob(torch.tensor(1.0))))(jnp.asarray(0.0))
    with pytest.raises(ValueError, match="value argument"):
        t2j(lambda x: D.Bernoulli(torch.tensor(0.5)).log_prob(x))(jnp.asarray(0.3))
    with pytest.raises(ValueError, match="probs"):
        t2j(lambda p: D.Geometric(p).mean)(jnp.zeros(2))
    with pytest.raises(ValueError, match="covariance_matrix"):
        t2j(lambda mean, c: D.MultivariateNormal(mean, c).mean)(jnp.zeros(2), -jnp.eye(2))
    with pytest.raises(ValueError, match="df"):
        t2j(lambda df, c: D.Wishart(df, c).mean)(jnp.asarray(0.5), jnp.eye(2))


def test_traced_values_are_not():
    density = jax.jit(t2j(lambda x, scale: D.Normal(x, scale, validate_args=True).log_prob(x)))
    assert jnp.isnan(density(jnp.asarray(0.0), jnp.asarray(-1.0)))


def test_questions_of_the_users_own_code_are_still_asked():
    positive = jax.jit(t2j(lambda x: x if (x > 0).all() else -x))
    np.testing.assert_array_equal(positive(-jnp.ones(2)), [1, 1])
