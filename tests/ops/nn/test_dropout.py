"""Dropout."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional as F

from torch2jax import t2j

KEY = jax.random.key(0)
FUNCTIONS = [F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout]


def _input(function):
    return jnp.ones((2, 3, *(2,) * {F.dropout1d: 1, F.dropout3d: 3}.get(function, 2)))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_evaluation_leaves_nothing_in_the_graph(function):
    x = _input(function)
    jaxpr = jax.make_jaxpr(t2j(lambda x: function(x, 0.5, training=False)))(x)
    assert not jaxpr.eqns


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("inplace", [False, True])
def test_key_decides(function, inplace):
    call = t2j(lambda x: function(x, 0.5, training=True, inplace=inplace))
    x = _input(function)
    outcomes = [np.asarray(call(x, rng=jax.random.key(seed))) for seed in (0, 0, 1, 2, 3)]
    np.testing.assert_array_equal(outcomes[0], outcomes[1])
    assert any((outcome != outcomes[0]).any() for outcome in outcomes)
    with pytest.raises(RuntimeError, match="needs a key"):
        call(x)


def test_share_and_scale():
    y = np.asarray(t2j(lambda x: F.dropout(x, 0.3))(jnp.ones(100_000), rng=jax.random.PRNGKey(0)))
    assert abs((y == 0).mean() - 0.3) < 0.01
    np.testing.assert_allclose(y[y != 0], 1 / 0.7, rtol=1e-6)


def test_a_channel_goes_as_a_whole():
    y = np.asarray(t2j(lambda x: F.dropout2d(x, 0.5))(jnp.ones((20, 20, 3, 3)), rng=jax.random.key(0)))
    assert (y.min((2, 3)) == y.max((2, 3))).all()
    assert 0.3 < (y == 0).mean() < 0.7


@pytest.mark.parametrize("function", [F.alpha_dropout, F.feature_alpha_dropout])
def test_alpha_dropout_keeps_mean_and_variance(function):
    x = jax.random.normal(jax.random.key(1), (300, 300))
    y = t2j(lambda x: function(x, 0.4, training=True))(x, rng=jax.random.key(0))
    assert abs(y.mean()) < 0.02
    assert abs(y.std() - 1) < 0.02
    torch.manual_seed(0)
    dropped = function(torch.zeros(100, 100), 0.4, training=True).unique()
    np.testing.assert_allclose(
        np.unique(t2j(lambda x: function(x, 0.4, training=True))(jnp.zeros((100, 100)), rng=jax.random.key(0))),
        dropped,
        rtol=1e-5,
    )


def test_everything_or_nothing():
    assert not t2j(lambda x: F.dropout(x, 1.0))(jnp.ones(5)).any()
    assert t2j(lambda x: F.dropout(x, 0.0))(jnp.ones(5)).all()


def test_gradient_passes_where_the_value_did():
    call = t2j(lambda x: F.dropout(x, 0.5))
    x, key = jnp.arange(1.0, 50.0), jax.random.key(0)
    grad = jax.grad(lambda x: call(x, rng=key).sum())(x)
    np.testing.assert_allclose(grad * x, call(x, rng=key), rtol=1e-6)


def test_native_dropout_gives_its_mask():
    y, mask = t2j(lambda x: torch.native_dropout(x, 0.5, True))(jnp.ones(100), rng=jax.random.key(0))
    assert mask.dtype == bool
    np.testing.assert_array_equal(y, 2.0 * mask)


TRACED = {
    **{function.__name__: function for function in FUNCTIONS},
    "a number": lambda x, p, **options: F.dropout(x, p.item(), **options),
    "native": lambda x, p, inplace: torch.native_dropout(x, p, True)[0],
    "a module": lambda x, p, inplace: torch.nn.Dropout(p, inplace)(x),
    "attention": lambda x, p, inplace: F.scaled_dot_product_attention(x, x, x, dropout_p=p),
}


@pytest.mark.parametrize("name", TRACED)
@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_a_traced_probability_is_one_that_is_known(name, p):
    function, inplace = TRACED[name], p == 0.3
    x, key = 1 + _input(function) * jnp.arange(3.0).reshape(1, 3, *(1,) * (_input(function).ndim - 2)), KEY
    dropped = t2j(lambda x, p: function(x.clone(), p, inplace=inplace))
    known = t2j(lambda x: (TRACED["dropout"] if name == "a number" else function)(x.clone(), p, inplace=inplace))
    wanted, pullback = jax.vjp(lambda x: known(x, rng=key), x)
    found, pulled = jax.jit(lambda x, p: (dropped(x, p, rng=key), jax.vjp(lambda x: dropped(x, p, rng=key), x)[1](x)))(
        x, p
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(pulled[0], pullback(x)[0], rtol=1e-5, atol=1e-6)
