"""`flex_attention`: attention with a function of each score, applied to all of them by `jax.vmap`.

PyTorch's own code checks the arguments and makes the block masks. A block mask only says which blocks have something to
compute: what counts is its function, which masks each score.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from torch.nn.attention import flex_attention as torch_flex
from torch.utils.checkpoint import checkpoint

from ...internals.modules import identity, vmap_for_bhqkv
from ...rules.array_rule import InnerRule
from ...rules.registry import implements_tensors
from ...runtime.patches import exchange, replaces
from ...runtime.translation import current
from .attention import exponentials, rows_at_a_time, scores_of, weighted


def _scores(query, key, scale):
    return scores_of(query, key.astype(query.dtype), scale)


def _attend(scores, value, may_be_empty: bool, wants_log_sum: bool):
    weights, total, most = exponentials(scores, may_be_empty)
    output = weighted(weights, total, value)
    if not wants_log_sum:
        return output
    log_sum = lax.add(lax.log(total), most)
    if may_be_empty:
        lowest = lax.full_like(log_sum, -np.inf)
        log_sum = lax.select(lax.eq(most, np.asarray(jnp.finfo(most.dtype).min, most.dtype)), lowest, log_sum)
    return output, log_sum


_SCORES = InnerRule(_scores, "flex_attention")
_ATTEND = InnerRule(_attend, "flex_attention")


@implements_tensors(torch.ops.higher_order.flex_attention)
def flex_attention(
    query,
    key,
    value,
    score_mod: Callable,
    block_mask: tuple,
    scale: float,
    kernel_options: dict,
    score_mod_other_buffers=(),
    mask_mod_other_buffers=(),
):
    key, value = (x.expand(query.shape[0], *x.shape[1:]) for x in (key, value.to(query.dtype)))
    mask_mod = block_mask[-1]
    has_score_mod, has_mask = score_mod is not identity, mask_mod is not torch_flex.noop_mask
    wants_log_sum, wants_most = (bool(kernel_options.get(name)) for name in ("OUTPUT_LOGSUMEXP", "OUTPUT_MAX"))

    def attend(query, rows):
        scores: Any = _SCORES((query, key, scale), {})
        batch, heads, _, keys = scores.shape
        indices = [torch.arange(size, device=query.device) for size in (batch, heads, keys)]
        indices.insert(2, rows)
        if has_score_mod:
            mapped = _mapped(score_mod, (0,), score_mod_other_buffers)
            scores = mapped(scores, *indices, *score_mod_other_buffers).to(scores.dtype)
        if has_mask:
            mask = _mapped(mask_mod, (), mask_mod_other_buffers)(*indices, *mask_mod_other_buffers)
            scores = torch.where(mask, scores, -float("inf"))
        may_be_empty = has_score_mod or has_mask or keys == 0
        found: Any = _ATTEND((scores, value, may_be_empty, wants_log_sum), {})
        output, *rest = found if wants_log_sum else (found,)
        return output, *rest, *([scores.amax(-1)] if wants_most else ())

    output, *rest = _in_blocks(attend, query, key)
    rest = [x / np.log(2) for x in rest]  # PyTorch multiplies them by that
    return output, rest[0] if wants_log_sum else None, rest[-1] if wants_most else None


def _in_blocks(attend: Callable, query, key) -> tuple:
    """``attend(query, rows)`` for all rows, or, where they are many, for a block of them at a time."""
    length = query.shape[-2]
    rows = torch.arange(length, device=query.device)
    size = rows_at_a_time((*query.shape[:-1], key.shape[-2]))
    if size is None:
        return attend(query, rows)
    full = length - length % size

    def attend_again(query, rows):
        return checkpoint(attend, query, rows, use_reentrant=False)

    blocks = query[..., :full, :].unflatten(-2, (-1, size)).movedim(-3, 0), rows[:full].unflatten(0, (-1, size))
    stacked = torch.ops.higher_order.map_impl(attend_again, blocks, ())
    results = tuple(x.movedim(0, 2).flatten(2, 3) for x in stacked)
    if full == length:
        return results
    rest = attend_again(query[..., full:, :], rows[full:])
    return tuple(torch.cat(pair, dim=2) for pair in zip(results, rest, strict=True))


def _mapped(function: Callable, prefix: tuple, buffers: tuple) -> Callable:
    return vmap_for_bhqkv(function, prefix, (None,) * len(buffers))


# PyTorch's own function goes on to the operator at once, as it does to let a user look into his functions.


class _WithinCalls:
    def __bool__(self) -> bool:
        return current() is not None


exchange(torch_flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", _WithinCalls())


@replaces(torch_flex, "setup_compilation_env")
def _without_compiler():
    return contextlib.nullcontext("eager")


@replaces(torch_flex, "_validate_device")
def _take_any_device(query, key, value) -> None:
    """Accepts any device: the gradients that some of PyTorch's kernels lack exist on all of them."""


_create_empty_block_mask: Any = vars(torch_flex)["_create_empty_block_mask"]
_EMPTY = _create_empty_block_mask(torch.empty(0), torch.empty(0))


@replaces(torch_flex, "_create_empty_block_mask")
def _empty_block_mask(query, key):
    """A block mask of everything, which leaves nothing in the graph."""
    return _EMPTY if query.device.type == "cpu" else _create_empty_block_mask(query, key)


_apply_kernel_options: Any = vars(torch_flex)["_apply_kernel_options"]


@replaces(torch_flex, "_apply_kernel_options")
def _options(query, key, value, return_lse, kernel_options, return_aux=None) -> dict:
    """PyTorch's options, with the largest score too, which its kernels lack on some devices."""
    wants_most = return_aux is not None and return_aux.max_scores
    if wants_most and (kernel_options or {}).get("BACKEND") != "FLASH":
        return_aux = return_aux._replace(max_scores=False)
    options = _apply_kernel_options(query, key, value, return_lse, kernel_options, return_aux)
    needs_log_sum = return_lse or (return_aux is not None and return_aux.lse)
    return options | {"OUTPUT_LOGSUMEXP": needs_log_sum, "OUTPUT_MAX": wants_most}
