"""Jagged tensors that enter a call: those with equal lengths share one ragged size, as outside.

To PyTorch two jagged tensors go together if they have the same offsets, as an object. Arrays of two arguments are two
objects. So the offsets of one stand for those of another: where both are known, if they are equal; where one is traced,
if both have as many rows and elements in all. That they are equal then is assumed, as for all checks of traced values.
"""

import weakref
from typing import Any

import numpy as np
import torch

from ..tensors.traced import is_traced
from ..tensors.wrapped import Wrapped

__all__ = ["lifted_offsets"]

_of_calls: weakref.WeakKeyDictionary[Any, list[tuple[Any, int, torch.Tensor]]] = weakref.WeakKeyDictionary()


def lifted_offsets(call: Any, given: Wrapped) -> dict[int, torch.Tensor]:
    """The tensor of a call that stands for the offsets of a jagged tensor, by the id of their array."""
    offsets, ragged = given._offsets, given._static.context["ragged_idx"] - 1
    total = given._values.shape[ragged]
    seen = _of_calls.setdefault(call, [])
    for other, others_total, tensor in seen:
        if total == others_total and _are_equal(offsets, other):
            return {id(offsets): tensor}
    tensor = call.lift(offsets)
    seen.append((offsets, total, tensor))
    return {id(offsets): tensor}


def _are_equal(offsets: Any, other: Any) -> bool:
    if offsets is other:
        return True
    if offsets.shape != other.shape or offsets.dtype != other.dtype:
        return False
    return is_traced(offsets) or is_traced(other) or np.array_equal(offsets, other)
