"""Writes in place that are no other operator's in-place form: copies, fills, masked and indexed writes, resizing."""

import functools
import math

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..registry import implements, implements_tensors
from ..rule import write_in_place
from ..storage import Storage
from ..tensor import set_metadata, wrap
from ..translation import current

aten = torch.ops.aten
Tensor = torch.Tensor


@implements_tensors(Tensor.copy_, aten.copy_.default)
def copy_(self, src, non_blocking=False):
    src = current().lift(src)  # pyright: ignore[reportOptionalMemberAccess]
    value = src.to(self.dtype).expand(self.shape) if src.shape != self.shape else src.to(self.dtype)
    return write_in_place(self, value, (src,))


@implements(aten.fill)
def fill(input, value):
    value = jnp.asarray(value).astype(input.dtype)
    if value.ndim:
        raise RuntimeError(
            f"fill_ only supports 0-dimension value tensor but got tensor with {value.ndim} dimensions."
        )
    return lax.broadcast(value, input.shape)


@implements_tensors(Tensor.fill_, aten.fill_.Scalar, aten.fill_.Tensor)
def fill_(self, value):
    return write_in_place(self, aten.fill(self, value))


@implements_tensors(Tensor.zero_, aten.zero_.default, torch.zero_)
def zero_(self):
    return write_in_place(self, aten.fill(self, 0))
