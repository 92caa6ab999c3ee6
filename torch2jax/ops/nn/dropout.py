"""Dropout. In evaluation every form gives back its input, and leaves nothing in the graph."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ...registry import implements_tensors
from ...rule import ArrayRule, write_in_place


def keep_mask(key, p: float, shape):
    """A boolean array, false with probability `p`."""
    threshold = min(round(p * 2**32), 2**32 - 1)
    return lax.ge(jax.random.bits(key, shape, np.uint32), np.uint32(threshold))


def keep_some(key, input, p: float):
    """Zeroes elements with probability `p`, and scales the others by ``1 / (1 - p)``."""
    scaled = lax.mul(input, np.asarray(1 / (1 - p), input.dtype))
    return lax.select(keep_mask(key, p, input.shape), scaled, lax.full_like(input, 0))


_KEEP = ArrayRule(keep_some, "dropout", random=True)


def _drop(input, p, train):
    if not 0 <= p <= 1:
        raise RuntimeError(f"dropout probability has to be between 0 and 1, but got {p}")
    if not train or p == 0 or input.numel() == 0:
        return input
    return input * 0 if p == 1 else _KEEP((input, p), {})


@implements_tensors(torch.dropout, torch.ops.aten.dropout.default)
def dropout(input, p, train):
    return _drop(input, p, train)
