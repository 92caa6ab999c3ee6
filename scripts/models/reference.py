"""What PyTorch itself gets wrong, by its formula."""

import contextlib
from collections.abc import Iterator
from unittest import mock

import torch
import torch.nn.functional as F

from torch2jax.runtime.translation import current

__all__ = ["BATCH_NORM", "by_formula"]

BATCH_NORM = "by PyTorch's gradient of batch norm"
_batch_norm = F.batch_norm


@contextlib.contextmanager
def by_formula() -> Iterator[None]:
    """Batch norm in evaluation outside of translated calls.

    PyTorch's own gradient for the bias is wrong there, seen with 2.13 on a CPU, where the gradient of the result lies
    channels last and the input does not; finite differences agree with the formula.
    """
    with mock.patch.object(F, "batch_norm", _evaluated):
        yield


def _evaluated(input, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
    if training or current() is not None:
        return _batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    shape = (1, -1, *[1] * (input.ndim - 2))
    scale = torch.rsqrt(running_var + eps) * (1 if weight is None else weight)
    shift = -running_mean * scale + (0 if bias is None else bias)
    return input * scale.reshape(shape) + shift.reshape(shape)
