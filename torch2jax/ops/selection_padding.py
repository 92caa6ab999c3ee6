"""Padding by data-dependent lengths, and of tensors with such lengths: `pad`, `pad_sequence`."""

from typing import Any

import torch
import torch.nn.functional as F

from ..errors import TracedValueError
from ..rules.registry import implements_by_length, implements_masked
from ..values.lengths import bound_of, constant_of, is_traced_number, tensor_of
from ..values.masked import Masked, at_axis, first, leading_of, leads, packed, unknown_dims
from ..values.masked_functions import broadcast
from .lengths import bounded

Tensor = torch.Tensor


@implements_by_length(F.pad)
@implements_masked(F.pad)
def pad(input, pad, mode="constant", value=None):
    """Pads each dimension with a data-dependent length by itself, and the others as usual."""
    if mode != "constant":
        if not leads(input) or any(map(is_traced_number, pad)):
            raise TracedValueError(f"torch.nn.functional.pad(mode={mode!r}) of, or by, a data-dependent size,")
        return _of_rows(input, pad, mode, value)
    ndim, unknown = input.ndim, unknown_dims(input)
    sizes = list(pad) + [0] * (2 * ndim - len(pad))
    found, left = input, [0] * (2 * ndim)
    for dim in range(ndim):
        at = 2 * (ndim - 1 - dim)
        ends = sizes[at : at + 2]
        if any(map(is_traced_number, ends)) or (dim in unknown and any(ends)):
            leading = found.movedim(dim, 0) if dim else found
            leading = _padded(leading, *ends, 0 if value is None else value)
            found = leading.movedim(0, dim) if dim else leading
        else:
            left[at : at + 2] = ends
    if not any(left):
        return found
    if not isinstance(found, Masked) and is_traced_number(value):
        is_there = F.pad(torch.ones(found.shape, dtype=torch.bool), left)
        return torch.where(is_there, F.pad(found, left), value)
    if not isinstance(found, Masked):
        return F.pad(found, left, mode, value)
    leading, at = leading_of(found)
    of_leading = [x for dim in reversed(range(ndim)) if dim != at for x in left[2 * (ndim - 1 - dim) :][:2]]
    return at_axis(_of_rows(leading, of_leading, mode, value), at)


def _of_rows(chosen: Masked, pad, mode: str, value) -> Any:
    """Each row padded along its own dimensions."""
    if len(pad) > 2 * chosen.row_ndim:
        raise TracedValueError("torch.nn.functional.pad of the dimension that a boolean mask selected")
    return broadcast(lambda rows: F.pad(rows, pad, mode, value), (chosen,), {}, "torch.nn.functional.pad")


def _padded(tensor: Any, before: Any, after: Any, value: Any) -> Any:
    """A tensor extended along the first dimension: a plain one, if its length is known.

    Less than none takes elements away.
    """
    chosen = packed(tensor) if leads(tensor) else None
    rows: Any = tensor if chosen is None else chosen.rows
    length = len(rows) if chosen is None else chosen.number
    total = length + before + after
    known = total if type(total) is int else constant_of(total)
    bound, size = (known, None) if known is not None else bounded(total, "torch.nn.functional.pad")
    index = torch.arange(bound) - tensor_of(before)
    return _filled(rows, index, tensor_of(length), value, size)


def _filled(rows: Any, index: Tensor, length: Tensor, value: Any, size: Tensor | None) -> Any:
    """The rows at some indices, with a value in place of missing ones.

    Args:
        rows: in compact order, of which so many count.
        size: how many places there are; None for all.
    """
    others = [1] * (rows.ndim - 1)
    if isinstance(rows, Masked):
        raise TracedValueError("torch.nn.functional.pad along one of several data-dependent dimensions,")
    filled = torch.full((len(index), *rows.shape[1:]), value, dtype=rows.dtype)
    if len(rows):
        is_there = ((index >= 0) & (index < length)).reshape(-1, *others)
        filled = torch.where(is_there, rows[index.clamp(0, len(rows) - 1)], filled)
    return filled if size is None else first(filled, size)


@implements_masked(torch._C._nn.pad_sequence)
def pad_sequence(sequences, batch_first=False, padding_value=0.0, padding_side="right"):
    if padding_side not in ("left", "right"):
        raise RuntimeError(f"Expected padding_side to be one of left or right, but got {padding_side}.")
    if any(isinstance(x, Masked) and not leads(x) for x in sequences):
        raise TracedValueError("torch.nn.utils.rnn.pad_sequence of a boolean-mask selection along a later dimension")
    held = [packed(x).rows if leads(x) else x for x in sequences]
    lengths = [x.shape[0] for x in sequences]
    longest = max(lengths)
    bound: Any = bound_of(longest) if is_traced_number(longest) else longest
    rows = []
    for each, length in zip(held, lengths, strict=True):
        index = torch.arange(bound)
        if padding_side == "left":
            index = index - (tensor_of(longest) - tensor_of(length))
        rows.append(_filled(each, index, tensor_of(length), padding_value, None))
    batch = torch.stack(rows, 1)
    found = first(batch, tensor_of(longest)) if is_traced_number(longest) else batch
    return found.transpose(0, 1) if batch_first else found
