"""Values that are known while JAX traces, because no traced input decides them: PyTorch computes them.

A known value is a tensor of PyTorch's own, which has its logical dtype and is never written to; a `Deferred`, which
gives one when it is asked; or a jax array that is no tracer, perhaps narrower than the dtype that it stands for.
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np
import torch

from ..internals.dispatch import DisableAutocast, DisableTorchDispatch, DisableTorchFunction
from ..runtime.translation import this_call
from .array_buffer import ArrayBuffer, LazyArray
from .dtypes import canonical, values_in_dtype
from .interop import array_to_tensor, to_numpy, values_of
from .traced import evaluating

_MAX_DEPTH = 100
_SMALL = 4096
_for_all_sizes: ContextVar[bool] = ContextVar("for_all_sizes", default=False)
_PLAIN = frozenset((torch.float32, torch.float64, torch.int32, torch.bool))


@contextlib.contextmanager
def for_all_sizes() -> Iterator[None]:
    """A context in which operations on known values are the same for all sizes.

    All are small; and integers on the way to values that 32 bits hold are computed in the graph, though they do not
    fit: elsewhere such values are constants there, which have one size.
    """
    token = _for_all_sizes.set(True)
    try:
        yield
    finally:
        _for_all_sizes.reset(token)


def are_for_all_sizes() -> bool:
    return _for_all_sizes.get()


def is_small(size: int) -> bool:
    """Returns True if so many elements are computed in less time than it takes to make a `Deferred`."""
    return size <= _SMALL or are_for_all_sizes()


class Deferred:
    """A value that PyTorch computes from other known values on demand: most are never computed."""

    __slots__ = ("_args", "_function", "_kwargs", "_value", "depth")

    def __init__(self, function: Callable, args: tuple, kwargs: dict, depth: int):
        self._function: Callable | None = function
        self._args, self._kwargs = args, kwargs
        self._value: object = None
        self.depth = depth
        if depth > _MAX_DEPTH:  # bounds the recursion of force()
            self.force()
            self.depth = 0

    def force(self) -> Any:
        """The value, computed at most once."""
        if self._function is not None:
            args, kwargs = map_values(_forced, self._args), map_values(_forced, self._kwargs)
            self._value = self._function(*args, **kwargs)
            self._function = self._args = self._kwargs = None
        return self._value


Known: TypeAlias = torch.Tensor | jax.Array | np.ndarray | Deferred
"""A value that depends on no traced input, in one of its forms."""


def defer(function: Callable, *args: object, **kwargs: object) -> Deferred:
    """PyTorch's result of `function`, deferred; arguments hold known values in place of tensors."""
    return Deferred(_later, (function, *args), kwargs, _depth(args, kwargs))


def _later(function: Callable, *args: object, **kwargs: object) -> object:
    with DisableAutocast():
        return in_pytorch(function, *args, **kwargs)


def defer_body(function: Callable, *args: object, **kwargs: object) -> Deferred:
    """As `defer`, of a function that returns tensors but does not compute with PyTorch's."""
    return Deferred(function, args, kwargs, _depth(args, kwargs))


def _depth(args: tuple, kwargs: dict) -> int:
    return 1 + max(_depths((*args, *kwargs.values())), default=0)


def _depths(values: Iterable[object]):
    for value in values:
        if isinstance(value, Deferred):
            yield value.depth
        elif isinstance(value, (list, tuple)):
            yield from _depths(value)


def _forced(value: object) -> object:
    if isinstance(value, Deferred):
        return value.force()
    if isinstance(value, jax.Array) and not jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        return real(value)
    return value


def map_values(function: Callable, value: Any) -> Any:
    """Applies `function` to each value among arguments, which hold them in lists, tuples and dictionaries."""
    if type(value) in (list, tuple):
        return type(value)([map_values(function, item) for item in value])
    if type(value) is dict:
        return {key: map_values(function, item) for key, item in value.items()}
    return function(value)


def in_pytorch(function: Callable, *args: object, **kwargs: object) -> Any:
    """PyTorch's own result, whatever the code around it intercepts."""
    with DisableTorchFunction(), DisableTorchDispatch():
        return function(*args, **kwargs)


def real(known: Known) -> torch.Tensor:
    """The real tensor with a known value; it must not be written to."""
    if isinstance(known, torch.Tensor):
        return known
    if isinstance(known, Deferred):
        return known.force()
    with DisableTorchFunction(), DisableTorchDispatch():
        if isinstance(known, jax.Array) and next(iter(known.devices())).platform != "cpu":
            with evaluating():
                known = jax.device_put(known, jax.local_devices(backend="cpu")[0])
        return array_to_tensor(known, gathers=True)


def evaluate(known: Known) -> jax.Array:
    """The jax array of a known value, narrower than its dtype while ``jax_enable_x64`` is off."""
    if isinstance(known, jax.Array):
        return known
    with DisableTorchFunction(), DisableTorchDispatch():
        found = real(known)
        if found.ndim == 0 and found.dtype in _PLAIN:
            with evaluating():
                return _taken(np.asarray(found.item(), canonical(found.dtype)))  # in a quarter of the time
        with evaluating():
            return jax.device_put(values_in_dtype(to_numpy(values_of(found)), canonical(found.dtype)), may_alias=True)


_taken = jax.jit(lambda number: number)


class LazyConstant(LazyArray):
    """A lazy array that enters the graph as a constant: a value that PyTorch has computed."""

    __slots__ = ("_made",)
    depth, source = 1, None

    def __init__(self, made: torch.Tensor):
        self._made, self._buffer = made, None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._made.shape)

    @property
    def dtype(self) -> np.dtype:
        return canonical(self._made.dtype)

    @property
    def size(self) -> int:
        return self._made.numel()

    @property
    def buffer(self) -> ArrayBuffer:
        if self._buffer is None:
            with this_call().outside():
                self._buffer = self._emitted()
        return self._buffer

    def _emitted(self) -> ArrayBuffer:
        return ArrayBuffer(evaluate(self._made), None)


def value_of_body(body: Callable, *args: object, **kwargs: object) -> object:
    """The result of a function of arrays for known values, as tensors: for `defer_body`."""
    args, kwargs = map_values(_as_array, args), map_values(_as_array, kwargs)
    with evaluating():
        result = body(*args, **kwargs)
    return jax.tree.map(real, result)


def _as_array(value: object) -> object:
    return evaluate(value) if isinstance(value, torch.Tensor) else value


# A value in memory: PyTorch's geometry says which elements a tensor has.


class DenseLayout(NamedTuple):
    """The shape of a storage, and the order of its dimensions in memory, which has no gaps."""

    shape: tuple[int, ...]
    order: tuple[int, ...] | None
    """The dimensions from the outermost to the innermost, None if in order."""


class Geometry(NamedTuple):
    """The elements of memory that a tensor has: its shape, strides and offset, in elements of its dtype."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: torch.dtype | None
    """None for the dtype of the memory."""
    bits: frozenset[str] = frozenset()
    """``"conj"`` and ``"neg"`` where the values in memory are conjugate or negative."""

    def read(self, values: torch.Tensor, frame: DenseLayout) -> torch.Tensor:
        """The tensor's values, of those that its memory has."""
        found = self.within(in_memory(values, frame))
        return found if self.dtype is None or found.dtype == self.dtype else found.to(self.dtype)

    def write(self, values: torch.Tensor | None, frame: DenseLayout, written: torch.Tensor) -> torch.Tensor:
        """The values of the memory after a write to the tensor. Values of None mean that all of it is written."""
        for dim, (size, stride) in enumerate(zip(self.shape, self.strides, strict=True)):
            if size > 1 and stride == 0:  # one element, to which one number is written
                shape = (*self.shape[:dim], 1, *self.shape[dim + 1 :])
                return self._replace(shape=shape).write(values, frame, written.narrow(dim, 0, 1))
        if values is None:
            memory = torch.empty(math.prod(frame.shape), dtype=written.dtype)
        else:
            memory = in_memory(values, frame).clone(memory_format=torch.contiguous_format)
        self.within(memory).copy_(written)
        if frame.order is None:
            return memory if memory.shape == frame.shape else memory.view(frame.shape)
        inverse = [frame.order.index(dim) for dim in range(len(frame.shape))]
        return memory.view([frame.shape[dim] for dim in frame.order]).permute(inverse)

    def within(self, memory: torch.Tensor) -> torch.Tensor:
        """The tensor, as a view of all elements of memory in PyTorch's order."""
        if self.dtype is not None and canonical(memory.dtype) != canonical(self.dtype):
            size = memory.numel() * memory.itemsize // self.dtype.itemsize  # the last bytes may be less than one more
            memory = memory.view(-1)[: size * self.dtype.itemsize // memory.itemsize].view(self.dtype)
        found = memory.as_strided(self.shape, self.strides, self.offset + memory.storage_offset())
        if "conj" in self.bits:
            found = found.conj()
        return torch._neg_view(found) if "neg" in self.bits else found


def in_memory(values: torch.Tensor, frame: DenseLayout) -> torch.Tensor:
    """The elements in PyTorch's order, without gaps."""
    if frame.order is None and values.is_contiguous() and not values.is_conj() and not values.is_neg():
        return values
    if frame.order is not None:
        values = values.permute(frame.order)
    return values.resolve_conj().resolve_neg().contiguous().view(-1)
