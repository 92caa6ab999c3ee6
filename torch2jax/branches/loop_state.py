"""The state at the start of a loop's iterations: everything that an iteration can read or change.

It is taken down as a list of entries, each with the path that leads there, in an order that is the same for objects of
equal structure. Two turns are alike if what they begin with is: the same objects in the same places, tensors of the
same kind that share memory in the same way. Their values may differ, and Python's numbers: these a loop carries.

What is reached but cannot be looked into, as an iterator, is an error: nobody knows whether a turn has changed it.
"""

import math
import operator
import random
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
import torch
from jax.core import Tracer

from ..errors import is_library
from ..internals.guards import DisableTorchDispatch, DisableTorchFunction
from ..tensors.dtypes import default_dtype
from ..tensors.history import Node, Source
from ..tensors.known import evaluate, real
from ..tensors.objects import codec_of, has_attributes, leaf_of
from ..tensors.storage import Storage, steps_to
from ..tensors.tensor import Torchish
from .call import this_call

__all__ = ["Change", "State", "TensorEntry", "Unlike", "item_names"]


class Unlike(Exception):
    """What lives at the beginnings of two turns is not alike; says what differs."""


class Change(NamedTuple):
    """What a turn changes."""

    path: str
    kind: str
    """``"number"``; ``"written"``, values in memory that stays; ``"made"``, values in new memory; ``"object"``, another
    one of the same structure; ``"draws"``, how far the random stream is."""

    @property
    def is_carried(self) -> bool:
        return self.kind != "object"


class TensorEntry(NamedTuple):
    """All of a tensor but its values."""

    storage: str
    """The path of the first tensor on its storage."""
    kind: type
    dtype: torch.dtype
    geometry: tuple
    of_storage: Any
    """What the storage is like, where this is the first tensor on it."""


class _CarriedNumber(NamedTuple):
    """A Python number, which a loop may carry."""

    kind: type


class _Seen(NamedTuple):
    path: str


class _Leaf(NamedTuple):
    key: Any


class _Entry(NamedTuple):
    path: str
    like: Any
    value: Any


class State:
    """Everything that is alive at one time.

    Args:
        roots: the local variables that live.
        code: what runs there; the globals that it names live as well.
        names: these globals.

    Raises:
        Unlike: something is of a kind that no loop can carry.
    """

    def __init__(self, roots: Mapping[str, Any], code: types.CodeType, names: dict[str, Any]):
        call: Any = this_call()
        self.roots, self.code, self.globals = dict(roots), code, names
        self.entries: dict[str, _Entry] = {}
        self.storages: dict[str, Storage] = {}
        """By the path of the first tensor on it."""
        self.seen: dict[int, str] = {}
        """The paths of objects and tensors, by their ids."""
        self.draws = call.stream.state
        self._kept: list = []  # whose ids are taken
        with DisableTorchFunction(), DisableTorchDispatch():
            for name, value in roots.items():
                self._visit(value, name)
            self._visit_globals(code, names)
            self._add("settings", _Leaf(_settings(call)), None)
        self._versions = {path: storage.memory.version for path, storage in self.storages.items()}
        self._held = {path: _held(storage) for path, storage in self.storages.items()}

    def _add(self, path: str, like: Any, value: Any) -> None:
        self.entries[path] = _Entry(path, like, value)

    def _is_new(self, value: Any, path: str) -> bool:
        """Notes that an object is there; false if it was reached before."""
        first = self.seen.setdefault(id(value), path)
        if first != path:
            self._add(path, _Seen(first), value)
            return False
        self._kept.append(value)
        return True

    def _visit(self, value: Any, path: str) -> None:
        kind = type(value)
        if issubclass(kind, torch.Tensor):
            self._visit_tensor(value, path)
        elif kind in (int, float):
            self._add(path, _CarriedNumber(kind), value)
        elif isinstance(value, type):
            self._visit_class(value, path)
        elif (codec := codec_of(kind)) is None:
            self._add(path, _Leaf(_key_of_leaf(value, path)), value)
        elif self._is_new(value, path):
            head, items = codec.open(value)
            self._add(path, (kind, head), value)
            for name, item in zip(item_names(value, len(items)), items, strict=True):
                self._visit(item, path + name)
            if kind is types.FunctionType:
                self._visit_globals(value.__code__, value.__globals__)
            elif has_attributes(kind):
                self._visit_class(kind, f"type({path})")

    def _visit_class(self, kind: type, path: str) -> None:
        """A class has functions, and data that these may change."""
        if is_library(_file_of(kind.__module__)):
            self._add(path, _Leaf(kind), kind)
        elif self._is_new(kind, path):
            self._add(path, _Leaf((kind, tuple(vars(kind)))), kind)
            for name, value in tuple(vars(kind).items()):
                function = getattr(value, "__func__", value)
                if isinstance(function, types.FunctionType) or not name.startswith("__"):
                    self._visit(function, f"{path}.{name}")
            for number, base in enumerate(kind.__bases__):
                self._visit_class(base, f"{path}.__bases__[{number}]")

    def _visit_globals(self, code: types.CodeType, names: dict[str, Any]) -> None:
        """What code of the user's names outside of itself."""
        if is_library(code.co_filename):
            return
        for name in _named_by(code):
            path = f"{names.get('__name__')}.{name}"
            if path in self.entries or name not in names:
                continue
            value = names[name]
            if not isinstance(value, types.ModuleType):
                self._visit(value, path)
                continue
            self._add(path, _Leaf(id(value)), value)
            if not is_library(_file_of(value.__name__)) and value.__name__.partition(".")[0] not in _SCIENCE:
                self._visit_globals_of(value, code)

    def _visit_globals_of(self, module: types.ModuleType, code: types.CodeType) -> None:
        for name in _named_by(code):
            path, value = f"{module.__name__}.{name}", vars(module).get(name)
            if value is not None and path not in self.entries and not isinstance(value, types.ModuleType):
                self._visit(value, path)

    def _visit_number(self, value: Any, path: str) -> None:
        """A number that was taken out of a tensor: as all numbers, it is none but by its value."""
        storage = value._node.storage
        self.storages[path] = storage
        self._kept.append(value)
        self._add(path, TensorEntry(path, type(value), value.dtype, ((),), storage.dtype), value)

    def _visit_tensor(self, value: torch.Tensor, path: str) -> None:
        if getattr(value, "stands_for", None) is not None:
            self._visit_number(value, path)
            return
        if not self._is_new(value, path):
            return
        if getattr(type(value), "length_depends_on_values", False):
            self._visit_chosen(value, path)
            return
        call: Any = this_call()
        tensor: Any = value
        if not isinstance(value, Torchish):
            try:
                tensor = call.lift(value)
            except Exception:  # it has no values that JAX could have
                self._add(path, _Leaf(id(value)), value)
                return
            if not self._is_new(tensor, path):
                return
        node = tensor._node
        storage, steps = node.storage, steps_to(node)
        if storage.is_outgrown:
            raise Unlike(f"{path} is in memory that grows")
        if any(kind.traced for kind, _ in steps):
            raise Unlike(f"{path} is a view at a traced offset")
        self._kept.extend((storage, storage.memory))
        first = self.seen.setdefault(id(storage), path)
        if first == path:
            self.storages[path] = storage
        memory = self.seen.setdefault(id(storage.memory), path)
        restriction = tensor._restriction and tensor._restriction.kind
        geometry = tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset(), restriction
        places = tuple([(kind.bit, kind.permutation, kind.overlaps, place) for kind, place in steps])
        of_storage = (storage.frame, storage.dtype, storage.gaps, _kind_of_history(storage.history), memory)
        of_storage = of_storage if first == path else memory
        self._add(path, TensorEntry(first, type(tensor), tensor.dtype, (*geometry, places), of_storage), value)
        for name, item in tensor.attributes.items():
            if name != "_restriction":
                self._visit(item, f"{path}.{name}")

    def _visit_chosen(self, value: Any, path: str) -> None:
        """What a mask chose: it has to be the same in all turns, which may write to it."""
        self._add(path, _Leaf((type(value), id(value))), value)
        for name, part in value.parts.items():
            self._visit_tensor(part, f"{path}.{name}")

    # What a turn has changed.

    def changes_until(self, later: "State") -> list[Change]:
        """What a turn has changed that began with this and ended with that.

        Raises:
            Unlike: that is nothing that a loop can carry.
        """
        found: dict[str, Change] = {}
        made: set[str] = set()
        for one, other in zip(self.entries.values(), later.entries.values(), strict=False):
            if one.path != other.path:
                raise Unlike(
                    f"{other.path if one.path in later.entries else one.path} does not exist in every iteration"
                )
            kind = _change(one, other)
            if kind is not None:
                found[one.path] = Change(one.path, kind)
            elif isinstance(one.like, TensorEntry) and one.path == one.like.storage:
                if self.storages[one.path] is later.storages[one.path]:
                    continue
                if one.value is other.value and _number_kind(one) is None:
                    raise Unlike(f"{one.path} has different memory in each iteration")
                if self.storages[one.path].memory.version != self._versions[one.path]:
                    raise Unlike(f"{one.path} is written in place, and also replaced by another tensor")
                made.add(one.path)
        if len(self.entries) != len(later.entries):
            raise Unlike("some iterations keep more alive than others")
        for path in self.storages:
            if path not in found and path in later.storages and not _is_same(self._held[path], later._held[path]):
                found[path] = Change(path, "made" if path in made else "written")
        before, after = self.draws, later.draws
        if before.seed != after.seed or before.key is not after.key:
            raise Unlike("torch.manual_seed restarts the random numbers")
        if before.taken != after.taken or before.before is not after.before:
            found[_DRAWS] = Change(_DRAWS, "draws")
        return [*found.values()]

    def array(self, change: Change) -> Any:
        """The value of what is carried."""
        if change.kind == "draws":
            return self.draws.before + np.int32(self.draws.taken)
        entry, call = self.entries[change.path], this_call()
        if isinstance(entry.like, _CarriedNumber):
            dtype = torch.float64 if entry.like.kind is float else torch.int64
            return call.lift(torch.tensor(entry.value, dtype=dtype)).read()
        array = self.storages[change.path].read()
        return array if call.tape is None else call.tape.primal(array)


_DRAWS = "the random stream"
_SCIENCE = ("numpy", "scipy")
_SMALL = 4096


def _change(one: _Entry, other: _Entry) -> str | None:
    """How what is at one path has changed, but for values of tensors.

    Raises:
        Unlike: no loop can carry that.
    """
    numbers = [_number_kind(entry) for entry in (one, other)]
    if isinstance(one.like, _CarriedNumber) or isinstance(other.like, _CarriedNumber):
        if None in numbers or numbers[0] is not numbers[1]:
            raise Unlike(f"{one.path} is first {_shown(one)}, and then {_shown(other)}")
        is_same = one.value is other.value or (
            isinstance(one.like, _CarriedNumber)
            and isinstance(other.like, _CarriedNumber)
            and repr(one.value) == repr(other.value)
        )
        return None if is_same else "number"
    if one.like != other.like:
        instead = ": keep a mask of what it would hold" if isinstance(one.value, list) else ""
        raise Unlike(f"{one.path} is first {_shown(one)}, and then {_shown(other)}{instead}")
    is_object = isinstance(one.like, tuple) and not isinstance(one.like, (TensorEntry, _Leaf, _Seen))
    return "object" if is_object and one.value is not other.value else None


def _number_kind(entry: _Entry) -> type | None:
    if isinstance(entry.like, _CarriedNumber):
        return entry.like.kind
    return getattr(entry.value, "stands_for", None)


def _shown(entry: _Entry) -> str:
    like, value = entry.like, entry.value
    if isinstance(like, TensorEntry):
        return f"a tensor of {like.dtype} and shape {list(like.geometry[0])}"
    if isinstance(like, _Leaf):
        return repr(value)[:40] if isinstance(value, (str, bool, types.NoneType)) else f"a {type(value).__name__}"
    if isinstance(like, _CarriedNumber):
        return f"a Python {like.kind.__name__}"
    if isinstance(like, _Seen):
        return f"the same as {like.path}"
    head = like[1] if type(like) is tuple else None
    length = head if isinstance(head, int) else len(head) if isinstance(head, tuple) else None
    return f"a {type(value).__name__}" + ("" if length is None else f" of length {length}")


def _kind_of_history(history: Node | None) -> Any:
    """What turns must have in common of how values came about: the rest of it ends with a turn."""
    if not isinstance(history, Source):
        return history is not None
    hooked = None if history.hooked is None else len(history.hooked.hooks)
    hooks = history._prehooks, history._posthooks, history._accumulated
    return hooked, *[0 if x is None else len(x) for x in hooks]


def _held(storage: Storage) -> Any:
    known = storage.known
    if known is None:
        return storage.physical.array
    return known if isinstance(known, jax.Array) else real(known)


def _is_same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if isinstance(one, Tracer) or isinstance(other, Tracer):
        return (
            isinstance(one, Tracer)
            and isinstance(other, Tracer)
            and getattr(one, "val", one) is getattr(other, "val", other)
        )
    if one.shape != other.shape or math.prod(one.shape) > _SMALL:
        return False
    one, other = np.asarray(evaluate(one)), np.asarray(evaluate(other))
    return one.dtype == other.dtype and one.tobytes() == other.tobytes()


def _settings(call: Any) -> tuple:
    """What code can change that no object shows."""
    numbers: Any = np.random.get_state()  # noqa: NPY002 - code that is translated may use it
    generators = [_bytes(generator) for generator in call.stream.generators]
    return (
        *(torch.is_grad_enabled(), torch.is_inference_mode_enabled(), default_dtype()),
        *(torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda"), tuple(generators)),
        *(hash(random.getstate()), numbers[1].tobytes(), numbers[2:]),
    )


def _bytes(generator: torch.Generator) -> bytes:
    with DisableTorchFunction(), DisableTorchDispatch():
        return generator.get_state().numpy().tobytes()


def _key_of_leaf(value: Any, path: str) -> Any:
    """What tells apart objects that are not looked into.

    Raises:
        Unlike: they may change, and nobody sees it.
    """
    if isinstance(value, Iterator) and not hasattr(value, "__len__"):
        length = operator.length_hint(value, -1)
        if length < 0 or isinstance(value, types.GeneratorType):
            raise Unlike(f"{path} is a {type(value).__name__}, whose position cannot be read")
        return id(value), length
    if isinstance(value, random.Random):
        return hash(value.getstate())
    if isinstance(value, torch.Generator):
        return _bytes(value)
    bits: Any = getattr(value, "bit_generator", None)
    if bits is not None:
        return str(bits.state)
    key = leaf_of(type(value))(value)
    return type(value), key


def _file_of(module: str) -> str:
    """The file of a module, by its name; of one without a file what counts as a library's."""
    return getattr(sys.modules.get(module), "__file__", None) or "<builtin>"


def _named_by(code: types.CodeType) -> Iterable[str]:
    """The names that code has, and functions that it makes."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _named_by(constant)


def item_names(value: Any, count: int) -> list[str]:
    """How the items of an object that is taken apart are reached from it."""
    if isinstance(value, dict):
        names = [f"[{key!r:.40}]" if isinstance(key, (str, int)) else f"[key {i}]" for i, key in enumerate(value)]
    elif isinstance(value, types.FunctionType):
        cells = [f" closing over {name}" for name in value.__code__.co_freevars]
        names = [".__defaults__", ".__kwdefaults__", ".__dict__", *cells]
    elif isinstance(value, types.CellType):
        names = [".cell_contents"]
    elif has_attributes(type(value)):
        names = [f".{name}" for name in codec_of(type(value)).open(value)[0]]  # pyright: ignore[reportOptionalMemberAccess]
    else:
        names = [f"[{i}]" for i in range(count)]
    return [*names[:count], *(f"({i})" for i in range(len(names), count))]
