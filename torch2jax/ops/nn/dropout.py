"""Dropout. In evaluation every form gives back its input, and leaves nothing in the graph."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ...rules.array_rule import ArrayRule
from ...rules.inplace import write_in_place
from ...rules.options import RuleOptions
from ...rules.pointwise import like_input
from ...rules.registry import implements_tensors
from ...tensors.dtypes import FLOATS
from ...tensors.tensor import wrap
from ...values.traced_numbers import is_unknown
from ..arrays import where

aten = torch.ops.aten

# What alpha dropout puts in place of a dropped element: the limit of SELU towards minus infinity, negated.
_ALPHA = 1.7580993408473766


def _is_known(p) -> bool:
    """Returns True if a probability is a number; else it is a traced array of one element."""
    return isinstance(p, float | int)


def _kept(key, p, shape):
    """A boolean array, false with probability `p`."""
    bits = jax.random.bits(key, shape, np.uint32)
    if _is_known(p):
        return lax.ge(bits, np.uint32(min(round(p * 2**32), 2**32 - 1)))
    most = np.float32(2**32 - 2**8)  # the last one before 2**32
    bound = jnp.minimum(jnp.float32(p) * np.float32(2**32), most).astype(np.uint32)
    return (bits >= bound) & (p < 1)


def _share(p):
    """The kept share ``1 - p``; 1 in place of a traced 0, since no element is left to be scaled."""
    return 1 - p if _is_known(p) else jnp.where(p < 1, 1 - lax.stop_gradient(p), 1)


def _factor(value, input):
    return np.asarray(value, input.dtype) if _is_known(value) else lax.full_like(input, value)


def _mask(key, input, p, features: bool):
    """The mask of elements that stay; with `features`, whole channels of a sample stay or go."""
    if not features:
        return _kept(key, p, input.shape)
    return lax.broadcast_in_dim(_kept(key, p, input.shape[:2]), input.shape, (0, 1))


def keep_some(key, input, p, features: bool = False):
    """Zeroes elements with probability `p`, and scales the others by ``1 / (1 - p)``."""
    scaled = lax.mul(input, _factor(1 / _share(p), input))
    return where(_mask(key, input, p, features), scaled, lax.full_like(input, 0))


def _keep_moments(key, input, p, features: bool = False):
    """Dropout that keeps the mean and variance of standardized input, as SELU needs it."""
    if _is_known(p):
        scale = 1 / math.sqrt((_ALPHA**2 * p + 1) * (1 - p))
    else:
        p = lax.stop_gradient(p)
        scale = jnp.where(p < 1, lax.rsqrt((_ALPHA**2 * p + 1) * _share(p)), 0)
    shift = _ALPHA * scale * p
    kept = lax.add(lax.mul(input, _factor(scale, input)), _factor(shift, input))
    return where(_mask(key, input, p, features), kept, lax.full_like(input, shift - _ALPHA * scale))


def expect_probability(p) -> Any:
    """A probability as rules take it. A known one outside of [0, 1] is refused, as by PyTorch; a traced one is not.

    PyTorch takes no derivative with respect to it.
    """
    if is_unknown(p):
        return wrap(p.read(), p.dtype)
    if not 0 <= p <= 1:
        raise RuntimeError(f"dropout probability has to be between 0 and 1, but got {p}")
    return p


def _implements_dropout(name: str, body, features: bool) -> None:
    """The function, its in-place form, and their operators."""
    draw = ArrayRule(body, name, RuleOptions(random=True, takes=FLOATS, strides=like_input))

    def drop(input, p, train):
        p = expect_probability(p)
        if not train or input.numel() == 0:
            return input
        if not is_unknown(p):
            if p == 0:
                return input
            if p == 1:
                return input * 0
        if features and input.ndim < 2:
            raise RuntimeError("Feature dropout requires at least 2 dimensions in the input")
        return draw((input, p, features), {})

    def drop_(input, p, train):
        dropped = drop(input, p, train)
        return input if dropped is input else write_in_place(input, dropped)

    implements_tensors(getattr(torch, name), getattr(aten, name).default)(drop)
    implements_tensors(getattr(torch, name + "_"), getattr(aten, name + "_").default)(drop_)


_implements_dropout("dropout", keep_some, features=False)
_implements_dropout("feature_dropout", keep_some, features=True)
_implements_dropout("alpha_dropout", _keep_moments, features=False)
_implements_dropout("feature_alpha_dropout", _keep_moments, features=True)


def _keep_with_mask(key, input, p):
    kept = _kept(key, p, input.shape)
    scaled = lax.mul(input, _factor(1 / _share(p), input))
    return where(kept, scaled, lax.full_like(input, 0)), kept


_KEEP_WITH_MASK = ArrayRule(
    _keep_with_mask,
    "native_dropout",
    RuleOptions(takes=FLOATS, dtype=(None, torch.bool), random=True, strides=like_input),
)


@implements_tensors(torch.native_dropout, aten.native_dropout.default)
def native_dropout(input, p, train):
    if train is False or (not is_unknown(p) and p == 0):
        return input.clone(), torch.ones_like(input, dtype=torch.bool)
    p = expect_probability(p)
    if not is_unknown(p) and p == 1:
        return input * 0, torch.zeros_like(input, dtype=torch.bool)
    return _KEEP_WITH_MASK((input, p), {})
