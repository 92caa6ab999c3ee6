"""Pointwise rules: operands of one shape, dtype and layout, and the strides that PyTorch gives the result."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
import torch
from jax import lax
from torch._prims_common import compute_elementwise_output_strides

from .dtypes import held_number

__all__ = ["Pointwise", "cast", "common_layout", "common_shape", "in_layout", "result_strides"]


def common_shape(tensors) -> tuple[int, ...]:
    shape = tensors[0].shape
    if all(tensor.shape == shape for tensor in tensors):
        return tuple(shape)
    try:
        return np.broadcast_shapes(*(tuple(tensor.shape) for tensor in tensors))
    except ValueError:
        shapes = ", ".join(str(list(tensor.shape)) for tensor in tensors)
        raise RuntimeError(
            f"got operands of shapes {shapes}, which do not broadcast: sizes must be equal or 1 in every dimension, "
            "counted from the last"
        ) from None


def common_layout(tensors, shape) -> tuple[int, ...] | None:
    """The layout in which all operands of the full shape are held, if there is one."""
    layout = None
    for tensor in tensors:
        if tensor.shape == shape:
            own = tensor._node.layout
            if own is None or layout not in (None, own):
                return None
            layout = own
    return layout


def in_layout(operand, shape, layout):
    """An operand's array, with its dimensions in the order of the result's layout."""
    if not isinstance(operand, torch.Tensor):
        return operand
    if layout is None or operand.ndim == 0:
        return operand.read()  # pyright: ignore[reportAttributeAccessIssue]
    if operand.shape == shape:
        return operand.held.array  # pyright: ignore[reportAttributeAccessIssue]
    array = operand.read()  # pyright: ignore[reportAttributeAccessIssue]
    expanded = lax.expand_dims(array, range(len(shape) - array.ndim))
    return lax.transpose(expanded, layout)


class Pointwise(NamedTuple):
    """The body of a pointwise rule, with the casts and broadcasts around it that some operands need."""

    body: Callable
    shape: tuple[int, ...]
    unpromoted: int
    """How many of the first operands keep their dtype."""
    compute: np.dtype
    result: np.dtype

    def __call__(self, *operands, **kwargs):
        """Casts and broadcasts the operands, calls the body, casts what it gives."""
        dtypes = (None,) * self.unpromoted + (self.compute,) * (len(operands) - self.unpromoted)
        promoted = [_operand(x, self.shape, dtype) for x, dtype in zip(operands, dtypes, strict=True)]
        result = self.body(*promoted, **kwargs)
        if isinstance(result, (tuple, list)):
            return type(result)(cast(part, self.result) for part in result)
        return cast(result, self.result)


def _operand(value, shape, dtype):
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, (jax.Array, np.ndarray)):
        return held_number(value, dtype)
    if dtype is not None:
        value = cast(value, dtype)
    if value.shape == shape or value.ndim == 0:
        return value
    return lax.broadcast_in_dim(value, shape, range(len(shape) - value.ndim, len(shape)))


def cast(array, dtype):
    return array if array.dtype == dtype else lax.convert_element_type(array, dtype)


def result_strides(tensors, shape):
    """The strides PyTorch gives an elementwise result: those of its operands where they agree; None if contiguous."""
    if all(tensor.shape == shape and tensor.is_contiguous() for tensor in tensors):
        return None
    return _strides_of(tuple((tuple(t.shape), t.stride()) for t in tensors), shape)


_WITH_OPERANDS = {1: torch.neg, 2: torch.add, 3: torch.addcmul}


@functools.lru_cache(maxsize=4096)
def _strides_of(operands, shape):
    with torch._C._DisableTorchDispatch():
        examples = [torch.empty_strided(*operand, device="meta") for operand in operands]
        if len(examples) in _WITH_OPERANDS:
            strides = _WITH_OPERANDS[len(examples)](*examples).stride()
        else:
            strides = compute_elementwise_output_strides(*(example.expand(shape) for example in examples))
        return None if strides == torch.empty(shape, device="meta").stride() else strides
