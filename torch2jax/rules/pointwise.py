"""Pointwise rules: operands of one shape, dtype and layout, and PyTorch's strides of the result.

The strides of the result are computed as by PyTorch's ``TensorIterator`` (aten/src/ATen).

Operands of one shape that are held alike give theirs on, to the letter. Otherwise the dimensions are ordered by the
strides of the first operand that tells two of them apart, and the result has no gaps.

Also here: the strides of other functions' results, PyTorch's memory formats.

Each function takes the shape of a result and the arguments of the call, and gives None for a contiguous one.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import torch
from jax import lax

from ..runtime.caches import remembered
from ..runtime.translation import this_call
from ..tensors.dtypes import canonical, default_dtype, number_in_dtype
from ..tensors.interop import fills_memory
from ..tensors.tensor import strides_of_copy, strides_of_shape
from .promotion import Promotion, kind_of, promoted


class Operand(NamedTuple):
    """A tensor, by its metadata; a number that PyTorch makes a tensor of has no dimensions."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]


def result_strides(operands: Sequence[Operand], shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a pointwise function's result, for operands that broadcast to a shape."""
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
    """Returns True if an operand has these strides in the dimensions of more than one element."""
    if 0 in operand.shape:
        return True
    return all(x == y for x, y, size in zip(operand.strides, strides, operand.shape, strict=True) if size != 1)


def _broadcast(operand: Operand, shape: tuple[int, ...]) -> list[int]:
    """The operand's strides in each dimension of the result: 0 where it is broadcast."""
    missing = len(shape) - len(operand.shape)
    own = zip(operand.shape, operand.strides, shape[missing:], strict=True)
    return [0] * missing + [0 if size == 1 != full else stride for size, stride, full in own]


def _order(strides: list[list[int]], shape: tuple[int, ...]) -> list[int]:
    """The dimensions from the innermost to the outermost: an insertion sort, since not all pairs have an order."""
    order = list(range(len(shape)))[::-1]
    for i in range(1, len(order)):
        position = i
        for before in range(i - 1, -1, -1):
            compared = _compare(order[before], order[position], strides, shape)
            if compared > 0:
                order[before], order[position] = order[position], order[before]
                position = before
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


class PromotionPlan(NamedTuple):
    """The dtypes, shapes and layouts of a pointwise operation, which the metadata of the operands decides."""

    compute: torch.dtype
    result: torch.dtype
    shape: tuple[int, ...]
    layout: tuple[int, ...] | None
    """The order in which the dimensions are held; None for that of the shape."""
    strides: tuple[int, ...] | None
    """The strides of the result; None if it is contiguous."""

    def leaves(self, operands: Sequence[Any]) -> bool:
        """Returns True if the body computes with these operands as they are, once in the layout."""
        if any(not isinstance(x, torch.Tensor) or canonical(x.dtype) != canonical(self.compute) for x in operands):
            return False
        return all(x.ndim == 0 or x.shape == self.shape for x in operands)


class _TensorMetadata(NamedTuple):
    """The metadata of a tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    """None if they are those of a contiguous tensor."""
    layout: tuple[int, ...] | None


def planned(kind: Promotion, unpromoted: int, operands: Sequence[object]) -> PromotionPlan:
    """The plan for operands: tensors, Python numbers, and None for those that were not given.

    Args:
        unpromoted: how many of the first ones have no say in the dtypes.

    Raises:
        RuntimeError: their shapes do not broadcast.
    """
    metadata = tuple([None if x is None else _metadata_of(x) for x in operands])
    return _planned(kind, unpromoted, metadata, default_dtype())


def strides_besides(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """The strides, if the shape does not imply them; those of dimensions of one are free, but count for results."""
    return tensor.stride() if 1 in tensor.shape or not tensor.is_contiguous() else None


def _metadata_of(operand: object):
    if isinstance(operand, torch.Tensor):
        if operand.ndim == 0:
            if operand.python_type is not None:  # pyright: ignore[reportAttributeAccessIssue]
                return kind_of(operand)
            return _TensorMetadata(operand.dtype, operand.shape, None, None)
        return _TensorMetadata(operand.dtype, operand.shape, strides_besides(operand), operand.buffer.layout)  # pyright: ignore[reportAttributeAccessIssue]
    return kind_of(operand)


@remembered(4096)
def _planned(kind: Promotion, unpromoted: int, operands: tuple, default: torch.dtype) -> PromotionPlan:
    del default  # part of the key: the dtypes depend on it
    kinds = [(x.dtype, not x.shape) if isinstance(x, _TensorMetadata) else x for x in operands[unpromoted:]]
    compute, result = promoted(kind, tuple(x for x in kinds if x is not None))
    tensors = [x for x in operands if isinstance(x, _TensorMetadata)]
    shape = _common_shape([x.shape for x in tensors])
    return PromotionPlan(compute, result, shape, _common_layout(tensors, shape), _common_strides(operands, shape))


def _common_shape(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(*map(tuple, shapes))
    except ValueError:
        got = ", ".join(str(list(shape)) for shape in shapes)
        raise RuntimeError(
            f"got operands of shapes {got}, which do not broadcast: sizes must be equal or 1 in every dimension, "
            "counted from the last"
        ) from None


def _common_layout(tensors: list[_TensorMetadata], shape: Sequence[int]) -> tuple[int, ...] | None:
    """The layout in which all operands of the full shape are held, if there is one."""
    layouts = {tensor.layout for tensor in tensors if tensor.shape == shape}
    return layouts.pop() if len(layouts) == 1 else None


def _common_strides(operands: tuple, shape: Sequence[int]) -> tuple[int, ...] | None:
    """The strides PyTorch gives a result of tensors and numbers, None if it is contiguous."""
    tensors = [operand for operand in operands if isinstance(operand, _TensorMetadata)]
    is_plain = all(tensor.strides is None for tensor in tensors)
    if is_plain and (0 not in shape or all(tensor.shape == shape for tensor in tensors)):
        return None
    plain = strides_of_shape(shape)
    iterated = [Operand((), ()) if type(x) is not _TensorMetadata else _iterated(x) for x in operands if x is not None]
    strides = result_strides(iterated, tuple(shape))
    return None if strides == plain else strides


def _iterated(tensor: _TensorMetadata) -> Operand:
    strides = strides_of_shape(tensor.shape) if tensor.strides is None else tensor.strides
    return Operand(tuple(tensor.shape), tuple(strides))


def in_layout(operand: object, shape: Sequence[int], layout: tuple[int, ...] | None):
    """An operand's array, with its dimensions in the order of the result's layout; numpy's number for a known one."""
    if not isinstance(operand, torch.Tensor):
        return operand
    if operand.ndim == 0:
        number = _number_in_graph(operand)
        return operand.read() if number is None else number  # pyright: ignore[reportAttributeAccessIssue]
    if layout is None:
        return operand.read()  # pyright: ignore[reportAttributeAccessIssue]
    if operand.shape == shape:
        return operand.buffer.array  # pyright: ignore[reportAttributeAccessIssue]
    array = operand.read()  # pyright: ignore[reportAttributeAccessIssue]
    expanded = lax.expand_dims(array, range(len(shape) - array.ndim))
    return lax.transpose(expanded, layout)


_HELD_AS_NUMBERS = {torch.float32: np.float32, torch.float64: np.float64, torch.int32: np.int32, torch.bool: np.bool_}


def _number_in_graph(operand: Any) -> np.generic | None:
    """A known number as a NumPy scalar, which JAX writes into an operation; None if it is no such number."""
    kind = _HELD_AS_NUMBERS.get(operand.dtype)
    if kind is None or not this_call().is_lazy:
        return None
    known = operand.known
    if type(known) is not torch.Tensor:
        return None
    return kind(known.item()).astype(canonical(operand.dtype), copy=False)


class Pointwise(NamedTuple):
    """The body of a pointwise rule, with the casts and broadcasts around it that some operands need."""

    body: Callable
    shape: tuple[int, ...]
    unpromoted: int
    """The number of first operands that keep their dtype."""
    compute: torch.dtype
    result: torch.dtype

    def __call__(self, *operands: jax.Array | complex, **kwargs: object):
        """Casts and broadcasts the operands, calls the body, casts its result."""
        dtypes = (None,) * self.unpromoted + (self.compute,) * (len(operands) - self.unpromoted)
        promoted = [_operand(x, self.shape, dtype) for x, dtype in zip(operands, dtypes, strict=True)]
        result = self.body(*promoted, **kwargs)
        if isinstance(result, (tuple, list)):
            return type(result)(cast(part, canonical(self.result)) for part in result)
        return cast(result, canonical(self.result))


def _operand(value: Any, shape: tuple[int, ...], dtype: torch.dtype | None):
    if value is None or isinstance(value, str):
        return value
    if dtype is not None:
        if not isinstance(value, (jax.Array, np.ndarray, np.generic)):
            return number_in_dtype(value, canonical(dtype))
        value = cast(value, canonical(dtype))
    if value.shape == shape or value.ndim == 0:
        return value
    return lax.broadcast_in_dim(value, shape, range(len(shape) - value.ndim, len(shape)))


def cast(array: Any, dtype: np.dtype):
    if isinstance(array, np.generic):
        return array if array.dtype == dtype else array.astype(dtype)
    return array if array.dtype == dtype else lax.convert_element_type(array, dtype)


Strides = tuple[int, ...] | None


def as_input(shape: Sequence[int], input: torch.Tensor, *_args: object, **_options: object) -> Strides:
    """Channels last if the input seems to be."""
    return _formatted(shape, _is_channels_last(input))


def as_volume(shape: Sequence[int], input: torch.Tensor, *args: object, **options: object) -> Strides:
    """As `as_input`, for volumes; without a batch, the channels are last if there are no gaps."""
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
    """The strides of a pointwise function of two operands; None for a reduction of it."""
    plan = planned(Promotion.NO_OPMATH, 0, (input, other))
    return plan.strides if plan.shape == shape else None


def as_tensors(shape: Sequence[int], *operands: object, **_options: object) -> Strides:
    """The strides of a pointwise function in which Python numbers do not count as operands."""
    del shape
    return planned(Promotion.NO_OPMATH, 0, [x for x in operands if isinstance(x, torch.Tensor)]).strides


def as_copy(shape: Sequence[int], input: torch.Tensor, *_args: object, **_options: object) -> Strides:
    """The strides of a copy of the input; those of dimensions of one stay too."""
    del shape
    return strides_of_copy(input)


def like_input(shape: Sequence[int], input: torch.Tensor, *_args: object, **_options: object) -> Strides:
    """The strides of a copy of the input; None if it is contiguous, or has another shape."""
    if input.is_contiguous() or input.shape != shape:
        return None
    return strides_of_copy(input)


def _is_channels_last(tensor: torch.Tensor) -> bool:
    return tensor.ndim in (4, 5) and _seems_channels_last(tuple(tensor.shape), tensor.stride())


def _seems_channels_last(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Returns True if the channels are innermost in memory and the images outermost, perhaps with gaps."""
    if strides[1] == 0 or 0 in shape:
        return False
    least = 0
    for dim in (1, *range(len(shape) - 1, 1, -1)):
        if strides[dim] < least:
            return False
        least = strides[dim] * shape[dim]
    return least <= strides[0] and least != strides[1]


def _formatted(shape: Sequence[int], is_channels_last: bool) -> Strides:
    if not is_channels_last or len(shape) not in (4, 5):
        return None
    return strides_of_shape(shape, torch.channels_last if len(shape) == 4 else torch.channels_last_3d)
