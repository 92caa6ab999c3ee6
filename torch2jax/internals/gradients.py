"""PyTorch's autograd."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

__all__ = [
    "LegacyVariableBase",
    "autograd_module",
    "current_level",
    "is_fwd_grad_enabled",
    "run_backward",
    "set_fwd_grad_enabled",
    "set_grad_enabled",
    "top_saved_tensors_default_hooks",
    "unsafe_set_version_counter",
]

_C: Any = torch._C

set_grad_enabled = torch._C._set_grad_enabled
"""Sets whether autograd records on this thread, and asks modes of functions about it."""

is_fwd_grad_enabled = torch._C._is_fwd_grad_enabled
"""Whether operators on this thread take tangents along."""

set_fwd_grad_enabled = forward_ad._set_fwd_grad_enabled
"""A context in which they do, or do not."""


def current_level() -> int:
    """The number of the dual level that is open in PyTorch, below zero without one."""
    return forward_ad._current_level


top_saved_tensors_default_hooks = _C._autograd._top_saved_tensors_default_hooks
"""The hooks that were pushed last on what derivatives keep, None without; False to see also those that are off."""

unsafe_set_version_counter = _C._autograd._unsafe_set_version_counter
"""Sets how often tensors have been written to."""

LegacyVariableBase = torch._C._LegacyVariableBase
"""The class that ``torch.autograd.Variable`` derives from, whose ``__new__`` takes ``volatile``."""

autograd_module = _C._autograd
"""The module of what derivatives keep, in which something is exchanged."""


def run_backward(results: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]):
    """The gradients of inputs, by PyTorch's own engine, whatever stands for ``torch.autograd.grad``; or None.

    What the engine computes may be differentiated again.
    """
    engine: Any = torch.autograd.Variable._execution_engine  # pyright: ignore[reportAttributeAccessIssue]
    return engine.run_backward(
        tuple(results), tuple(gradients), True, True, tuple(inputs), allow_unreachable=True, accumulate_grad=False
    )
