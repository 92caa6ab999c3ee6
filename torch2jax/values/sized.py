"""Tensors that a loop carries though their size changes between iterations: with room for the most, and a length."""

from typing import Any

import numpy as np
import torch
from jax import lax

from ..tensors.tensor import wrap
from ..translation import this_call
from .selected import Chosen, Selected, first, packed
from .selected_at_axis import at_axis, leading_of


def with_length(array: Any, length: Any, axis: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor whose dimension `axis` is as long as a traced number says.

    Args:
        array: ``(room, ...)``, with that dimension in front.
        length: an integer that is not beyond the room.
    """
    return at_axis(first(wrap(array, dtype), wrap(length, torch.int64)), axis)


def rows_and_length(tensor: torch.Tensor, axis: int) -> tuple[Any, Any] | None:
    """The array of a tensor with its dimension `axis` in front, in compact order, and how long that is.

    None where another dimension is as long as data decide.
    """
    if not isinstance(tensor, Chosen):
        array = this_call().lift(tensor).read()
        order = (axis, *(dim for dim in range(array.ndim) if dim != axis))
        return lax.transpose(array, order), array.shape[axis]
    leading, at = leading_of(tensor)
    if at != axis:
        return None
    found: Selected = packed(leading)
    rows: Any = found.rows
    if isinstance(rows, Chosen):
        return None
    length: Any = found.length
    return rows.read(), length.read()


def padded_to(rows: Any, capacity: int) -> Any:
    """The first `capacity` of rows ``(n, ...)``, with zeros after them if there are fewer."""
    if len(rows) >= capacity:
        return lax.slice_in_dim(rows, 0, capacity)
    return lax.pad(rows, np.zeros((), rows.dtype), [(0, capacity - len(rows), 0), *[(0, 0, 0)] * (rows.ndim - 1)])
