"""Dropout. In evaluation every form gives back its input, and leaves nothing in the graph."""

import math

import jax
import numpy as np
import torch
from jax import lax

from ...rules.array_rule import ArrayRule
from ...rules.inplace import write_in_place
from ...rules.options import RuleOptions
from ...rules.pointwise import like_input
from ...rules.registry import implements_tensors
from ...tensors.dtypes import FLOATS
from ..arrays import where

aten = torch.ops.aten

# What alpha dropout puts in place of a dropped element: the limit of SELU towards minus infinity, negated.
_ALPHA = 1.7580993408473766


def _kept(key, p: float, shape):
    """A boolean array, false with probability `p`."""
    return lax.ge(jax.random.bits(key, shape, np.uint32), np.uint32(min(round(p * 2**32), 2**32 - 1)))


def _mask(key, input, p: float, features: bool):
    """Which elements stay; with `features` a channel of a sample stays or goes as a whole."""
    if not features:
        return _kept(key, p, input.shape)
    return lax.broadcast_in_dim(_kept(key, p, input.shape[:2]), input.shape, (0, 1))


def keep_some(key, input, p: float, features: bool = False):
    """Zeroes elements with probability `p`, and scales the others by ``1 / (1 - p)``."""
    scaled = lax.mul(input, np.asarray(1 / (1 - p), input.dtype))
    return where(_mask(key, input, p, features), scaled, lax.full_like(input, 0))


def _keep_moments(key, input, p: float, features: bool = False):
    """Dropout that keeps mean and variance of what was standardized, as SELU needs it."""
    scale = 1 / math.sqrt((_ALPHA**2 * p + 1) * (1 - p))
    shift = _ALPHA * scale * p
    kept = lax.add(lax.mul(input, np.asarray(scale, input.dtype)), np.asarray(shift, input.dtype))
    return where(_mask(key, input, p, features), kept, lax.full_like(input, shift - _ALPHA * scale))


def expect_probability(p: float) -> None:
    """Refuses what is no probability, as PyTorch does."""
    if not 0 <= p <= 1:
        raise RuntimeError(f"dropout probability has to be between 0 and 1, but got {p}")


def _implements_dropout(name: str, body, features: bool) -> None:
    """The function, its in-place form, and their operators."""
    draw = ArrayRule(body, name, RuleOptions(random=True, takes=FLOATS, strides=like_input))

    def drop(input, p, train):
        expect_probability(p)
        if not train or p == 0 or input.numel() == 0:
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


def _keep_with_mask(key, input, p: float):
    kept = _kept(key, p, input.shape)
    scaled = lax.mul(input, np.asarray(1 / (1 - p), input.dtype))
    return where(kept, scaled, lax.full_like(input, 0)), kept


_KEEP_WITH_MASK = ArrayRule(
    _keep_with_mask,
    "native_dropout",
    RuleOptions(takes=FLOATS, dtype=(None, torch.bool), random=True, strides=like_input),
)


@implements_tensors(torch.native_dropout, aten.native_dropout.default)
def native_dropout(input, p, train):
    if train is False or p == 0:
        return input.clone(), torch.ones_like(input, dtype=torch.bool)
    expect_probability(p)
    if p == 1:
        return input * 0, torch.zeros_like(input, dtype=torch.bool)
    return _KEEP_WITH_MASK((input, p), {})
