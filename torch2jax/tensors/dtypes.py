"""PyTorch's dtypes and JAX's, and how they correspond.

Also here: Python numbers beside tensors: the ones that PyTorch refuses, and those that do not fit a dtype.
"""

import cmath
import functools
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ..internals.transforms import autocast_supported_devices, is_any_autocast_enabled
from ..runtime.errors.locations import user_level, user_location
from ..runtime.translation import current

_NAMES = {
    torch.bool: "bool",
    torch.uint8: "uint8",
    torch.uint16: "uint16",
    torch.uint32: "uint32",
    torch.uint64: "uint64",
    torch.int8: "int8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
    torch.complex64: "complex64",
    torch.complex128: "complex128",
    torch.float8_e4m3fn: "float8_e4m3fn",
    torch.float8_e4m3fnuz: "float8_e4m3fnuz",
    torch.float8_e5m2: "float8_e5m2",
    torch.float8_e5m2fnuz: "float8_e5m2fnuz",
    torch.float8_e8m0fnu: "float8_e8m0fnu",
}
_OF_TYPES = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}
_TO_JAX = {dtype: jnp.dtype(name) for dtype, name in _NAMES.items()}
_TO_TORCH = {array_dtype: dtype for dtype, array_dtype in _TO_JAX.items()}

Takes = frozenset[torch.dtype]
"""The dtypes that an operator is defined for."""

FLOATS: Takes = frozenset(dtype for dtype in _NAMES if dtype.is_floating_point)
FLOAT8: Takes = frozenset(dtype for dtype in FLOATS if dtype.itemsize == 1)
COMPLEX: Takes = frozenset(dtype for dtype in _NAMES if dtype.is_complex)
BOOL: Takes = frozenset({torch.bool})
HALF: Takes = frozenset({torch.float16, torch.bfloat16})
INTEGERS: Takes = frozenset(_NAMES) - FLOATS - COMPLEX - BOOL
INEXACT = FLOATS | COMPLEX
REALS = FLOATS | INTEGERS
NUMBERS = REALS | COMPLEX
REALS_AND_BOOL = REALS | BOOL
INTEGERS_AND_BOOL = INTEGERS | BOOL

FACTORED: Takes = frozenset({torch.float32, torch.float64, torch.complex64, torch.complex128})
"""The dtypes that LAPACK computes in."""

_TYPE_NAMES = {
    "int64": "Long",
    "int32": "Int",
    "int16": "Short",
    "int8": "Char",
    "uint8": "Byte",
    "bool": "Bool",
    "float32": "Float",
    "float64": "Double",
    "float16": "Half",
    "bfloat16": "BFloat16",
    "complex64": "ComplexFloat",
    "complex128": "ComplexDouble",
}
SPARSE_LAYOUTS = frozenset((torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc))
DOUBLES = frozenset((torch.float64, torch.complex128))
_NARROW = (np.dtype(np.int32), np.dtype(np.uint32))
_KINDS = {"floating-point": FLOATS, "complex": COMPLEX, "integer": INTEGERS, "bool": BOOL}


_of_process = torch.get_default_dtype  # PyTorch's own, while something stands in for it


def default_dtype() -> torch.dtype:
    """The dtype of floating-point numbers that have none: the call's own, or that of the process."""
    call = current()
    return (None if call is None else call.settings.default_dtype) or _of_process()


def dtype_of_type(kind: type) -> torch.dtype:
    """The dtype that PyTorch understands by a Python type, where it expects a dtype.

    Raises:
        TypeError: it takes no such type.
    """
    try:
        return _OF_TYPES[kind]
    except KeyError:
        raise TypeError(f"dtype got {kind}; wanted a torch.dtype, or one of bool, int, float, complex") from None


def expect(name: str, dtype: torch.dtype, takes: Takes) -> None:
    """Refuses a dtype that an operator is not defined for, whatever XLA would make of it.

    Raises:
        NotImplementedError: `dtype` is not among those that it `takes`.
    """
    if dtype not in takes:
        kinds = [kind for kind, members in _KINDS.items() if members <= takes]
        others = takes.difference(*(_KINDS[kind] for kind in kinds))
        *most, last = kinds + sorted(map(str, others))
        wanted = f"{', '.join(most)} or {last}" if most else last
        name = name.strip("_")
        raise NotImplementedError(
            f"\"{name}\" not implemented for '{type_name(dtype)}': "
            f"{name} got a tensor of {dtype}; wanted one of {wanted} dtype: convert it first"
        )


def type_name(dtype: torch.dtype) -> str:
    """The name of a dtype in PyTorch's errors."""
    name = str(dtype).removeprefix("torch.")
    return name.capitalize() if dtype in FLOAT8 else _TYPE_NAMES.get(name, name)


def cpp_name(dtype: torch.dtype) -> str:
    """The C++ type of a dtype's numbers, as PyTorch's errors name it."""
    name = str(dtype).removeprefix("torch.")
    return _CPP_NAMES.get(name) or (f"c10::{name.capitalize()}" if dtype.is_floating_point else f"{name}_t")


_CPP_NAMES = {
    "bool": "bool",
    "int32": "int",
    "float16": "c10::Half",
    "bfloat16": "c10::BFloat16",
    "float32": "float",
    "float64": "double",
    "complex64": "c10::complex<float>",
    "complex128": "c10::complex<double>",
}


def dtype_t2j(dtype: Any) -> np.dtype:
    """The JAX dtype of the same name, whatever ``jax_enable_x64`` says. One of JAX's own, or its name, is that itself.

    Raises:
        TypeError: JAX has no such dtype (quantized types, complex32, ...).
    """
    found = _TO_JAX.get(dtype)
    if found is not None:
        return found
    if not isinstance(dtype, torch.dtype) and dtype is not None:
        try:
            return jnp.dtype(dtype)
        except TypeError:
            raise TypeError(f"got {dtype!r}; wanted a dtype of PyTorch's or JAX's, or its name") from None
    raise TypeError(f"JAX has no counterpart of {dtype}; {_instead(dtype)}")


def _instead(dtype: torch.dtype | None) -> str:
    if str(dtype).startswith(("torch.qint", "torch.quint")):
        return "it has a scale beside: keep tensor.int_repr() and the scale as plain tensors, or tensor.dequantize()"
    return "convert the tensor to another dtype first"


def dtype_j2t(dtype: jax.typing.DTypeLike | torch.dtype) -> torch.dtype:
    """The PyTorch dtype of the same name. One of PyTorch's own is that itself.

    Raises:
        TypeError: PyTorch has no such dtype (int4, PRNG keys, ...).
    """
    if isinstance(dtype, torch.dtype):
        return dtype
    try:
        return _TO_TORCH[jnp.dtype(dtype)]
    except (KeyError, TypeError):
        raise TypeError(f"PyTorch has no counterpart of the JAX dtype {dtype}") from None


@functools.cache
def _canonical(dtype: torch.dtype, x64: bool) -> np.dtype:
    del x64  # part of the key: the answer depends on it
    return jnp.dtype(jax.dtypes.canonicalize_dtype(dtype_t2j(dtype)))


def canonical(dtype: torch.dtype) -> np.dtype:
    """The dtype of the array that holds a tensor of `dtype`: narrower than its name while ``jax_enable_x64`` is off."""
    return _canonical(dtype, jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]


def has_doubles() -> bool:
    """Returns True if JAX has double precision: ``jax_enable_x64`` is on."""
    return jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]


def has_same_array_dtype(one: torch.dtype, other: torch.dtype) -> bool:
    """True if arrays of one dtype hold both: float32 and float64 while ``jax_enable_x64`` is off."""
    return one == other or canonical(one) == canonical(other)


def logical(array_dtype: np.dtype, candidates: tuple[torch.dtype, ...]) -> torch.dtype:
    """The PyTorch dtype of a result: the first candidate that is held in the array's dtype, else the one of that name.

    With ``jax_enable_x64`` off an int64 tensor is held as int32; what is computed from it stays int64.
    """
    for dtype in candidates:
        if canonical(dtype) == array_dtype:
            return dtype
    return dtype_j2t(array_dtype)


def is_integral(dtype: torch.dtype) -> bool:
    """Returns True if `dtype` is an integer type or bool."""
    return not (dtype.is_floating_point or dtype.is_complex)


_POWERS = jnp.dtype(jnp.float8_e8m0fnu)  # of two: there is no zero among them


def expect_integer(value: int) -> None:
    """Refuses an integer that PyTorch's arguments cannot carry.

    Raises:
        OverflowError: 64 bits do not hold it, with or without a sign.
    """
    if not -(2**63) <= value < 2**64:
        raise OverflowError(f"got an integer of {value.bit_length()} bits; wanted one of at most 64")


def expect_fits(value: object, dtype: torch.dtype) -> None:
    """Refuses a Python number to fill or scale a tensor with, if its dtype does not hold it.

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
    info = torch.iinfo(held_as(dtype))
    least = -info.max if info.min == 0 and isinstance(value, int) else info.min
    return least <= value <= info.max


def held_as(dtype: torch.dtype) -> torch.dtype:
    """The widest dtype whose tensors are held in arrays of a dtype: int64 for int32 while jax_enable_x64 is off."""
    return torch.int64 if dtype is torch.int32 and not has_doubles() else dtype


_has_warned = False


def tell_of_narrowing(dtype: torch.dtype) -> None:
    """Warns once in a process that 64-bit floating-point numbers of the user's are held in 32 bits."""
    global _has_warned
    if dtype in DOUBLES and not has_doubles() and not _has_warned:
        _has_warned = True
        warnings.warn(
            f"got a {dtype} tensor while jax_enable_x64 is off: JAX computes in 32 bits. To keep 64, call "
            'jax.config.update("jax_enable_x64", True); to be silent, give it .float() (said once)',
            stacklevel=user_level(),
        )


_BOUNDS = {-(2**63): -(2**31), 2**63 - 1: 2**31 - 1, 2**64 - 1: 2**32 - 1}
"""The bounds of 64 bits, and those of 32 for them: ``torch.iinfo(torch.int64).max`` stays the largest value."""


def in_32_bits(value: int, array_dtype: np.dtype) -> int:
    """Checks that an integer fits into the 32 bits of the arrays that hold 64-bit integers.

    Negative ones wrap around in an unsigned array, as they do in 64 bits.

    Raises:
        OverflowError: 32 bits do not hold it, and it is no bound of 64 bits.
    """
    least, most = (-(2**31), 2**31 - 1) if array_dtype.kind == "i" else (-(2**32) + 1, 2**32 - 1)
    if least <= value <= most:
        return value
    try:
        return _BOUNDS[value]
    except KeyError:
        raise OverflowError(
            f"got the integer {value}, at {user_location()}, which JAX's arrays of 32 bits do not hold, while "
            'jax_enable_x64 is off; turn it on with jax.config.update("jax_enable_x64", True)'
        ) from None


def values_in_dtype(array: np.ndarray, array_dtype: np.dtype) -> np.ndarray:
    """An array as one of a dtype holds it, of integers as `number_in_dtype` does.

    Raises:
        OverflowError: as `in_32_bits`.
    """
    if array.dtype.itemsize == 8 and array.dtype.kind in "iu" and array_dtype.itemsize == 4 and array.size:
        info = np.iinfo(array_dtype)
        for value in (array.min(), array.max()):
            if not info.min <= value <= info.max:
                return _with_bounds(array, array_dtype)
    return array.astype(array_dtype, copy=False)


def _with_bounds(array: np.ndarray, array_dtype: np.dtype) -> np.ndarray:
    info = np.iinfo(array_dtype)
    is_beyond = (array < info.min) | (array > info.max)
    result = np.where(is_beyond, 0, array).astype(array_dtype)
    for value in np.unique(array[is_beyond]).tolist():
        result[array == value] = in_32_bits(value, array_dtype)
    return result


def number_in_dtype(value: Any, array_dtype: np.dtype) -> np.ndarray:
    """A Python number as an array of a dtype holds it.

    Raises:
        OverflowError: as `in_32_bits`.
    """
    if (
        type(value) in (int, float)
        and -128 <= value <= 127
        and np.dtype(array_dtype).kind in ("if" if value < 0 else "uif")
    ):
        return np.asarray(value, array_dtype)  # the most frequent ones, which all dtypes hold
    if array_dtype in _NARROW and type(value) is int and not has_doubles():
        value = in_32_bits(value, np.dtype(array_dtype))
    if type(value) is complex and np.dtype(array_dtype).kind not in "bc":
        value = value.real
    if value == 0 and array_dtype == _POWERS:
        value = jnp.finfo(_POWERS).tiny
    with np.errstate(over="ignore"):  # infinity, as in PyTorch
        return np.asarray(value).astype(array_dtype)


def autocast_region() -> str | None:
    """The device that names the region of autocast in which this thread is, None outside of any."""
    if not is_any_autocast_enabled():
        return None
    return next(device for device in autocast_supported_devices() if torch.is_autocast_enabled(device))
