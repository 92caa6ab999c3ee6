"""Python's objects from outside of a call, as they were before its first run.

They are the user's own: they are looked at before the first run, and set back before each later one. The last run
leaves them as they are then, as any function that JAX traces does.

Not looked into are classes, objects and functions of libraries, functions of other files that global names lead to, and
containers of many items. A later run of the code that writes to such an object is refused (`control/writes.py`).
"""

import array
import contextlib
import contextvars
import dis
import functools
import io
import logging
import random
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from ..runtime.caches import remembered
from ..runtime.errors.locations import is_library, is_users
from ..runtime.errors.unwinding import Unwind
from ..tensors.objects import ObjectCodec, codec_of, has_attributes, named_by
from ..tensors.tensor import Torchish
from ..tensors.trees import flatten

T = TypeVar("T")
_MANY = 2**12  # items of one container: as of a data set, which nobody changes
_STORES_GLOBAL = dis.opmap["STORE_GLOBAL"]
NOTHING: Any = object()
_CACHED = type(functools.lru_cache(len))
_OF_PYTORCH = frozenset(vars(torch.nn.Module()))  # which the call puts back, as it does a module's own attributes


class Kind(NamedTuple):
    """The functions that save and restore the contents of one kind of object."""

    take: Callable[[Any], Any]
    put: Callable[[Any, Any], None]


class Name(NamedTuple):
    """A name that has a value, as a global."""

    names: dict[str, Any]
    name: str


def _put_name(at: Name, value: object) -> None:
    if value is NOTHING:
        at.names.pop(at.name, None)
    else:
        at.names[at.name] = value


def _data_of(kind: type) -> dict[str, object]:
    """The attributes of a class that are data."""
    return {name: x for name, x in vars(kind).items() if not name.startswith("__") and not hasattr(type(x), "__get__")}


def _put_class(kind: type, before: dict[str, object]) -> None:
    now = _data_of(kind)
    for name in now.keys() - before.keys():
        delattr(kind, name)
    for name, value in before.items():
        if now.get(name, NOTHING) is not value:
            setattr(kind, name, value)


def _put_attributes(value: object, before: dict[str, object]) -> None:
    vars(value).clear()
    vars(value).update(before)


def _put_items(value: Any, before: object) -> None:
    value[:] = before


def _put_values(value: np.ndarray, before: np.ndarray) -> None:
    value[...] = before


def _put_text(value: Any, before: tuple[object, int]) -> None:
    value.seek(0)
    value.truncate()
    value.write(before[0])
    value.seek(before[1])


def _iterator_position(value: object) -> tuple[object, object]:
    """The object that an iterator goes over, and its position there."""
    _, held, *position = value.__reduce__()
    return held[0] if held else None, position[0] if position else 0


def _restore_iterator(value: Any, before: tuple[object, object]) -> None:
    if _iterator_position(value)[1] != before[1]:
        value.__setstate__(before[1])
    if _iterator_position(value)[0] is not before[0]:
        raise ValueError("it has ended, and has let go of what it went over")


def _put_bits(value: np.random.Generator, before: Any) -> None:
    value.bit_generator.state = before


_TEXT = Kind(lambda x: (x.getvalue(), x.tell()), _put_text)
_ATTRIBUTES = Kind(lambda x: dict(vars(x)), _put_attributes)
_KINDS: dict[type, Kind] = {
    Name: (NAMED := Kind(lambda x: x.names.get(x.name, NOTHING), _put_name)),
    np.ndarray: Kind(np.copy, _put_values),
    bytearray: Kind(bytes, _put_items),
    array.array: Kind(lambda x: x[:], _put_items),
    io.StringIO: _TEXT,
    io.BytesIO: _TEXT,
    types.SimpleNamespace: _ATTRIBUTES,
    threading.local: _ATTRIBUTES,
    random.Random: Kind(random.Random.getstate, random.Random.setstate),
    np.random.RandomState: Kind(np.random.RandomState.get_state, np.random.RandomState.set_state),
    np.random.Generator: Kind(lambda x: x.bit_generator.state, _put_bits),
    **{type(iter(x)): Kind(_iterator_position, _restore_iterator) for x in ([], ())},
}
_CLASS = Kind(_data_of, _put_class)
_LOGGER = Kind(lambda x: x.level, logging.Logger.setLevel)
_GENERATORS = [x for f in (random.random, np.random.rand) if (x := getattr(f, "__self__", None))]
"""Python's random numbers, and NumPy's, which users' code draws from."""


@functools.cache
def _kind_of(codec: ObjectCodec) -> Kind:
    def take(value: object) -> tuple[object, list[object]]:
        head, items = codec.open(value)
        return head, list(items)

    def put(value: object, before: tuple[object, list[object]]) -> None:
        head, items = codec.open(value)
        if head != before[0] or any(x is not y for x, y in zip(items, before[1], strict=False)):
            codec.fill(value, *before)  # pyright: ignore[reportOptionalCall]

    return Kind(take, put)


class OuterState:
    """The objects that the leaves of a tree lead to, as they are before the first run.

    Of functions that is what they close over, name or are methods of, and the globals that they assign to. It may live
    as long as a derivative that runs the code again, and so it keeps no arrays of the tree.
    """

    def __init__(self, roots: object):
        self._roots = roots
        self._before: dict[int, tuple[Any, Kind, Any]] = {}
        self._caches: dict[int, tuple[Any, Any]] = {}
        self._filled: set[int] = set()
        """The ids of caches of functions that a run has filled."""
        self._namespaces: set[int] = set()
        self._context = contextvars.copy_context()
        self.runs = 0
        """The number of runs that have begun."""
        self.was_cut = self.saw_condition = False
        """True if the last run ended early, but for loops; and if that was at a condition on a traced value."""

    def begin(self) -> None:
        """Called before each run: notes the state before the first one, and restores it before each later one."""
        self.runs, self.was_cut, self.saw_condition = self.runs + 1, False, False
        if self.runs > 1:
            self._restore()
        elif self._roots is not None:
            self._note([*flatten(self._roots)[0], *_GENERATORS])
            self._roots = None

    def run(self, function: Callable[..., T], *args: Any) -> T:
        """Calls a function with the context variables from before the first run; what the last run sets stays set."""
        context = self._context.copy()
        is_last = True
        try:
            return context.run(function, *args)
        except Unwind:
            is_last = False
            raise
        finally:
            for variable, value in context.items() if is_last else ():
                if variable.get(NOTHING) is not value:
                    variable.set(value)

    def has(self, value: Any) -> bool:
        """Returns True if each run finds an object as it was before the first."""
        if isinstance(value, torch.nn.Module):
            return True
        if isinstance(value, type) and value.__module__ == torch.nn.utils.parametrize.__name__:
            return True  # the class of one module, which the call puts back with it
        if type(value) is _CACHED:
            return id(value) not in self._filled
        if isinstance(value, contextvars.ContextVar):
            return True
        return id(value) in self._before or id(value) in self._namespaces

    @contextlib.contextmanager
    def once_more(self) -> Iterator[None]:
        """A context of a run after the call has ended: everything is left as it is found."""
        now = [(value, kind, kind.take(value)) for value, kind, _ in self._before.values()]
        try:
            yield
        finally:
            for value, kind, taken in now:
                kind.put(value, taken)

    def also(self, changes: list[tuple[bool, object, Kind, object]]) -> None:
        """Notes further changes by a run: objects, and what they held."""
        for _, value, kind, before in changes:
            self._before.setdefault(id(value), (value, kind, before))

    def _keep(self, value: object, kind: Kind) -> None:
        self._before[id(value)] = value, kind, kind.take(value)

    def _note(self, leaves: list) -> None:
        seen, pending = set(), [*leaves]
        while pending:
            value = pending.pop()
            if id(value) in seen or isinstance(value, (str, int, float, Torchish)):
                continue
            if isinstance(value, torch.Tensor):  # what it holds, the call puts back
                self._keep(value, _ATTRIBUTES)
                continue
            kind = type(value)
            # The root's class is another one, and so may be that of the user's.
            plain = _LOGGER if issubclass(kind, logging.Logger) else _KINDS.get(kind)
            codec = codec_of(kind)
            if plain is None and codec is None and kind is not _CACHED and not isinstance(value, type):
                continue
            seen.add(id(value))
            if plain is not None:
                if kind is not np.ndarray or (value.size <= _MANY and value.flags.writeable):
                    self._keep(value, plain)
                pending.extend(vars(value).values() if plain is _ATTRIBUTES else ())
                pending.extend(value.handlers if plain is _LOGGER else ())
            elif isinstance(value, type):
                if not is_of_library(value):
                    self._keep(value, _CLASS)
                    pending.extend(_data_of(value).values())
            elif kind is _CACHED:
                self._caches[id(value)] = value, value.cache_info()
                pending.append(value.__wrapped__)
            elif isinstance(value, torch.nn.Module):
                for part in value.modules():
                    for name, x in vars(part).items():
                        if name not in _OF_PYTORCH:
                            pending.append(x)
                        elif "hooks" in name and x:
                            pending.extend(x.values())
            elif codec is not None and not _is_left_out(value):
                self._note_parts(value, codec, pending)

    def _note_parts(self, value: object, codec: ObjectCodec, pending: list) -> None:
        items = list(codec.open(value)[1])
        if type(value) is types.FunctionType:
            self._keep(value, _ATTRIBUTES)
        elif codec.fill is not None and len(items) <= 2**4 * _MANY:
            self._keep(value, _kind_of(codec))
        if len(items) <= _MANY:
            pending.extend(items)
        if has_attributes(type(value)):
            pending.append(type(value))
        for function in _functions_of(value):
            for name in _assigned_by(function.__code__):
                self._keep(Name(function.__globals__, name), NAMED)
                self._namespaces.add(id(function.__globals__))
            pending.extend(_named_by(function))

    def _restore(self) -> None:
        """Restores all of it."""
        for key, (value, kind, before) in [*self._before.items()]:
            try:
                kind.put(value, before)
            except Exception:  # of a class of the user's own, or an iterator that has ended
                del self._before[key]
        for key, (cached, before) in self._caches.items():
            if cached.cache_info().misses != before.misses:
                if before.currsize:
                    self._filled.add(key)
                else:
                    cached.cache_clear()


def _is_left_out(value: Any) -> bool:
    kind = type(value)
    if kind is types.FunctionType:
        return not is_users(value.__code__.co_filename)
    return has_attributes(kind) and is_of_library(kind)


@remembered(1024)
def is_of_library(kind: type) -> bool:
    return is_library(getattr(sys.modules.get(kind.__module__), "__file__", None) or "")


def _functions_of(value: object) -> Iterator[types.FunctionType]:
    """A function itself, or the methods of an object."""
    if type(value) is types.FunctionType:
        yield value
    elif has_attributes(type(value)):
        methods = [x for kind in type(value).__mro__ if not is_of_library(kind) for x in vars(kind).values()]
        yield from (x for x in methods if type(x) is types.FunctionType)


@remembered(2**12)
def _assigned_by(code: types.CodeType) -> tuple[str, ...]:
    """The global names that code assigns to, and functions that it makes."""
    found = []
    if _STORES_GLOBAL in code.co_code[::2]:
        found = [step.argval for step in dis.get_instructions(code) if step.opcode == _STORES_GLOBAL]
    inner = [_assigned_by(x) for x in code.co_consts if isinstance(x, types.CodeType)]
    return tuple(dict.fromkeys((*found, *(name for names in inner for name in names))))


def _named_by(function: types.FunctionType) -> Iterator[object]:
    """The values of a function's global names, except functions of other files."""
    names = function.__globals__
    values = (names.get(name) for name in named_by(function.__code__))
    yield from (x for x in values if type(x) is not types.FunctionType or x.__globals__ is names)
