"""Views of rows at data-dependent positions: slices and single elements of a selection by a mask.

Code that writes to them writes to the whole, and they show what is written to the whole, as in PyTorch.
"""

from typing import Any

import torch
from jax import lax

from ..tensors.storage import View
from ..tensors.tensor import geometry, make_view
from ..tensors.view_kind import ViewKind
from ..translation import current
from ..values.selected import Chosen

aten = torch.ops.aten


def rows_at(rows: Any, positions: torch.Tensor, count: torch.Tensor) -> Any:
    """The view of rows ``(n, ...)``, of which the first few are valid.

    Args:
        positions: ``(k,)``, within the rows.
        count: how many of them are there. The others are read, and not written.
    """
    rows = current().lift(rows)
    index, is_there = current().lift(positions).read(), (torch.arange(len(positions)) < count).read()  # pyright: ignore
    nowhere = lax.full_like(index, len(rows))

    def read(array):
        return array.at[index].get(mode="promise_in_bounds", wrap_negative_indices=False)

    def write(array, value):
        return array.at[lax.select(is_there, index, nowhere)].set(value, mode="drop")

    like = geometry(aten.slice.Tensor, rows, 0, 0, len(positions))
    return make_view(rows, View(rows._node, ViewKind(read, write, traced=((0, index, None),))), like)


def element_at(rows: Any, position: torch.Tensor, is_there: torch.Tensor) -> Any:
    """The view of one row of ``(n, ...)``. One that is not there is nan, if it can be, and is not written."""
    rows = current().lift(rows)
    index, flag = current().lift(position).read(), current().lift(is_there).read()

    def read(array):
        row = array.at[index].get(mode="promise_in_bounds", wrap_negative_indices=False)
        if row.dtype.kind not in "fcV":
            return row
        return lax.select(lax.broadcast(flag, row.shape), row, lax.full_like(row, float("nan")))

    def write(array, value):
        return array.at[lax.select(flag, index, lax.full_like(index, len(rows)))].set(value, mode="drop")

    like = geometry(aten.select.int, rows, 0, 0)
    return make_view(rows, View(rows._node, ViewKind(read, write, traced=((0, index, 1),))), like)


def is_view(rows: Any, of: Any) -> bool:
    """Returns True if rows are in the memory of others."""
    base = lambda x: x.base if isinstance(x, Chosen) else x
    return base(rows)._node.storage is base(of)._node.storage
