"""Python numbers beside tensors: which ones PyTorch refuses, and what happens to those that do not fit a dtype."""

import cmath
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from .dtypes import cpp_name

__all__ = ["expect_fits", "expect_integer", "number_in_dtype", "values_in_dtype", "wrapped"]


_POWERS = jnp.dtype(jnp.float8_e8m0fnu)  # of two: there is no zero among them


def expect_integer(value: int) -> None:
    """Refuses an integer that PyTorch's arguments cannot carry.

    Raises:
        OverflowError: 64 bits do not hold it, with or without a sign.
    """
    if not -(2**63) <= value < 2**64:
        raise OverflowError(f"got an integer of {value.bit_length()} bits; wanted one of at most 64")


def expect_fits(value: Any, dtype: torch.dtype) -> None:
    """Refuses a Python number that a tensor is to be filled or scaled with, but that its dtype does not hold.

    Negative integers wrap around in unsigned dtypes, and infinities are held by all that have them. What is no Python
    number is passed over.

    Raises:
        OverflowError: the number is an integer of more than 64 bits.
        RuntimeError: the number is beyond the largest or smallest of `dtype`, or complex where that is real.
    """
    if type(value) is int:
        expect_integer(value)
    elif type(value) is not float and type(value) is not complex:
        return
    if not _fits(value, dtype):
        raise RuntimeError(f"value cannot be converted to type {cpp_name(dtype)} without overflow, got {value}")


def _fits(value: Any, dtype: torch.dtype) -> bool:
    if dtype is torch.bool:
        return True
    if isinstance(value, complex):
        part = torch.float64 if dtype is torch.complex128 else torch.float32
        return _fits(value.real, part) and (_fits(value.imag, part) if dtype.is_complex else value.imag == 0)
    if dtype.is_floating_point or dtype.is_complex:
        return not cmath.isfinite(value) or abs(value) <= torch.finfo(dtype).max
    info = torch.iinfo(_meant(dtype))
    least = -info.max if info.min == 0 and isinstance(value, int) else info.min
    return least <= value <= info.max


def _meant(dtype: torch.dtype) -> torch.dtype:
    # With jax_enable_x64 off an int64 array is an int32 one before anybody sees it.
    x64 = jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]
    return torch.int64 if dtype is torch.int32 and not x64 else dtype


def wrapped(value: Any, dtype: torch.dtype):
    """A Python number as an operand of a dtype: an integer of 32 bits wraps around, as others do when they are cast."""
    if type(value) is int and not -(2**31) <= value < 2**31 and _meant(dtype) is torch.int32:
        return (value + 2**31) % 2**32 - 2**31
    return value


def values_in_dtype(array: np.ndarray, array_dtype: np.dtype) -> np.ndarray:
    """An array as one of a dtype holds it, of integers as `number_in_dtype` does."""
    if array.dtype == np.int64 and array_dtype == np.int32:
        array = np.minimum(np.maximum(array, -(2**31)), 2**31 - 1)  # as np.clip, in half the time
    return array.astype(array_dtype, copy=False)


def number_in_dtype(value: Any, array_dtype: np.dtype) -> np.ndarray:
    """A Python number as an array of a dtype holds it.

    With ``jax_enable_x64`` off a number may be too large for the 32 bits that hold an int64 tensor: it becomes the
    largest there is, so that a bound (``torch.iinfo(torch.int64).max``) stays a bound.
    """
    if (
        type(value) in (int, float)
        and -128 <= value <= 127
        and np.dtype(array_dtype).kind in ("if" if value < 0 else "uif")
    ):
        return np.asarray(value, array_dtype)  # the most frequent ones, which all dtypes hold
    if array_dtype == np.int32 and type(value) is int:
        value = min(max(value, -(2**31)), 2**31 - 1)
    if type(value) is complex and np.dtype(array_dtype).kind not in "bc":
        value = value.real
    if value == 0 and array_dtype == _POWERS:
        value = jnp.finfo(_POWERS).tiny
    with np.errstate(over="ignore"):  # infinity, as in PyTorch
        return np.asarray(value).astype(array_dtype)
