"""Factories: tensors made from Python values, ranges and shapes.

What they make depends on no input. In the graph it stays an operation (an iota, a broadcast), yet its values are known
at trace time; see `tensors.known`.
"""

import functools
import inspect
import math
import operator
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np
import torch
from jax import lax

from ..internals.dispatch import (
    DeviceContext,
    DisableTorchDispatch,
    DisableTorchFunction,
    get_function_stack_at,
    is_torch_function_enabled,
    len_torch_function_stack,
)
from ..rules.inplace import check_cast, write_out
from ..rules.options import Tag
from ..rules.plan import FILLED, full_at_once
from ..rules.registry import implements_tensors
from ..runtime.errors import SparseLayoutError
from ..runtime.errors.locations import user_level
from ..runtime.patches import replaces
from ..runtime.translation import lift, lift_own, this_call
from ..tensors.array_buffer import ArrayBuffer, LazyArray
from ..tensors.dtypes import REALS, canonical, cpp_name, expect, expect_fits, is_integral, number_in_dtype, type_name
from ..tensors.known import defer, in_pytorch, is_small
from ..tensors.rebinding import resize
from ..tensors.tensor import CPU, Torchish, expect_values, note_constants, strides_of_copy, wrap, wrap_buffer
from ..tensors.traced import is_at_once
from ..values.item import Item
from ..values.known import constant
from ..values.pickled import is_lent
from ..values.traced_numbers import plain
from . import bounds
from .arrays import cast
from .gradients import set_requires_grad

aten = torch.ops.aten
Tensor = torch.Tensor


def made_of(
    body: Callable,
    *args,
    shape: tuple[int, ...],
    make: Callable[..., Tensor],
    dtype: torch.dtype,
    device: object = None,
    requires_grad: bool = False,
    strides: tuple[int, ...] | None = None,
) -> Torchish:
    """The tensor of the array ``body(*args)`` of Python values: an operation in the graph, with known values.

    Args:
        make: gives the same in PyTorch, from the dtype.
    """
    call, known, label = this_call(), None, label_of(device)
    expect_values(label, dtype)
    if not shape and call.is_lazy:
        return _requiring_grad(constant(in_pytorch(make, dtype=dtype), device=label), requires_grad)
    values = functools.partial(body, *args)
    if call.stages:
        known = defer(make, dtype=dtype)
        if call.is_lazy and is_small(math.prod(shape)):
            known = known.force()
            buffer = LazyArray(functools.partial(_buffer, values), shape, canonical(dtype))
            with DisableTorchFunction():
                made = wrap_buffer(buffer, dtype, known, strides, label)
            return _requiring_grad(made, requires_grad)
    made = wrap(values(), dtype, known, strides=strides, device=label)
    if known is None:
        note_constants((made,))
    return _requiring_grad(made, requires_grad)


def _requiring_grad(tensor: Torchish, requires_grad: bool) -> Torchish:
    if requires_grad:
        set_requires_grad(tensor, True)
    return tensor


def _buffer(values: Callable) -> ArrayBuffer:
    return ArrayBuffer(values(), None)


def filled(shape, value, dtype: torch.dtype, **options) -> Torchish:
    """A tensor of one value.

    Raises:
        RuntimeError: the dtype does not hold it.
    """
    expect_fits(value, dtype)
    array_dtype, shape = canonical(dtype), tuple(shape)
    value_in_dtype = number_in_dtype(value, array_dtype)
    if type(value) is complex and not dtype.is_complex:
        value = value.real
    make = functools.partial(torch.full, shape, value)
    return made_of(_full, shape, value_in_dtype, array_dtype, shape=shape, make=make, dtype=dtype, **options)


def _full(shape: tuple[int, ...], value: np.ndarray, dtype: np.dtype):
    return full_at_once(value, shape) if is_at_once() else lax.full(shape, value, dtype)


def label_of(device) -> torch.device:
    """The device requested for a new tensor. A label only: no such device needs to exist here."""
    if device is not None:
        return torch.device(device)
    lowest = get_function_stack_at(0) if len_torch_function_stack() else None
    return lowest.device if isinstance(lowest, DeviceContext) else CPU  # that of torch.set_default_device


_PLACEMENT = ("device", "requires_grad")
_MEANINGLESS = ("layout", "pin_memory", "names")


def factory(
    *functions, counts: bool = False, warns: bool = False, operates: bool = False, tags: Iterable[Tag] = ()
) -> Callable[[Callable], Callable]:
    """Declares a body to make new tensors: it need not know of ``out``, layouts and pinned memory.

    It is called with PyTorch's arguments; ``device`` and ``requires_grad`` it hands on as `options`.

    Args:
        counts: what is asked for is a number of elements: an ``out`` that has as many keeps its shape.
        warns: PyTorch warns where an ``out`` with elements has another number of them.
        operates: given tensors, it is an operator: PyTorch warns where an ``out`` with elements has another shape.
        tags: as those of `implements_tensors`.
    """

    def register(body: Callable) -> Callable:
        known = inspect.signature(body).parameters

        def rule(*args, out=None, **kwargs):
            layout = kwargs.get("layout")
            is_sparse = layout not in (None, torch.strided)
            if is_sparse and functions[0] not in (torch.zeros, torch.empty):
                raise SparseLayoutError(f"got layout={layout}")
            for name in _MEANINGLESS:
                kwargs.pop(name, None)
            if "self" in kwargs and "input" in known:
                kwargs["input"] = kwargs.pop("self")
            if out is not None and kwargs.get("dtype") is None and "dtype" in known:
                kwargs["dtype"] = out.dtype
            result = body(*args, **kwargs)
            if out is None:
                return result.to_sparse(layout=layout) if is_sparse else result
            if operates and any(isinstance(x, Tensor) for x in (*args, *kwargs.values())):
                return write_out(result, out)
            return _write_new(result, out, counts, warns)

        implements_tensors(*functions, tags=(Tag.FACTORY, *tags))(rule)
        return body

    return register


def _write_new(result: Torchish, out: Tensor, counts: bool, warns: bool) -> Tensor:
    """Writes new values into an ``out`` tensor, which takes their shape without a word, as in PyTorch."""
    target = lift(out)
    if counts and target.numel() == result.numel():
        result = result.reshape(target.shape)  # pyright: ignore[reportAssignmentType]
    elif target.shape != result.shape:
        if warns and target.numel():
            warnings.warn(
                f"The number of elements in the out tensor of shape {list(target.shape)} is {target.numel()} which "
                f"does not match the computed number of elements {result.numel()}. Note that this may occur as a "
                f"result of rounding error. The out tensor will be resized to a tensor of shape ({result.numel()},).",
                stacklevel=user_level(),
            )
        with DisableTorchFunction():
            check_cast(result, target)
            resize(target, result.shape, result.stride())
    return write_out(result, target)


def new_shape(size: tuple, options: dict) -> tuple[int, ...]:
    """The shape passed to a factory, by position or as ``size=``."""
    return _shape((options.pop("size"),) if "size" in options else size)


def _shape(size: tuple) -> tuple[int, ...]:
    """The shape in ``(2, 3)`` or ``((2, 3),)``, whose entries may be tensors."""
    if len(size) == 1 and isinstance(size[0], (Sequence, torch.Size)):
        size = tuple(size[0])
    shape = tuple(operator.index(n) for n in size)
    if any(n < 0 for n in shape):
        raise RuntimeError(f"Trying to create tensor with negative dimension {min(shape)}: {list(shape)}")
    return shape


def _number(value):
    return aten.item(value) if isinstance(value, torch.Tensor) else value


def _real_number(value):
    value = _number(value)
    if isinstance(value, complex):
        expect_fits(value, torch.float64)
        return value.real
    return value


FILLED[torch.zeros] = lambda *size, **options: 0
FILLED[torch.ones] = lambda *size, **options: 1
FILLED[torch.full] = lambda size, fill_value, **options: fill_value

# One value everywhere. Memory that PyTorch leaves uninitialised is zero.


@factory(torch.zeros, aten.zeros.default)
def zeros(*size, dtype=None, **options):
    return filled(new_shape(size, options), 0, dtype or torch.get_default_dtype(), **options)


@factory(torch.ones, aten.ones.default)
def ones(*size, dtype=None, **options):
    return filled(new_shape(size, options), 1, dtype or torch.get_default_dtype(), **options)


@factory(torch.empty, aten.empty.memory_format, tags=[Tag.UNINITIALIZED])
def empty(*size, dtype=None, memory_format=None, **options):
    shape = new_shape(size, options)
    dtype = dtype or torch.get_default_dtype()
    return filled(shape, unwritten(dtype), dtype, strides=_strides_in(memory_format, shape), **options)


def unwritten(dtype: torch.dtype) -> bool | int | float | complex:
    """The value of memory that nothing was written to: 0, or PyTorch's fill value for deterministic algorithms."""
    if not (torch.are_deterministic_algorithms_enabled() and torch.utils.deterministic.fill_uninitialized_memory):
        return 0
    if dtype.is_complex:
        return complex(math.nan, math.nan)
    if dtype.is_floating_point:
        return math.nan
    return True if dtype == torch.bool else torch.iinfo(dtype).max


def _strides_in(memory_format, shape) -> tuple[int, ...] | None:
    if memory_format in (None, torch.contiguous_format, torch.preserve_format):
        return None
    with DisableTorchFunction(), DisableTorchDispatch():
        return torch.empty(shape, device="meta", memory_format=memory_format).stride()


@factory(torch.empty_strided, aten.empty_strided.default, tags=[Tag.UNINITIALIZED])
def empty_strided(size, stride, *, dtype=None, **options):
    shape, dtype = _shape(size), dtype or torch.get_default_dtype()
    extent = 1 + sum((n - 1) * step for n, step in zip(shape, stride, strict=True)) if 0 not in shape else 0
    memory = filled((extent,), unwritten(dtype), dtype, **options)
    return memory.as_strided(shape, tuple(stride), 0)


@factory(torch.empty_permuted, aten.empty_permuted.default, tags=[Tag.UNINITIALIZED])
def empty_permuted(size, physical_layout, *, dtype=None, **options):
    order = tuple(physical_layout)
    if sorted(order) != list(range(len(size))):
        raise RuntimeError(f"physical_layout must order the {len(size)} dimensions of size, got {order}")
    dtype = dtype or torch.get_default_dtype()
    memory = filled(_shape(tuple(size[dim] for dim in order)), unwritten(dtype), dtype, **options)
    return memory.permute([order.index(dim) for dim in range(len(order))])


@factory(torch.full, aten.full.default)
def full(size, fill_value, *, dtype=None, **options):
    if isinstance(fill_value, Item):
        fill_value = fill_value.tensor(dtype)
    if isinstance(fill_value, torch.Tensor):
        return _spread(fill_value, _shape(size), dtype, **options)
    return filled(_shape(size), fill_value, dtype or _dtype_of_scalar(fill_value), **options)


def _spread(value: Tensor, shape, dtype, device=None, requires_grad=False, memory_format=None) -> Tensor:
    """A copy of a 0-d tensor everywhere, whatever it depends on."""
    if value.ndim:
        raise TypeError(f"full() got a fill_value of shape {tuple(value.shape)}; wanted a number or a 0-d tensor")
    result = plain(value).to(dtype or value.dtype).expand(shape).clone()
    if device is not None:
        result = result.to(device)
    return result.requires_grad_(requires_grad)


def _dtype_of_scalar(value) -> torch.dtype:
    if isinstance(value, (bool, np.bool_)):
        return torch.bool
    if isinstance(value, (int, np.integer)):
        return torch.int64
    if isinstance(value, (complex, np.complexfloating)):
        return torch.complex128 if torch.get_default_dtype() == torch.float64 else torch.complex64
    return torch.get_default_dtype()


# The same, like another tensor.


def like_options(input: Tensor, dtype, memory_format, device, options: dict) -> dict:
    """The dtype, strides and device of a tensor made like another one, and the other `options`."""
    input = lift(input)
    strides = strides_of_copy(input, memory_format or torch.preserve_format)
    return {
        "dtype": dtype or input.dtype,
        "strides": strides,
        "device": input.device if device is None else device,
        **options,
    }


@factory(torch.zeros_like, aten.zeros_like.default)
def zeros_like(input, *, dtype=None, memory_format=None, device=None, **options):
    return filled(input.shape, 0, **like_options(input, dtype, memory_format, device, options))


@factory(torch.empty_like, aten.empty_like.default, tags=[Tag.UNINITIALIZED])
def empty_like(input, *, dtype=None, memory_format=None, device=None, **options):
    options = like_options(input, dtype, memory_format, device, options)
    return filled(input.shape, unwritten(options["dtype"]), **options)


@factory(torch.ones_like, aten.ones_like.default)
def ones_like(input, *, dtype=None, memory_format=None, device=None, **options):
    return filled(input.shape, 1, **like_options(input, dtype, memory_format, device, options))


@factory(torch.full_like, aten.full_like.default)
def full_like(input, fill_value, *, dtype=None, memory_format=None, device=None, **options):
    options = like_options(input, dtype, memory_format, device, options)
    if isinstance(fill_value, torch.Tensor):
        del options["strides"]
        return _spread(fill_value, input.shape, **options)
    return filled(input.shape, fill_value, **options)


def _new(self: Tensor, dtype, device) -> dict:
    return {"dtype": dtype or self.dtype, "device": self.device if device is None else device}


@factory(Tensor.new_zeros, aten.new_zeros.default)
def new_zeros(self, *size, dtype=None, device=None, **options):
    return zeros(*size, **_new(self, dtype, device), **options)


@factory(Tensor.new_empty, aten.new_empty.default, tags=[Tag.UNINITIALIZED])
def new_empty(self, *size, dtype=None, device=None, **options):
    return empty(*size, **_new(self, dtype, device), **options)


@factory(Tensor.new_ones, aten.new_ones.default)
def new_ones(self, *size, dtype=None, device=None, **options):
    return ones(*size, **_new(self, dtype, device), **options)


@factory(Tensor.new_full, aten.new_full.default)
def new_full(self, size, fill_value, *, dtype=None, device=None, **options):
    return full(size, fill_value, **_new(self, dtype, device), **options)


@factory(Tensor.new_empty_strided, aten.new_empty_strided.default, tags=[Tag.UNINITIALIZED])
def new_empty_strided(self, size, stride, *, dtype=None, device=None, **options):
    return empty_strided(size, stride, **_new(self, dtype, device), **options)


@factory(Tensor.new_tensor, tags=[Tag.DATA])
def new_tensor(self, data, *, dtype=None, device=None, **options):
    # As PyTorch: a tensor keeps its dtype, other data take that of `self`.
    if not isinstance(data, torch.Tensor):
        dtype = dtype or self.dtype
    return tensor(data, dtype=dtype, device=self.device if device is None else device, **options)


# From data.


@factory(torch.tensor, tags=[Tag.DATA])
def tensor(data, *, dtype=None, device=None, requires_grad=False):
    result = _from_data(data, dtype)
    if device is not None:
        result = result.to(device)
    return result.requires_grad_() if requires_grad else result


def _from_data(data, dtype) -> Tensor:
    """A new tensor of Python numbers, numpy arrays, or nested sequences of these and of tensors."""
    if isinstance(data, Item):
        return data.tensor(dtype)
    if isinstance(data, (torch.Tensor, jax.Array)):
        data = lift(data).detach()
        return data.to(dtype or data.dtype, copy=True)
    if _holds_tensor(data):
        parts = [_from_item(item) for item in data]
        wanted = parts[0].dtype
        for part in parts[1:]:
            wanted = torch.promote_types(wanted, part.dtype)
        return torch.stack([part.to(dtype or wanted) for part in parts])
    with DisableTorchFunction():
        made = torch.tensor(data, dtype=dtype)
        own = this_call().settings.default_dtype
        if own is not None and dtype is None and _holds_float(data):  # PyTorch's C++ does not know the call's own
            made = torch.tensor(data, dtype=own.to_complex() if made.is_complex() else own)
        return _owned(made)


def _holds_float(data) -> bool:
    if isinstance(data, (list, tuple, range)):
        return not data or any(_holds_float(item) for item in data)
    return isinstance(data, (float, complex))


def _from_item(item) -> Tensor:
    """An item of a sequence: a tensor in it is one number, whatever its shape."""
    if isinstance(item, Item) or not isinstance(item, (torch.Tensor, jax.Array)):
        return _from_data(item, None)
    lifted = lift(item)
    if lifted.numel() != 1:
        raise ValueError("only one element tensors can be converted to Python scalars")
    return lifted.detach().reshape(())


def _holds_tensor(data) -> bool:
    if isinstance(data, (list, tuple)):
        return any(_holds_tensor(item) for item in data)
    return isinstance(data, (torch.Tensor, jax.Array))


def _owned(made: Tensor) -> Torchish:
    """A tensor of this call with the values of a real one that PyTorch has just made."""
    return constant(made, device=label_of(None))


@factory(torch.as_tensor, tags=[Tag.DATA])
def as_tensor(data, dtype=None, device=None):
    if isinstance(data, Item) or not isinstance(data, (torch.Tensor, jax.Array)):
        if not isinstance(data, np.ndarray):
            return tensor(data, dtype=dtype, device=device)
        with DisableTorchFunction():
            data = torch.as_tensor(data.copy() if is_lent(data) else data)
    data = lift(data)
    return data.to(device=device, dtype=dtype)


def _reads_memory(name: str) -> Callable[[Callable], Callable]:
    """Declares a replacement for a PyTorch function that no override reaches; the package's own calls reach the
    original.
    """
    original = getattr(torch, name)

    def register(body: Callable) -> Callable:
        @replaces(torch, name)
        def replacement(*args, **kwargs):
            return (body if is_torch_function_enabled() else original)(*args, **kwargs)

        return body

    return register


@_reads_memory("frombuffer")
def frombuffer(buffer, *, dtype, count=-1, offset=0, requires_grad=False):
    with DisableTorchFunction():
        real = torch.frombuffer(buffer, dtype=dtype, count=count, offset=offset)
    result = lift(real)
    return set_requires_grad(result, True) if requires_grad else result


@factory(torch.asarray, tags=[Tag.DATA])
def asarray(obj, *, dtype=None, device=None, copy=None, requires_grad=None):
    if copy is False:
        _expect_memory(obj, dtype)
    if type(obj).__name__ == "PyCapsule":
        obj = torch.utils.dlpack.from_dlpack(obj)
    elif _is_buffer(obj):
        obj = frombuffer(obj, dtype=dtype or torch.get_default_dtype())
    if copy and not isinstance(obj, torch.Tensor):
        result = tensor(obj, dtype=dtype, device=device)
    else:
        result = as_tensor(obj, dtype, device)
        result = result.clone() if copy and result is obj else result
    if requires_grad is None:
        return result  # it requires grad if `obj` does
    if requires_grad and result.grad_fn is not None:
        return result
    return set_requires_grad(result.detach(), requires_grad)


def _is_buffer(obj) -> bool:
    """Returns True if PyTorch reads the memory of an object that is no array."""
    if isinstance(obj, (torch.Tensor, jax.Array, np.ndarray, np.generic)):
        return False
    try:
        memoryview(obj).release()
    except TypeError:
        return False
    return True


def _expect_memory(obj, dtype: torch.dtype | None) -> None:
    """Refuses an object on whose memory no tensor can be.

    Raises:
        ValueError: it has no memory, or holds another dtype.
    """
    if isinstance(obj, (int, float, complex, list, tuple)):
        raise ValueError("can't alias arbitrary sequence into a tensor.")
    if isinstance(obj, torch.Tensor) and dtype not in (None, obj.dtype):
        raise ValueError(
            f"can't alias tensor with dtype '{type_name(obj.dtype)}' into dtype '{type_name(dtype)}'."  # pyright: ignore
        )


@_reads_memory("from_numpy")
@factory(torch.from_numpy, tags=[Tag.DATA])
def from_numpy(ndarray):
    return as_tensor(ndarray)


@factory(torch.from_file, aten.from_file.default)
def from_file(filename, shared=None, size=0, dtype=None, **options):
    if shared:
        raise NotImplementedError(
            f"torch.from_file got shared=True, by which what is written to the tensor is written to {filename!r}; "
            "arrays of JAX are not files. Read it with shared=False, and write the file when the tensor is ready"
        )
    with DisableTorchFunction():
        return lift_own(torch.from_file(filename, False, size, dtype=dtype, **options))


@factory(torch.scalar_tensor, aten.scalar_tensor.default)
def scalar_tensor(s, *, dtype=None, **options):
    return full((), s, dtype=dtype or torch.get_default_dtype(), **options)


# Ranges.


def _range(start, step, count: int, dtype) -> jax.Array:
    """``start + step * i`` for ``i`` below `count`, computed in `dtype`, half precision in single."""
    compute = np.dtype(np.float32) if dtype.itemsize == 2 and dtype.kind in "fV" else dtype
    steps = lax.iota(compute, count)
    if step != 1:
        steps = lax.mul(steps, np.asarray(step).astype(compute))
    return cast(steps if start == 0 else lax.add(steps, np.asarray(start).astype(compute)), dtype)


@factory(torch.arange, aten.arange.default, aten.arange.start, aten.arange.start_step, counts=True, warns=True)
def arange(start, end=None, step=1, *, dtype=None, **options):
    start, end, step = (_real_number(x) for x in ((0, start, step) if end is None else (start, end, step)))
    if dtype is not None:
        expect("arange", dtype, REALS)
    else:
        integral = all(isinstance(x, (int, np.integer)) for x in (start, end, step))
        dtype = torch.int64 if integral else torch.get_default_dtype()
    if not (math.isfinite(start) and math.isfinite(end)):
        raise RuntimeError(f"unsupported range: {start} -> {end}")
    if step == 0:
        raise RuntimeError("step must be nonzero")
    for number in (start, end, step):
        expect_fits(number, torch.int64 if is_integral(dtype) else torch.float64)
    is_truncated = dtype == torch.int64 and bounds.ARE_RANGES_TRUNCATED
    if is_truncated:
        start, end, step = int(start), int(end), int(step)
    if step == 0:
        raise ValueError("step must be nonzero, also as an integer")
    if (end - start) * step < 0:
        raise RuntimeError("upper bound and lower bound inconsistent with step sign")
    is_exact = is_truncated or all(isinstance(x, int) for x in (start, end, step))
    count = -((start - end) // step) if is_exact else math.ceil((end - start) / step)
    make = functools.partial(torch.arange, start, end, step)
    if is_integral(dtype):
        start, step = int(start), int(step)
    return made_of(_range, start, step, count, canonical(dtype), shape=(count,), make=make, dtype=dtype, **options)


def _linspace(start, end, steps: int, dtype) -> jax.Array:
    """`steps` values from `start` to `end`, computed from the nearer end, as PyTorch does."""
    if steps < 2 or start == end:
        return lax.full((steps,), start, dtype)
    step = np.asarray((end - start) / (steps - 1)).astype(dtype)
    start, end = np.asarray(start).astype(dtype), np.asarray(end).astype(dtype)
    index = lax.iota(np.int32, steps)
    upwards = lax.add(start, lax.mul(lax.convert_element_type(index, dtype), step))
    left = lax.sub(np.int32(steps - 1), index)
    downwards = lax.sub(end, lax.mul(lax.convert_element_type(left, dtype), step))
    return lax.select(lax.lt(index, np.int32(steps // 2)), upwards, downwards)


_LINSPACES = [getattr(aten.linspace, name) for name in aten.linspace.overloads() if not name.endswith("out")]
_LOGSPACES = [getattr(aten.logspace, name) for name in aten.logspace.overloads() if not name.endswith("out")]


@factory(torch.linspace, *_LINSPACES, counts=True)
def linspace(start, end, steps, *, dtype=None, device=None, requires_grad=False):
    _expect_numbers("linspace", start, end)
    dtype = _linspace_dtype("linspace", start, end, dtype)
    steps = _steps(steps)
    if any(isinstance(x, torch.Tensor) and not _is_known(x) for x in (start, end)):
        wide = _exact_dtype(dtype)
        start, end = (_end(x, dtype).to(wide) if isinstance(x, torch.Tensor) else _end(x, dtype) for x in (start, end))
        return (start + (end - start) * linspace(0, 1, steps, dtype=wide)).to(dtype)
    start, end = _number(start), _number(end)
    make = functools.partial(torch.linspace, start, end, steps)
    if is_integral(dtype):
        return constant(in_pytorch(make, dtype=dtype), device=label_of(device))
    arguments = start, end, steps, canonical(dtype)
    made = made_of(_linspace, *arguments, shape=(steps,), make=make, dtype=dtype, device=device)
    return made.requires_grad_(requires_grad)


def _expect_numbers(name: str, start, end) -> None:
    dims = [x.dim() if isinstance(x, torch.Tensor) else 0 for x in (start, end)]
    if any(dims):
        raise RuntimeError(
            f"{name} only supports 0-dimensional start and end tensors, but got start with {dims[0]} dimension(s) and "
            f"end with {dims[1]} dimension(s)."
        )


def _linspace_dtype(name: str, start, end, dtype: torch.dtype | None) -> torch.dtype:
    """The dtype of a range: the requested one, if it holds the ends."""
    is_complex = any(x.is_complex() if isinstance(x, torch.Tensor) else isinstance(x, complex) for x in (start, end))
    own = _dtype_of_scalar(0j) if is_complex else torch.get_default_dtype()
    if dtype is not None and is_complex and not dtype.is_complex:
        raise RuntimeError(
            f"torch.{name}(): inferred dtype {cpp_name(own)} can't be safely cast to passed dtype {type_name(dtype)}"
        )
    return dtype or own


def _exact_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which a range of unknown numbers is computed: neither an integer type nor half precision."""
    if is_integral(dtype):
        return torch.get_default_dtype()
    return torch.float32 if dtype.itemsize == 2 else dtype


def _steps(steps) -> int:
    if operator.index(steps) < 0:
        raise RuntimeError(f"number of steps must be non-negative, got {steps}")
    return operator.index(steps)


def _end(value, dtype):
    """An end of a range, which is of the range's dtype before anything is computed."""
    if isinstance(value, torch.Tensor):
        return value.detach().to(dtype)
    if is_integral(dtype):
        return int(value)
    return float(np.asarray(value).astype(canonical(dtype))) if dtype.itemsize == 2 else value


def _is_known(tensor: Tensor) -> bool:
    return lift(tensor).known is not None


@factory(torch.logspace, *_LOGSPACES, counts=True)
def logspace(start, end, steps, base=10.0, *, dtype=None, device=None, requires_grad=False):
    _expect_numbers("logspace", start, end)
    dtype = _linspace_dtype("logspace", start, end, dtype)
    if not is_integral(dtype):
        if operator.index(steps) != 1:
            start, end = _end(start, dtype), _end(end, dtype)
        exponents = linspace(start, end, steps, dtype=_exact_dtype(dtype), device=device)
        return torch.pow(base, exponents).to(dtype).requires_grad_(requires_grad)
    if all(_is_known(x) for x in (start, end, base) if isinstance(x, torch.Tensor)):
        made = in_pytorch(torch.logspace, *(_number(x) for x in (start, end, steps, base)), dtype=dtype)
        return constant(made, device=label_of(device))
    exponents = linspace(_end(start, dtype), _end(end, dtype), steps, dtype=_exact_dtype(dtype), device=device)
    return torch.pow(base, exponents).to(dtype)


def _eye(rows: int, columns: int, dtype) -> jax.Array:
    row, column = (lax.broadcasted_iota(np.int32, (rows, columns), dim) for dim in (0, 1))
    return lax.convert_element_type(lax.eq(row, column), dtype)


@factory(torch.eye, aten.eye.default, aten.eye.m)
def eye(n, m=None, *, dtype=None, **options):
    rows = operator.index(n)
    columns = rows if m is None else operator.index(m)
    if min(rows, columns) < 0:
        raise RuntimeError(f"n and m must be greater or equal to 0, got {rows} and {columns}")
    dtype = dtype or torch.get_default_dtype()
    make = functools.partial(torch.eye, rows, columns)
    arguments = rows, columns, canonical(dtype)
    return made_of(_eye, *arguments, shape=(rows, columns), make=make, dtype=dtype, **options)


# What PyTorch itself makes at trace time: few values, or such as nobody asks for.


def _made_by_pytorch(function: Callable, packet: Any, **options: bool) -> None:
    keeps_integers = function in (torch.tril_indices, torch.triu_indices)

    def rule(*args, dtype=None, device=None, requires_grad=False, **keywords):
        dtype = dtype or (torch.int64 if keeps_integers else torch.get_default_dtype())
        made = in_pytorch(function, *map(_number, args), dtype=dtype, device=CPU, **keywords)
        return _requiring_grad(constant(made, device=label_of(device)), requires_grad)

    overloads = [getattr(packet, name) for name in packet.overloads() if name != "out" or function is torch.range]
    factory(function, *overloads, counts=True, **options)(rule)


for _name in ("hamming_window", "hann_window", "blackman_window", "bartlett_window", "kaiser_window"):
    _made_by_pytorch(getattr(torch, _name), getattr(aten, _name))
for _name in ("tril_indices", "triu_indices", "range"):
    _made_by_pytorch(getattr(torch, _name), getattr(aten, _name))
for _name in ("fftfreq", "rfftfreq"):
    _made_by_pytorch(getattr(torch.fft, _name), getattr(aten, f"fft_{_name}"), warns=True)


@implements_tensors(aten._new_zeros_with_same_feature_meta.default)
def _new_zeros_with_same_feature_meta(self, other, *, self_num_batch_dims=0):
    """Zeros that lie in memory as `other` does, once for each example of `self`: the tangent of a batched tensor."""
    batch = self.shape[:self_num_batch_dims]
    size = other.untyped_storage().nbytes() // other.element_size()
    strides = [size * math.prod(batch[i + 1 :]) for i in range(len(batch))]
    zeros = other.new_zeros(size * math.prod(batch))
    return zeros.as_strided((*batch, *other.shape), (*strides, *other.stride()), other.storage_offset())
