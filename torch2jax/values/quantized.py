"""Tensors of PyTorch's own quantized dtypes that code closes over: they are constants, so PyTorch itself computes.

What it gives of them in other dtypes (`dequantize`, `int_repr`, scales) are tensors of the call. Nothing is traced.
"""

import contextlib
from typing import Any

import torch

from ..errors import QuantizedError
from ..internals.guards import DisableTorchFunction
from ..rules.kinds import serves_without_values
from ..tensors.tensor import Torchish
from ..tensors.trees import flatten, map_arguments
from .call import ValuesCall
from .valueless import natively

__all__: list[str] = []


@serves_without_values(QuantizedError)
def _run(error: QuantizedError, call: ValuesCall, function: Any, args: tuple, kwargs: dict) -> Any:
    """Runs a function in PyTorch itself, where all its tensors are from outside.

    Raises:
        QuantizedError: one is of the call, or is written to.
    """
    if function is torch.Tensor.__deepcopy__:  # of the structure of a module: nothing writes to it
        return args[0]
    leaves = flatten((args, kwargs))[0]
    if _writes(function) or kwargs.get("out") is not None or any(isinstance(x, Torchish) for x in leaves):
        raise error
    with natively(call), torch.no_grad():
        result = function(*args, **kwargs)
    return map_arguments(lambda x: _own(call, x), result)


def _own(call: ValuesCall, value: Any) -> Any:
    """What a call's code sees of a result: one that is quantized stays PyTorch's."""
    if not isinstance(value, torch.Tensor):
        return value
    with DisableTorchFunction():
        is_quantized = value.is_quantized
    return value if is_quantized else call.lift_own(value)


def _writes(function: Any) -> bool:
    name: str = getattr(function, "__name__", "")
    with contextlib.suppress(AttributeError):
        if function._schema.is_mutable:
            return True
    is_special = name.startswith("__") and name.endswith("__")
    return name in ("__setitem__", "__set__") or name.startswith("__i") if is_special else name.endswith("_")
