"""PyTorch's type promotion of elementwise operands, computed by PyTorch once per combination of dtypes."""

import enum
import math

import torch

from ..internals.dispatch import DisableTorchFunction
from ..internals.tensors import ELEMENTWISE_TYPE_PROMOTION_KIND as KIND, computation_dtype, elementwise_dtypes
from ..runtime.caches import remembered
from ..tensors.dtypes import FLOAT8, default_dtype, expect_integer
from ..tensors.tensor import Torchish


class Promotion(enum.Enum):
    """A rule by which the dtypes of the operands decide the dtypes of the computation and of the result."""

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
    """Common dtype, and computed in it: numbers are rounded before they are compared; the result is bool."""
    COMPLEX_TO_FLOAT = KIND.COMPLEX_TO_FLOAT
    """As DEFAULT, but the result of complex operands is real."""
    DEFAULT_ONCE = "DEFAULT_ONCE"
    """As DEFAULT, for one operation that rounds once: half precision has no need of casts around it."""
    INT_TO_FLOAT_ONCE = "INT_TO_FLOAT_ONCE"
    """As INT_TO_FLOAT, for one operation that rounds once."""


_ROUNDED_ONCE = {Promotion.DEFAULT_ONCE: Promotion.DEFAULT, Promotion.INT_TO_FLOAT_ONCE: Promotion.INT_TO_FLOAT}


def kind_of(operand: object) -> tuple[torch.dtype | type, bool]:
    """The part of an operand's type that decides the common dtype.

    Of a tensor: its dtype, and whether it has no dimensions. Of a Python number, or a tensor that stands for one: its
    type, and whether half precision holds it as it is; PyTorch computes with Python numbers in float32.

    Raises:
        OverflowError: an integer is beyond 64 bits.
    """
    if isinstance(operand, torch.Tensor):
        if operand.ndim == 0 and isinstance(operand, Torchish) and operand.python_type is not None:
            return operand.python_type, False
        return operand.dtype, operand.ndim == 0
    return type(operand), _is_short(operand)


def _is_short(number: object) -> bool:
    if not isinstance(number, (int, float)):
        return True
    if not abs(number) < 2**16:
        if isinstance(number, int):
            expect_integer(number)
        return False
    mantissa, exponent = math.frexp(number)
    return (mantissa * 256).is_integer() and exponent >= -13


def promoted(kind: Promotion, kinds: tuple[tuple[torch.dtype | type, bool], ...]) -> tuple[torch.dtype, torch.dtype]:
    """The dtype to compute in and the dtype of the result, for operands of these kinds.

    Raises:
        RuntimeError: one is an 8-bit float, and another has another dtype.
    """
    compute, result = _promoted(_ROUNDED_ONCE.get(kind, kind), kinds, default_dtype())
    if compute != result and kind in _ROUNDED_ONCE and all(short for of, short in kinds if isinstance(of, type)):
        compute = result
    return compute, result


def _number_type(kind: type) -> type:
    """Python's own class of a number whose class is derived from it, as of an `enum.IntEnum`."""
    return next((x for x in (bool, int, float, complex) if issubclass(kind, x)), kind)


@remembered(4096)
def _promoted(kind: Promotion, kinds: tuple, default: torch.dtype) -> tuple[torch.dtype, torch.dtype]:
    del default  # part of the key: the answer depends on it
    found = _of_one_dtype(kind, kinds)
    if found is not None:
        return found
    dtypes = {of for of, _ in kinds if isinstance(of, torch.dtype)}
    if len(dtypes) > 1 and not dtypes.isdisjoint(FLOAT8):  # what PyTorch computes the answer with would take the first
        names = ", ".join(sorted(map(str, dtypes)))
        raise RuntimeError(f"Promotion for Float8 Types is not supported, got {names}: convert them to one dtype first")
    with DisableTorchFunction():
        examples = [
            _number_type(of)(1) if isinstance(of, type) else torch.empty((() if is_scalar else (1,)), dtype=of)
            for of, is_scalar in kinds
        ]
        try:
            compute, result = elementwise_dtypes(*examples, type_promotion_kind=kind.value)  # pyright: ignore[reportArgumentType]
        except ValueError as error:  # of an operand that is no number: an operator of Python's says what it does then
            raise TypeError(str(error)) from None
        if kind is Promotion.ALWAYS_BOOL:
            compute, _ = elementwise_dtypes(*examples, type_promotion_kind=KIND.NO_OPMATH)
        return compute, result


def _of_one_dtype(kind: Promotion, kinds: tuple) -> tuple[torch.dtype, torch.dtype] | None:
    """The answer where all tensors have one dtype, and numbers do not change it: PyTorch's function imports sympy."""
    dtypes = {of for of, _ in kinds if not isinstance(of, type)}
    numbers = {of for of, _ in kinds if isinstance(of, type)}
    if len(dtypes) != 1:
        return None
    (dtype,) = dtypes
    is_float = dtype.is_floating_point
    if (
        dtype.is_complex
        or (is_float and dtype.itemsize == 1)
        or not numbers <= (_REAL if is_float else _INTEGERS if dtype is not torch.bool else {bool})
    ):
        return None
    if kind is Promotion.NO_OPMATH:
        return dtype, dtype
    if kind is Promotion.ALWAYS_BOOL:
        return dtype, torch.bool
    if kind is Promotion.DEFAULT or is_float:
        return computation_dtype(dtype), dtype
    return None


_INTEGERS, _REAL = frozenset((bool, int)), frozenset((bool, int, float))
