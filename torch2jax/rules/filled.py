"""Plans of functions that make tensors of one value everywhere, as ``torch.zeros``, where nothing is traced."""

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax

from ..internals.guards import DisableTorchFunction
from ..internals.jax_traces import ArrayImpl
from ..internals.memory import make_wrapper_subclass
from ..internals.modes import len_torch_function_stack
from ..tensors.dtypes import canonical
from ..tensors.physical import PhysicalArray
from ..tensors.scalars import number_in_dtype
from ..tensors.storage import Storage
from ..tensors.tensor import CPU, Torchish
from .plan import NOT_PLANNED, Bypass

__all__ = ["FILLED", "FilledPlan", "filled_plan_of", "full_at_once"]

FILLED: dict[Callable, Callable[..., Any]] = {}
"""Such functions, and what gives the value from their arguments."""

full_at_once = jax.jit(lax.broadcast, static_argnums=1)
"""A new array of a scalar everywhere. Each call gives one of its own, since users may donate it."""


class FilledPlan:
    """How a tensor of one value comes about.

    Args:
        value: a scalar of the array's dtype.
        like: one that has come about so.
    """

    rule = None
    __slots__ = ("_dtype", "_shape", "_size", "_value")

    def __init__(self, value: np.ndarray, like: Torchish):
        self._value, self._shape, self._dtype = value, tuple(like.shape), like.dtype
        self._size = math.prod(self._shape)

    def run(self, call: Any, args: tuple, kwargs: dict | None, tensors: list, arrays: list, is_eager: bool) -> Any:
        """Another such tensor."""
        del call, args, kwargs, tensors, arrays, is_eager
        if len_torch_function_stack():  # one may say on which device
            return NOT_PLANNED
        tensor = make_wrapper_subclass(Torchish, self._shape, dtype=self._dtype)
        tensor._node = Storage.evaluated(full_at_once(self._value, self._shape), None, self._size, None)
        tensor._label = CPU
        tensor._writes = [0]
        return tensor


def filled_plan_of(function: Callable, args: tuple, kwargs: dict, made: Any) -> FilledPlan:
    """The plan of a call that has made a tensor.

    Raises:
        Bypass: there is none.
    """
    with DisableTorchFunction():
        if type(made) is not Torchish or type(made._node) is not Storage or made._label != CPU:
            raise Bypass("no new tensor, or one on another device")
        physical = made._node._physical
        if (
            type(physical) is not PhysicalArray
            or type(physical.array) is not ArrayImpl
            or made._node.history is not None
        ):
            raise Bypass("a new tensor that is known, or requires grad")
        if not made.is_contiguous():
            raise Bypass("a new tensor with strides of its own")
        return FilledPlan(number_in_dtype(FILLED[function](*args, **kwargs), canonical(made.dtype)), made)
