"""The state at the start of a loop's iterations: everything that an iteration can read or change.

It is taken down as a list of entries, each with the path that leads there, in an order that is the same for objects of
equal structure. Two iterations are alike if what they begin with is: the same objects in the same places, tensors of
the same kind that share memory in the same way. Their values may differ, and Python's numbers: these a loop carries.

What is reached but cannot be looked into, as an iterator, is an error: nobody knows whether an iteration has changed
it.
"""

import functools
import itertools
import math
import operator
import random
import sys
import types
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
import torch
from jax.core import Tracer

from ..errors import is_library, is_translator
from ..internals.dispatch import DisableTorchDispatch, DisableTorchFunction
from ..tensors.dtypes import default_dtype
from ..tensors.history import UNRECORDED, Node, Source
from ..tensors.known import evaluate, real
from ..tensors.objects import codec_of, has_attributes, leaf_of
from ..tensors.storage import Storage, steps_to
from ..tensors.tensor import Torchish
from ..tensors.view_kind import ViewKind
from ..translation import this_call


class _Everything(set[types.CodeType]):
    def __contains__(self, code: object) -> bool:
        return True


EVERYTHING = _Everything()
"""All code has run: what functions see that do not run on one path may be seen on another."""


class Unlike(Exception):
    """What lives at the beginnings of two iterations is not alike; says what differs."""


class WrittenAndReplaced(Unlike):
    """A tensor is written in place and also replaced by another one, and who sees the memory is not known."""


class FlagDiffers(Unlike):
    """A Python bool is True in some iterations, and False in others."""

    def __init__(self, text: str, path: str):
        super().__init__(text)
        self.path = path


class Change(NamedTuple):
    """What an iteration changes."""

    path: str
    kind: str
    """``"number"``; ``"flag"``, a Python bool; ``"written"``, values in memory that stays; ``"made"``, values in new
    memory; ``"sized"``, the same of another size; ``"object"``, another one of the same structure; ``"draws"``, how far
    the random stream is."""
    axis: int = 0
    """The dimension of another size."""
    growth: int = 0
    """How much longer that becomes, as far as it is seen."""

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


class SizedEntry(NamedTuple):
    """All of a tensor but its values and the size of one dimension, which data decide."""

    dtype: torch.dtype
    shape: tuple[int | None, ...]
    """None stands for what data decide."""

    @property
    def axis(self) -> int:
        return self.shape.index(None)


class Place(NamedTuple):
    """Where an object keeps something: an attribute, or an item of a list or dictionary."""

    owner: Any
    key: Any
    value: Any
    """What it kept there."""

    def read(self) -> Any:
        """What it keeps there now.

        Raises:
            LookupError: nothing.
        """
        return self._items[self.key]

    def write(self, value: Any) -> None:
        self._items[self.key] = value

    @property
    def _items(self) -> Any:
        return self.owner if type(self.owner) in (list, dict) else vars(self.owner)

    @property
    def has_changed(self) -> bool:
        try:
            return self.read() is not self.value
        except LookupError:
            return True


class _CarriedNumber(NamedTuple):
    """A Python number, which a loop may carry."""

    kind: type


class _CarriedFlag(NamedTuple):
    """A Python bool, which a loop carries."""


class _Seen(NamedTuple):
    path: str


class _Leaf(NamedTuple):
    key: Any


class _Unexecuted(NamedTuple):
    """A function that has not run."""

    key: int
    code: types.CodeType


class _Entry(NamedTuple):
    path: str
    like: Any
    value: Any

    @property
    def is_leaf(self) -> bool:
        return isinstance(self.like, _Leaf)

    @property
    def is_number(self) -> bool:
        return isinstance(self.like, _CarriedNumber)

    def is_like(self, other: "_Entry") -> bool:
        """Whether both are alike, but for values."""
        kind = _number_kind(self)
        return kind is _number_kind(other) if kind is not None else self.like == other.like


class State:
    """Everything that is alive at one time.

    Args:
        roots: the local variables that live.
        code: what runs there; the globals that it names live as well.
        names: these globals.
        executed: the code that has run. What other functions close over and the globals that they name, these functions
            have neither read nor changed. One that is another function in each iteration is added.
        flags: the paths of bools that a loop carries.
        without: the paths of what is not looked at.
        heeds_grad: whether tensors are unlike of which one requires grad; else they are only if the code takes
            derivatives itself.

    Raises:
        Unlike: something is of a kind that no loop can carry.
    """

    def __init__(
        self,
        roots: Mapping[str, Any],
        code: types.CodeType,
        names: dict[str, Any],
        executed: set[types.CodeType],
        flags: Collection[str] = (),
        *,
        without: Collection[str] = (),
        heeds_grad: bool = True,
    ):
        call: Any = this_call()
        self._without = without
        self._heeds_grad = heeds_grad or call.tape is not None
        self._flags = flags
        self.roots, self.code, self.globals, self._executed = dict(roots), code, names, executed
        self.entries: dict[str, _Entry] = {}
        self.storages: dict[str, Storage] = {}
        """By the path of the first tensor on it."""
        self.seen: dict[int, str] = {}
        """The paths of objects and tensors, by their ids."""
        self.unexecuted: set[types.CodeType] = set()
        """That of functions that were not looked into, since it has not run."""
        self.shared: set[str] = set()
        """The first paths to memory that several tensors see."""
        self.places: dict[str, Place] = {}
        """Where objects keep what is reached through them, by its path."""
        self.draws = call.stream.state
        self.parts: dict[str, list[str]] = {}
        """The paths of what tensors are held in that are as long as data decide."""
        self._kept: list = []  # whose ids are taken
        self._sized: dict[str, tuple] = {}  # the memory of tensors of a size that data decide, and its version
        self._chosen: list[tuple] = []  # such tensors, and their paths, to be looked into
        with DisableTorchFunction(), DisableTorchDispatch():
            for name, value in roots.items():
                self._visit(value, name)
            self._visit_globals(code, names)
            if call.attempt.fits is not None:
                self._visit(call.attempt.fits, "whether lengths fit")
            while self._chosen:  # after all others: nothing else is known by the path of a part
                self._visit_parts(*self._chosen.pop())
            self._add("settings", _Leaf(_settings(call)), None)
        self._versions = {path: storage.memory.version for path, storage in self.storages.items()}
        self.held = {path: _held(storage) for path, storage in self.storages.items()}

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
        elif path in self._flags and kind is bool:
            self._add(path, _CarriedFlag(), value)
        elif isinstance(value, type):
            self._visit_class(value, path)
        elif _is_translators(value):
            self._add(path, _Leaf(id(value)), value)
        elif kind is types.FunctionType and value.__code__ not in self._executed:
            self._add(path, _Unexecuted(id(value), value.__code__), value)
            self.unexecuted.add(value.__code__)
            self._kept.append(value)
        elif (codec := codec_of(kind)) is None:
            self._add(path, _Leaf(_key_of_leaf(value, path)), value)
        elif self._is_new(value, path):
            head, items = codec.open(value)
            self._add(path, (kind, head), value)
            keys = _keys(value, len(items))
            for name, key, item in zip(item_names(value, len(items)), keys, items, strict=True):
                if path + name in self._without:
                    continue
                if key is not None:
                    self.places.setdefault(path + name, Place(value, key, item))
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
        for name in named_by(code):
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
        for name in named_by(code):
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
        self._kept.extend((storage, storage.memory, steps))
        first = self.seen.setdefault(id(storage), path)
        if first == path:
            self.storages[path] = storage
        memory = self._memory(storage, path)
        restriction = tensor._restriction and tensor._restriction.kind
        geometry = tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset(), restriction
        places = tuple([(kind.bit, kind.permutation, kind.overlaps, _offset(kind), place) for kind, place in steps])
        wants_grad = None if storage.history is UNRECORDED and not self._heeds_grad else storage.history
        of_storage = (storage.frame, storage.dtype, storage.gaps, _kind_of_history(wants_grad), memory)
        of_storage = of_storage if first == path else memory
        self._add(path, TensorEntry(first, type(tensor), tensor.dtype, (*geometry, places), of_storage), value)
        for name, item in tensor.attributes.items():
            if name != "_restriction":
                self._visit(item, f"{path}.{name}")

    def _visit_chosen(self, chosen: Any, path: str) -> None:
        """A tensor that is as long as data decide."""
        if chosen.axis is None:
            self._add(path, _Leaf((type(chosen), id(chosen))), chosen)
        else:
            shape = list(chosen.sizes)
            shape[chosen.axis] = None
            self._add(path, SizedEntry(chosen.dtype, tuple(shape)), chosen)
        self._chosen.append((chosen, path))

    def _visit_parts(self, chosen: Any, path: str) -> None:
        """What a tensor is held in that is as long as data decide: code may write to that."""
        call: Any = this_call()
        memory = call.lift(chosen.base)._node.storage.memory
        self._sized[path] = memory, memory.version
        if id(memory) in self.seen:
            self.shared.update((path, self.seen[id(memory)]))
        before = len(self.entries)
        waiting = len(self._chosen)
        for name, part in chosen.parts.items():
            self._visit_tensor(part, f"{path}.{name}")
        while len(self._chosen) > waiting:
            self._visit_parts(*self._chosen.pop())
        self.parts[path] = [*itertools.islice(self.entries, before, None)]

    def _memory(self, storage: Storage, path: str) -> str:
        """The path of the first tensor that sees the memory of a storage."""
        first = self.seen.setdefault(id(storage.memory), path)
        if first != path:
            self.shared.add(first)
        return first

    # What an iteration has changed.

    def new_since(self, first: "State | None") -> set[str]:
        """The paths of storages in memory that did not live yet when a loop began.

        Its iterations have made it, and they keep it nowhere but where a state looks. So nobody else sees it.
        """
        if first is None:
            return set()
        return {path for path, storage in self.storages.items() if id(storage.memory) not in first.seen}

    def written(self) -> list[str]:
        """The paths of what has been written to since then."""
        return [path for path, storage in self.storages.items() if not is_same_array(self.held[path], _held(storage))]

    def changes_until(self, later: "State", new: Collection[str] = ()) -> list[Change]:
        """What an iteration has changed that began with this and ended with that.

        Args:
            new: the paths of what is in memory that nobody else sees: an iteration may write there and then replace it.

        Raises:
            WrittenAndReplaced: an iteration has done so with what others may see.
            FlagDiffers: a bool differs.
            Unlike: that is nothing that a loop can carry.
        """
        found: dict[str, Change] = {}
        made: set[str] = set()
        resized = self.resized_until(later)
        for path in resized:
            found[path] = self._change_of_size(self.entries[path], later.entries[path], later)
        ones, others = self._apart_from(resized), later._apart_from(resized)
        for one, other in zip(ones, others, strict=False):
            if one.path != other.path:
                raise Unlike(
                    f"{other.path if one.path in later.entries else one.path} does not exist in every iteration"
                )
            if one.path in found:
                continue
            for unexecuted in (x for x in (one.like, other.like) if isinstance(x, _Unexecuted)):
                if one.like != other.like:
                    self._executed.add(unexecuted.code)
            kind = _change(one, other)
            if kind is not None:
                found[one.path] = Change(one.path, kind)
            elif isinstance(one.like, TensorEntry) and one.path == one.like.storage:
                if self.storages[one.path] is later.storages[one.path]:
                    continue
                if one.value is other.value and _number_kind(one) is None:
                    raise Unlike(f"{one.path} has different memory in each iteration")
                if self.storages[one.path].memory.version != self._versions[one.path] and one.path not in new:
                    raise WrittenAndReplaced(f"{one.path} is written in place, and also replaced by another tensor")
                made.add(one.path)
        if len(ones) != len(others):
            raise Unlike("some iterations keep more alive than others")
        for path in (one.path for one in ones if one.path in self.storages):
            if path not in found and path in later.storages and not is_same_array(self.held[path], later.held[path]):
                found[path] = Change(path, "made" if path in made else "written")
        before, after = self.draws, later.draws
        if before.seed != after.seed or before.key is not after.key:
            raise Unlike("torch.manual_seed restarts the random numbers")
        if before.taken != after.taken or before.before is not after.before:
            found[_DRAWS] = Change(_DRAWS, "draws")
        return [*found.values()]

    @property
    def outline(self) -> list[tuple[str, Any]]:
        """What is at which path, as far as it can be compared with another run, in which all objects are others."""
        return [(entry.path, _outlined(entry)) for entry in self.entries.values()]

    def resized_until(self, later: "State") -> list[str]:
        """The paths of tensors that may be of two sizes; none of what another one is held in."""
        found, parts = [], set()
        for path, one in self.entries.items():
            if path not in parts and path in later.entries and _are_of_two_sizes(one, later.entries[path]):
                found.append(path)
                parts.update(self.parts.get(path, ()), later.parts.get(path, ()))
        return found

    def _apart_from(self, resized: list[str]) -> list[_Entry]:
        """The entries but those of what some tensors are held in.

        Raises:
            Unlike: another tensor is held in that as well.
        """
        parts = {part for path in resized for part in self.parts.get(path, ())}
        if not parts:
            return [*self.entries.values()]
        found = [entry for path, entry in self.entries.items() if path not in parts]
        for path, like, _ in found:
            if not parts.isdisjoint(_known_by(like)):
                raise Unlike(f"{path} shares memory with a tensor that has a different size in each iteration")
        return found

    def _change_of_size(self, one: _Entry, other: _Entry, later: "State") -> Change:
        """What has changed of a tensor that is of another size.

        Raises:
            Unlike: no loop can carry that.
        """
        path, begin, end = one.path, one.like, other.like
        shapes = [_shape_of(like) for like in (begin, end)]
        axes = [i for i, (x, y) in enumerate(zip(*shapes, strict=False)) if x != y or x is None]
        dtypes = {like.dtype for like in (begin, end)}
        if len(axes) != 1 or len(dtypes) > 1 or len(shapes[0]) != len(shapes[1]):
            raise Unlike(f"{path} is first {_shown(one)}, and then {_shown(other)}")
        for state, entry in ((self, one), (later, other)):
            state._expect_own_memory(entry)
        memory, version = self._sized.get(path) or (self.storages[path].memory, self._versions[path])
        if memory.version != version:
            raise Unlike(f"{path} is written in place, and also replaced by another tensor")
        (axis,) = axes
        sizes = [shape[axis] for shape in shapes]
        return Change(path, "sized", axis, 0 if None in sizes else max(sizes[1] - sizes[0], 0))

    def _expect_own_memory(self, entry: _Entry) -> None:
        """Expects of a tensor of another size in each iteration that nothing else sees it.

        Raises:
            Unlike: something does.
        """
        path, like = entry.path, entry.like
        if path in self.shared or (isinstance(like, TensorEntry) and like.storage != path):
            raise Unlike(f"{path} has a different size in each iteration, and shares memory with another tensor")
        if isinstance(like, SizedEntry):
            return
        if not isinstance(like, TensorEntry):
            raise Unlike(f"{path} is {_shown(entry)} in some iterations")
        if like.kind is not Torchish:
            raise Unlike(f"{path} has a different size in each iteration, and is a {like.kind.__name__}")
        if this_call().tape is not None and self.storages[path].history is not None:
            raise Unlike(f"{path} has a different size in each iteration, and the code takes derivatives of it")

    def aliases(self) -> Iterator[tuple[str, str]]:
        """The paths of tensors whose memory was seen before, and the paths that it was seen by."""
        for path, like, value in self.entries.values():
            if not isinstance(value, torch.Tensor) or getattr(value, "stands_for", None) is not None:
                continue
            if isinstance(like, _Seen):
                yield path, like.path
            elif isinstance(like, TensorEntry):
                first = _known_by(like)[-1]
                if first != path:
                    yield path, first

    def tensor_at(self, path: str) -> TensorEntry | None:
        """What the tensor at a path is like, if there is one, perhaps known by another path."""
        like = self.entries[path].like if path in self.entries else None
        like = self.entries[like.path].like if isinstance(like, _Seen) else like
        return like if isinstance(like, TensorEntry) else None

    def rows_and_length(self, change: Change) -> tuple[Any, Any]:
        """The array of what is carried of another size, with that dimension in front, and its length.

        Raises:
            Unlike: another dimension is as long as data decide.
        """
        entry, call = self.entries[change.path], this_call()
        self._expect_own_memory(entry)
        with call.inside():
            found = call.rows_and_length(entry.value, change.axis)
        if found is None:
            raise Unlike(f"{change.path} has several dimensions of different sizes in each iteration")
        return found

    def array(self, change: Change) -> Any:
        """The value of what is carried."""
        if change.kind == "draws":
            return self.draws.before + np.int32(self.draws.taken)
        entry, call = self.entries[change.path], this_call()
        if isinstance(entry.like, _CarriedFlag):
            return call.lift(torch.tensor(entry.value)).read()
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
            raise _unlike(one, other)
        is_same = one.value is other.value or (
            isinstance(one.like, _CarriedNumber)
            and isinstance(other.like, _CarriedNumber)
            and repr(one.value) == repr(other.value)
        )
        return None if is_same else "number"
    if type(one.value) is bool is type(other.value) and one.value is not other.value:
        if isinstance(one.like, _CarriedFlag):
            return "flag"
        raise FlagDiffers(str(_unlike(one, other)), one.path)
    if one.like != other.like:
        instead = ": keep a mask of what it would hold" if isinstance(one.value, list) else ""
        raise _unlike(one, other, instead)
    is_object = type(one.like) is tuple
    return "object" if is_object and one.value is not other.value else None


def _are_of_two_sizes(one: _Entry, other: _Entry) -> bool:
    """Whether these are tensors that may be of two sizes."""
    kinds = (TensorEntry, SizedEntry)
    if not isinstance(one.like, kinds) or not isinstance(other.like, kinds):
        return False
    if isinstance(one.like, SizedEntry) or isinstance(other.like, SizedEntry):
        return one.value is not other.value
    return _shape_of(one.like) != _shape_of(other.like)


def _known_by(like: Any) -> tuple[str, ...]:
    """The paths of others under which what an entry is of was seen first."""
    if isinstance(like, TensorEntry):
        memory = like.of_storage[-1] if type(like.of_storage) is tuple else like.of_storage
        return like.storage, memory
    return (like.path,) if isinstance(like, _Seen) else ()


def _shape_of(like: Any) -> tuple:
    return like.shape if isinstance(like, SizedEntry) else like.geometry[0]


def _outlined(entry: _Entry) -> Any:
    like, value = entry.like, entry.value
    if isinstance(like, _Leaf):
        return value if isinstance(value, (str, bool, types.NoneType)) else type(value)
    if type(like) is not tuple:
        return like.code if isinstance(like, _Unexecuted) else like
    kind, head = like
    return kind, len(head) if isinstance(head, tuple) else head if isinstance(head, int) else type(head)


def _number_kind(entry: _Entry) -> type | None:
    if isinstance(entry.like, _CarriedNumber):
        return entry.like.kind
    return getattr(entry.value, "stands_for", None)


def _unlike(one: _Entry, other: _Entry, instead: str = "") -> Unlike:
    first, then = _shown(one), _shown(other)
    if first == then and isinstance(one.like, TensorEntry):
        then, instead = "one that shares memory with others", ": keep a copy, by .clone()"
        if one.like.geometry[1] != other.like.geometry[1]:
            then, instead = "one of other strides", ": call .contiguous()"
        elif one.like.geometry != other.like.geometry:
            then = "one that is another part of its memory"
    elif first == then:
        then = "one of other content"
    return Unlike(f"{one.path} is first {first}, and then {then}{instead}")


def _shown(entry: _Entry) -> str:
    like, value = entry.like, entry.value
    if isinstance(like, (TensorEntry, SizedEntry)):
        sizes = ["(data-dependent)" if size is None else str(size) for size in _shape_of(like)]
        return f"a tensor of {like.dtype} and shape [{', '.join(sizes)}]"
    if isinstance(like, _Leaf):
        return repr(value)[:40] if isinstance(value, (str, bool, types.NoneType)) else f"a {type(value).__name__}"
    if isinstance(like, _CarriedNumber):
        return f"a Python {like.kind.__name__}"
    if isinstance(like, _Seen):
        return f"the same as {like.path}"
    head = like[1] if type(like) is tuple else None
    length = head if isinstance(head, int) else len(head) if isinstance(head, tuple) else None
    return f"a {type(value).__name__}" + ("" if length is None else f" of length {length}")


def _offset(kind: ViewKind) -> int | None:
    """What a view at a traced offset is known by: another one is at another offset."""
    return id(kind) if kind.traced else None


def _kind_of_history(history: Node | None) -> Any:
    """What iterations must have in common of how values came about: the rest of it ends with an iteration."""
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


def is_same_array(one: Any, other: Any) -> bool:
    """Whether two arrays are one, or known and equal."""
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


def _is_translators(value: Any) -> bool:
    """Whether it is a function of this package or of JAX, such as a context has: what it holds is not the code's."""
    while isinstance(value, (functools.partial, types.MethodType)):
        value = value.func if isinstance(value, functools.partial) else value.__func__
    return isinstance(value, types.FunctionType) and is_translator(value.__code__.co_filename)


def _file_of(module: str) -> str:
    """The file of a module, by its name; of one without a file what counts as a library's."""
    return getattr(sys.modules.get(module), "__file__", None) or "<builtin>"


def named_by(code: types.CodeType) -> Iterable[str]:
    """The names that code has, and functions that it makes."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from named_by(constant)


def _keys(value: Any, count: int) -> list:
    """By what an object keeps its items; None where they are not kept in a list, a dictionary or attributes."""
    if type(value) is list:
        return [*range(count)]
    if type(value) is dict:
        return [*value]
    if has_attributes(type(value)) and hasattr(value, "__dict__"):
        head = codec_of(type(value)).open(value)[0]  # pyright: ignore[reportOptionalMemberAccess]
        names = [name if name in vars(value) else None for name in head]
        return [*names, *[None] * (count - len(names))]
    return [None] * count


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
