"""Tensors that a call leaves in objects from outside, as in a cache, once the call has ended.

What no input of the call decides is a tensor of PyTorch's own from then on: the object that is kept becomes it. Of
anything else the values are gone with the call, or were those of one input alone, and it is an error to use it.
"""

import contextlib
import copy
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import jax
import torch

from ..internals.dispatch import DisableTorchDispatch, DisableTorchFunction
from ..internals.jax import DynamicJaxprTracer, source_of
from ..runtime.errors import EndedCallError
from ..runtime.errors.locations import SourceLine, is_library, keeper_of
from ..runtime.translation import calls_of_thread, current
from .array_buffer import ArrayBuffer
from .history import Source
from .interop import values_of
from .known import Deferred, Geometry, in_memory, real
from .rebinding import swap_objects
from .storage import Storage
from .tensor import Torchish, function_text


class Ended(torch.Tensor):
    """A tensor of a call that has ended, of values that an input of that call decided."""

    _made_at: str | None
    """The line that has made it, None if that is not known."""

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., object],
        types: Collection[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ):
        del types
        raise refuse_ended(func, args, kwargs or {})

    __torch_dispatch__ = __torch_function__

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes that code has set."""
        return {key: value for key, value in vars(self).items() if key not in _OWN and key != "_made_at"}

    def __repr__(self, *, tensor_contents: object = None) -> str:
        del tensor_contents
        raise refuse_ended(torch.Tensor.__repr__, (self,), {})

    def __copy__(self) -> "Ended":
        raise refuse_ended(copy.copy, (self,), {})

    def __deepcopy__(self, memo: dict[int, object]) -> "Ended":
        if current() is not None:  # a copy of what has it, as of a module, need not use it
            return self
        raise refuse_ended(copy.deepcopy, (self,), {})

    def as_subclass(self, cls: type) -> object:
        del cls
        raise refuse_ended(torch.Tensor.as_subclass, (self,), {})


def refuse_ended(function: Any, args: tuple, kwargs: dict) -> EndedCallError:
    """The error of a function that has got a tensor of an ended call."""
    tensor = next(_ended_in((*args, *kwargs.values())), None)
    name = function_text(function)
    if tensor is None:
        return EndedCallError(name)
    with DisableTorchFunction(), DisableTorchDispatch():
        dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
    made_at, keeper = vars(tensor)["_made_at"], keeper_of(tensor)
    origins = [f"was made at {made_at}"] if made_at else []
    origins += [f"is kept by {keeper}"] if keeper else []
    origin = f"It {' and '.join(origins)}. " if origins else ""
    return EndedCallError(name, f"a {dtype} tensor of shape {shape}", origin)


def _ended_in(values: Iterable[object]) -> Iterator[Ended]:
    for value in values:
        if isinstance(value, Ended):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _ended_in(value)
        elif isinstance(value, dict):
            yield from _ended_in(value.values())


def end(tensors: Iterable[Torchish]) -> None:
    """Turns tensors that outlive the call which made them into PyTorch's own, or into `Ended` ones.

    Args:
        tensors: all of that call.
    """
    with DisableTorchFunction(), DisableTorchDispatch():
        for tensor in keep(tensors):
            node = tensor._node
            buffer = (node if type(node) is Storage else node.storage)._buffer
            array = buffer.array if type(buffer) is ArrayBuffer else None
            made_at = _made_at(array) if isinstance(array, DynamicJaxprTracer) else None
            attributes = {key: value for key, value in vars(tensor).items() if key not in _OWN}
            try:
                _set_class(tensor, Ended)
            except TypeError:  # a class with slots, as `DTensor`, whose own functions refuse what has ended
                continue
            object.__setattr__(tensor, "__dict__", {**attributes, "_made_at": made_at})


def keep(tensors: Iterable[Torchish], left: Collection[int] = ()) -> list[Torchish]:
    """Turns tensors that depend on no input into PyTorch's own, except those with ids in `left`; returns the others."""
    memories: dict[tuple[int, torch.dtype], torch.Tensor] = {}
    others: list[Torchish] = []
    kept: list[tuple[Torchish, torch.Tensor]] = []
    with DisableTorchFunction(), DisableTorchDispatch():
        for tensor in tensors:  # all of them, before one is another
            if id(tensor) in left or not isinstance(tensor, Torchish):  # which has been kept before
                continue
            made = _kept(tensor, memories) if is_kept(tensor) else None
            if made is None:
                others.append(tensor)
            else:
                kept.append((tensor, made))
        for tensor, made in kept:
            try:
                swap_objects(tensor, made)
            except RuntimeError:  # C++ has it as well
                others.append(tensor)
    return others


def made_by_call() -> list[Torchish]:
    """The tensors of this thread's outermost call that are still there."""
    tensors = []
    for reference in calls_of_thread.made.values():
        tensor = reference()
        if tensor is not None:
            tensors.append(tensor)
    return tensors


_contexts: list[Callable[[], contextlib.AbstractContextManager]] = []


def force_within(make: Callable[[], contextlib.AbstractContextManager]) -> None:
    """Declares a context for rules that run at the end of a call, for values that nothing has needed before."""
    _contexts.append(make)


_set_class: Any = object.__dict__["__class__"].__set__  # also where a class says that it is another


def is_kept(tensor: Torchish) -> bool:
    """Returns True if a tensor becomes one of PyTorch's own after the call: it depends on no input."""
    if tensor.python_type is not None:
        return False
    node = tensor._node
    storage: Storage = node if type(node) is Storage else node.storage
    history = storage.history
    if history is not None and (not isinstance(history, Source) or history.variable is not tensor):
        return False  # but integers do not require grad with the rest of their memory
    if storage.memory.given is not None and history is not None:
        return False
    return storage.memory.is_constant or type(storage._known) is Deferred or isinstance(storage._known, torch.Tensor)


def _kept(tensor: Torchish, memories: dict[tuple[int, torch.dtype], torch.Tensor]) -> torch.Tensor | None:
    """The tensor of PyTorch's own for one of the call; None if its values are not known."""
    try:
        made = _view_of_memory(tensor, memories)
    except Exception:  # PyTorch refuses what JAX computes
        return None
    if made is None:
        return None
    kind = next((x for x in type(tensor).__mro__ if not issubclass(x, Torchish)), torch.Tensor)
    made = made if kind is torch.Tensor else made.as_subclass(kind)
    vars(made).update({key: value for key, value in vars(tensor).items() if key not in _OWN})
    return made.requires_grad_() if tensor._node.storage.history is not None else made


_OWN = frozenset((*vars(Torchish), *Torchish.__annotations__))


def _view_of_memory(tensor: Torchish, memories: dict[tuple[int, torch.dtype], torch.Tensor]) -> torch.Tensor | None:
    """A tensor at its place in PyTorch's own memory, which it shares with those that it shared memory with."""
    node = tensor._node
    storage: Storage = node.storage
    if storage.is_outgrown or storage.gaps is not None or node.is_chosen:
        found = tensor.real_values
        return None if found is None else found.clone()
    memory = storage.memory
    key = id(memory), tensor.dtype
    if key not in memories:
        if memory.given is not None and memory.version == 0 and memory.given.dtype == tensor.dtype:
            memories[key] = in_memory(memory.given.detach(), storage.frame)  # as in PyTorch, not a copy
        else:
            known = storage.known
            if known is None:
                return None
            if isinstance(known, Deferred):
                with _contexts[0](), torch.no_grad():
                    known.force()
            values = values_of(real(known))
            values = values.to(tensor.dtype) if storage is node else values
            memories[key] = in_memory(values, storage.frame).clone(memory_format=torch.contiguous_format)
    region = Geometry(
        tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()), tensor.dtype, frozenset(node.bits)
    )
    return region.within(memories[key])


def _made_at(array: jax.Array) -> str | None:
    """The user's line that computed a tracer."""
    step, found = source_of(array), None
    while step is not None:
        code = step.tb_frame.f_code
        if not is_library(code.co_filename):
            found = str(SourceLine(code.co_filename, step.tb_lineno, code.co_name))
        step = step.tb_next
    return found
