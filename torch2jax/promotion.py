"""PyTorch's type promotion of elementwise operands, computed by PyTorch once per combination of dtypes."""

import enum
import functools

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as KIND
from torch._prims_common import elementwise_dtypes

__all__ = ["Promotion", "promoted"]


class Promotion(enum.Enum):
    """How the dtypes of the operands decide the dtype of the computation and of the result."""

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


def promoted(kind: Promotion, operands) -> tuple[torch.dtype, torch.dtype]:
    """The dtype to compute in and the dtype of the result, for tensors and Python scalars (None is passed over)."""
    return _promoted(kind, tuple(_kind_of(x) for x in operands if x is not None), torch.get_default_dtype())


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
        return elementwise_dtypes(*examples, type_promotion_kind=kind.value)
