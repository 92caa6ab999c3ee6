"""The strides of results that are not pointwise in their operands: PyTorch's memory formats.

Each function takes the shape of a result and the arguments of the call, and gives None for a contiguous one.
"""

import functools
from collections.abc import Sequence
from typing import Any

import torch

from ..tensors.tensor import strides_of_copy, strides_of_shape
from .pointwise import planned
from .promotion import Promotion

Strides = tuple[int, ...] | None


def as_input(shape: Sequence[int], input: torch.Tensor, *_args: object, **_options: object) -> Strides:
    """Channels last if the input seems to be."""
    return _formatted(shape, _is_channels_last(input))


def as_volume(shape: Sequence[int], input: torch.Tensor, *args: Any, **options: Any) -> Strides:
    """As `as_input`, of volumes; channels of one without a batch are last if there are no gaps."""
    if input.ndim == 5:
        return as_input(shape, input, *args, **options)
    is_last = not input.is_contiguous() and input[None].is_contiguous(memory_format=torch.channels_last_3d)
    return strides_of_shape((1, *shape), torch.channels_last_3d)[1:] if is_last else None


def as_convolved(
    shape: Sequence[int], input: torch.Tensor, weight: torch.Tensor, *_args: object, **_options: object
) -> Strides:
    """Channels last if the input or the weight seems to be."""
    if input.ndim == 5 and input.dtype == torch.float64:  # this kernel of PyTorch's knows none
        return None
    return _formatted(shape, _is_channels_last(input) or _is_channels_last(weight))


def as_joined(shape: Sequence[int], tensors: Sequence[torch.Tensor], *_args: object, **_options: object) -> Strides:
    """Channels last if all of the inputs seem to be."""
    return _formatted(shape, all(map(_is_channels_last, tensors)))


def as_pointwise(
    shape: Sequence[int], input: torch.Tensor, other: torch.Tensor, *_args: object, **_options: object
) -> Strides:
    """Those of a pointwise function of two operands, unless that is reduced."""
    plan = planned(Promotion.NO_OPMATH, 0, (input, other))
    return plan.strides if plan.shape == shape else None


def as_tensors(shape: Sequence[int], *operands: object, **_options: object) -> Strides:
    """Those of a pointwise function that takes numbers as they are, where others make tensors of them."""
    del shape
    return planned(Promotion.NO_OPMATH, 0, [x for x in operands if isinstance(x, torch.Tensor)]).strides


def as_copy(shape: Sequence[int], input: torch.Tensor, *_args: object, **_options: object) -> Strides:
    """Those of a copy of the input, which dimensions of one keep too."""
    del shape
    return strides_of_copy(input)


def like_input(shape: Sequence[int], input: torch.Tensor, *_args: object, **_options: object) -> Strides:
    """Those of a copy of the input."""
    if input.is_contiguous() or input.shape != shape:
        return None
    return strides_of_copy(input)


def _is_channels_last(tensor: torch.Tensor) -> bool:
    return tensor.ndim in (4, 5) and _seems_channels_last(tuple(tensor.shape), tensor.stride())


@functools.lru_cache(maxsize=4096)
def _seems_channels_last(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the channels are innermost in memory and the images outermost, perhaps with gaps."""
    if strides[1] == 0 or 0 in shape:
        return False
    least = 0
    for dim in (1, *range(len(shape) - 1, 1, -1)):
        if strides[dim] < least:
            return False
        least = strides[dim] * shape[dim]
    return least <= strides[0] and least != strides[1]


@functools.lru_cache(maxsize=4096)
def _formatted(shape: Sequence[int], is_channels_last: bool) -> Strides:
    if not is_channels_last or len(shape) not in (4, 5):
        return None
    return strides_of_shape(shape, torch.channels_last if len(shape) == 4 else torch.channels_last_3d)
