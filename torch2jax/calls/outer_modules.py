"""Modules from outside of a call, and optimizers: when it has ended, they are as they were before it.

Code may do to them what it may in PyTorch: set attributes, convert them, register hooks, parts and parametrizations. It
finds all of that until the call ends. So a module is looked at before code can change it: where the function that is
translated leads to it, and where code calls it or a method that changes it. The end of the call puts back what has
changed since.

All of it is put back, or nothing. What Python code keeps in a module (a flag, a count) may tell of its tensors. So it
goes with them, and lasts where nothing else has changed.
"""

import contextlib
import functools
import operator
import threading
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import jax
import jax.core
import torch
from torch.nn import ModuleDict, ModuleList, Sequential
from torch.optim import Optimizer

from ..runtime.caches import remembered
from ..runtime.errors.locations import is_users
from ..runtime.layers import SELECTIONS, SPARSE
from ..runtime.patches import runs_instead_of
from ..runtime.translation import this_call
from ..tensors.objects import codec_of, has_attributes, named_by
from ..tensors.tensor import Torchish
from ..tensors.wrapped import is_of_call, is_wrapper
from ..transforms.outer_state import NAMED, NOTHING, Kind, Name, is_of_library

if TYPE_CHECKING:
    from .dispatch import Call

_Module = torch.nn.Module
_MAPPINGS = frozenset((dict, OrderedDict, defaultdict))
_NESTING = _MAPPINGS | {list, set, deque, tuple}
_OF_PYTORCH = frozenset(vars(_Module()))  # its tables of tensors, parts and hooks, and its mode
_NOT_PLAIN = (torch.Tensor, jax.Array, _Module, types.FunctionType)
_MANY = 2**12  # items of one container: as of a data set
_FEW = 2**8  # objects that are looked into for modules

Change = tuple[bool, Any, Kind, Any]
"""A change: whether it may stay, the object, the functions that restore it, and what it held."""


class Before:
    """The state of a module, an optimizer or a tensor before the first of the calls in progress that met it.

    Calls of several threads have it in common: the last one of those that write to the object puts it back.
    """

    __slots__ = ("attributes", "containers", "kind", "of_kind", "tensors", "thing", "users", "written")

    def __init__(self, thing: object):
        self.thing, self.kind, self.attributes = thing, type(thing), dict(vars(thing))
        self.of_kind = dict(vars(self.kind)) if "parametrizations" in self.attributes.get("_modules", ()) else None
        """The attributes of its class, if that is its own: PyTorch makes one for a module with parametrizations."""
        self.written: set[str] = set()
        """The attributes that the calls have set or deleted."""
        self.users: dict[OuterModules, bool] = {}
        """The calls, and whether they are known to have written to it."""
        tables = self.attributes.get("_parameters"), self.attributes.get("_buffers")
        self.tensors = [x for table in tables if table for x in table.values() if x is not None]
        self.containers: dict[int, tuple[object, object, bool]] = {}
        """Its containers, each with a copy, and whether it is PyTorch's own; empty ones of PyTorch are left out."""
        nested = []
        for container, is_of_pytorch in self._own():
            if container and type(container) is not tuple:
                self.containers[id(container)] = container, container.copy(), is_of_pytorch
            if container and not is_of_pytorch:
                nested.append(container)
        while nested:
            for value in _items(nested.pop()):
                if type(value) in _NESTING and len(value) <= _MANY and id(value) not in self.containers:
                    nested.append(value)
                    if type(value) is not tuple:
                        self.containers[id(value)] = value, value.copy(), False

    def _own(self) -> Iterator[tuple[Any, bool]]:
        for name, value in self.attributes.items():
            if type(value) in _NESTING and (name in _OF_PYTORCH or len(value) <= _MANY):
                yield value, name in _OF_PYTORCH
        for tensor in self.tensors:
            yield vars(tensor), True

    def changes(self, made: "OuterModules") -> Iterator[Change]:
        """The changes since."""
        thing, before, now = self.thing, self.attributes, vars(self.thing)
        if type(thing) is not self.kind:
            yield False, thing, _CLASS, self.kind
        if self.of_kind is not None and dict(vars(self.kind)) != self.of_kind:
            yield False, self, _OF_KIND, None
        if len(now) != len(before) or any(map(operator.is_not, now.values(), before.values())):
            for name in {**before, **now}:
                value, was = now.get(name, NOTHING), before.get(name, NOTHING)
                if value is was:
                    continue
                if name in self.written or made.hold(value):  # else another thread may have set it
                    is_own = name in _OF_PYTORCH or value is NOTHING
                    may_stay = not is_own and _is_plain(value) and _is_plain(was)
                    yield may_stay, Name(now, name), NAMED, was
        containers = self.containers
        started = [(x, (), own) for x, own in self._own() if x and type(x) is not tuple and id(x) not in containers]
        for container, was, is_of_pytorch in (*containers.values(), *started):
            if _differs(container, was):
                may_stay = not is_of_pytorch and all(map(_is_plain, _exchanged(container, was)))
                yield may_stay, container, _CONTENTS, was

    def put_kind_back(self, _: object) -> None:
        for name in {**vars(self.kind), **(self.of_kind or {})}:
            was = (self.of_kind or {}).get(name, NOTHING)
            if was is NOTHING:
                delattr(self.kind, name)
            elif vars(self.kind).get(name) is not was:
                setattr(self.kind, name, was)


def _items(container: Any) -> Any:
    return container.values() if type(container) in _MAPPINGS else container


def _differs(container: Any, before: Any) -> bool:
    if len(container) != len(before):
        return True
    if not before:
        return False
    if type(container) is set:
        return container != before
    if any(map(operator.is_not, container, before)):
        return True
    return type(container) in _MAPPINGS and any(map(operator.is_not, container.values(), before.values()))


def _exchanged(container: object, before: object) -> list[object]:
    """The items that a container alone has, or a copy of it alone."""
    now, then = [*_items(container)], [*_items(before)]
    kept = {*map(id, now)} & {*map(id, then)}
    return [x for x in (*now, *then) if id(x) not in kept]


def refill(container: Any, before: object) -> None:
    """Replaces the contents of a list, a set or a dictionary by those of a copy of it, in its order."""
    container.clear()
    if before:
        (container.update if hasattr(container, "update") else container.extend)(before)


_CONTENTS = Kind(lambda x: x.copy(), refill)
_CLASS = Kind(type, lambda x, kind: object.__setattr__(x, "__class__", kind))
_OF_KIND = Kind(lambda _: None, Before.put_kind_back)


_lock = threading.RLock()
_visited: dict[int, Before] = {}
"""The objects that calls in progress have met, in all threads, by id."""


class OuterModules:
    """The modules that a call has met and has not made, and other objects of PyTorch's."""

    def __init__(self):
        self.made: dict[int, weakref.ref[_Module]] = {}
        """The modules that the call has made, by their ids."""
        self.visited: dict[int, Before] = {}
        """The state of the others, by id."""
        self.loses = False
        """True if the call has written in place to a tensor from outside, which nobody outside will see."""

    def add_made(self, module: _Module) -> None:
        """Notes a module that the call makes."""
        self.made[id(module)] = weakref.ref(module)
        if id(module) in self.visited:  # before its `__init__` it was not known
            self._release(self.visited.pop(id(module)))

    def has_made(self, thing: object) -> bool:
        reference = self.made.get(id(thing))
        return reference is not None and reference() is thing

    def visit(self, thing: object) -> Before | None:
        """The state of an object before code can change it; None if it is a module that the call has made."""
        before = self.visited.get(id(thing))
        if before is None and not self.has_made(thing):
            with _lock:
                before = _visited.get(id(thing))
                if before is None:
                    before = _visited[id(thing)] = Before(thing)
                before.users[self] = False
            self.visited[id(thing)] = before
        return before

    def will_change(self, module: _Module, name: str | None = None) -> None:
        """Called before the call changes a module, or an attribute of it."""
        before = self.visit(module)
        if before is not None:
            before.users[self] = True
            if name is not None:
                before.written.add(name)

    def put_back(self, everything: bool = False) -> list[Change]:
        """Restores the objects that were met, if a change cannot stay: tensors of the call, hooks, other parts.

        Args:
            everything: also where nothing but what Python code keeps in them has changed.

        Returns:
            What stays changed.
        """
        with _lock:
            visited, self.visited = self.visited, {}
            ours = [before for before in visited.values() if self._release(before)]
            changes = [change for before in ours for change in before.changes(self)]
            if not everything and not self.loses and all(may_stay for may_stay, *_ in changes):
                return changes
            for _, changed, kind, before in changes:
                kind.put(changed, before)
            return []

    def _release(self, before: Before) -> bool:
        """Returns True if no other call in progress has written to the module."""
        with _lock:
            del before.users[self]
            if not before.users:
                _visited.pop(id(before.thing), None)
            return not any(before.users.values())

    def hold(self, value: object) -> bool:
        """Returns True if a value belongs to the call, or leads to something that does."""
        return any(map(self._owns, _leaves_of(value)))

    def _owns(self, value: object) -> bool:
        if isinstance(value, _Module):
            return self.has_made(value)
        if isinstance(value, (Torchish, SELECTIONS.classes, SPARSE.classes, jax.core.Tracer)):
            return True
        return isinstance(value, torch.Tensor) and is_wrapper(value) and is_of_call(value)


def _is_plain(value: object) -> bool:
    """Returns True if a value is plain Python data: it leads to no tensor, module or function."""
    return not any(isinstance(x, _NOT_PLAIN) for x in _leaves_of(value))


def _leaves_of(value: object) -> Iterator[object]:
    """The objects that a value leads to, except those in modules, which are looked at themselves."""
    seen, pending = set(), [value]
    while pending and len(seen) < _MANY:
        value = pending.pop()
        codec = None if isinstance(value, _Module) else codec_of(type(value))
        if codec is None or isinstance(value, types.FunctionType):
            yield value
        if codec is not None and id(value) not in seen:
            seen.add(id(value))
            pending.extend(codec.open(value)[1])


# Where a call meets modules.


def visit_reached(call: "Call", function: Callable[..., object], args: tuple, kwargs: dict[str, object]) -> None:
    """Notes the state of the modules, optimizers and tensors that a function and its arguments lead to.

    Of functions that is what they close over, name or are methods of. Only objects nearby are looked into: others are
    met when they are called.
    """
    pending: deque[Any] = deque((function, args, kwargs))
    seen: set[int] = set()
    while pending:
        value = pending.popleft()
        kind = type(value)
        if kind is tuple or kind is list or kind in _MAPPINGS:
            if value and len(value) <= _MANY and len(seen) < _FEW and id(value) not in seen:
                seen.add(id(value))
                pending.extend(value.values() if kind in _MAPPINGS else value)
        elif kind is types.FunctionType:
            if is_users(value.__code__.co_filename) and id(value) not in seen and len(seen) < _FEW:
                seen.add(id(value))
                pending.extend(map(value.__globals__.get, _names_in(value.__code__)))
                if value.__closure__ or value.__defaults__ or value.__kwdefaults__:
                    pending.extend(_held_by(value))
        elif kind is torch.nn.Parameter or kind is torch.Tensor:
            call.settings.modules.visit(value)
        elif isinstance(value, Optimizer):
            if id(value) not in call.registered:
                call.settings.modules.visit(value)
        elif isinstance(value, _Module):
            modules = call.settings.modules
            if id(value) not in modules.made and id(value) not in seen:
                for part in value.modules():
                    seen.add(id(part))
                    modules.visit(part)
        elif kind is types.MethodType:
            pending.extend((value.__self__, value.__func__))
        elif kind is functools.partial:
            pending.extend((value.func, value.args, value.keywords))
        elif has_attributes(kind) and not is_of_library(kind) and id(value) not in seen and len(seen) < _FEW:
            seen.add(id(value))
            pending.extend(codec_of(kind).open(value)[1])  # pyright: ignore[reportOptionalMemberAccess]


@remembered(4096)
def _names_in(code: types.CodeType) -> tuple[str, ...]:
    return tuple(dict.fromkeys(named_by(code)))


def _held_by(function: types.FunctionType) -> Iterator[object]:
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # nothing is assigned yet
            yield cell.cell_contents


@runs_instead_of(_Module.__init__, with_original=True)
def _begin(original: Callable[..., object], self: _Module, *args: object, **kwargs: object):
    this_call().settings.modules.add_made(self)
    original(self, *args, **kwargs)


@runs_instead_of(_Module.__setstate__, with_original=True)
def _begin_copy(original: Callable[..., object], self: _Module, state: dict[str, object]):
    if not vars(self):  # which has no `__init__`
        this_call().settings.modules.add_made(self)
    original(self, state)


@runs_instead_of(_Module.__setattr__, with_original=True)
def _set(original: Callable[..., object], self: _Module, name: str, value: object):
    this_call().settings.modules.will_change(self, name)
    original(self, name, value)


@runs_instead_of(_Module.__delattr__, with_original=True)
def _delete(original: Callable[..., object], self: _Module, name: str):
    this_call().settings.modules.will_change(self, name)
    original(self, name)


@runs_instead_of(_Module._apply, with_original=True)
def _convert(original: Callable[..., object], self: _Module, fn: Callable[..., object], recurse: bool = True):
    """As PyTorch's; a module keeps each tensor from outside that `fn` leaves as it is."""
    call = this_call()
    modules, standing_for = call.settings.modules, call.constants.standing_for
    if modules.has_made(self):
        return original(self, fn, recurse)
    if recurse:
        for part in self.children():
            part._apply(fn)
    modules.visit(self)

    def converted(tensor: torch.Tensor):
        result = fn(tensor)
        if result is standing_for(tensor):
            return tensor
        modules.will_change(self)
        return result

    return original(self, converted, recurse=False)


def _changing(original: Callable[..., object], self: _Module, *args: object, **kwargs: object):
    this_call().settings.modules.will_change(self)
    return original(self, *args, **kwargs)


for _owner, _names in (
    (_Module, [name for name in vars(_Module) if name.startswith(("register_", "_register_", "add_module"))]),
    (ModuleList, ["insert"]),
    (Sequential, ["insert"]),
    (ModuleDict, ["__delitem__", "clear"]),
):
    for _name in _names:
        runs_instead_of(vars(_owner)[_name], with_original=True)(_changing)
