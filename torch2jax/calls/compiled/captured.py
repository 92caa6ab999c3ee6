"""The state that a compiled part captures: objects, tensors and storages that its trace depends on.

A part is compiled once for each key, which has all that a trace depends on. Objects are walked from the module and the
arguments, by their codecs. Their types, keys and leaves, and the objects that are met again, are the `signature`; the
shapes and dtypes of storages, and which of them share a memory, are `described`.

Invariant: objects, tensors and storages are numbered in the order of the walk. In calls with equal keys the same number
is the corresponding one, so a program knows them by numbers alone, and refers to no object of the call that made it.

To walk a module takes longer than to run its program. So a `GuardedState` keeps lists of all items, and compares these
by identity before each call; it is made anew only if one has changed. Other states go on from it (`beyond`).
"""

import itertools
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter, is_
from typing import Any

import jax
import torch

from ...runtime.translation import this_call
from ...tensors.array_buffer import ArrayBuffer
from ...tensors.history import Source
from ...tensors.objects import codec_of, leaf_of
from ...tensors.storage import Storage, View
from ...tensors.tensor import Torchish, make_region
from .host_functions import HostFunctions
from .reordered import Reordered, buffer_of, shown

_SEEN = object()
_PLAIN = frozenset((dict, OrderedDict, set, list))
_node_of, _held_of, _version_of = attrgetter("_node"), attrgetter("_buffer"), attrgetter("memory.version")


class Aliased(Exception):
    """Several of PyTorch's own tensors share memory."""


class CapturedState:
    """The objects, tensors and storages reachable from some roots, but not from the state `beyond`.

    PyTorch's overrides must be off while it is made.

    Args:
        roots: any objects.
        beyond: what is reached from others.
        shares: whether several tensors of PyTorch's own may be of the same memory.
        located: whether each tensor is where it is in its memory; by default rows stand alone.

    Raises:
        Aliased: several are, though they may not.
    """

    def __init__(
        self, roots: Iterable, beyond: "CapturedState | None" = None, shares: bool = False, located: bool = False
    ):
        self._beyond, self.located = beyond, located
        self.first_object = 0 if beyond is None else beyond.first_object + len(beyond.objects)
        self.first_tensor = 0 if beyond is None else beyond.first_tensor + len(beyond.tensors)
        self.first_storage = 0 if beyond is None else beyond.first_storage + len(beyond.storages)
        self.objects: list = []
        """The objects that hold others."""
        self.tensors: list[Torchish] = []
        self.storages: list[Storage] = []
        self._positions: dict[int, int] = {}
        self.originals: list[torch.Tensor] = []
        """The tensors that these stand for; a tensor that stands for none is its own."""
        self.host: dict[int, torch.Tensor] = {}
        """The tensors of PyTorch's own, by the numbers of the storages that hold their values."""
        self._shape: list = []
        self.separated: dict[int, Torchish] = {}
        """Views that nothing else shares memory with, by the numbers of storages that hold their values alone."""
        self._at: list[int] = []  # where in the signature the tensors are
        self._memories: dict[int, tuple[torch.Tensor, Torchish]] = {}
        self._alone: set[int] | None = None if beyond is None or shares or located else set()
        for root in roots:
            self._visit(root)
        if beyond is not None and not located:
            self._separate_rows()

    def _separate_rows(self) -> None:
        """Gives a row a storage of its own if only the row is reached: one program then serves any matrix."""
        if all(type(tensor._node) is Storage for tensor in self.tensors):
            return
        counts = Counter(self._shape[at][1] for at in self._at)
        for tensor, at in zip(self.tensors, self._at, strict=True):
            entry, node = self._shape[at], tensor._node
            position, storage = entry[1], node.storage
            is_view = isinstance(node, View) and not node.overlaps and not node.bits and not node.kind.traced
            if not is_view or counts[position] > 1 or position < self.first_storage or not tensor.is_contiguous():
                continue
            if storage.memory.is_shared or storage.is_outgrown or storage.memory.foreign:
                continue
            alone = Storage(ArrayBuffer(tensor.read(), None))
            alone.differentiable, alone.history = storage.differentiable, storage.history
            alone.memory.is_part, alone.memory.is_inference = True, storage.memory.is_inference
            self.storages[position - self.first_storage] = alone
            self._positions[id(alone)] = position
            self.separated[position] = tensor
            self._shape[at] = (*entry[:3], (tensor.shape, tensor.stride()), *entry[4:])

    def position_of(self, value: object) -> Any:
        """The number of an object, tensor or storage; None if it is not reached."""
        key, captured = id(value), self
        while captured is not None:
            position = captured._positions.get(key)
            if position is not None:
                return position
            captured = captured._beyond
        return None

    def _shared(self, storage: Storage) -> int:
        """The number of a storage's memory: that of the first storage with this memory."""
        position = self.position_of(storage.memory)
        return (
            self._positions.setdefault(id(storage.memory), self._positions[id(storage)])
            if position is None
            else position
        )

    @property
    def ids(self) -> set[int]:
        """The ids of everything that is reached."""
        return {*self._positions} if self._beyond is None else self._beyond.ids.union(self._positions)

    @property
    def all_objects(self) -> list:
        """Also those reached before."""
        return self.objects if self._beyond is None else self._beyond.all_objects + self.objects

    @property
    def all_tensors(self) -> list[Torchish]:
        return self.tensors if self._beyond is None else self._beyond.all_tensors + self.tensors

    @property
    def all_originals(self) -> list[torch.Tensor]:
        return self.originals if self._beyond is None else self._beyond.all_originals + self.originals

    @property
    def all_host(self) -> dict[int, torch.Tensor]:
        return self.host if self._beyond is None else {**self._beyond.all_host, **self.host}

    @property
    def all_separated(self) -> dict[int, Torchish]:
        return self.separated if self._beyond is None else {**self._beyond.all_separated, **self.separated}

    @property
    def all_storages(self) -> list[Storage]:
        return self.storages if self._beyond is None else self._beyond.all_storages + self.storages

    @property
    def all_arrays(self) -> list:
        """The contents of the storages: arrays, or `Reordered` ones."""
        arrays = [*map(shown, self.storages)]
        return arrays if self._beyond is None else self._beyond.all_arrays + arrays

    def lend(self, position: int) -> None:
        """Keeps no array of a storage, which a program destroys."""
        if self._beyond is not None and position < self.first_storage:
            self._beyond.lend(position)

    def note_written(self, position: int, storage: Storage, array: jax.Array) -> None:
        """Notes the new contents of a storage, which have the same form as the old ones."""
        if self._beyond is not None and position < self.first_storage:
            self._beyond.note_written(position, storage, array)

    @property
    def signature(self) -> tuple:
        """The part of the trace's key that does not concern `storages`."""
        return tuple(self._shape)

    def _visit(self, value: Any) -> None:
        kind = type(value)
        codec = codec_of(kind)
        if codec is None:
            if issubclass(kind, torch.Tensor):
                self._visit_tensor(value)
            else:
                self._shape.append(leaf_of(kind)(value))
            return
        position = self.position_of(value)
        if position is not None:
            self._shape.append((_SEEN, position))
            return
        self._positions[id(value)] = self.first_object + len(self.objects)
        self.objects.append(value)
        if kind in _PLAIN and not value and not (kind is OrderedDict and vars(value)):
            self._shape.append(kind)  # as most that modules have, for hooks
            return
        head, items = codec.open(value)
        self._shape.append((kind, head))
        for item in items:
            self._visit(item)

    def _visit_tensor(self, value: torch.Tensor) -> None:
        position = self.position_of(value)
        if position is not None:
            self._shape.append((_SEEN, position, "tensor"))
            return
        tensor: Any = value
        holder = None
        if not isinstance(value, Torchish):
            try:
                tensor, holder = self._standing_for(value)
            except (RuntimeError, TypeError, ValueError):  # it has no values that JAX could have
                self._shape.append(leaf_of(object)(value))
                return
            position = self.position_of(tensor)
        if position is None:
            position = self._positions[id(tensor)] = self.first_tensor + len(self.tensors)
            self.tensors.append(tensor)
            self.originals.append(value)
        self._positions[id(value)] = position
        storage = tensor._node.storage
        at = self.position_of(storage)
        if at is None:
            at = self._positions[id(storage)] = self.first_storage + len(self.storages)
            self.storages.append(storage)
            if holder is not None:
                self.host[at] = holder
        geometry = tensor.shape, tensor.stride(), tensor.storage_offset()
        restriction = tensor._restriction and tensor._restriction.kind
        self._at.append(len(self._shape))
        self._shape.append((Torchish, at, tensor.dtype, geometry, tensor._label, restriction))

    def _standing_for(self, value: torch.Tensor) -> tuple[Torchish, torch.Tensor | None]:
        """The call's tensor for another; for one of PyTorch's own also the tensor that owns its memory."""
        call = this_call()
        host, memory = call.kept.get(HostFunctions), value.untyped_storage()._cdata
        if host is None or not host.owns(value):
            return call.constants.lift(value), None
        entry = self._memory(memory)
        if entry is None and self._alone is not None and value.is_contiguous():
            if memory in self._alone:
                raise Aliased
            self._alone.add(memory)
            tensor = host.standing_for(value)
            tensor._node.storage.memory.is_part = value.nbytes < value.untyped_storage().nbytes()
            return tensor, value
        if entry is None:
            full = host.memory_of(value)
            entry = self._memories[memory] = full, host.standing_for(full)
        full, base = entry
        if full.dtype != value.dtype:
            return host.standing_for(value), value
        return make_region(base, value.shape, value.stride(), value.storage_offset()), full

    def _memory(self, memory: int) -> tuple[torch.Tensor, Torchish] | None:
        entry = self._memories.get(memory)
        return entry if entry is not None or self._beyond is None else self._beyond._memory(memory)

    def described(self) -> tuple:
        """The part of the trace's key that concerns the storages."""
        return tuple([self._described(storage) for storage in self.storages])

    def _described(self, storage: Storage) -> tuple:
        buffer = buffer_of(storage)
        memory, history = storage.memory, storage.history
        shared = self._shared(storage) if memory.is_shared else None
        return (
            *(buffer.shape, buffer.dtype, buffer.layout, storage.order, storage.differentiable, shared),
            *(None if history is None else isinstance(history, Source), memory.foreign, memory.is_inference),
        )


class GuardedState(CapturedState):
    """The captured state of objects that seldom change, with guards: asking whether they have costs little.

    PyTorch's overrides must be off while it is made.

    Args:
        roots: these objects.
        beyond: what is reached from others that seldom change.
    """

    def __init__(self, roots: Sequence, beyond: "GuardedState | None" = None):
        super().__init__(roots, beyond, shares=True, located=True)
        self._before = beyond
        self._roots = roots
        self._empty: list[object] = []
        self._keyed: list[Any] = []  # whose keys are strings, and which these are
        self._keys: list[str] = []
        self._sized: list[Any] = []  # all, and how many items they have
        self._sizes: list[int] = []
        self._views: list[Any] = []  # what shows the items, and which these are
        for value in self.objects:
            self._guard(value)
        self._items = [*itertools.chain.from_iterable(self._views)]
        self._nodes = [*map(_node_of, self.tensors)]
        self._buffer: list = []
        self._versions: list[int] = []
        self.arrays: list = []
        self.number: Any = None
        """The key of the state in those of programs, as long as it has not changed."""
        self._shape_number: object = None  # and for its signature, which many objects make up

    @property
    def is_settled(self) -> bool:
        """True if all tensors are on memory that the call had from the beginning; others are compared in each call."""
        nodes = self._nodes
        return not self.host and all(type(x) is Storage and type(x.lazy(None, None)) is not Reordered for x in nodes)

    def _guard(self, value: Any) -> None:
        kind = type(value)
        if kind in _PLAIN and not value:
            self._empty.append(value)
            return
        codec: Any = codec_of(kind)
        views = () if codec.views is None else codec.views(value)
        for keys, items in itertools.zip_longest(views[::2], views[1::2]):
            if type(keys) in _PLAIN and not keys:
                self._empty.append(keys)
                continue
            self._sized.append(keys)
            self._sizes.append(len(keys))
            found = None if items is None else list(keys)
            if found is not None and all(type(key) is str for key in found):
                self._keyed.append(keys)
                self._keys.extend(found)
            else:
                self._views.append(keys)
            if items is not None:
                self._views.append(items)

    def is_current(self, roots: Sequence | None = None) -> bool:
        """Returns True if the objects hold what they held, and are the `roots`."""
        return (
            (roots is None or (len(roots) == len(self._roots) and all(map(is_, roots, self._roots))))
            and not self.host
            and not any(self._empty)
            and [*map(len, self._sized)] == self._sizes
            and [*itertools.chain.from_iterable(self._keyed)] == self._keys
            and all(map(is_, itertools.chain.from_iterable(self._views), self._items))
            and all(map(is_, map(_node_of, self.tensors), self._nodes))
        )

    def refresh(self, numbered: Callable[[tuple], int]) -> None:
        """Notes the present contents of the storages."""
        is_current = self.number is not None and [*map(_version_of, self.storages)] == self._versions
        if is_current and all(map(is_, map(_held_of, self.storages), self._buffer)):
            return
        described = self.described()
        self._buffer = [storage._buffer for storage in self.storages]
        self._versions = [*map(_version_of, self.storages)]
        self.arrays = [storage.buffer.array for storage in self.storages]
        if self._shape_number is None:
            self._shape_number, self._shape = numbered(self.signature), []
        self.number = numbered((self._shape_number, described))

    @property
    def numbers(self) -> tuple:
        """The numbers of all."""
        return (self.number,) if self._before is None else (*self._before.numbers, self.number)

    @property
    def all_arrays(self) -> list:
        return self.arrays if self._beyond is None else self._beyond.all_arrays + self.arrays

    def lend(self, position: int) -> None:
        if position < self.first_storage:
            super().lend(position)
        else:
            position -= self.first_storage
            self.arrays[position], self._versions[position] = None, -1

    def note_written(self, position: int, storage: Storage, array: jax.Array) -> None:
        if position < self.first_storage:
            super().note_written(position, storage, array)
        else:
            position -= self.first_storage
            self._buffer[position], self._versions[position] = storage._buffer, storage.memory.version
            self.arrays[position] = array
