"""`flex_attention` within translated code, against attention written out in PyTorch."""

import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import (
    AuxRequest,
    BlockMask,
    and_masks,
    create_block_mask,
    create_mask,
    flex_attention,
)

from tests.ops.control_flow.agreement import agree, compare
from tests.transforms.test_func import operations
from torch2jax import t2j
from torch2jax.ops.nn import attention

torch.manual_seed(0)
Q, K, V = torch.randn(2, 4, 6, 8), torch.randn(2, 2, 6, 8), torch.randn(2, 2, 6, 8)
BIAS = torch.randn(4, 6, 6)
DOCUMENT = torch.tensor([0, 0, 0, 1, 1, 1])


def causal(b, h, q, k):
    return q >= k


def same_document(b, h, q, k):
    return DOCUMENT[q] == DOCUMENT[k]


def all_but_first(b, h, q, k):
    return q + h > k  # a row that attends to nothing


OUTSIDE = create_block_mask(and_masks(causal, same_document), None, None, 6, 6, device="cpu", BLOCK_SIZE=4)


def written_out(q, k, v, score_mod=None, mask_mod=None, scale=None):
    groups = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(groups, 1).expand(q.shape[0], *[-1] * 3) for x in (k, v))
    scores = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    b, h, i, j = (x.reshape(-1, *[1] * n) for x, n in zip(map(torch.arange, scores.shape), (3, 2, 1, 0), strict=True))
    if score_mod is not None:
        scores = score_mod(scores, b, h, i, j)
    if mask_mod is not None:
        scores = torch.where(mask_mod(b, h, i, j), scores, -math.inf)
    empty = (scores == -math.inf).all(-1)
    weights = torch.where(empty[..., None], 0.0, scores).softmax(-1) * ~empty[..., None]
    return weights @ v, torch.where(empty, -math.inf, scores.logsumexp(-1)), scores.amax(-1)


def biased(score, b, h, q, k):
    return torch.tanh(score / 2) * 2 + BIAS[h, q, k] - (q - k).abs() * 0.1 * (h + 1)


def test_values_and_derivatives_with_a_learned_bias_and_grouped_heads():
    def function(q, k, v, bias):
        def add(score, b, h, i, j):
            return (score + bias[h, i, j]).tanh()

        return flex_attention(q, k, v, add, OUTSIDE, scale=0.3, enable_gqa=True)

    def plain(q, k, v, bias):
        add = lambda s, b, h, i, j: (s + bias[h, i, j]).tanh()
        return written_out(q, k, v, add, and_masks(causal, same_document), 0.3)[0]

    agree(function, plain, Q, K, V, BIAS, atol=5e-4)  # differences of large terms


def run_all(q, k, v):
    ones = {"enable_gqa": True, "block_mask": OUTSIDE}
    inside = create_block_mask(all_but_first, 2, 4, 6, 6, device="cpu", BLOCK_SIZE=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with_log_sum = flex_attention(q, k, v, biased, return_lse=True, **ones)
    request = AuxRequest(lse=True, max_scores=True)
    output, aux = flex_attention(q, k, v, block_mask=inside, enable_gqa=True, return_aux=request)
    shared = flex_attention(q, k[:1], v[:1], block_mask=OUTSIDE_FOR_TWO, enable_gqa=True)
    return with_log_sum, (output, aux.lse, aux.max_scores), shared, create_mask(same_document, 1, 1, 6, 6, "cpu")


OUTSIDE_FOR_TWO = create_block_mask(causal, 2, None, 6, 6, device="cpu", BLOCK_SIZE=4)


def test_masks_made_outside_and_inside_and_other_results():
    got = jax.jit(t2j(run_all))(*[jnp.asarray(x.numpy()) for x in (Q, K, V)])
    mask = and_masks(causal, same_document)
    wanted = (
        written_out(Q, K, V, biased, mask)[:2],
        written_out(Q, K, V, None, all_but_first),
        written_out(Q, K[:1], V[:1], None, causal)[0],
        (DOCUMENT[:, None] == DOCUMENT)[None, None],
    )
    compare(got, wanted)
    assert not np.isfinite(got[1][1]).all()


def test_without_functions_the_graph_is_that_of_plain_attention():
    def plain(q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    def flexible(q, k, v):
        return flex_attention(q, k, v, enable_gqa=True)

    arrays = [jnp.asarray(x.numpy()) for x in (Q, K, V)]
    assert operations(t2j(flexible), *arrays) == operations(t2j(plain), *arrays)


def test_a_mask_is_computed_for_the_dimensions_that_it_depends_on():
    def attend(q, k, v):
        return flex_attention(q, k, v, block_mask=OUTSIDE_FOR_TWO, enable_gqa=True)

    jaxpr = jax.make_jaxpr(t2j(attend))(*[jnp.asarray(x.numpy()) for x in (Q, K, V)])
    (compared,) = [x.outvars[0].aval.shape for x in jaxpr.eqns if str(x.primitive) == "ge"]
    assert compared == (6, 6)


def test_half_precision_accumulates_in_float32():
    q, k, v = (x.bfloat16() for x in (Q, K, V))
    arrays = [jnp.asarray(x.float().numpy()).astype(jnp.bfloat16) for x in (q, k, v)]
    got = t2j(lambda q, k, v: flex_attention(q, k, v, biased, enable_gqa=True))(*arrays)
    assert got.dtype == jnp.bfloat16
    wanted = written_out(q.float(), k.float(), v.float(), biased)[0]
    np.testing.assert_allclose(got.astype(jnp.float32), wanted, 0.03, 0.02)


def test_backward_and_batches():
    def function(q, k, v):
        q.requires_grad_()
        flex_attention(q, k, v, biased, OUTSIDE, enable_gqa=True).sin().sum().backward()
        return q.grad

    q = Q.clone().requires_grad_()
    written_out(q, K, V, biased, and_masks(causal, same_document))[0].sin().sum().backward()
    arrays = [jnp.asarray(x.numpy())[None] for x in (Q, K, V)]
    np.testing.assert_allclose(jax.jit(jax.vmap(t2j(function)))(*arrays)[0], q.grad, 1e-4, 1e-6)


@pytest.mark.parametrize(
    ("error", "message", "changes"),
    [
        (ValueError, "enable_gqa=True for GQA", {}),
        # A RuntimeError since PyTorch 2.14.
        (Exception, "larger length", {"k": K[:, :, :4], "v": V[:, :, :4], "block_mask": OUTSIDE, "enable_gqa": True}),
        (RuntimeError, "sliced BlockMask", {"block_mask": OUTSIDE_FOR_TWO[:1], "enable_gqa": True}),
        (ValueError, "Invalid BACKEND", {"kernel_options": {"BACKEND": "none"}, "enable_gqa": True}),
    ],
)
def test_arguments_are_checked_by_pytorch(error, message, changes):
    options = {"k": K, "v": V} | changes
    k, v = options.pop("k"), options.pop("v")
    with pytest.raises(error, match=message) as raised:
        t2j(lambda q: flex_attention(q, k, v, **options))(jnp.asarray(Q.numpy()))
    assert issubclass(raised.type, (ValueError, RuntimeError))


def test_a_block_mask_is_what_pytorch_makes():
    def function(x):
        mask = create_block_mask(causal, 1, 1, 6, 6, device="cpu", BLOCK_SIZE=2)
        assert isinstance(mask, BlockMask)
        return mask.kv_num_blocks, mask.full_kv_indices, mask.to_dense(), x

    compare(jax.jit(t2j(function))(jnp.ones(1)), function(torch.ones(1)))


@pytest.mark.parametrize("mods", [{}, {"score_mod": biased}, {"score_mod": biased, "mask_mod": all_but_first}])
def test_a_block_of_rows_at_a_time(monkeypatch, mods):
    def attend(q, k, v):
        mask = create_block_mask(mods["mask_mod"], None, None, 6, 6, device="cpu") if "mask_mod" in mods else None
        options = {"enable_gqa": True, "return_aux": AuxRequest(lse=True, max_scores=True)}
        output, aux = flex_attention(q, k, v, mods.get("score_mod"), mask, **options)
        return output, aux.lse, aux.max_scores

    def gradients():  # which jit would keep
        return jax.jit(jax.value_and_grad(lambda *x: sum(jnp.where(y > -1e9, y, 0).sum() for y in t2j(attend)(*x))))

    operands = [t2j(x) for x in (Q, K, V)]
    expected, at_once = jax.jit(t2j(attend))(*operands), gradients()(*operands)
    monkeypatch.setattr(attention, "_LARGE", 8)
    monkeypatch.setattr(attention, "_ROWS", (4, 4))
    assert "scan" in operations(t2j(attend), *operands)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), t2j(attend)(*operands), expected)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), gradients()(*operands), at_once)
