"""Calls that give numbers by place, as PyTorch once wanted them: ``torch.add(x, 2, y)`` for ``add(x, y, alpha=2)``."""

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["is_in_old_order"]

_TENSORS = {
    "add": 2, "sub": 2, "addcmul": 3, "addcdiv": 3, "addmm": 3, "addmv": 3, "addr": 3, "addbmm": 3, "baddbmm": 3
}  # fmt: skip
_MOST = {
    getattr(owner, form): count
    for name, count in _TENSORS.items()
    for owner, form in ((torch, name), (torch.Tensor, name), (torch.Tensor, f"{name}_"))
}


def is_in_old_order(function: Callable[..., Any], args: tuple) -> bool:
    """Whether a call has more arguments by place than are tensors; PyTorch's own parser knows what is meant."""
    return len(args) > 2 and len(args) > _MOST.get(function, len(args))
