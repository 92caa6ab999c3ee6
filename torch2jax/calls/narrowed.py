"""64-bit and 32-bit operands in one operator, while JAX's arrays have 32 bits.

An array stands for either dtype then, and what PyTorch refuses for the sake of the other one is meant to work: a module
of doubles gets arrays that were doubles before JAX narrowed them. One rule for all operators: a call that is refused is
made once more with the dtype of the first operand for all that are held alike.
"""

from typing import Any

import jax
import torch

from ..errors import TracedValueError
from ..internals.operators import OpOverload
from ..rules import registry
from ..rules.tags import Tag
from ..tensors.dtypes import canonical
from ..tensors.tensor import Torchish
from ..tensors.trees import flatten, map_arguments
from .call import this_call

__all__ = ["in_one_dtype"]


def in_one_dtype(func: Any, args: tuple, kwargs: dict, error: Exception) -> tuple[tuple, dict] | None:
    """The arguments with one dtype for all tensors that arrays of one dtype hold; None if they have that already.

    What a function writes to stays what it is: there is nothing to be done where that is not the first argument alone.

    Args:
        func: what refuses the arguments with `error`.
    """
    if jax.config.jax_enable_x64 or isinstance(error, TracedValueError):  # pyright: ignore[reportAttributeAccessIssue]
        return None
    firsts: dict[Any, torch.dtype] = {}
    tensors = [x for x in flatten((args, kwargs))[0] if type(x) is Torchish]
    for tensor in tensors:
        firsts.setdefault(canonical(tensor.dtype), tensor.dtype)
    if len(firsts) == len({x.dtype for x in tensors}) or _may_write_others(func, args, kwargs):
        return None

    def converted(x: Any):
        return x.to(firsts[canonical(x.dtype)]) if type(x) is Torchish else x

    with this_call().inside():
        return map_arguments(converted, (args, kwargs))


def _may_write_others(func: Any, args: tuple, kwargs: dict) -> bool:
    if kwargs.get("out") is not None or any(isinstance(x, (list, tuple)) and _writes(func) for x in args[:1]):
        return True
    if isinstance(func, OpOverload):
        return any(argument.is_write for argument in func._schema.arguments[1:])
    return Tag.WRITES_OTHERS in registry.tags_of(func)


def _writes(func: Any) -> bool:
    return func.__name__.partition(".")[0].endswith("_")
