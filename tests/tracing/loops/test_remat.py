"""Layers that are computed again on the way back: one loop, whose body is."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from jax.ad_checkpoint import checkpoint_name
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential, create_selective_checkpoint_contexts

from tests.tracing.loops.programs import names_within, scans
from torch2jax import j2t, stack_layers, t2j, unstack_layers

COUNT, WIDTH = 8, 6
X = jax.random.normal(jax.random.key(0), (64, WIDTH))
KEPT = jax.checkpoint_policies.save_only_these_names("kept")
KEEPING_PRODUCTS = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 24), nn.Linear(24, WIDTH)

    def forward(self, x):
        return x + F.dropout(self.down(torch.tanh(self.up(self.norm(x))) * torch.sigmoid(self.up(x)).exp()), 0.1)


class Deep(nn.Module):
    def __init__(self, run):
        super().__init__()
        self.run, self.layers = run, nn.ModuleList(Block() for _ in range(COUNT))

    def forward(self, x):
        return self.run(self.layers, x).square().mean()


def _each(layers, x, **how):
    for layer in layers:
        x = checkpoint(layer, x, **how)
    return x


WAYS = {
    "reentrant": functools.partial(_each, use_reentrant=True),
    "not reentrant": functools.partial(_each, use_reentrant=False),
    "in segments": lambda layers, x: checkpoint_sequential(layers, COUNT, x, use_reentrant=False),
    "selective": functools.partial(_each, use_reentrant=False, context_fn=KEEPING_PRODUCTS),
}


def _by_hand(params, policy):
    """The same without dropout."""

    def block(x, p):
        mean = x.mean(-1, keepdims=True)
        y = (x - mean) / jnp.sqrt(jnp.square(x - mean).mean(-1, keepdims=True) + 1e-5)
        y = y * p["layers.*.norm.weight"] + p["layers.*.norm.bias"]
        y = jnp.tanh(linear(y, p, "up")) * jnp.exp(jax.nn.sigmoid(linear(x, p, "up")))
        return x + linear(y, p, "down"), None

    def linear(x, p, name):
        return checkpoint_name(x @ p[f"layers.*.{name}.weight"].T + p[f"layers.*.{name}.bias"], "kept")

    return jnp.square(jax.lax.scan(jax.checkpoint(block, policy=policy), X, params)[0]).mean()


def _kept(loss, params):
    """Bytes that wait for the way back, without what the loss is given."""
    graph = jax.make_jaxpr(lambda params: jax.vjp(loss, params)[1])(params).jaxpr
    given = {*graph.invars, *graph.constvars}
    return sum(x.aval.size * 4 for x in graph.outvars if x not in given)


@pytest.mark.parametrize("way", WAYS)
def test_layers_are_a_loop_whose_body_is_computed_again(way):
    torch.manual_seed(0)
    module, key = Deep(WAYS[way]), jax.random.key(1)
    rolled, unrolled = t2j(module, loops="rolled"), t2j(module, loops="unrolled")
    params = rolled.split()[0]
    stacked = stack_layers(params)

    def step(f):
        return jax.value_and_grad(lambda params: f(X, state_dict=params, rng=key))

    want, want_grads = jax.jit(step(unrolled))(params)
    got, grads = jax.jit(step(rolled))(stacked)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    grads = unstack_layers(grads)
    for name, grad in want_grads.items():
        np.testing.assert_allclose(grads[name], grad, rtol=1e-4, atol=1e-6)
    length = COUNT - (way == "in segments")  # the last segment is not computed again
    assert scans(lambda p: rolled(X, state_dict=p, rng=key), stacked) == [length]
    assert set(scans(step(rolled), stacked)) == {length}
    graph = jax.make_jaxpr(lambda p: rolled(X, state_dict=p, rng=key))(stacked)
    assert [step.primitive.name for step in graph.eqns].count("checkpoint") == 0
    assert sum(name in ("checkpoint", "remat2") for name in names_within(graph, "scan")) == 1


@pytest.mark.parametrize(("way", "policy"), [("not reentrant", None), ("selective", KEPT)])
def test_as_much_is_kept_as_by_hand(way, policy):
    f = t2j(Deep(WAYS[way]), loops="rolled")
    params = stack_layers(f.split()[0])
    by_hand = _kept(lambda params: _by_hand(params, policy), params)
    assert _kept(lambda params: f(X, state_dict=params, rng=jax.random.key(1)), params) <= 1.05 * by_hand


def test_policies_by_name_of_a_checkpoint_around_the_call():
    named = j2t(lambda x: checkpoint_name(x, "kept"))

    def layers(x, w):
        for _ in range(40):
            x = named(torch.tanh(x @ w)).sin().cos().exp() - x
        return x.sum()

    def kept(policy):
        f = jax.checkpoint(t2j(layers, loops="rolled"), policy=policy)
        assert set(scans(jax.grad(f), X, jnp.eye(WIDTH))) == {40}
        return _kept(lambda w: f(X, w), jnp.eye(WIDTH))

    assert kept(KEPT) == kept(None) + 40 * X.nbytes


def test_broadcasts_are_made_again():
    def normed(x):
        for _ in range(40):
            x = torch.tanh(x * x.square().mean(-1, keepdim=True).rsqrt()) - x
        return x.sum()

    def by_hand(x):
        def step(x, _):
            return jnp.tanh(x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True))) - x, None

        return jax.lax.scan(step, x, length=40)[0].sum()

    f = t2j(normed, loops="rolled")
    assert _kept(f, X) <= _kept(by_hand, X)
    want = jax.jit(jax.grad(t2j(normed, loops="unrolled")))(X)
    np.testing.assert_allclose(jax.jit(jax.grad(f))(X), want, rtol=1e-3, atol=1e-3)
