"""Views of a selection by a mask, and writes to all of it.

Slices and single elements of it are at positions that data decide. Code that writes to them writes to the whole, and
they show what is written to the whole, as in PyTorch.

A view in rows of another size is one that the elements, a data-dependent number of them, must fill. PyTorch raises an
error where they do not. Here that they do is proved by the sums that make the numbers, or else it is in doubt, and the
results of the call tell: see `expect_to_fit`.
"""

import math
from typing import Any

import torch
from jax import lax

from ..rules.registry import implements_masked
from ..runtime.errors import TracedValueError
from ..runtime.translation import lift
from ..tensors.storage import View
from ..tensors.tensor import geometry, make_view
from ..tensors.view_kind import ViewKind
from ..values.lengths import expect_to_fit, is_multiple, is_same_number, is_traced_number, tensor_of
from ..values.masked import Masked, at_axis, first, positions_of

aten = torch.ops.aten
Tensor = torch.Tensor


def rows_at(rows: Any, positions: torch.Tensor, count: torch.Tensor) -> Any:
    """The view of rows ``(n, ...)``, of which the first few are valid.

    Args:
        positions: ``(k,)``, within the rows.
        count: how many of them are there. The others are read, and not written.
    """
    rows = lift(rows)
    index, is_there = lift(positions).read(), (torch.arange(len(positions)) < count).read()  # pyright: ignore
    nowhere = lax.full_like(index, len(rows))

    def read(array):
        return array.at[index].get(mode="promise_in_bounds", wrap_negative_indices=False)

    def write(array, value):
        return array.at[lax.select(is_there, index, nowhere)].set(value, mode="drop")

    like = geometry(aten.slice.Tensor, rows, 0, 0, len(positions))
    return make_view(rows, View(rows._node, ViewKind(read, write, traced=((0, index, None),))), like)


def element_at(rows: Any, position: torch.Tensor, is_there: torch.Tensor) -> Any:
    """The view of one row of ``(n, ...)``. One that is not there is nan, if it can be, and is not written."""
    rows = lift(rows)
    index, flag = lift(position).read(), lift(is_there).read()

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
    base = lambda x: x.unmasked if isinstance(x, Masked) else x
    return base(rows)._node.storage is base(of)._node.storage


# In rows of another size.


def in_parts(flat: Masked, shape: tuple) -> Any:
    """All elements in a shape of which data decide one size at most."""
    unknown = [i for i, size in enumerate(shape) if is_traced_number(size) or size == -1]
    at = unknown[0] if unknown else 0
    before, behind = tuple(shape[:at]), tuple(shape[at + 1 :])
    size = 0 if len(unknown) > 1 else math.prod(before) * math.prod(behind) if unknown else math.prod(shape)
    if size < 1:
        raise TracedValueError(f"a view of shape {shown(shape)} of a boolean-mask selection")
    if not unknown:
        return _of_known_size(flat, shape, size)
    if is_traced_number(shape[at]):
        length, is_sure = tensor_of(shape[at]), is_same_number(shape[at] * size, flat.number)
    else:
        length, is_sure = flat.length // size, is_multiple(flat.length, size)
    if not is_sure:
        _expect_filled(shape, length * size == flat.length)
    capacity, part = flat.mask.numel() // size, math.prod(behind)
    index = torch.arange(capacity * part)
    if at:
        starts = torch.arange(math.prod(before))[:, None] * (length * part)
        index = (index.reshape(capacity, 1, part) + starts).reshape(-1)
    return at_axis(_at_positions(flat, index, (capacity, *before, *behind), length), at)


def _of_known_size(flat: Masked, shape: tuple[int, ...], size: int) -> torch.Tensor:
    if size > flat.mask.numel():
        raise RuntimeError(f"shape '{list(shape)}' is invalid for input of at most {flat.mask.numel()} elements")
    _expect_filled(shape, flat.length == size)
    found = _at_positions(flat, torch.arange(size), shape, flat.length)
    if found.refuses_writes:
        raise TracedValueError(f"a view of shape {list(shape)} of a boolean-mask selection with other strides")
    return found.rows


def _at_positions(flat: Masked, positions: torch.Tensor, shape: tuple[int, ...], length: torch.Tensor) -> Masked:
    """The view of the elements at indices into the selection, in rows of which the first few are valid."""
    rows = flat.rows.flatten(0, flat.mask.ndim - 1)
    positions = positions.clamp(0, max(len(rows) - 1, 0))
    if not flat.is_compact:
        positions = positions_of(flat, flat.mask.numel())[positions]
    found = first(rows_at(rows, positions, flat.length).reshape(shape), length)
    found.shares_memory, found.refuses_writes = True, flat.refuses_writes or not is_view(rows, flat.rows)
    return found


def _expect_filled(shape: tuple, fits: torch.Tensor) -> None:
    text = shown(shape)
    expect_to_fit(fits, f"a view of shape {text}", f"shape '{text}' is invalid for as many elements as data decide")


def shown(shape: tuple) -> str:
    return f"[{', '.join('n' if is_traced_number(size) else str(size) for size in shape)}]"


# Writes to all of a selection, along whichever dimension.


@implements_masked(Tensor.fill_)
def fill_(self, value):
    self.overwrite(torch.zeros_like(self.unmasked).fill_(value))
    return self


@implements_masked(Tensor.copy_)
def copy_(self, src, non_blocking=False):
    del non_blocking
    self.assign(torch.where(torch.ones((), dtype=torch.bool), src.to(self.dtype), self))
    return self


implements_masked(Tensor.zero_)(lambda self: fill_(self, 0))
implements_masked(Tensor.masked_fill_)(lambda self, mask, value: copy_(self, torch.where(mask, value, self)))
