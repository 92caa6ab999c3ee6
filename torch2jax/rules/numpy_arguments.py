"""NumPy numbers and arrays among the arguments of PyTorch's functions."""

import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ..tensors.dtypes import default_dtype, dtype_j2t, dtype_t2j, is_integral
from .call import this_call
from .promotion import Promotion
from .tags import Tag

__all__ = ["has_numpys", "number_of", "without_numpys"]

_KINDS = frozenset((np.ndarray, *np.sctypeDict.values()))
_REFLECTED = frozenset(f"__r{name}__" for name in ("sub", "pow", "floordiv", "mod", "lshift", "rshift", "matmul"))
_DIVISIONS = ("__rdiv__", "__rtruediv__")
_TO_FLOAT = (Promotion.INT_TO_FLOAT, Promotion.INT_TO_FLOAT_ONCE)


def has_numpys(args: tuple, kwargs: dict) -> bool:
    """Whether an argument is numpy's."""
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


def without_numpys(function: Callable, rule: Any, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
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
            place = next(i for i, x in enumerate(args) if isinstance(x, np.ndarray))
            wanted = rule.names.places[place] if place < len(rule.names.places) else place
            raise TypeError(f"{name}(): argument '{wanted}' (position {place + 1}) must be Tensor, not numpy.ndarray")
        args = _in_dtype_of_numpy(rule, args, name in _DIVISIONS)
    return args, kwargs


def _in_dtype_of_numpy(rule: Any, args: tuple, divides: bool) -> tuple:
    lift = this_call().lift
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
