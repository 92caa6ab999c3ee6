"""Leaf rules for ATen operators that no torch-level rule serves."""

import torch
from jax import lax

from ..rules.promotion import Promotion
from ..rules.registry import implements, implements_tensors
from .arrays import is_complex

aten = torch.ops.aten


@implements(torch.conj_physical, aten._conj_physical, torch._conj_physical, promote=Promotion.NO_OPMATH)
def conj_physical(input):
    return lax.conj(input) if is_complex(input) else input


@implements_tensors(aten.copy.default)
def copy(self, src, non_blocking=False):
    return self.clone().copy_(src)


def _copies(view):
    def copy_of_view(*args, **kwargs):
        result = view(*args, **kwargs)
        return result.clone() if isinstance(result, torch.Tensor) else [part.clone() for part in result]

    return copy_of_view


for _name in (
    *("_conj", "_neg_view", "_reshape_alias", "detach", "lift_fresh", "select", "slice", "split"),
    *("view_as_complex", "view_as_real"),
):  # PyTorch decomposes the others
    _packet = getattr(aten, f"{_name}_copy")
    for _overload in _packet.overloads():
        if "out" not in _overload:
            _copy: torch._ops.OpOverload = getattr(_packet, _overload)
            implements_tensors(_copy)(_copies(getattr(getattr(aten, _name), _overload)))
