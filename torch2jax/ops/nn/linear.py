"""Linear and bilinear layers."""

import math

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ...rules.inplace import check_cast
from ...rules.options import Tag
from ...rules.registry import implements
from ...rules.rule import of_metadata
from ...tensors.dtypes import NUMBERS, canonical
from ...tensors.view_kind import dot_general, rows_of
from ..arrays import cast, is_float8
from ..views import reshape


@of_metadata
def _with_bias_as_added(input, weight, bias=None):
    """The arguments, where a bias of another dtype is one that PyTorch adds to the product afterwards.

    Raises:
        RuntimeError: PyTorch adds it within the product, or its dtype does not fit into that of the product.
    """
    if bias is not None and canonical(bias.dtype) != canonical(input.dtype):
        if input.ndim < 3 or input.is_contiguous():
            raise RuntimeError(
                "linear expected input, weight and bias to have the same dtype, but got "
                f"{input.dtype}, {weight.dtype} and {bias.dtype}"
            )
        check_cast(bias, input)
    return (input, weight, bias), {}


@implements(torch.nn.functional.linear, prepare=_with_bias_as_added, takes=NUMBERS, tags=[Tag.PRODUCT])
def linear(input, weight, bias=None):
    if input.dtype != weight.dtype:
        raise RuntimeError(
            f"linear expected input and weight to have the same dtype, but got {input.dtype} and {weight.dtype}"
        )
    if input.ndim == 0 or input.shape[-1] != weight.shape[-1]:
        raise RuntimeError(
            f"mat1 and mat2 shapes cannot be multiplied: linear expected the last dimension of input and of weight to "
            f"be equal, but got input of shape {input.shape} and weight of shape {weight.shape}"
        )
    rows = input if input.ndim <= 2 else _rows(input)
    dims = ((rows.ndim - 1,), (weight.ndim - 1,)), ((), ())
    wide = np.float32 if bias is not None and is_float8(rows) else None  # PyTorch rounds to 8 bits once
    output = dot_general(rows, weight, dims, wide)
    if bias is not None:  # added to the matrix: XLA fuses it there, and not with what follows the reshape
        common, own = output.dtype if wide else jnp.promote_types(output.dtype, bias.dtype), rows.dtype
        bias = rows_of(cast(bias, common), output)
        output = cast(lax.add(cast(output, common), bias), own)
    return reshape(output, (*input.shape[:-1], *weight.shape[:-1]))


def _rows(array):
    return reshape(array, (math.prod(array.shape[:-1]), array.shape[-1]))


@implements(torch.bilinear, torch.nn.functional.bilinear, takes=NUMBERS)
def bilinear(input1, input2, weight, bias=None):
    if input1.shape[:-1] != input2.shape[:-1]:
        raise RuntimeError(f"bilinear expected inputs of equal leading sizes, got {input1.shape} and {input2.shape}")
    if weight.shape[1:] != (input1.shape[-1], input2.shape[-1]):
        raise RuntimeError(
            f"bilinear expected weight of shape (out, {input1.shape[-1]}, {input2.shape[-1]}), got {weight.shape}"
        )
    first, second = _rows(input1), _rows(input2)
    partial = lax.dot_general(first, weight, (((1,), (1,)), ((), ())))  # rows, out, in2
    output = lax.dot_general(partial, second, (((2,), (1,)), ((0,), (0,))))
    if bias is not None:
        output = lax.add(output, rows_of(bias, output))
    return reshape(output, (*input1.shape[:-1], weight.shape[0]))
