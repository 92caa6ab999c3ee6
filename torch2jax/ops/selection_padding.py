"""Padding by data-dependent lengths, and of tensors with such lengths: `pad`, `pad_sequence`."""

from typing import Any

import torch
import torch.nn.functional as F

from ..rules.registry import implements_by_length, implements_masked
from ..runtime.errors import TracedValueError
from ..values.lengths import bound_of, constant_of, is_traced_number, tensor_of
from ..values.masked import (
    Masked,
    at_axis,
    axes_of,
    first,
    leads,
    packed,
    unknown_dims,
    unmasked_of,
    with_leading,
    with_masks,
)
from .lengths import bounded

Tensor = torch.Tensor


@implements_by_length(F.pad)
@implements_masked(F.pad)
def pad(input, pad, mode="constant", value=None):
    """Pads each dimension with a data-dependent length by itself, and the others as usual."""
    ndim, unknown = input.ndim, unknown_dims(input)
    found, left = input, [*pad]
    for dim in range(ndim - 1, ndim - 1 - len(pad) // 2, -1):
        at = 2 * (ndim - 1 - dim)
        ends = left[at : at + 2]
        if any(map(is_traced_number, ends)) or (dim in unknown and any(ends)):
            if mode != "constant":
                raise TracedValueError(f"torch.nn.functional.pad(mode={mode!r}) of, or by, a data-dependent size,")
            found = at_axis(_padded(with_leading(found, dim), *ends, 0 if value is None else value), dim)
            left[at : at + 2] = 0, 0
    if not any(left):
        return found
    if is_traced_number(value):
        is_there = F.pad(torch.ones(unmasked_of(found).shape, dtype=torch.bool), _of_axes(found, left))
        return with_masks(torch.where(is_there, F.pad(unmasked_of(found), _of_axes(found, left)), value), found)
    return with_masks(F.pad(unmasked_of(found), _of_axes(found, left), mode, value), found)


def _of_axes(x: Any, pad: list) -> list[int]:
    """The sizes to pad all that there is room for by; along a mask of several dimensions there are none."""
    dims = range(x.ndim - 1, x.ndim - 1 - len(pad) // 2, -1)
    ends = [(pad[2 * i : 2 * i + 2], len(axes_of(x, dim))) for i, dim in enumerate(dims)]
    return [size for both, count in ends for size in (both if count == 1 else [0, 0] * count)]


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
