"""Tensors of a call whose class the user's code derives from `torch.Tensor`."""

import types as python_types
import weakref
from collections.abc import Callable, Iterable

import torch
from torch.overrides import get_default_nowrap_functions

from ..internals.dispatch import (
    DisableTorchDispatch,
    DisableTorchFunction,
    DisableTorchFunctionSubclass,
    disabled_torch_function_impl,
)
from ..internals.tensors import convert, make_wrapper_subclass
from ..runtime.caches import remembered
from ..runtime.translation import Call, calls_of_thread
from .distributed import is_split
from .tensor import Torchish, make_view

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
