"""Tensor subclasses: their inner tensors outside of calls, and the classes that the user's code derives.

PyTorch's protocol is all that is asked of a class outside of calls: ``__tensor_flatten__`` names the attributes that
are tensors, and gives what else there is; ``__tensor_unflatten__`` makes a tensor of both. Inner tensors may wrap
others in turn.

Also here: jagged tensors and their values. Autograd differentiates the tensor of values.
"""

import dataclasses
import types as python_types
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np
import torch
from jax.tree_util import GetAttrKey
from torch.overrides import get_default_nowrap_functions

from ..internals.dispatch import (
    DisableTorchDispatch,
    DisableTorchFunction,
    DisableTorchFunctionSubclass,
    disabled_torch_function_impl,
)
from ..internals.tensors import NestedTensor as NestedTensor, convert, make_wrapper_subclass
from ..runtime.caches import remembered
from ..runtime.translation import Call, calls_of_thread
from .distributed import is_split
from .dtypes import canonical
from .tensor import Torchish, make_view, wraps_others


class _Wrappers(type):
    def __subclasscheck__(cls, kind: type) -> bool:
        return wraps_others(kind)

    def __instancecheck__(cls, value: object) -> bool:
        return wraps_others(type(value))


class Wrapper(metaclass=_Wrappers):
    """The classes of tensors that wrap others by PyTorch's protocol, and compute in a ``__torch_dispatch__``."""


def is_wrapper(value: object) -> bool:
    """Returns True if a value is a tensor that wraps others by PyTorch's protocol."""
    kind = type(value)
    return kind is not Torchish and kind is not torch.Tensor and wraps_others(kind)


def is_of_call(tensor: Any) -> bool:
    """Returns True if a tensor of a call is inside the wrapper."""
    with DisableTorchFunction():
        inner = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
    return any(isinstance(each, Torchish) or (is_wrapper(each) and is_of_call(each)) for each in inner)


class _Ragged:
    """A symbolic size: the lengths of rows, which an inner tensor has."""

    def __repr__(self) -> str:
        return "ragged"


_RAGGED = _Ragged()


class _Static:
    """A tensor without its inner arrays: hashable and comparable, so that ``jit`` compiles once for each."""

    __slots__ = ("context", "dtype", "hash", "inner_shapes", "key", "kind", "names", "shape", "strides")

    def __init__(
        self, kind: type, names: tuple, context: Any, shape: tuple, strides: tuple, dtype: torch.dtype, inner: tuple
    ):
        self.kind, self.names, self.context, self.shape, self.strides = kind, names, context, shape, strides
        self.dtype, self.inner_shapes = dtype, inner
        self.key = kind, names, shape, strides, dtype, inner, _frozen(context, kind)
        self.hash = hash(self.key)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, _Static) and self.key == other.key)

    def __hash__(self) -> int:
        return self.hash

    def __repr__(self) -> str:
        return f"{self.kind.__name__}{list(self.shape)}"


def _frozen(value: object, kind: type) -> tuple[object, ...]:
    """A hashable form of a value in a context, which differs where the values do.

    Raises:
        TypeError: it holds an array or a tensor, or something that cannot be hashed.
    """
    if isinstance(value, (torch.Tensor, jax.Array, np.ndarray)):
        raise TypeError(
            f"{kind.__name__}.__tensor_flatten__ gave a {type(value).__name__} within its context, which is static; "
            "wanted it among the names of inner tensors"
        )
    if isinstance(value, Mapping):
        return type(value), tuple((key, _frozen(each, kind)) for key, each in value.items())
    if isinstance(value, (list, tuple)):
        return type(value), tuple(_frozen(each, kind) for each in value)
    if isinstance(value, (set, frozenset)):
        return type(value), frozenset(_frozen(each, kind) for each in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = tuple(field.name for field in dataclasses.fields(value))
        return type(value), tuple((name, _frozen(getattr(value, name), kind)) for name in fields)
    try:
        hash(value)
    except TypeError:
        raise TypeError(
            f"{kind.__name__}.__tensor_flatten__ gave a {type(value).__name__} within its context, which cannot be "
            "hashed; wanted static values, by which jax.jit tells what it has compiled"
        ) from None
    return type(value), value


@jax.tree_util.register_pytree_with_keys_class
class Wrapped:
    """The arrays of a tensor that wraps others, in place of the tensor.

    It is a pytree of the arrays, by the names that the tensor's class gives them. It works with ``jit``, ``grad``,
    ``vmap``, shardings and checkpoints like any pytree. The arrays are also its attributes. Translated functions
    accept it as the tensor that it stands for, and `j2t` returns that tensor.

    Under ``vmap`` the arrays have a dimension for the examples; everything else describes one example.
    """

    def __init__(self, static: _Static, inner: tuple):
        self._static, self._inner = static, inner

    def tree_flatten_with_keys(self):
        keys = map(GetAttrKey, self._static.names)
        return tuple(zip(keys, self._inner, strict=True)), self._static

    def tree_flatten(self):
        return self._inner, self._static

    @classmethod
    def tree_unflatten(cls, static: _Static, inner: tuple[object, ...]) -> "Wrapped":
        return cls(static, tuple(inner))

    def __getattr__(self, name: str) -> jax.Array:
        static = self.__dict__.get("_static")
        if static is None or name not in static.names:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        return self._inner[static.names.index(name)]

    @property
    def inner(self) -> dict[str, Any]:
        """The arrays by name; another `Wrapped` for an inner tensor that itself wraps others."""
        return dict(zip(self._static.names, self._inner, strict=True))

    @property
    def kind(self) -> type:
        """The class of the tensor."""
        return self._static.kind

    @property
    def shape(self) -> tuple:
        """The shape of the tensor in PyTorch."""
        return self._static.shape

    @property
    def ndim(self) -> int:
        """The number of dimensions of the tensor in PyTorch."""
        return len(self._static.shape)

    @property
    def dtype(self) -> np.dtype:
        """The JAX dtype for the tensor's dtype in PyTorch."""
        return canonical(self._static.dtype)

    def replaced(self, inner: Mapping[str, object]) -> "Wrapped":
        """Returns a copy with other arrays."""
        return Wrapped(self._static, tuple(inner[name] for name in self._static.names))

    def __repr__(self) -> str:
        inner = ", ".join(f"{name}={value!r}" for name, value in self.inner.items())
        return f"Wrapped({self._static!r}, {inner})"


def wrapped(tensor: Any, convert: Callable[[torch.Tensor], object]) -> Wrapped:
    """The `Wrapped` of a wrapper; `convert` converts the inner tensors that are not wrappers.

    Raises:
        TypeError: what its class gives beside the names of inner tensors is not static.
    """
    names, context = tensor.__tensor_flatten__()
    names, inner, shapes = tuple(names), [], []
    for name in names:
        each = getattr(tensor, name)
        inner.append(wrapped(each, convert) if is_wrapper(each) else convert(each))
        shapes.append(_numbers(each.shape))
    shape, strides = _numbers(tensor.shape), _numbers(tensor.stride())
    static = _Static(type(tensor), names, context, shape, strides, tensor.dtype, tuple(shapes))
    return Wrapped(static, tuple(inner))


def _numbers(sizes: Any) -> tuple:
    return tuple(_RAGGED if isinstance(size, torch.SymInt) else int(size) for size in sizes)


def tensor_of(given: Wrapped, convert: Callable[[Any], torch.Tensor]) -> Any:
    """The tensor of a `Wrapped`, made from the tensors that `convert` makes of its arrays.

    Raises:
        ValueError: the arrays are of other shapes, and of what shape the tensor is cannot be told.
    """
    static, inner = given._static, {}
    for name, value in given.inner.items():
        inner[name] = tensor_of(value, convert) if isinstance(value, Wrapped) else convert(value)
    with DisableTorchFunction():
        shapes = tuple(_numbers(value.shape) for value in inner.values())
    shape, strides = static.shape, static.strides
    if _RAGGED in shape:
        shape = strides = None  # it has lengths of its own
    elif shapes != static.inner_shapes:
        followed = next((new for old, new in zip(static.inner_shapes, shapes, strict=True) if old == shape), None)
        if followed is None:
            raise ValueError(
                f"the inner tensors of a {static.kind.__name__} of shape {shape} are of shapes {static.inner_shapes}, "
                f"but the arrays given for them of {shapes}; wanted those shapes, with one dimension more outside of "
                "jax.vmap"
            )
        with DisableTorchFunction():
            shape, strides = followed, next(x.stride() for x in inner.values() if _numbers(x.shape) == followed)
    shape = None if shape is None else torch.Size(shape)
    return static.kind.__tensor_unflatten__(inner, static.context, shape, strides)


def values_of(tensor: object) -> Any:
    """The values of a jagged tensor; another tensor unchanged."""
    return tensor._values if type(tensor) is NestedTensor else tensor


def like(jagged: Any, values: torch.Tensor) -> object:
    """A jagged tensor of the same lengths with other values."""
    return NestedTensor(
        values,
        jagged._offsets,
        lengths=jagged._lengths,
        _ragged_idx=jagged._ragged_idx,
        _metadata_cache=jagged._metadata_cache,
    )


_OWN = frozenset((*vars(Torchish), *Torchish.__annotations__)).difference(
    dir(torch.Tensor), ("__annotations__", "__copy__")
)


_NOTHING_TO_SAY: object = disabled_torch_function_impl
_PYTORCHS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


class Derived(Torchish):
    """The base of a user's subclass: functions return tensors of the subclass, unless it says otherwise."""

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., object],
        types: Iterable[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ):
        if not all(issubclass(cls, kind) for kind in types):
            return NotImplemented
        with DisableTorchFunctionSubclass():
            return cls.of_result(func, args, kwargs or {}, func(*args, **(kwargs or {})))

    @classmethod
    def of_result(
        cls, func: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object], result: object
    ) -> object:
        """The result of a function on tensors of this class, made from `result`, its result on plain tensors."""
        del args, kwargs
        return result if func in get_default_nowrap_functions() else convert(result, cls)


def as_class(tensor: Torchish, cls: type) -> Torchish:
    """Another tensor on the same memory, of a class that is `torch.Tensor` or derived from it.

    Raises:
        TypeError: it is no such class, or cannot be that of a tensor within a call.
    """
    if not isinstance(cls, type) or not issubclass(cls, torch.Tensor):
        raise TypeError(f"as_subclass(): got {cls!r}; wanted torch.Tensor or a class derived from it")
    view = make_view(tensor, tensor._node, tensor)
    if cls is torch.Tensor:
        return view
    with DisableTorchFunction(), DisableTorchDispatch():
        result = make_wrapper_subclass(
            cls if issubclass(cls, Torchish) else _joined(cls),
            *(view.shape, view.stride(), view.storage_offset()),
            dtype=view.dtype,
        )
    vars(result).update(vars(view))
    calls_of_thread.made[id(result)] = weakref.ref(result)
    return result


@remembered(1024)
def _joined(cls: type) -> type:
    """The class of tensors within calls that are of `cls`."""
    taken = sorted(name for name in _OWN if hasattr(cls, name))
    if taken:
        raise TypeError(
            f"tensors of class {cls.__qualname__} cannot be translated: it has {', '.join(map(repr, taken))}, which "
            "translated tensors have for themselves; give these other names"
        )
    if not _computes(cls):
        raise TypeError(
            f"tensors of class {cls.__qualname__} cannot be translated by as_subclass: it has a __torch_dispatch__ of "
            "its own; wanted one that wraps other tensors (torch.Tensor._make_wrapper_subclass), or none"
        )
    named = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    above = [_joined(base) for base in cls.__bases__ if issubclass(base, torch.Tensor) and base not in _PYTORCHS]
    return python_types.new_class(cls.__name__, (cls, *(above or [Derived])), exec_body=lambda body: body.update(named))


def in_call(call: Call, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the call for one from outside whose class overrides `__torch_function__`; other tensors unchanged."""
    if isinstance(tensor, Torchish) or not _has_a_say(type(tensor)):
        return tensor
    if is_split(type(tensor)):
        return call.constants.lift(tensor)
    result = as_class(call.constants.lift(tensor), type(tensor))
    vars(result).update(vars(tensor))
    return result


def have_a_say(kinds: Iterable[type]) -> bool:
    """Returns True if the classes of arguments include a user's subclass, whose `__torch_function__` comes first."""
    return any(map(_has_a_say, kinds))


@remembered(1024)
def _has_a_say(kind: type) -> bool:
    if is_split(kind):  # what stands for it has
        return True
    if kind.__torch_function__ is _NOTHING_TO_SAY or issubclass(kind, Torchish):
        return issubclass(kind, Derived)
    return kind is not torch.Tensor and _computes(kind)


def _computes(cls: type) -> bool:
    """Returns True if PyTorch's own kernels compute with tensors of a class: it defines no `__torch_dispatch__`."""
    return cls.__torch_dispatch__ is torch.Tensor.__torch_dispatch__  # pyright: ignore[reportAttributeAccessIssue]
