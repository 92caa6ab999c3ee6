"""PyTorch's type promotion of elementwise operands, computed by PyTorch once per combination of dtypes."""

import enum
import functools
import math

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as KIND, elementwise_dtypes

__all__ = ["Promotion", "promoted"]


class Promotion(enum.Enum):
    """How the dtypes of the operands decide the dtype of the computation and of the result."""

    __hash__ = object.__hash__  # members are unique, and looked up for every operation

    DEFAULT = KIND.DEFAULT
    """Common dtype; half-precision operands are computed in float32."""
    NO_OPMATH = KIND.NO_OPMATH
    """Common dtype, computed in it."""
    INT_TO_FLOAT = KIND.INT_TO_FLOAT
    """As DEFAULT, but integers become the default floating-point dtype."""
    BOOL_TO_LONG = KIND.BOOL_TO_LONG
    """As DEFAULT, but bool becomes int64."""
    ALWAYS_BOOL = KIND.ALWAYS_BOOL
    """Common dtype; the result is bool."""
    COMPLEX_TO_FLOAT = KIND.COMPLEX_TO_FLOAT
    """As DEFAULT, but the result of complex operands is real."""
    DEFAULT_ONCE = "DEFAULT_ONCE"
    """As DEFAULT, for one operation that rounds once: half precision has no need of casts around it."""
    INT_TO_FLOAT_ONCE = "INT_TO_FLOAT_ONCE"
    """As INT_TO_FLOAT, for one operation that rounds once."""


_ROUNDED_ONCE = {Promotion.DEFAULT_ONCE: Promotion.DEFAULT, Promotion.INT_TO_FLOAT_ONCE: Promotion.INT_TO_FLOAT}


def promoted(kind: Promotion, operands) -> tuple[torch.dtype, torch.dtype]:
    """The dtype to compute in and the dtype of the result, for tensors and Python scalars (None is passed over)."""
    kinds = tuple(_kind_of(x) for x in operands if x is not None)
    compute, result = _promoted(_ROUNDED_ONCE.get(kind, kind), kinds, torch.get_default_dtype())
    if compute != result and kind in _ROUNDED_ONCE and all(_is_short(x) for x in operands):
        compute = result
    return compute, result


def _is_short(operand) -> bool:
    """Whether half precision holds an operand as it is; PyTorch computes with Python scalars in float32."""
    if not isinstance(operand, (int, float)):
        return True
    mantissa, exponent = math.frexp(operand)
    return (mantissa * 256).is_integer() and -13 <= exponent <= 16


def _kind_of(operand):
    return (operand.dtype, operand.ndim == 0) if isinstance(operand, torch.Tensor) else type(operand)


@functools.cache
def _promoted(kind: Promotion, operands: tuple, default: torch.dtype) -> tuple[torch.dtype, torch.dtype]:
    del default  # part of the key: the answer depends on it
    with torch._C.DisableTorchFunction():
        examples = [
            operand(1) if isinstance(operand, type) else torch.empty((() if operand[1] else (1,)), dtype=operand[0])
            for operand in operands
        ]
        return elementwise_dtypes(*examples, type_promotion_kind=kind.value)  # pyright: ignore[reportArgumentType]
