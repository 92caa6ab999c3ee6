"""Attention; tests of the modules are in ``tests/test_nn_modules.py``."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tests.ops.database import compare
from torch2jax import t2j


def _operands(dtype=torch.float32, heads=2, key_heads=2):
    generator = torch.Generator().manual_seed(0)
    shapes = (2, heads, 5, 4), (2, key_heads, 6, 4), (2, key_heads, 6, 3)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


BOOLEAN = torch.rand(2, 1, 5, 6, generator=torch.Generator().manual_seed(1)) > 0.4


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"scale": 0.3},
        {"attn_mask": BOOLEAN},
        {"attn_mask": torch.zeros(5, 6).masked_fill(BOOLEAN[0, 0], -torch.inf)},
    ],
)
def test_results_and_gradients(options):
    def attend(*operands):
        return F.scaled_dot_product_attention(*operands, **options)

    operands = [x.requires_grad_() for x in _operands()]
    expected = attend(*operands)
    actual, pull = jax.vjp(t2j(attend), *(t2j(x.detach()) for x in operands))
    compare(actual, expected)
    cotangent = torch.randn(expected.shape)
    for got, want in zip(pull(t2j(cotangent)), torch.autograd.grad(expected, operands, cotangent), strict=True):
        compare(got, want)


def test_a_row_that_attends_to_nothing_gives_zeros():
    mask = torch.ones(5, 6, dtype=torch.bool)
    mask[2] = False

    def attend(*operands):
        return F.scaled_dot_product_attention(*operands, attn_mask=mask)

    operands = [t2j(x) for x in _operands()]
    assert not t2j(attend)(*operands)[:, :, 2].any()
    grads = jax.grad(lambda *operands: t2j(attend)(*operands).sum(), argnums=(0, 1, 2))(*operands)
    assert all(jnp.isfinite(grad).all() for grad in grads)


def test_grouped_queries_share_keys_without_copies():
    def attend(*operands):
        return F.scaled_dot_product_attention(*operands, enable_gqa=True)

    operands = _operands(heads=6)
    compare(t2j(attend)(*map(t2j, operands)), attend(*operands))
    jaxpr = jax.make_jaxpr(t2j(attend))(*map(t2j, operands))
    names = [equation.primitive.name for equation in jaxpr.eqns]
    assert names.count("dot_general") == 2
    assert not {"transpose", "concatenate", "gather"} & set(names)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    operands = _operands(dtype)
    actual = t2j(F.scaled_dot_product_attention)(*map(t2j, operands))
    exact = F.scaled_dot_product_attention(*(x.double() for x in operands)).to(dtype)
    compare(actual, exact)


def test_dropout_of_the_weights():
    def attend(*operands):
        return F.scaled_dot_product_attention(*operands, dropout_p=0.5)

    operands = [t2j(x) for x in _operands()]
    first, again, other = (t2j(attend)(*operands, rng=jax.random.key(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)


def test_bad_arguments_are_refused():
    query, key, value = map(t2j, _operands())
    with pytest.raises(RuntimeError, match="is_causal"):
        t2j(lambda *a: F.scaled_dot_product_attention(*a, attn_mask=BOOLEAN, is_causal=True))(query, key, value)
    with pytest.raises(RuntimeError, match="same dtype"):
        t2j(F.scaled_dot_product_attention)(query, key.astype(jnp.bfloat16), value)
