"""PyTorch contexts that turn parts of its dispatch off and on, for the thread that enters them."""

from typing import Any

import torch

__all__ = [
    "AutoDispatchBelowADInplaceOrView",
    "DisableAutocast",
    "DisableTorchDispatch",
    "DisableTorchFunction",
    "DisableTorchFunctionSubclass",
    "EnableTorchFunction",
    "ForceDispatchKeyGuard",
    "disabled_torch_function_impl",
    "dispatch_tls_local_exclude_set",
    "dispatch_tls_local_include_set",
    "is_torch_function_enabled",
]

_C: Any = torch._C

DisableTorchFunction = torch._C.DisableTorchFunction
"""Neither modes nor classes of tensors are asked by ``__torch_function__``."""

DisableTorchFunctionSubclass = torch._C.DisableTorchFunctionSubclass
"""Classes of tensors are not asked by ``__torch_function__``; modes are."""

EnableTorchFunction = _C._EnableTorchFunction
"""Both are asked again, within the contexts above. It counts from where it is made."""

DisableTorchDispatch = torch._C._DisableTorchDispatch
"""Neither modes nor classes of tensors are asked by ``__torch_dispatch__``: kernels run on tensors' metadata."""

DisableAutocast = torch._C._DisableAutocast
"""Operators are not cast, as outside of all regions of mixed precision."""

AutoDispatchBelowADInplaceOrView = torch._C._AutoDispatchBelowADInplaceOrView
"""Operators skip the kernels of autograd, and those that note views and writes."""

ForceDispatchKeyGuard = torch._C._ForceDispatchKeyGuard
"""The dispatcher includes and excludes these sets of keys, and no others."""

dispatch_tls_local_include_set = torch._C._dispatch_tls_local_include_set
"""The keys that the dispatcher includes on this thread."""

dispatch_tls_local_exclude_set = torch._C._dispatch_tls_local_exclude_set
"""The keys that the dispatcher leaves out on this thread."""

is_torch_function_enabled = torch._C._is_torch_function_enabled
"""Whether classes of tensors are asked by ``__torch_function__``."""

disabled_torch_function_impl = torch._C._disabled_torch_function_impl
"""The ``__torch_function__`` of a class that wants none: calls run as if its tensors were plain ones."""
