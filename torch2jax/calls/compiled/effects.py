"""The effects of a part of a program, in a form that each run can repeat with its own arrays.

They are the result of the part, and what it has put into objects that were there before: other objects, new tensors,
or tensors that were there. Each run makes views of something views of that again.
"""

from collections.abc import Sequence
from typing import Any

import jax.core
import torch

from ...runtime.translation import lift, this_call
from ...tensors.array_buffer import ArrayBuffer
from ...tensors.history import UNRECORDED, Source
from ...tensors.journal import Memory, Uncontained
from ...tensors.objects import ObjectCodec, codec_of
from ...tensors.storage import Storage, View, steps_to
from ...tensors.tensor import Torchish, make_tensor
from .captured import CapturedState
from .host_functions import HostFunctions


class Restoration:
    """The contents of some objects, and how to put them back."""

    def __init__(self, objects: Sequence):
        self._contents: list[tuple[Any, Any, Any, list]] = []
        for value in objects:
            codec: Any = codec_of(type(value))
            if codec.fill is not None:
                head, items = codec.open(value)
                self._contents.append((value, codec, head, list(items)))

    def changed(self) -> list:
        """The objects whose contents have changed."""
        return [value for value, codec, head, items in self._contents if not _holds(codec.open(value), head, items)]

    def restore(self) -> None:
        for value, codec, head, items in self._contents:
            if not _holds(codec.open(value), head, items):
                codec.fill(value, head, items)


def _holds(opened: tuple, head: object, items: list) -> bool:
    new_head, new_items = opened
    return new_head == head and len(new_items) == len(items) and all(map(lambda a, b: a is b, new_items, items))


class Rebuilt:
    """The objects, tensors and storages that one run makes from a description."""

    def __init__(self, captured: CapturedState, objects: Sequence, storages: Sequence, arrays: Sequence):
        self.objects, self.tensors, self.storages, self.arrays = objects, captured.all_originals, storages, arrays
        self.host, self.separated = captured.all_host, captured.all_separated
        self.memo: dict[int, Any] = {}


class _StaticNode:
    """A node that is the same each time."""

    __slots__ = ("value",)

    def __init__(self, value: object):
        self.value = value

    def make(self, rebuilt: Rebuilt):
        return self.value


class _Older:
    """An object or tensor that was there before."""

    __slots__ = ("is_tensor", "position")

    def __init__(self, position: int, is_tensor: bool):
        self.position, self.is_tensor = position, is_tensor

    def make(self, rebuilt: Rebuilt):
        return (rebuilt.tensors if self.is_tensor else rebuilt.objects)[self.position]


class _Array:
    """An array among the results."""

    __slots__ = ("position",)

    def __init__(self, position: int):
        self.position = position

    def make(self, rebuilt: Rebuilt):
        return rebuilt.arrays[self.position]


class _Object:
    """An object that is new."""

    __slots__ = ("codec", "head", "items", "kind")

    def __init__(self, kind: type, codec: ObjectCodec):
        self.kind, self.codec = kind, codec
        self.head: Any = None
        self.items: list = []

    def make(self, rebuilt: Rebuilt):
        key = id(self)
        if key in rebuilt.memo:
            return rebuilt.memo[key]
        if self.codec.fill is None:
            value = self.codec.make(self.kind, self.head, [item.make(rebuilt) for item in self.items])
            rebuilt.memo[key] = value
            return value
        value = rebuilt.memo[key] = self.codec.make(self.kind, self.head, ())
        self.codec.fill(value, self.head, [item.make(rebuilt) for item in self.items])
        return value


class _NewStorage:
    """A storage that is new: with an array among the results, or of the memory of one that was there before."""

    def __init__(self, storage: Storage, twin_of: int | None, position: int, memory: "_NewStorage | None"):
        self._twin_of, self._position, self._memory = twin_of, position, memory
        self._layout, self._order = storage.buffer.layout, storage.order
        self._is_inference = storage.memory.is_inference
        self._has_history = storage.history is not None

    def make(self, rebuilt: Rebuilt) -> Storage | View:
        key = id(self)
        if key not in rebuilt.memo:
            rebuilt.memo[key] = self._made(rebuilt)
        return rebuilt.memo[key]

    def _made(self, rebuilt: Rebuilt) -> Storage | View:
        if self._twin_of is not None:
            return rebuilt.storages[self._twin_of].detached()
        memory: Memory | None = None if self._memory is None else self._memory.make(rebuilt).storage.memory
        storage = Storage(ArrayBuffer(rebuilt.arrays[self._position], self._layout), None, self._order, memory)
        storage.memory.is_inference = self._is_inference
        if self._has_history:
            storage.history = UNRECORDED
        return storage


class _NewTensor:
    """A tensor that is new."""

    def __init__(self, tensor: Torchish, kinds: list, storage: "_NewStorage | int", viewed: Any):
        self._kinds, self._storage, self._viewed = kinds, storage, viewed
        self._geometry = tensor.shape, tensor.dtype, tensor.stride(), tensor.storage_offset(), tensor._label
        self._begins = isinstance(tensor._node.storage.history, Source)
        self._restriction = tensor._restriction
        self.attributes: dict[str, Any] = {}

    def make(self, rebuilt: Rebuilt) -> Torchish:
        key = id(self)
        if key not in rebuilt.memo:
            rebuilt.memo[key] = self._made(rebuilt)
        return rebuilt.memo[key]

    def _made(self, rebuilt: Rebuilt) -> Torchish:
        if isinstance(self._storage, int) and self._storage in rebuilt.host:
            host: Any = this_call().kept.get(HostFunctions)  # it has made what is rebuilt
            shape, dtype, strides, offset, _ = self._geometry
            return host.view(rebuilt.host[self._storage], shape, strides, offset, dtype)
        node: Any = rebuilt.storages[self._storage] if isinstance(self._storage, int) else self._storage.make(rebuilt)
        for kind, region in self._kinds:
            node = View(node, kind)
            node.region = None if isinstance(self._storage, int) and self._storage in rebuilt.separated else region
        shape, dtype, strides, offset, label = self._geometry
        if isinstance(self._storage, int) and self._storage in rebuilt.separated:
            offset += rebuilt.separated[self._storage].storage_offset()
        tensor = make_tensor(node, shape, dtype, strides, offset, label)
        if self._viewed is not None:
            viewed = lift(self._viewed.make(rebuilt))
            tensor._viewed, tensor._writes = viewed, viewed._writes
            if self._restriction is not None:
                tensor._restriction = self._restriction._replace(writes=viewed._writes[0])
        if self.attributes:
            vars(tensor).update({name: value.make(rebuilt) for name, value in self.attributes.items()})
        if self._begins:
            tensor.start_history()
        return tensor


class Effects:
    """The changes that a part makes, and its result.

    Args:
        captured: what it could reach before.
        changed: the objects among these whose contents have changed.
        result: its result.

    Raises:
        Uncontained: some of it cannot be made again.
    """

    def __init__(self, captured: CapturedState, changed: list, result: Any):
        self._captured: Any = captured
        self.arrays: list = []
        """The arrays that are needed to repeat the effects."""
        self._described: dict[int, Any] = {}
        self._kept: list = []  # which keep their ids
        self._memories: dict[int, _NewStorage] = {}
        self.needs_objects = False
        """True if it has objects that were there before."""
        self.result = self._describe(result)
        self.changes: list[tuple[int, ObjectCodec, Any, list]] = []
        for value in changed:
            codec: Any = codec_of(type(value))
            head, items = codec.open(value)
            self.changes.append((captured.position_of(value), codec, head, [self._describe(item) for item in items]))
        self.needs_objects = self.needs_objects or bool(changed)
        self._captured, self._kept, self._described, self._memories = None, [], {}, {}

    def make(self, rebuilt: Rebuilt) -> Any:
        """Repeats the changes of objects, and returns the result."""
        for position, codec, head, items in self.changes:
            fill: Any = codec.fill
            fill(rebuilt.objects[position], head, [item.make(rebuilt) for item in items])
        return self.result.make(rebuilt)

    def _describe(self, value: Any) -> Any:
        position = self._captured.position_of(value)
        if position is not None:
            is_tensor = isinstance(value, torch.Tensor)
            self.needs_objects = self.needs_objects or not is_tensor
            return _Older(position, is_tensor)
        described = self._described.get(id(value))
        if described is not None:
            return described
        if getattr(type(value), "length_depends_on_values", False):
            raise Uncontained("a mask selection, whose length depends on values")
        if isinstance(value, torch.Tensor):
            return self._describe_tensor(value) if isinstance(value, Torchish) else _StaticNode(value)
        if isinstance(value, jax.core.Tracer):
            self.arrays.append(value)
            return _Array(len(self.arrays) - 1)
        codec = codec_of(type(value))
        if codec is None:
            return _StaticNode(value)
        described = self._remember(value, _Object(type(value), codec))
        described.head, items = codec.open(value)
        described.items = [self._describe(item) for item in items]
        if codec.fill is None and all(isinstance(item, _StaticNode) for item in described.items):
            return self._remember(value, _StaticNode(value))
        return described

    def _remember(self, value: Torchish | Storage, described: object) -> Any:
        self._kept.append(value)
        self._described[id(value)] = described
        return described

    def _describe_tensor(self, tensor: Torchish) -> _NewTensor:
        steps = steps_to(tensor._node)
        if any(kind.traced for kind, _ in steps):
            raise Uncontained("a view at a place that is computed within")
        described = _NewTensor(tensor, steps, self._describe_storage(tensor._node.storage), None)
        self._remember(tensor, described)
        if tensor._viewed is not None:
            described._viewed = self._describe(tensor._viewed)
        own = {name: value for name, value in tensor.attributes.items() if name != "_restriction"}
        described.attributes = {name: self._describe(value) for name, value in own.items()}
        return described

    def _describe_storage(self, storage: Storage) -> Any:
        position = self._captured.position_of(storage)
        if position is not None:
            return position
        described = self._described.get(id(storage))
        if described is not None:
            return described
        if storage.is_older:
            raise Uncontained("a tensor that is in neither its module nor its arguments")
        if storage.is_outgrown:
            raise Uncontained("memory that grows")
        memory = storage.memory
        if memory.is_older:
            return self._remember(storage, _NewStorage(storage, self._twin(memory), 0, None))
        described = _NewStorage(storage, None, len(self.arrays), self._memories.get(id(memory)))
        self._memories.setdefault(id(memory), described)
        self._kept.append(memory)
        self.arrays.append(storage.buffer.array)
        return self._remember(storage, described)

    def _twin(self, memory: Memory) -> int:
        for number, storage in enumerate(self._captured.all_storages):
            if storage.memory is memory:
                return number
        raise Uncontained("a tensor that is in neither its module nor its arguments")
