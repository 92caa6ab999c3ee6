"""PyTorch's modes, which see every call of a function and every operator, whatever their arguments are."""

from typing import Any

import torch
from torch.utils import _device, _python_dispatch

__all__ = [
    "DEVICE_CONTEXT",
    "DeviceContext",
    "TorchDispatchMode",
    "TorchDispatchModeKey",
    "get_current_dispatch_mode_stack",
    "get_current_function_mode_stack",
    "get_dispatch_mode",
    "get_function_stack_at",
    "len_torch_dispatch_stack",
    "len_torch_function_stack",
    "pop_torch_dispatch_stack",
    "pop_torch_function_stack",
    "push_on_torch_dispatch_stack",
    "push_on_torch_function_stack",
]

_C: Any = torch._C

len_torch_function_stack = torch._C._len_torch_function_stack
"""How many modes of functions are entered on this thread."""

get_function_stack_at = torch._C._get_function_stack_at
"""One of them by its place, from the outermost on."""

get_current_function_mode_stack = torch.overrides._get_current_function_mode_stack
"""All of them, the outermost first."""

push_on_torch_function_stack = torch._C._push_on_torch_function_stack
"""Enters a mode of functions."""

pop_torch_function_stack = torch._C._pop_torch_function_stack
"""Leaves the innermost one, and gives it."""

TorchDispatchMode = _python_dispatch.TorchDispatchMode
"""The class of modes of operators."""

len_torch_dispatch_stack = torch._C._len_torch_dispatch_stack
"""How many of these are entered on this thread, those of PyTorch's own included."""

get_current_dispatch_mode_stack = _python_dispatch._get_current_dispatch_mode_stack
"""All of them, the outermost first."""

push_on_torch_dispatch_stack = torch._C._push_on_torch_dispatch_stack
"""Enters a mode of operators, without a word to the rest of the process."""

pop_torch_dispatch_stack = torch._C._pop_torch_dispatch_stack
"""Leaves the innermost one, and gives it, if it is given None."""

TorchDispatchModeKey = _C._TorchDispatchModeKey
"""The kinds of modes that are PyTorch's own: ``FAKE``, ``FUNCTIONAL`` and ``PROXY``, which records for `make_fx`."""

get_dispatch_mode = _C._get_dispatch_mode
"""The mode of a kind that is entered, None without one."""

DeviceContext = _device.DeviceContext
"""The class of ``with torch.device(...)`` as a mode of functions."""

DEVICE_CONTEXT = torch._GLOBAL_DEVICE_CONTEXT
"""Has what `torch.set_default_device` entered on this thread as ``device_context``, if it was called at all."""
