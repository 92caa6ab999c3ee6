"""Attention in blocks of rows, against the whole matrix of scores."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tests.transforms.test_func import operations
from torch2jax import t2j
from torch2jax.ops.nn import attention
from torch2jax.runtime import caches

MASK = torch.rand(2, 1, 11, 6, generator=torch.Generator().manual_seed(1)) > 0.4


def _operands(heads=2, key_heads=2):
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = (2, heads, 11, 4), (2, key_heads, 6, 4), (2, key_heads, 6, 3)
    return [jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True)]


@pytest.fixture
def in_blocks(monkeypatch):
    """Begins to compute four rows at a time: three of the eleven are left over."""

    def begin():
        monkeypatch.setattr(attention, "_LARGE", 64)
        monkeypatch.setattr(attention, "_ROWS", (4, 4))
        caches.clear()  # what has been traced is as it was

    return begin


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"scale": 0.3},
        {"attn_mask": MASK},
        {"attn_mask": torch.zeros(11, 6).masked_fill(MASK[0, 0], -torch.inf)},
        {"attn_mask": MASK[:, :, :1]},
        {"enable_gqa": True},
    ],
    ids=["plain", "causal", "scale", "boolean", "additive", "one row for all", "shared keys"],
)
def test_values_and_gradients_are_those_of_the_whole(in_blocks, options):
    def attend(*operands):
        return F.scaled_dot_product_attention(*operands, **options)

    def both():
        return jax.jit(lambda *operands: jax.vjp(t2j(attend), *operands)[1](jnp.ones(shape)))(*operands)

    operands = _operands(heads=4) if "enable_gqa" in options else _operands()
    expected = t2j(attend)(*operands)
    shape = expected.shape
    gradients = both()
    in_blocks()
    jaxpr = jax.make_jaxpr(t2j(attend))(*operands)
    assert [equation.primitive.name for equation in jaxpr.eqns].count("scan") == 1
    np.testing.assert_allclose(t2j(attend)(*operands), expected, rtol=1e-5, atol=1e-6)
    for got, want in zip(both(), gradients, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_a_mask_that_is_learned_has_its_gradient(in_blocks):
    def loss(bias, *operands):
        return jnp.square(t2j(F.scaled_dot_product_attention)(*operands, bias)).sum()

    bias, operands = jnp.linspace(-1, 1, 2 * 11 * 6).reshape(2, 11, 6), _operands()
    expected = jax.grad(loss)(bias, *operands)
    in_blocks()
    np.testing.assert_allclose(jax.grad(loss)(bias, *operands), expected, rtol=1e-4, atol=1e-6)


def test_dropout_differs_from_block_to_block_and_is_the_same_for_the_gradient(in_blocks):
    def attend(value, rng):
        query, key = jnp.zeros((8, 4)), jnp.zeros((6, 4))
        return t2j(F.scaled_dot_product_attention)(query, key, value, dropout_p=0.5, rng=rng)

    in_blocks()
    value, rng = jnp.eye(6), jax.random.key(0)
    weights = attend(value, rng)  # the first matrix of an identity is what is left of the weights
    assert set(np.unique(weights.round(6))) == {0, np.float32(1 / 3).round(6)}
    assert (weights[:4] != weights[4:]).any()
    gradient = jax.grad(lambda value: attend(value, rng)[:, 0].sum())(value)
    np.testing.assert_allclose(gradient[:, 0], weights.sum(0), rtol=1e-6)


def test_sixteen_thousand_tokens_take_a_tenth_of_their_scores():
    def loss(*operands):
        return t2j(F.scaled_dot_product_attention)(*operands, is_causal=True).sum()

    operands = [jax.ShapeDtypeStruct((1, 8, 2**14, 64), jnp.float32)] * 3
    for function in (loss, jax.grad(loss, argnums=(0, 1, 2))):
        memory = jax.jit(function).lower(*operands).compile().memory_analysis()
        assert memory is not None
        assert memory.temp_size_in_bytes < 8 * 2**28 * 4 / 10


def test_attention_without_weights_is_in_blocks_too(in_blocks):
    module = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = torch.randn(2, 12, 8)
    in_blocks()
    attend = t2j(lambda x: module(x, x, x, need_weights=False)[0])
    assert "scan" in operations(attend, t2j(x))
    np.testing.assert_allclose(attend(t2j(x)), module(x, x, x)[0].detach(), rtol=1e-5, atol=1e-6)
