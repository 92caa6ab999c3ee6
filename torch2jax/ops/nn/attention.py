"""Attention.

On arrays, it is computed with the whole matrix of scores, or in blocks of rows if that is large.

A block of queries meets all keys, so its softmax is whole and nothing has to be put together. The gradient computes a
block's scores again, so that memory grows with the number of queries and keys, not with their product.
"""

import copy
import functools
import inspect
import math
from collections.abc import Callable
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ...rules.array_rule import ArrayRule, InnerRule
from ...rules.options import RuleOptions, Tag
from ...rules.registry import implements_tensors
from ...runtime.errors import TracedValueError
from ...runtime.patches import replaces
from ...runtime.translation import current
from ...tensors.dtypes import FLOATS
from ...values.traced_numbers import is_unknown
from ..arrays import where
from ..products import with_batch
from ..views import reshape
from .dropout import expect_probability, keep_some

_LARGE = 2**26  # scores; above it the blocks take less time too, since their scores stay in the cache
_BLOCK = 2**22  # scores at a time, but for the bounds of the rows
_ROWS = (128, 1024)


def attention(query, key, value, mask=None, is_causal=False, scale=None, drop=None, rng=None):
    """``softmax(query @ key.T * scale + mask) @ value``.

    Args:
        query: ``(*batch, queries, features)``.
        key: ``(*batch, keys, features)``; groups of query heads, the last of `batch`, may share one.
        value: ``(*batch, keys, value features)``.
        mask: broadcasts to ``(*batch, queries, keys)``: true where to attend, or numbers to add.
        is_causal: the first query attends to the first key alone, each other one to one more.
        drop: ``drop(rng, weights)`` is what is left of the weights.
    """
    shape = (*query.shape[:-1], key.shape[-2])
    if mask is not None and together(mask.shape, shape) != shape:
        raise RuntimeError(
            f"scaled_dot_product_attention got a mask of shape {list(mask.shape)}, which does not broadcast to the "
            f"weights' shape {list(shape)}"
        )
    attend = functools.partial(_attend_rows, key=key, value=value, is_causal=is_causal, scale=scale, drop=drop, rng=rng)
    rows = rows_at_a_time(shape)
    return attend(query, mask) if rows is None else _in_blocks(attend, query, mask, rows)


def _attend_rows(query, mask, first=None, *, key, value, is_causal, scale, drop, rng):
    """The result for some rows, of which the first has the index `first`; None for all rows.

    The sum of the exponentials divides the result instead of the weights: the pass over all weights is saved, here
    and in the gradient.
    """
    scores = _masked(scores_of(query, key, scale), mask, is_causal, first)
    weights, total, _ = exponentials(scores, may_be_empty=mask is not None or scores.shape[-1] == 0)
    if drop is not None:
        weights = drop(rng if first is None else jax.random.fold_in(rng, first), weights)
    return weighted(weights, total, value)


def rows_at_a_time(shape) -> int | None:
    """The number of rows of scores of shape ``(*batch, queries, keys)`` to compute at a time; None for all of them."""
    count, (least, most) = math.prod(shape), _ROWS
    if count <= _LARGE:
        return None
    fitting = _BLOCK * shape[-2] // count
    rows = min(max(1 << fitting.bit_length() - 1, least), most) if fitting else least
    return rows if rows < shape[-2] else None


def _in_blocks(attend: Callable, query, mask, rows: int):
    attend = jax.checkpoint(attend, prevent_cse=False)  # the loop does what that would prevent
    count, rest = divmod(query.shape[-2], rows)
    own = mask if mask is not None and mask.ndim > 1 and mask.shape[-2] > 1 else None  # what differs from row to row

    def step(first, block):
        query, own = block
        return lax.add(first, np.int32(rows)), attend(query, mask if own is None else own, first)

    blocks = jax.tree.map(functools.partial(_blocks, count=count, rows=rows), (query, own))
    first, results = lax.scan(step, np.int32(0), blocks)
    results = jnp.moveaxis(results, 0, -3)
    results = reshape(results, (*query.shape[:-2], count * rows, results.shape[-1]))
    if not rest:
        return results
    _, last = step(first, jax.tree.map(lambda x: lax.slice_in_dim(x, count * rows, None, axis=-2), (query, own)))
    return lax.concatenate([results, last], results.ndim - 2)


def _blocks(array, count: int, rows: int):
    """``(count, *batch, rows, columns)``, without the rows that are left over."""
    array = lax.slice_in_dim(array, 0, count * rows, axis=-2)
    return jnp.moveaxis(reshape(array, (*array.shape[:-2], count, rows, array.shape[-1])), -3, 0)


def scores_of(query, key, scale=None):
    """``query @ key.T * scale``, accumulated in float32 at least; heads may share a key."""
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    shape = (*query.shape[:-1], key.shape[-2])
    scales_query = query.dtype.itemsize >= 4 or math.frexp(scale)[0] == 0.5  # else the query would be rounded once more
    if scales_query:
        query = lax.mul(query, np.asarray(scale, query.dtype))
    scores = _batched_dot(_share_heads(query, key), key, contract=-1, accumulate=_accumulator(query))
    scores = reshape(scores, shape)
    return scores if scales_query else lax.mul(scores, np.asarray(scale, scores.dtype))


def weighted(weights, total, value):
    """``weights @ value / total``; heads may share a value."""
    shape = (*weights.shape[:-1], value.shape[-1])
    weights = _share_heads(weights.astype(value.dtype), value)
    output = reshape(_batched_dot(weights, value, contract=-2, accumulate=total.dtype), shape)
    return lax.div(output, lax.broadcast_in_dim(total, output.shape, range(output.ndim - 1))).astype(value.dtype)


def _accumulator(array):
    return np.dtype(np.float32) if array.dtype.itemsize < 4 else array.dtype


def _batched_dot(left, right, contract: int, accumulate):
    """A matrix product over the last dimension of `left`; the result is ``(*batch, left rows, right rest)``."""
    batch = tuple(range(left.ndim - 2))
    dimensions = (((left.ndim - 1,), (right.ndim + contract,)), (batch, batch))
    return lax.dot_general(left, right, dimensions, preferred_element_type=accumulate)


def _share_heads(query, key):
    """Puts the query heads that share a key head in one matrix."""
    *batch, length, size = query.shape
    if query.shape[:-2] != key.shape[:-2]:
        groups = batch[-1] // key.shape[-3]
        batch, length = [*batch[:-1], key.shape[-3]], groups * length
    return reshape(query, (*batch, length, size))


def _masked(scores, mask, is_causal: bool, first):
    if is_causal:
        rows, columns = (lax.broadcasted_iota(np.int32, scores.shape[-2:], i) for i in (0, 1))
        mask = lax.ge(rows if first is None else lax.add(rows, first), columns)
    if mask is None:
        return scores
    mask = lax.broadcast_in_dim(mask, scores.shape, range(scores.ndim - mask.ndim, scores.ndim))
    if mask.dtype == bool:
        return where(mask, scores, lax.full_like(scores, -np.inf))
    return lax.add(scores, mask.astype(scores.dtype))


def together(*shapes) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise RuntimeError(
            f"scaled_dot_product_attention: shapes {', '.join(str(list(shape)) for shape in shapes)} do not broadcast"
        ) from None


def exponentials(scores, may_be_empty: bool):
    """The exponentials of a softmax over the last dimension, their sum, and the maximum that is taken from each score.

    Args:
        may_be_empty: all scores of a row may be -inf.
    """
    most = lax.stop_gradient(lax.reduce_max(scores, (scores.ndim - 1,)))
    if may_be_empty:  # a row that attends to nothing gives zeros
        most = lax.max(most, np.asarray(jnp.finfo(scores.dtype).min, scores.dtype))
    powers = lax.exp(lax.sub(scores, lax.broadcast_in_dim(most, scores.shape, range(most.ndim))))
    total = lax.reduce_sum(powers, (scores.ndim - 1,))
    if may_be_empty:  # the sum is 1 at least, or 0: what stands for that has a square that derivatives can divide by
        total = lax.max(total, np.asarray(0.5, scores.dtype))
    return powers, total, most


def prepared(query, key, value, enable_gqa: bool):
    """The operands with equal leading dimensions, except for heads that share a key and a value."""
    for name, array in (("query", query), ("key", key), ("value", value)):
        if array.ndim < 2:
            raise RuntimeError(
                f"scaled_dot_product_attention expected {name} to be at least 2 dimensional, got {array.ndim}"
            )
        if array.dtype != query.dtype:
            raise RuntimeError(
                "scaled_dot_product_attention expected query, key, and value to have the same dtype, but got "
                f"query.dtype: {query.dtype} and {name}.dtype: {array.dtype}"
            )
    if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        raise RuntimeError(
            f"scaled_dot_product_attention: query {list(query.shape)}, key {list(key.shape)} and value "
            f"{list(value.shape)} cannot be multiplied"
        )
    if enable_gqa:
        heads, *others = (array.shape[-3] for array in (query, key, value))
        if any(heads % other for other in others):
            raise RuntimeError(
                "Number of heads in key and value must divide the number of heads in query, got "
                f"query: {heads}, key: {others[0]}, value: {others[1]}"
            )
        if others[0] != others[1]:
            key, value = (jnp.repeat(array, heads // array.shape[-3], axis=-3) for array in (key, value))
    own = -3 if enable_gqa else -2  # where the dimensions begin that are not broadcast
    batch = together(query.shape[:own], key.shape[:own], value.shape[:own])
    return tuple(with_batch(array, (*batch, *array.shape[own:-2])) for array in (query, key, value))


def _attend(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
    return attention(*prepared(query, key, value, enable_gqa), attn_mask, is_causal, scale)


def _attend_dropping(rng, query, key, value, attn_mask, is_causal, scale, enable_gqa, dropout_p):
    drop = functools.partial(keep_some, p=dropout_p)
    return attention(*prepared(query, key, value, enable_gqa), attn_mask, is_causal, scale, drop, rng)


_ATTEND = InnerRule(_attend, "scaled_dot_product_attention")
_ATTEND_DROPPING = ArrayRule(_attend_dropping, "scaled_dot_product_attention", RuleOptions(random=True))


@implements_tensors(
    torch.nn.functional.scaled_dot_product_attention,
    torch.ops.aten.scaled_dot_product_attention.default,
    takes=FLOATS,
)
def scaled_dot_product_attention(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False
):
    if is_causal and attn_mask is not None:
        raise RuntimeError("scaled_dot_product_attention: explicit attn_mask should not be set when is_causal=True")
    dropout_p = expect_probability(dropout_p)
    operands = (query, key, value, attn_mask, is_causal, scale, enable_gqa)
    if not is_unknown(dropout_p) and dropout_p in (0, 1):
        attended = _ATTEND(operands, {})
        return attended if dropout_p == 0 else attended * 0
    return _ATTEND_DROPPING((*operands, dropout_p), {})


@implements_tensors(torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default, takes=FLOATS)
def _scaled_dot_product_flash_attention_for_cpu(
    query, key, value, dropout_p=0.0, is_causal=False, *, attn_mask=None, scale=None
):
    """Attention on a CPU in exported graphs: the output, and the logsumexp of its scores."""
    if dropout_p != 0:
        raise RuntimeError("scaled_dot_product_attention_flash_attention: Currently do not support dropout > 0")
    output = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale
    )
    with torch.no_grad():
        query, key = query.detach(), key.detach()
        wide = torch.promote_types(query.dtype, torch.float32)
        scores = query.to(wide) @ key.to(wide).mT * (query.shape[-1] ** -0.5 if scale is None else scale)
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, -math.inf)
        elif attn_mask is not None:
            scores = scores + attn_mask.detach()
        return output, scores.logsumexp(-1)


# Multi-head attention. PyTorch's body keeps (time, batch, features) throughout and splits it by many transpositions.

_SIGNATURE = inspect.signature(torch.nn.functional.multi_head_attention_forward)


@implements_tensors(torch.nn.functional.multi_head_attention_forward, tags=[Tag.RANDOM])
def multi_head_attention_forward(*args, **kwargs):
    bound = _SIGNATURE.bind(*args, **kwargs)
    bound.apply_defaults()
    given = SimpleNamespace(**bound.arguments)
    if not _is_plain(given):
        return current().run_body(torch.nn.functional.multi_head_attention_forward, args, kwargs)
    heads = _project_heads(given)
    dropout_p = given.dropout_p if given.training else 0.0
    if given.need_weights:
        output, weights = _weigh(*heads, _merged_mask(given), dropout_p)
        weights = weights.mean(dim=1) if given.average_attn_weights else weights
    else:
        is_causal = given.is_causal and given.key_padding_mask is None
        mask = None if is_causal else _merged_mask(given)
        mask = mask.logical_not() if mask is not None and mask.dtype == torch.bool else mask
        output = torch.nn.functional.scaled_dot_product_attention(*heads, mask, dropout_p, is_causal)
        weights = None
    output = output.transpose(1, 2).flatten(2)
    return torch.nn.functional.linear(output, given.out_proj_weight, given.out_proj_bias).transpose(0, 1), weights


def _is_plain(given) -> bool:
    """Returns True if the call is valid and uses common options; for others PyTorch's body runs, and raises."""
    query, key, value, mask, padding = given.query, given.key, given.value, given.attn_mask, given.key_padding_mask
    if any(x.dim() != 3 for x in (query, key, value)):
        return False
    (length, batch, size), heads, keys = query.shape, given.num_heads, key.shape[0]
    return (
        size == given.embed_dim_to_check
        and size % heads == 0
        and key.shape[:2] == value.shape[:2]
        and (given.use_separate_proj_weight or key.shape == value.shape)
        and (mask is None or mask.shape in ((length, keys), (batch * heads, length, keys)))
        and (mask is not None or not given.is_causal)
        and (padding is None or padding.shape == (batch, keys))
        and all(x is None or x.dtype == torch.bool or x.is_floating_point() for x in (mask, padding))
        and all(x is None for x in (given.bias_k, given.bias_v, given.static_k, given.static_v))
        and not given.add_zero_attn
    )


def _project_heads(given):
    """Query, key and value, ``(batch, heads, time, features)``, by as few products as their sharing allows."""
    inputs, size = (given.query, given.key, given.value), given.query.shape[2]
    weight, bias = given.in_proj_weight, given.in_proj_bias
    if given.use_separate_proj_weight:
        weights = (given.q_proj_weight, given.k_proj_weight, given.v_proj_weight)
        biases = (None,) * 3 if bias is None else bias.split(size)
        return [_split_heads(x, w, b, given.num_heads, 1)[0] for x, w, b in zip(inputs, weights, biases, strict=True)]
    shared = 3 if given.query is given.key is given.value else 2 if given.key is given.value else 1
    groups = {3: [3], 2: [1, 2], 1: [1, 1, 1]}[shared]
    weights = [weight] if shared == 3 else weight.split([count * size for count in groups])
    biases = [bias] if shared == 3 or bias is None else bias.split([count * size for count in groups])
    heads = []
    for i, count in enumerate(groups):
        heads += _split_heads(inputs[i], weights[i], biases[i] if bias is not None else None, given.num_heads, count)
    return heads


def _split_heads(input, weight, bias, num_heads: int, count: int):
    """`count` projections of ``(time, batch, features)`` in one product."""
    batched = input.transpose(0, 1)
    if bias is None or bias.dtype == input.dtype or input.is_contiguous():
        projected = torch.nn.functional.linear(batched, weight, bias)
    else:  # PyTorch, which projects before it transposes, adds such a bias afterwards
        projected = torch.nn.functional.linear(batched, weight).add_(bias)
    if count == 1:
        return [projected.unflatten(2, (num_heads, -1)).transpose(1, 2)]
    return projected.unflatten(2, (count, num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)


def _merged_mask(given):
    """Both masks as one that broadcasts to ``(batch, heads, query, key)``; a boolean one is true where to ignore."""
    mask, padding = given.attn_mask, given.key_padding_mask
    if mask is not None and mask.dim() == 3:
        mask = mask.unflatten(0, (-1, given.num_heads))
    if padding is not None:
        padding = padding[:, None, None, :]
    if mask is None or padding is None:
        return padding if mask is None else mask
    if mask.dtype == padding.dtype == torch.bool:
        return mask | padding
    return _additive(mask, given.query.dtype) + _additive(padding, given.query.dtype)


def _additive(mask, dtype):
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -math.inf) if mask.dtype == torch.bool else mask


def _weigh(query, key, value, mask, dropout_p: float):
    """The output and the weights themselves."""
    scores = torch.matmul(query * (query.shape[-1] ** -0.5), key.transpose(-2, -1))
    if mask is not None:
        scores = scores.masked_fill(mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    weights = torch.dropout(scores.softmax(-1), dropout_p, True)
    return torch.matmul(weights, value), weights


@implements_tensors(torch._fused_sdp_choice, torch.ops.aten._fused_sdp_choice.default)
def _fused_sdp_choice(*args, **kwargs) -> int:
    return torch.nn.attention.SDPBackend.MATH.value  # none of PyTorch's fused kernels runs


@implements_tensors(torch._native_multi_head_attention, torch.ops.aten._native_multi_head_attention.default)
def _native_multi_head_attention(
    query,
    key,
    value,
    embed_dim,
    num_head,
    qkv_weight,
    qkv_bias,
    proj_weight,
    proj_bias,
    mask=None,
    need_weights=True,
    average_attn_weights=True,
    mask_type=None,
):
    """The layer on ``(batch, time, features)``; `mask_type` 1 is that of a padding, 0 that of the attention."""
    if mask_type not in (None, 0, 1):
        raise NotImplementedError(f"_native_multi_head_attention got mask_type={mask_type}; wanted 0, 1 or None")
    inputs = {id(x): x.transpose(0, 1) for x in (query, key, value)}  # what is shared is projected by one product
    query, key, value = (inputs[id(x)] for x in (query, key, value))
    output, weights = torch.nn.functional.multi_head_attention_forward(
        query,
        key,
        value,
        embed_dim,
        num_head,
        qkv_weight,
        qkv_bias,
        None,
        None,
        False,
        0.0,
        proj_weight,
        proj_bias,
        training=False,
        key_padding_mask=mask if mask_type == 1 else None,
        attn_mask=None if mask_type == 1 else mask,
        need_weights=need_weights,
        average_attn_weights=average_attn_weights,
    )
    return output.transpose(0, 1), weights


@implements_tensors(torch._transformer_encoder_layer_fwd, torch.ops.aten._transformer_encoder_layer_fwd.default)
def _transformer_encoder_layer_fwd(
    src,
    embed_dim,
    num_heads,
    qkv_weight,
    qkv_bias,
    proj_weight,
    proj_bias,
    use_gelu,
    norm_first,
    eps,
    norm_weight_1,
    norm_bias_1,
    norm_weight_2,
    norm_bias_2,
    ffn_weight_1,
    ffn_bias_1,
    ffn_weight_2,
    ffn_bias_2,
    mask=None,
    mask_type=None,
):
    """The layer that scripts of ``nn.TransformerEncoderLayer`` call in evaluation, on ``(batch, time, features)``."""
    functional = torch.nn.functional
    activation = functional.gelu if use_gelu else functional.relu

    def attend(x):
        weights = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        return _native_multi_head_attention(
            *(x, x, x, embed_dim, num_heads, *weights, mask), need_weights=False, mask_type=mask_type
        )[0]

    def feed_forward(x):
        return functional.linear(activation(functional.linear(x, ffn_weight_1, ffn_bias_1)), ffn_weight_2, ffn_bias_2)

    for block, weight, bias in (
        (attend, norm_weight_1, norm_bias_1),
        (feed_forward, norm_weight_2, norm_bias_2),
    ):
        norm = functools.partial(
            functional.layer_norm, normalized_shape=(embed_dim,), weight=weight, bias=bias, eps=eps
        )
        src = src + block(norm(src)) if norm_first else norm(src + block(src))
    return src


@implements_tensors(torch._nested_tensor_from_mask_left_aligned)
def _nested_tensor_from_mask_left_aligned(t, mask):
    return False  # so that a TransformerEncoder keeps to dense tensors


# Whether a mask is causal is a hint to the layers, which get the mask itself all the same.

_detect_is_causal = torch.nn.modules.transformer._detect_is_causal_mask


@replaces(torch.nn.modules.transformer, "_detect_is_causal_mask")
def _detect_is_causal_mask(mask, is_causal=None, size=None):
    try:
        return _detect_is_causal(mask, is_causal, size)
    except TracedValueError:
        return False


# Where nothing requires grad, PyTorch's encoder leaves out the padding at the end of sequences, and gives zeros there.

_encode = torch.nn.TransformerEncoder.forward


@replaces(torch.nn.TransformerEncoder, "forward")
def _encoder_forward(self, src, mask=None, src_key_padding_mask=None, is_causal=None):
    if not _leaves_out_padding(self, src, mask, src_key_padding_mask):
        return _encode(self, src, mask, src_key_padding_mask, is_causal)
    bare = copy.copy(self)
    bare._modules = {**self._modules, "norm": None}
    padding = src_key_padding_mask.bool()
    if getattr(self, "mask_check", True):
        left_out = padding & ~(padding[:, :-1] & ~padding[:, 1:]).any()  # if all of it is at the end
        if src_key_padding_mask.is_floating_point():
            src_key_padding_mask = src_key_padding_mask.masked_fill(left_out, -torch.inf)
    else:  # the first elements are taken, as many as are no padding
        left_out = torch.arange(padding.shape[1]) >= (~padding).sum(1, keepdim=True)
        src_key_padding_mask = left_out
    output = _encode(bare, src, mask, src_key_padding_mask, is_causal)
    output = output.masked_fill(left_out.unsqueeze(-1), 0.0)
    return output if self.norm is None else self.norm(output)


def _leaves_out_padding(encoder, src, mask, src_key_padding_mask) -> bool:
    layer = encoder.layers[0]
    if not (torch.backends.mha.get_fastpath_enabled() and getattr(encoder, "use_nested_tensor", False)):
        return False
    if layer.training or src.dim() != 3 or mask is not None or src_key_padding_mask is None:
        return False
    if torch.is_autocast_enabled():
        return False
    return not (torch.is_grad_enabled() and any(x.requires_grad for x in (*layer.parameters(), src)))
