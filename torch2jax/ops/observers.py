"""Observers of ``torch.ao.quantization``: their statistics, and their switches, which may be traced.

Each condition on a switch would double the paths through a network that has many of them. They choose between tensors
instead.
"""

import contextlib

import numpy as np
import torch
from jax import lax
from torch.ao.quantization.fake_quantize import FakeQuantize
from torch.ao.quantization.observer import (
    MovingAverageMinMaxObserver,
    UniformQuantizationObserverBase,
)
from torch.ao.quantization.utils import check_min_max_valid

from ..rules.array_rule import InnerRule
from ..rules.registry import implements_tensors
from ..runtime.patches import runs_instead_of
from ..runtime.translation import lift
from .arrays import cast, like, where
from .bounds import known_values
from .quantization import quotient, switch


def _is_traced(tensor: torch.Tensor) -> bool:
    return tensor.numel() > 0 and known_values(lift(tensor)) is None


def _is_unseen(min_val, max_val):
    """Returns True if a range is the one that an observer starts with."""
    return (min_val == float("inf")) & (max_val == -float("inf"))


# The scale and the zero point for what was seen.


def _calculated(low, high, least, quant_min: int, quant_max: int, scheme: str, middle: int):
    """The scale and the zero point of each range; the extremum of a symmetric one is a tie, where each bit counts."""
    unseen = lax.bitwise_and(lax.eq(low, like(low, np.inf)), lax.eq(high, like(high, -np.inf)))
    shape, count, least = low.shape or (1,), quant_max - quant_min, lax.broadcast_in_dim(least, low.shape, ())
    if scheme == "float":
        scale = quotient(lax.sub(high, low), count)
        scale = where(lax.gt(scale, least), scale, like(scale, 1))
        zero_point = lax.div(lax.neg(low), scale)
    else:
        negative, positive = lax.min(low, like(low, 0)), lax.max(high, like(high, 0))
        if scheme == "symmetric":
            scale = quotient(lax.mul(lax.max(lax.neg(negative), positive), like(low, 2)), count)
        else:
            scale = quotient(lax.sub(positive, negative), count)
        scale = lax.max(scale, least)
        zero_point = lax.full(low.shape, middle, np.int32)
        if scheme == "affine":
            steps = cast(lax.round(lax.div(negative, scale), lax.RoundingMethod.TO_NEAREST_EVEN), np.int32)
            zero_point = lax.clamp(np.int32(quant_min), lax.sub(np.int32(quant_min), steps), np.int32(quant_max))
    if low.ndim == 0:
        scale, zero_point = where(unseen, like(scale, 1), scale), where(unseen, like(zero_point, 0), zero_point)
    return lax.reshape(scale, shape), lax.reshape(zero_point, shape)


_SCHEMES = {
    torch.per_tensor_symmetric: "symmetric",
    torch.per_channel_symmetric: "symmetric",
    torch.per_channel_affine_float_qparams: "float",
}
_CALCULATED = {
    dtype: InnerRule(_calculated, "calculate_qparams", dtype=(None, dtype))
    for dtype in (torch.int32, torch.int64, torch.float32)
}
_DTYPES = {"symmetric": torch.int64, "affine": torch.int32, "float": torch.float32}


@runs_instead_of(UniformQuantizationObserverBase._calculate_qparams, with_original=True)
def _calculate_qparams(original, self, min_val, max_val):
    if min_val.numel() == 0 or max_val.numel() == 0:
        return original(self, min_val, max_val)
    if not _is_traced(min_val) and not check_min_max_valid(min_val, max_val):
        return torch.tensor([1.0]), torch.tensor([0])
    scheme, middle = _SCHEMES.get(self.qscheme, "affine"), 0
    if self.dtype in (torch.quint8, torch.uint8):
        middle = (self.quant_min + self.quant_max) // 2 if self.has_customized_qrange else 128
    elif self.dtype == torch.uint16:
        middle = 2**15
    options = (self.quant_min, self.quant_max, scheme, middle)
    return _CALCULATED[_DTYPES[scheme]]((min_val.detach(), max_val.detach(), self.eps.reshape(()), *options), {})


# What is seen.


@implements_tensors(MovingAverageMinMaxObserver)
def moving_average_min_max_observer(self, x_orig):
    if x_orig.numel() == 0 or not _is_traced(self.min_val):
        return self.forward(x_orig)
    x = x_orig.detach().to(self.min_val.dtype)
    is_unseen = _is_unseen(self.min_val, self.max_val)
    for running, value in zip((self.min_val, self.max_val), torch.aminmax(x), strict=True):
        running.copy_(torch.where(is_unseen, value, running + self.averaging_constant * (value - running)))
    return x_orig


@implements_tensors(FakeQuantize)
def fake_quantize(self, X):
    observes, quantizes = switch(self.observer_enabled[0] == 1), switch(self.fake_quant_enabled[0] == 1)
    if isinstance(observes, bool) and isinstance(quantizes, bool):
        return self.forward(X)
    if observes is not False:
        _observe(self, X.detach(), observes)
    if quantizes is False:
        return X
    options = (self.activation_post_process.quant_min, self.activation_post_process.quant_max)
    if self.is_per_channel:
        Y = torch.fake_quantize_per_channel_affine(X, self.scale, self.zero_point, self.ch_axis, *options)
    else:
        Y = torch.fake_quantize_per_tensor_affine(X, self.scale, self.zero_point, *options)
    return Y if quantizes is True else torch.where(quantizes, Y, X)


def _observe(module, x, observes) -> None:
    """Observes the input and updates the parameters, as a fake quantizer does first if it is on."""
    buffers = {name: buffer for name, buffer in module.named_buffers() if not name.endswith("_enabled")}
    with _switched(module, buffers, observes):
        module.activation_post_process(x)
        for old, new in zip((module.scale, module.zero_point), module.calculate_qparams(), strict=True):
            if old.shape != new.shape:
                old.resize_(new.shape)
            old.copy_(new)


@contextlib.contextmanager
def _switched(module, tensors: dict[str, torch.Tensor], is_on):
    """Keeps the values written to tensors within the context only if a switch is on.

    Raises:
        RuntimeError: the switch is traced, and a tensor would get another shape.
    """
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    yield
    for name, tensor in tensors.items() if is_on is not True else ():
        if tensor.shape != before[name].shape:
            raise RuntimeError(
                f"{type(module).__name__} has seen no channels yet: {name} is of shape {list(before[name].shape)}, and "
                f"would be of {list(tensor.shape)} if its observer, whose switch is traced, is on. Observe something "
                "before the call is traced, by the module itself or by a call outside of jit, or leave the switch out "
                "of state_dict"
            )
        tensor.copy_(torch.where(is_on, tensor, before[name]))
