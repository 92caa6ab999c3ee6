"""Conversion between tensors and the arrays of a rule's body.

It takes arrays, or known values, in place of tensors. What it gives become tensors again, with dtypes, histories and
labels.

Also here: NumPy numbers and arrays among the arguments of PyTorch's functions.
"""

import types
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch
from jax import lax

from ..runtime.errors import TracedValueError
from ..runtime.translation import lift, this_call
from ..tensors.array_buffer import ArrayBuffer
from ..tensors.dtypes import canonical, default_dtype, dtype_j2t, dtype_t2j, is_integral, logical
from ..tensors.tensor import Torchish, expect_values, wrap
from ..tensors.traced import without_gradient
from .options import Rule, Tag
from .promotion import Promotion

_KINDS = frozenset((np.ndarray, *np.sctypeDict.values()))
_REFLECTED = frozenset(f"__r{name}__" for name in ("sub", "pow", "floordiv", "mod", "lshift", "rshift", "matmul"))
_DIVISIONS = ("__rdiv__", "__rtruediv__")
_TO_FLOAT = (Promotion.INT_TO_FLOAT, Promotion.INT_TO_FLOAT_ONCE)


def has_numpys(args: tuple, kwargs: dict) -> bool:
    """Returns True if an argument is NumPy's."""
    return not _KINDS.isdisjoint(map(type, args)) or (
        bool(kwargs) and not _KINDS.isdisjoint(map(type, kwargs.values()))
    )


def number_of(value: np.generic) -> Any:
    """The Python number that PyTorch takes one of numpy's for: a float, unless numpy derives it from another type."""
    if isinstance(value, (float, complex)):
        return value.item()
    if isinstance(value, np.integer):
        return int(value)
    return float(value) if isinstance(value, (np.bool_, np.inexact)) else value


def without_numpys(function: Callable, rule: Rule, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """The arguments with Python numbers for numpy's, and tensors for the arrays among operands.

    PyTorch leaves operators of a tensor and an array to numpy, which has dtypes of its own for the results.

    Raises:
        TypeError: a function, in-place form or reflected operator has an array for an operand.
    """
    if Tag.DATA in rule.tags:
        return args, kwargs
    args = tuple([number_of(x) if isinstance(x, np.generic) else x for x in args])
    kwargs = {key: number_of(x) if isinstance(x, np.generic) else x for key, x in kwargs.items()}
    if rule.elementwise and any(isinstance(x, np.ndarray) for x in args):
        name = getattr(function, "__name__", rule.name)
        is_in_place = Tag.WRITES in rule.tags
        if isinstance(function, types.BuiltinFunctionType) or name in _REFLECTED or is_in_place:
            position = next(i for i, x in enumerate(args) if isinstance(x, np.ndarray))
            wanted = rule.names.positional[position] if position < len(rule.names.positional) else position
            raise TypeError(
                f"{name}(): argument '{wanted}' (position {position + 1}) must be Tensor, not numpy.ndarray"
            )
        args = _in_dtype_of_numpy(rule, args, name in _DIVISIONS)
    return args, kwargs


def _in_dtype_of_numpy(rule: Any, args: tuple, divides: bool) -> tuple:
    operands = [lift(x) if isinstance(x, (torch.Tensor, np.ndarray)) else x for x in args]
    dtypes = [x.dtype for x in operands if isinstance(x, torch.Tensor)]
    if divides and is_integral(dtypes[0]):  # the array is multiplied by the tensor's reciprocal
        dtypes[0] = default_dtype()
    try:
        common = np.result_type(*map(dtype_t2j, dtypes))
    except TypeError:  # bfloat16 and narrower ones are not numpy's
        return tuple(operands)
    rule = getattr(rule, "rule", rule)
    kind = rule.promote if isinstance(rule.promote, Promotion) else rule.promote({})
    if kind in _TO_FLOAT and common.kind in "biu":
        common = np.dtype("float64")
    dtype = dtype_j2t(common)
    with this_call().inside():
        return tuple([x.to(dtype) if isinstance(x, torch.Tensor) else x for x in operands])


_AS_THEY_ARE = frozenset((Torchish, int, float, bool, complex, str, type(None), torch.dtype))


def lifted(value: Any) -> Any:
    """`value` with the call's tensors in place of all tensors and arrays from outside."""
    kind = type(value)
    if kind in _AS_THEY_ARE:
        return value
    if kind is tuple:
        return tuple([lifted(item) for item in value])
    if kind is dict:
        return {key: lifted(item) for key, item in value.items()}
    return _map(lambda tensor: tensor, value)


def _map(fn: Callable[[Any], Any], value: object):
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


def arrays_of(value: object, tensors: list) -> Any:
    """`value` with arrays for tensors, which are gathered in `tensors`.

    Raises:
        TracedValueError: one stands for a number, which a body would have to know.
    """

    def read(tensor: Torchish):
        if tensor.python_type is not None:
            raise TracedValueError("a number, by a function that takes it for no operand,")
        tensors.append(tensor)
        return tensor.read()

    return _map(read, value)


def knowns_of(value: object) -> Any:
    def known(tensor: Torchish):
        known = tensor.known
        return UNKNOWN if known is None else known

    return _map(known, value)


class _NotKnown:
    pass


UNKNOWN = _NotKnown()


def as_result(
    array: Any,
    dtype: object,
    tensors: list,
    known: Any = None,
    device: torch.device | None = None,
    layout: tuple[int, ...] | None = None,
    strides: Any = None,
    name: str = "Unknown",
) -> object:
    """The tensor for an array that rule `name` computed from `tensors`; `dtype` is PyTorch's, None if they decide."""
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
        strides = strides(ArrayBuffer(array, layout).shape)
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


def of_dtype(array: jax.Array, dtype: Any, tensors: list) -> tuple[Any, torch.dtype]:
    """The result of a body, in PyTorch's dtype, and that dtype; if None, the dtypes of `tensors` decide it."""
    if dtype is None:
        return array, logical(array.dtype, tuple([tensor.dtype for tensor in tensors]))
    wanted = canonical(dtype)
    return array if array.dtype == wanted else lax.convert_element_type(array, wanted), dtype
