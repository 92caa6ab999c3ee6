"""Rows that attend to nothing: zeros, as PyTorch has it, whose derivatives of every order are finite."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, flex_attention, sdpa_kernel

from tests.ops.nn.test_scores import in_blocks  # noqa: F401
from torch2jax import t2j

QUERIES, KEYS = 11, 6

# The first row attends to nothing, the second to one key, for which the softmax is flat, the others to several.
ATTENDS = torch.rand(2, 1, QUERIES, KEYS, generator=torch.Generator().manual_seed(1)) > 0.5
ATTENDS[:, :, 0] = False
ATTENDS[:, :, 1] = torch.arange(KEYS) == 2
ATTENDS[1, :, 5:9] = False
ADDED = torch.randn(2, 1, QUERIES, KEYS).masked_fill(~ATTENDS, -torch.inf)
LEFT_PADDED = torch.zeros(1, 1, QUERIES, KEYS).masked_fill(
    ~(torch.ones(QUERIES, KEYS, dtype=torch.bool).tril() & (torch.arange(KEYS) > 2)), -torch.inf
)


def operands(heads=2, keys=KEYS):
    generator = torch.Generator().manual_seed(0)
    shapes = (2, heads, QUERIES, 4), (2, 2, keys, 4), (2, 2, keys, 3)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def derivatives_in_pytorch(function, *inputs):
    inputs = [x.clone().requires_grad_() for x in inputs]
    with sdpa_kernel(SDPBackend.MATH):
        output = function(*inputs)
        first = torch.autograd.grad(output.sin().sum(), inputs, create_graph=True)
        second = torch.autograd.grad(sum(x.sin().sum() for x in first), inputs, materialize_grads=True)
    return [output.detach(), *[x.detach() for x in first], *second]


def derivatives(function, *inputs):
    """The value, the gradients, the gradients of these, and the derivative forwards."""
    every = tuple(range(len(inputs)))
    loss = lambda *inputs: jnp.sin(function(*inputs)).sum()
    of_gradients = lambda *inputs: sum(jnp.sin(x).sum() for x in jax.grad(loss, every)(*inputs))

    @jax.jit
    def all_of_them(*inputs):
        second = jax.grad(of_gradients, every)(*inputs)
        return [function(*inputs), *jax.grad(loss, every)(*inputs), *second], jax.jvp(loss, inputs, inputs)[1]

    return all_of_them(*inputs)


def agree(function, *inputs):
    found, forwards = derivatives(t2j(function), *(t2j(x) for x in inputs))
    expected = derivatives_in_pytorch(function, *inputs)
    for got, want in zip(found, expected, strict=True):
        assert want.isfinite().all()
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-5)
    directional = sum((x * y).sum() for x, y in zip(inputs, expected[1 : 1 + len(inputs)], strict=True))
    np.testing.assert_allclose(forwards, directional, rtol=1e-4, atol=1e-5)


@pytest.fixture(params=["whole", "blocks"])
def form(request):
    if request.param == "blocks":
        request.getfixturevalue("in_blocks")()


@pytest.mark.parametrize("heads", [2, 4], ids=["own keys", "shared keys"])
def test_boolean_masks(form, heads):
    agree(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, ATTENDS, enable_gqa=True), *operands(heads))


@pytest.mark.parametrize("mask", [ADDED, LEFT_PADDED], ids=["learned", "left padding"])
def test_masks_to_add(form, mask):
    agree(F.scaled_dot_product_attention, *operands(), mask)


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"attn_mask": torch.ones(QUERIES, 0).bool()}])
def test_no_keys(options):
    agree(lambda *inputs: F.scaled_dot_product_attention(*inputs, **options), *operands(keys=0))


@pytest.mark.parametrize("mask", [ATTENDS, ADDED], ids=["boolean", "added"])
def test_dropout(mask):
    def attend(*inputs):
        return t2j(F.scaled_dot_product_attention)(*inputs, t2j(mask), dropout_p=0.5, rng=jax.random.key(0))

    (value, grad_of_query, *_), forwards = found = derivatives(attend, *map(t2j, operands()))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(found))
    assert not value[:, :, 0].any()
    assert not grad_of_query[:, :, 0].any()
    assert forwards != 0


def test_flex_attention():
    def attends(b, h, q, k):
        return ATTENDS[b, 0, q, k]

    def flexible(q, k, v, bias):
        mask = flex_attention.create_block_mask(attends, 2, None, QUERIES, KEYS, device="cpu")
        return flex_attention.flex_attention(q, k, v, lambda s, b, h, i, j: s + bias[b, 0, i, j], mask)

    inputs = [*operands(), torch.randn(ATTENDS.shape)]
    found, forwards = derivatives(t2j(flexible), *map(t2j, inputs))
    plain = lambda q, k, v, bias: F.scaled_dot_product_attention(q, k, v, bias.masked_fill(~ATTENDS, -torch.inf))
    expected, directional = derivatives(t2j(plain), *map(t2j, inputs))
    for got, want in zip([*found, forwards], [*expected, directional], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-5)


def test_the_log_sum_of_flex_attention_has_a_derivative():
    def log_sums(q, k, v):
        mask = flex_attention.create_block_mask(lambda b, h, q, k: q > k, None, None, QUERIES, KEYS, device="cpu")
        request = flex_attention.AuxRequest(lse=True)
        return flex_attention.flex_attention(q, k, v, block_mask=mask, return_aux=request)[1].lse[:, :, 1:]

    found, _ = derivatives(t2j(log_sums), *map(t2j, operands()))
    assert all(np.isfinite(x).all() for x in found)


PADDED = torch.tensor([[False] * 5, [True] * 5, [True, True, False, False, False]])


@pytest.mark.parametrize("causal", [False, True], ids=["padding", "padding and causal"])
@pytest.mark.parametrize("boolean", [True, False], ids=["boolean", "added"])
def test_modules(causal, boolean):
    torch.manual_seed(0)
    mha = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    mask = torch.ones(5, 5, dtype=torch.bool).triu(1) if causal else None
    padding = PADDED
    if not boolean:
        padding = torch.zeros(PADDED.shape).masked_fill(PADDED, -torch.inf)
        mask = None if mask is None else torch.zeros(5, 5).masked_fill(mask, -torch.inf)

    class Both(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.mha, self.layer = mha, layer

        def forward(self, x):
            x = self.mha(x, x, x, need_weights=False, key_padding_mask=padding, attn_mask=mask)[0]
            return self.layer(x, mask, padding)

    model, x = Both(), torch.randn(3, 5, 8, requires_grad=True)
    state = t2j(dict(model.named_parameters()))
    loss = lambda x, state: jnp.sin(t2j(model)(x, state_dict=state)).sum()
    of_x, of_state = jax.jit(jax.grad(loss, (0, 1)))(t2j(x.detach()), state)
    model(x).sin().sum().backward()
    np.testing.assert_allclose(of_x, x.grad, rtol=1e-4, atol=1e-5)
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all()
        np.testing.assert_allclose(of_state[name], parameter.grad, rtol=1e-4, atol=2e-5)
