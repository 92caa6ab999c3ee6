"""Switches of the whole process, by the names of the functions that set and read them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import _tensor_str

__all__ = ["PRINT_OPTS", "C", "deterministic", "readers", "tensor_str"]

C: Any = torch._C
"""The module of all that is C++, for what is exchanged in it by more than one name."""

tensor_str = _tensor_str
"""The module of how tensors are printed, in which something is exchanged."""

PRINT_OPTS = _tensor_str.PRINT_OPTS
"""How tensors are printed: an object whose attributes `torch.set_printoptions` sets."""

_KINDS = (
    *("_algorithms", "_memory", "_precision", "_tf32", "_reduction", "_accumulation", "_benchmark", "_deterministic"),
    *("_enabled", "_kernel", "_backend", "_order", "_warn", "_warnAlways", "_threads", "_mode"),
)
# A thread's own state, which contexts put back; what can be set only once; and what has an option besides.
_NOT = (
    *("_set_fwd_grad_enabled", "_set_dispatch_mode", "set_num_interop_threads"),
    "_set_deterministic_algorithms",
)


def readers() -> dict[str, Callable[[], Any]]:
    """What reads each switch, by the name of what sets it: PyTorch names both alike."""
    found = {}
    for name in dir(C):
        if not name.startswith(("_set_", "set_")) or not name.endswith(_KINDS) or name in _NOT or "autocast" in name:
            continue
        read = getattr(C, name.replace("set_", "get_", 1), None)
        if read is not None:
            found[name] = read
    for kind in ("cudnn", "flash", "math", "mem_efficient", "overrideable"):
        if hasattr(C, f"_set_sdp_use_{kind}"):
            found[f"_set_sdp_use_{kind}"] = getattr(C, f"_get_{kind}_sdp_enabled")
    found["set_anomaly_enabled"] = lambda: (C.is_anomaly_enabled(), C.is_anomaly_check_nan_enabled())
    found["_set_multithreading_enabled"] = C._is_multithreading_enabled
    return found


def deterministic() -> tuple[bool, bool]:
    """What `torch.use_deterministic_algorithms` has set: whether, and whether only to warn."""
    return C._get_deterministic_algorithms(), C._get_deterministic_algorithms_warn_only()
