"""Between tensors and the body of a rule.

It takes arrays, or known values, in place of tensors. What it gives become tensors again, with dtypes, histories and
labels.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch
from jax import lax

from ..errors import TracedValueError
from ..tensors.derivatives import without_gradient
from ..tensors.dtypes import canonical, logical
from ..tensors.physical import PhysicalArray
from ..tensors.tensor import Torchish, expect_values, wrap
from .call import this_call
from .numpy_arguments import number_of

__all__ = ["UNKNOWN", "arrays_of", "as_result", "knowns_of", "lift", "lifted", "of_dtype"]


_AS_THEY_ARE = frozenset((Torchish, int, float, bool, complex, str, type(None), torch.dtype))


def lift(value: Any) -> Torchish:
    return this_call().lift(value)


def lifted(value: Any) -> Any:
    """`value` with tensors of this call for all that stand for them."""
    kind = type(value)
    if kind in _AS_THEY_ARE:
        return value
    if kind is tuple:
        return tuple([lifted(item) for item in value])
    if kind is dict:
        return {key: lifted(item) for key, item in value.items()}
    return _map(lambda tensor: tensor, value)


def _map(fn: Callable[[Any], Any], value: Any):
    """Maps the tensors in an argument; PyTorch's signatures hold them at most in lists."""
    if isinstance(value, (torch.Tensor, jax.Array, np.ndarray)):
        return value if _is_key(value) else fn(lift(value))
    if isinstance(value, (list, tuple)):
        mapped = [_map(fn, item) for item in value]
        return mapped if isinstance(value, list) else tuple(mapped)
    if isinstance(value, dict):
        return {key: _map(fn, item) for key, item in value.items()}
    return number_of(value) if isinstance(value, np.generic) else value


def _is_key(value: object) -> bool:
    return isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)


def arrays_of(value: Any, tensors: list) -> Any:
    """`value` with arrays for tensors, which are gathered in `tensors`.

    Raises:
        TracedValueError: one stands for a number, which a body would have to know.
    """

    def read(tensor: Torchish):
        if tensor.stands_for is not None:
            raise TracedValueError("a number, by a function that takes it for no operand,")
        tensors.append(tensor)
        return tensor.read()

    return _map(read, value)


def knowns_of(value: Any) -> Any:
    def known(tensor: Torchish):
        known = tensor.known
        return UNKNOWN if known is None else known

    return _map(known, value)


class _NotKnown:
    pass


UNKNOWN = _NotKnown()


def as_result(
    array: Any,
    dtype: Any,
    tensors: list,
    known: Any = None,
    device: torch.device | None = None,
    layout: tuple[int, ...] | None = None,
    strides: Any = None,
    name: str = "Unknown",
) -> Any:
    """The tensor for what the rule `name` computed from `tensors`; `dtype` is PyTorch's, None if these decide."""
    if array is None:
        return None
    if isinstance(array, np.ndarray):  # of a body that works with values
        array = jax.numpy.asarray(array)
    array, dtype = of_dtype(array, dtype, tensors)
    grad = torch.is_grad_enabled()
    differentiable = dtype.is_floating_point or dtype.is_complex
    if not grad and differentiable and any(operand._node.storage.differentiable for operand in tensors):
        array = without_gradient(array)
    if layout is not None and array.ndim != len(layout):
        layout = None
    if callable(strides):
        strides = strides(PhysicalArray(array, layout).shape)
    tensor = wrap(array, dtype, known, layout=layout, strides=strides)
    if not grad:
        tensor._node.storage.differentiable = False
    if grad and differentiable:
        tensor.descend(tensors, name)
    for operand in tensors:
        if operand._label.type != "cpu":
            device = device or operand._label
    if device is not None:
        expect_values(device, dtype)
        tensor._label = device
    return tensor


def of_dtype(array: Any, dtype: Any, tensors: list) -> tuple[Any, torch.dtype]:
    """What a body has computed from `tensors`, and its dtype, which is PyTorch's; these decide it if it is None."""
    if dtype is None:
        return array, logical(array.dtype, tuple([tensor.dtype for tensor in tensors]))
    wanted = canonical(dtype)
    return array if array.dtype == wanted else lax.convert_element_type(array, wanted), dtype
