"""The strides of a pointwise function's result, computed like PyTorch's ``TensorIterator`` (aten/src/ATen).

Operands of one shape that are held alike give theirs on, to the letter. Otherwise the dimensions are ordered by the
strides of the first operand that tells two of them apart, and the result has no gaps.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from ..tensors.interop import fills_memory
from ..tensors.tensor import strides_of_shape

__all__ = ["Operand", "result_strides"]


class Operand(NamedTuple):
    """A tensor, by its metadata; a number that PyTorch makes a tensor of has no dimensions."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]


def result_strides(operands: Sequence[Operand], shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of what a pointwise function gives for operands that broadcast to a shape."""
    plain = strides_of_shape(shape)
    if all(operand.shape == shape for operand in operands):
        if all(_is_like(operand, plain) for operand in operands):
            return plain
        last = strides_of_shape(shape, torch.channels_last) if len(shape) == 4 else plain
        if all(_is_like(operand, last) for operand in operands):
            return last
        first = operands[0].strides
        if all(operand.strides == first for operand in operands) and fills_memory(shape, first):
            return first
    order = _order([_broadcast(operand, shape) for operand in operands], shape)
    strides, step = [0] * len(shape), 1
    if order == list(range(len(shape)))[::-1]:
        return plain
    for dim in order:
        strides[dim], step = step, step * shape[dim]
    return tuple(strides)


def _is_like(operand: Operand, strides: tuple[int, ...]) -> bool:
    """Whether it has these strides, where its dimensions have more than one element."""
    if 0 in operand.shape:
        return True
    return all(x == y for x, y, size in zip(operand.strides, strides, operand.shape, strict=True) if size != 1)


def _broadcast(operand: Operand, shape: tuple[int, ...]) -> list[int]:
    """Its strides in each dimension of the result: 0 where it is broadcast."""
    missing = len(shape) - len(operand.shape)
    own = zip(operand.shape, operand.strides, shape[missing:], strict=True)
    return [0] * missing + [0 if size == 1 != whole else stride for size, stride, whole in own]


def _order(strides: list[list[int]], shape: tuple[int, ...]) -> list[int]:
    """The dimensions from the innermost to the outermost: an insertion sort, since not all pairs have an order."""
    order = list(range(len(shape)))[::-1]
    for i in range(1, len(order)):
        place = i
        for before in range(i - 1, -1, -1):
            compared = _compare(order[before], order[place], strides, shape)
            if compared > 0:
                order[before], order[place] = order[place], order[before]
                place = before
            elif compared < 0:
                break
    return order


def _compare(one: int, other: int, strides: list[list[int]], shape: tuple[int, ...]) -> int:
    """Above 0 if a dimension is to be outside of another that it is inside of, below 0 if not, 0 if nothing says."""
    for each in strides:
        if each[one] == 0 or each[other] == 0:
            continue
        if each[one] != each[other]:
            return -1 if each[one] < each[other] else 1
        if shape[one] > shape[other]:
            return 1
    return 0
