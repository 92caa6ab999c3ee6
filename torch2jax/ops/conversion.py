"""Conversions of dtype, device label and memory format."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..internals.dispatch import DisableTorchFunction, parse_to
from ..rules.float8 import FLOAT8, to_float8
from ..rules.inline import call_inlined
from ..rules.options import Tag
from ..rules.promotion import Promotion, kind_of, promoted
from ..rules.registry import implements_tensors
from ..runtime.translation import current, lift
from ..tensors.array_buffer import ArrayBuffer
from ..tensors.dtypes import canonical
from ..tensors.known import defer, in_pytorch, is_small
from ..tensors.tensor import strides_of_copy, wrap, wrap_buffer
from ..tensors.traced import is_at_once, is_traced, without_gradient
from ..tracing.primitives import linear_call
from ..values.known import lazily

aten = torch.ops.aten
Tensor = torch.Tensor


def convert(array, dtype: np.dtype):
    """`array` in another dtype, with PyTorch's meaning: C's casts, the real part of a complex number."""
    if array.dtype == dtype:
        return array
    if jnp.issubdtype(array.dtype, jnp.complexfloating) and not jnp.issubdtype(dtype, jnp.complexfloating):
        if jnp.issubdtype(dtype, jnp.bool_):
            return lax.ne(array, array.dtype.type(0))
        array = lax.real(array)
    if dtype in FLOAT8:
        return to_float8(array, dtype)
    if array.dtype in FLOAT8 and jnp.issubdtype(dtype, jnp.floating):
        return _from_float8(array, dtype)
    if jnp.issubdtype(array.dtype, jnp.floating) and jnp.issubdtype(dtype, jnp.integer):
        if dtype.itemsize < 4:
            array = lax.convert_element_type(array, np.int32)  # wraps around, where XLA's own cast saturates
        elif dtype == np.uint32:
            negative = lax.convert_element_type(lax.convert_element_type(array, np.int32), dtype)
            positive = lax.convert_element_type(array, dtype)
            return lax.select(lax.lt(array, array.dtype.type(0)), negative, positive)
    return lax.convert_element_type(array, dtype)


def _converted_array(array, dtype: np.dtype):
    """As `convert`; a conversion of many steps is compiled as one where it recurs."""
    if dtype in FLOAT8 or array.dtype in FLOAT8:
        return call_inlined(convert, (array, dtype), {}, "to")
    return convert(array, dtype)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _from_float8(array, dtype: np.dtype):
    """`array`, in 8 bits, in a dtype of more, in which its gradient comes back: it saturates as values do."""
    return lax.convert_element_type(array, dtype)


@_from_float8.defjvp
def _from_float8_jvp(dtype: np.dtype, primals, tangents):
    result = _from_float8(*primals, dtype)

    def push(residuals: list, arrays: list) -> list:
        return [lax.convert_element_type(arrays[0], dtype)]

    def pull(residuals: list, cotangents: list) -> list:
        return [None if cotangents[0] is None else to_float8(cotangents[0], primals[0].dtype)]

    return result, linear_call(push, pull, [], list(tangents), [result])[0]


def converted(input, dtype=None, device=None, copy: bool = False, memory_format=None, non_blocking: bool = False):
    """``input.to(...)``: the tensor itself if nothing changes, else a copy."""
    input = lift(input)
    with DisableTorchFunction():
        return _converted(input, dtype, device, copy, memory_format)


def _converted(input, dtype, device, copy: bool, memory_format):
    dtype = dtype or input.dtype
    label = input._label if device is None else torch.device(device)
    memory_format = memory_format or torch.preserve_format
    unchanged = dtype == input.dtype and label == input._label
    if unchanged and not copy and _is_in(input, memory_format):
        return input
    known, array_dtype = input.known, canonical(dtype)
    grad = (dtype.is_floating_point or dtype.is_complex) and torch.is_grad_enabled()
    if isinstance(known, torch.Tensor) and input.history is None and current().is_lazy and is_small(known.numel()):
        made = in_pytorch(torch.Tensor.to, known, dtype, copy=True)
        lazy = lazily(input, made, lambda buffer: ArrayBuffer(convert(buffer.array, array_dtype), buffer.layout))
        return wrap_buffer(lazy, dtype, made, strides_of_copy(input, memory_format), label)
    buffer = input.buffer
    result = _converted_array(buffer.array, array_dtype)
    if known is not None:
        known = None if is_at_once(result) else defer(torch.Tensor.to, known, dtype, copy=True)
    if is_traced(result) and not grad:
        result = without_gradient(result) if jnp.issubdtype(result.dtype, jnp.inexact) else result
    strides = strides_of_copy(input, memory_format)
    copied = wrap(result, dtype, known, layout=buffer.layout, strides=strides, device=label)
    if grad:
        copied.descend((input,), "ToCopy")
    return copied


def _is_in(tensor: Tensor, memory_format) -> bool:
    return memory_format is torch.preserve_format or tensor.is_contiguous(memory_format=memory_format)


@implements_tensors(Tensor.to, tags=[Tag.CONVERTS])
def to(self, *args, **kwargs):
    kwargs = {key: value for key, value in kwargs.items() if value is not None}
    copy, other = kwargs.pop("copy", False), kwargs.pop("tensor", None)
    if args and isinstance(args[0], torch.Tensor):
        other, *args = args
    if other is not None:
        return converted(self, other.dtype, other.device, args[1] if len(args) > 1 else copy, **kwargs)
    position_of_copy = 2 if args and isinstance(args[0], torch.dtype) else 3
    if len(args) > position_of_copy:
        *args, copy = args
    with DisableTorchFunction():
        device, dtype, _, memory_format = parse_to(*args, **kwargs)
    return converted(self, dtype, device, copy, memory_format)


@implements_tensors(aten._to_copy.default)
def _to_copy(self, *, dtype=None, layout=None, device=None, pin_memory=None, non_blocking=False, memory_format=None):
    return converted(self, dtype, device, True, memory_format)


@implements_tensors(torch.ops.prims.convert_element_type.default)
def convert_element_type(a, dtype):
    return converted(a, dtype, copy=True)


@implements_tensors(torch.ops.prims.device_put.default)
def device_put(a, device, non_blocking=False):
    return converted(a, device=device, copy=True)


@implements_tensors(Tensor.type_as, aten.type_as.default)
def type_as(self, other):
    return converted(self, other.dtype, other.device)


def _named_conversion(name: str, dtype: torch.dtype) -> None:
    def rule(self, memory_format=None):
        return converted(self, dtype, memory_format=memory_format)

    implements_tensors(getattr(Tensor, name), tags=[Tag.CONVERTS])(rule)


for _name, _dtype in (
    ("float", torch.float32),
    ("double", torch.float64),
    ("half", torch.float16),
    ("bfloat16", torch.bfloat16),
    ("int", torch.int32),
    ("long", torch.int64),
    ("short", torch.int16),
    ("char", torch.int8),
    ("byte", torch.uint8),
    ("bool", torch.bool),
    ("cfloat", torch.complex64),
    ("cdouble", torch.complex128),
):
    _named_conversion(_name, _dtype)


@implements_tensors(torch.result_type)
def result_type(tensor, other):
    return promoted(Promotion.NO_OPMATH, tuple(kind_of(x) for x in (tensor, other)))[1]


@implements_tensors(Tensor.cpu)
def cpu(self, memory_format=None):
    return converted(self, device="cpu", memory_format=memory_format)


@implements_tensors(Tensor.cuda)
def cuda(self, device=None, non_blocking=False, memory_format=None):
    return converted(self, device=_cuda(device), memory_format=memory_format)


def _cuda(device) -> torch.device:
    return torch.device("cuda", device) if isinstance(device, int) else torch.device(device or "cuda")


_LEGACY_TYPES = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "ShortTensor": torch.int16,
    "CharTensor": torch.int8,
    "ByteTensor": torch.uint8,
    "BoolTensor": torch.bool,
}


@implements_tensors(Tensor.type)
def type_(self, dtype=None, non_blocking=False, **kwargs):
    if dtype is None:
        names = {dtype: name for name, dtype in _LEGACY_TYPES.items()}
        return ("torch.cuda." if self.device.type == "cuda" else "torch.") + names[self.dtype]
    if isinstance(dtype, torch.dtype):
        return converted(self, dtype)
    if dtype is Tensor:
        return converted(self, torch.get_default_dtype())
    name = dtype if isinstance(dtype, str) else f"{dtype.__module__}.{dtype.__name__}"
    device = "cuda" if name.startswith("torch.cuda.") else "cpu"
    if (wanted := _LEGACY_TYPES.get(name.rpartition(".")[2])) is None:
        raise ValueError(f"invalid type: {name!r}; wanted a torch.dtype or one of {', '.join(_LEGACY_TYPES)}")
    return converted(self, wanted, device)


@implements_tensors(torch.ops.higher_order.out_dtype)
def out_dtype(op, output_dtype, *args):
    """An operator whose result is of a given dtype, which its operands are promoted with."""
    promoted = functools.reduce(torch.promote_types, (x.dtype for x in args if isinstance(x, Tensor)), output_dtype)
    return op(*(converted(x, promoted) if isinstance(x, Tensor) else x for x in args)).to(output_dtype)
