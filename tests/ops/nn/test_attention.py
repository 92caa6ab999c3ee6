"""Attention; tests of the modules are in ``tests/modules/test_nn_modules.py``."""

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


@pytest.mark.parametrize(("key", "value"), [((2, 2), (2, 4)), ((1, 4), (2, 2)), ((2, 1), (1, 1))])
def test_keys_and_values_may_be_of_other_numbers_of_heads_and_batches(key, value):
    def attend(*operands):
        return F.scaled_dot_product_attention(*operands, enable_gqa=True)

    operands = [torch.randn(*batch_and_heads, 5, 8) for batch_and_heads in ((2, 4), key, value)]
    compare(jax.jit(t2j(attend))(*map(t2j, operands)), attend(*operands))


def test_heads_that_do_not_divide_those_of_the_query_are_refused():
    operands = [torch.randn(1, heads, 5, 8) for heads in (4, 3, 3)]
    for attend in (F.scaled_dot_product_attention, t2j(F.scaled_dot_product_attention)):
        with pytest.raises(RuntimeError, match="Number of heads in key and value must divide"):
            attend(*(operands if attend is F.scaled_dot_product_attention else map(t2j, operands)), enable_gqa=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    # Seven features, the scale of which is no power of two, and weights that a small change of the scores changes.
    operands = [3 * torch.cat([x, x[..., 1:]], -1) for x in _operands(dtype)]
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


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(2, 4, 5, 8), (2, 4, 6, 8), (2, 4, 6, 8), (1, 1, 5, 5)], "do not broadcast"),
        ([(2, 4, 5, 8), (2, 4, 6, 8), (2, 4, 6, 8), (3, 2, 4, 5, 6)], r"a mask of shape \[3, 2, 4, 5, 6\]"),
        ([(2, 4, 5, 8), (2, 4, 6, 7), (2, 4, 6, 8)], "cannot be multiplied"),
        ([(2, 4, 5, 8), (3, 4, 6, 8), (3, 4, 6, 8)], "do not broadcast"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(shapes, message):
    with pytest.raises(RuntimeError):
        F.scaled_dot_product_attention(*map(torch.ones, shapes))
    with pytest.raises(RuntimeError, match=message):
        jax.jit(t2j(F.scaled_dot_product_attention))(*map(jnp.ones, shapes))


def test_bad_arguments_are_refused():
    query, key, value = map(t2j, _operands())
    with pytest.raises(RuntimeError, match="is_causal"):
        t2j(lambda *a: F.scaled_dot_product_attention(*a, attn_mask=BOOLEAN, is_causal=True))(query, key, value)
    with pytest.raises(RuntimeError, match="same dtype"):
        t2j(F.scaled_dot_product_attention)(query, key.astype(jnp.bfloat16), value)


# What the encoder's layers leave out: nothing, the ends of sequences, and more than these.
PADDINGS = {
    "none": [[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]],
    "at the end": [[0, 0, 0, 1], [0, 0, 1, 1], [0, 1, 1, 1]],
    "within": [[0, 1, 0, 0], [0, 0, 1, 1], [0, 1, 1, 1]],
}


def _encoder(norm_first=False, norm=False, **options):
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first)
    norm = torch.nn.LayerNorm(8) if norm else None
    encoder = torch.nn.TransformerEncoder(layer, 2, norm, enable_nested_tensor=not norm_first, **options).eval()
    torch.nn.init.normal_(encoder.layers[0].norm1.bias)
    if norm is not None:
        torch.nn.init.normal_(norm.bias)
    return encoder


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize(
    "options",
    [{}, {"norm": True}, {"norm_first": True}, {"mask_check": False, "norm": True}],
    ids=["plain", "norm", "norm first", "unchecked"],
)
@pytest.mark.parametrize("gradients", [False, True])
def test_encoder_with_padding(padding, options, gradients):
    encoder, x, mask = _encoder(**options), torch.randn(3, 4, 8), torch.tensor(PADDINGS[padding]).bool()
    encoder.requires_grad_(gradients)
    expected = encoder(x, src_key_padding_mask=mask)
    compare(jax.jit(t2j(encoder))(t2j(x), src_key_padding_mask=t2j(mask)), expected)
    if padding == "at the end":
        compare(t2j(encoder)(t2j(x), src_key_padding_mask=t2j(mask)), expected)
        # What is not zero is padding to an encoder. To a layer alone PyTorch adds it, or not, by what requires grad.
        additive = torch.zeros(mask.shape).masked_fill(mask, -torch.inf if options.get("norm_first") else -1.0)
        expected = encoder(x, src_key_padding_mask=additive)
        compare(jax.jit(t2j(encoder))(t2j(x), src_key_padding_mask=t2j(additive)), expected)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_encoder_within_no_grad():
    encoder, x, mask = _encoder(), torch.randn(3, 4, 8), torch.tensor(PADDINGS["at the end"]).bool()
    encode = torch.no_grad()(lambda x: encoder(x, src_key_padding_mask=mask))
    compare(jax.jit(t2j(encode))(t2j(x)), encode(x))


def test_encoder_with_a_traced_mask():
    encoder, x = _encoder(), torch.randn(3, 4, 8)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(4)
    compare(jax.jit(t2j(encoder))(t2j(x), t2j(mask)), encoder(x, mask))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"average_attn_weights": False, "mask": BOOLEAN[0, 0, :, :5], "mask_type": 0},
        {"need_weights": False, "mask": torch.tensor([[False] * 4 + [True]] * 2), "mask_type": 1},
    ],
)
def test_native_multi_head_attention(options):
    generator = torch.Generator().manual_seed(0)
    x, other = torch.randn(2, 2, 5, 4, generator=generator)
    weights = [torch.randn(shape, generator=generator) for shape in ((12, 4), (12,), (4, 4), (4,))]

    def attend(x, other, *weights):
        return torch._native_multi_head_attention(x, other, other, 4, 2, *weights, **options)

    for got, want in zip(t2j(attend)(*t2j((x, other, *weights))), attend(x, other, *weights), strict=True):
        assert (got is None) == (want is None)
        if want is not None:
            compare(got, want)


def test_a_projection_bias_of_another_dtype_is_added_afterwards():
    def f(query):
        module = torch.nn.MultiheadAttention(4, 2, batch_first=True).eval()
        for value, parameter in enumerate(module.parameters()):
            torch.nn.init.constant_(parameter, value / 4)
        module.in_proj_bias = torch.nn.Parameter(torch.linspace(-1, 1, 12).half())
        with torch.no_grad():
            return module(query, query, query, need_weights=False)[0]

    query = torch.linspace(-1, 1, 24).view(2, 3, 4)
    compare(jax.jit(lambda x: t2j(f)(x, rng=jax.random.key(0)))(t2j(query)), f(query))


DROPPING = {
    "scaled_dot_product_attention": lambda x, p: F.scaled_dot_product_attention(x, x, x, dropout_p=p),
    "native_dropout": lambda x, p: torch.native_dropout(x, p, True)[0],
}


@pytest.mark.parametrize("name", DROPPING)
def test_all_is_dropped_without_a_key_and_no_probability_is_refused(name):
    x = torch.ones(1, 2, 3, 4)
    value, gradient = jax.value_and_grad(lambda x: t2j(lambda x: DROPPING[name](x, 1.0))(x).sum())(t2j(x))
    assert value == 0
    assert not gradient.any()
    for p in (1.5, -0.5):
        with pytest.raises(RuntimeError, match="dropout probability has to be between 0 and 1"):
            t2j(DROPPING[name])(t2j(x), p, rng=jax.random.key(0))
