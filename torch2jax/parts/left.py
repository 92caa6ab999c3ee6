"""What a part of a program leaves behind, described so that it can be made again with other arrays.

Its result, and what it has put into objects that were there before: other objects, new tensors, or tensors that were
there. What is a view of something is made a view of that again.
"""

from collections.abc import Sequence
from typing import Any

import jax.core
import torch

from ..tensors.held import Held
from ..tensors.history import UNRECORDED, Source
from ..tensors.journal import Uncontained
from ..tensors.memory import Memory
from ..tensors.storage import Storage, View, steps_to
from ..tensors.tensor import Torchish, make_tensor
from ..translation import current
from .objects import Codec, codec_of
from .reached import Reached

__all__ = ["Left", "Made", "Restoration"]


class Restoration:
    """What objects hold, to let them hold it again."""

    def __init__(self, objects: Sequence):
        self._held: list[tuple[Any, Any, Any, list]] = []
        for value in objects:
            codec: Any = codec_of(type(value))
            if codec.fill is not None:
                head, items = codec.open(value)
                self._held.append((value, codec, head, list(items)))

    def changed(self) -> list:
        """Those that hold something else by now."""
        return [value for value, codec, head, items in self._held if not _holds(codec.open(value), head, items)]

    def restore(self) -> None:
        for value, codec, head, items in self._held:
            if not _holds(codec.open(value), head, items):
                codec.fill(value, head, items)


def _holds(opened: tuple, head, items: list) -> bool:
    new_head, new_items = opened
    return new_head == head and len(new_items) == len(items) and all(map(lambda a, b: a is b, new_items, items))


class Made:
    """What is being made again from what was described."""

    def __init__(self, reached: Reached, objects: Sequence, storages: Sequence, arrays: Sequence):
        self.objects, self.tensors, self.storages, self.arrays = objects, reached.all_originals, storages, arrays
        self.around, self.stands = reached.all_around, reached.all_stands
        self.memo: dict[int, Any] = {}


class _Static:
    """What is the same each time."""

    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value

    def make(self, made: Made):
        return self.value


class _Older:
    """An object or tensor that was there before."""

    __slots__ = ("is_tensor", "place")

    def __init__(self, place: int, is_tensor: bool):
        self.place, self.is_tensor = place, is_tensor

    def make(self, made: Made):
        return (made.tensors if self.is_tensor else made.objects)[self.place]


class _Array:
    """An array among the results."""

    __slots__ = ("place",)

    def __init__(self, place: int):
        self.place = place

    def make(self, made: Made):
        return made.arrays[self.place]


class _Object:
    """An object that is new."""

    __slots__ = ("codec", "head", "items", "kind")

    def __init__(self, kind: type, codec: Codec):
        self.kind, self.codec = kind, codec
        self.head: Any = None
        self.items: list = []

    def make(self, made: Made):
        key = id(self)
        if key in made.memo:
            return made.memo[key]
        if self.codec.fill is None:
            value = self.codec.make(self.kind, self.head, [item.make(made) for item in self.items])
            made.memo[key] = value
            return value
        value = made.memo[key] = self.codec.make(self.kind, self.head, ())
        self.codec.fill(value, self.head, [item.make(made) for item in self.items])
        return value


class _Storage:
    """A storage that is new: with an array among the results, or of the memory of one that was there before."""

    def __init__(self, storage: Storage, twin_of: int | None, place: int, memory: "_Storage | None"):
        self._twin_of, self._place, self._memory = twin_of, place, memory
        self._layout, self._order = storage.held.layout, storage.order
        self._is_inference = storage.memory.is_inference
        self._has_history = storage.history is not None

    def make(self, made: Made) -> Storage | View:
        key = id(self)
        if key not in made.memo:
            made.memo[key] = self._made(made)
        return made.memo[key]

    def _made(self, made: Made) -> Storage | View:
        if self._twin_of is not None:
            return made.storages[self._twin_of].detached()
        memory: Memory | None = None if self._memory is None else self._memory.make(made).storage.memory
        storage = Storage(Held(made.arrays[self._place], self._layout), None, self._order, memory)
        storage.memory.is_inference = self._is_inference
        if self._has_history:
            storage.history = UNRECORDED
        return storage


class _Tensor:
    """A tensor that is new."""

    def __init__(self, tensor: Torchish, kinds: list, storage: "_Storage | int", viewed: Any):
        self._kinds, self._storage, self._viewed = kinds, storage, viewed
        self._geometry = tensor.shape, tensor.dtype, tensor.stride(), tensor.storage_offset(), tensor._label
        self._begins = isinstance(tensor._node.storage.history, Source)
        self._restriction = tensor._restriction
        self.attributes: dict[str, Any] = {}

    def make(self, made: Made) -> Torchish:
        key = id(self)
        if key not in made.memo:
            made.memo[key] = self._made(made)
        return made.memo[key]

    def _made(self, made: Made) -> Torchish:
        if isinstance(self._storage, int) and self._storage in made.around:
            shape, dtype, strides, offset, _ = self._geometry
            return current().constants.around.view(made.around[self._storage], shape, strides, offset, dtype)
        node: Any = made.storages[self._storage] if isinstance(self._storage, int) else self._storage.make(made)
        for kind, place in self._kinds:
            node = View(node, kind)
            node.place = None if isinstance(self._storage, int) and self._storage in made.stands else place
        shape, dtype, strides, offset, label = self._geometry
        if isinstance(self._storage, int) and self._storage in made.stands:
            offset += made.stands[self._storage].storage_offset()
        tensor = make_tensor(node, shape, dtype, strides, offset, label)
        if self._viewed is not None:
            viewed = current().lift(self._viewed.make(made))
            tensor._viewed, tensor._writes = viewed, viewed._writes
            if self._restriction is not None:
                tensor._restriction = self._restriction._replace(writes=viewed._writes[0])
        if self.attributes:
            vars(tensor).update({name: value.make(made) for name, value in self.attributes.items()})
        if self._begins:
            tensor.start_history()
        return tensor


class Left:
    """What is left when a part has run.

    Args:
        reached: what it could reach before.
        changed: those of them that hold something else than before.
        result: what it gave.

    Raises:
        Uncontained: some of it cannot be made again.
    """

    def __init__(self, reached: Reached, changed: list, result: Any):
        self._reached: Any = reached
        self.arrays: list = []
        """Those that it takes to make it again."""
        self._described: dict[int, Any] = {}
        self._kept: list = []  # which keep their ids
        self._memories: dict[int, _Storage] = {}
        self.needs_objects = False
        """Whether it has objects that were there before."""
        self.result = self._describe(result)
        self.changes: list[tuple[int, Codec, Any, list]] = []
        for value in changed:
            codec: Any = codec_of(type(value))
            head, items = codec.open(value)
            self.changes.append((reached.place_of(value), codec, head, [self._describe(item) for item in items]))
        self.needs_objects = self.needs_objects or bool(changed)
        self._reached, self._kept, self._described, self._memories = None, [], {}, {}

    def make(self, made: Made) -> Any:
        """Puts into objects what was put there, and gives the result."""
        for place, codec, head, items in self.changes:
            fill: Any = codec.fill
            fill(made.objects[place], head, [item.make(made) for item in items])
        return self.result.make(made)

    def _describe(self, value) -> Any:
        place = self._reached.place_of(value)
        if place is not None:
            is_tensor = isinstance(value, torch.Tensor)
            self.needs_objects = self.needs_objects or not is_tensor
            return _Older(place, is_tensor)
        described = self._described.get(id(value))
        if described is not None:
            return described
        if getattr(type(value), "length_depends_on_values", False):
            raise Uncontained("what a mask chose, whose length depends on values")
        if isinstance(value, torch.Tensor):
            return self._describe_tensor(value) if isinstance(value, Torchish) else _Static(value)
        if isinstance(value, jax.core.Tracer):
            self.arrays.append(value)
            return _Array(len(self.arrays) - 1)
        codec = codec_of(type(value))
        if codec is None:
            return _Static(value)
        described = self._remember(value, _Object(type(value), codec))
        described.head, items = codec.open(value)
        described.items = [self._describe(item) for item in items]
        if codec.fill is None and all(isinstance(item, _Static) for item in described.items):
            return self._remember(value, _Static(value))
        return described

    def _remember(self, value, described) -> Any:
        self._kept.append(value)
        self._described[id(value)] = described
        return described

    def _describe_tensor(self, tensor: Torchish) -> _Tensor:
        steps = steps_to(tensor._node)
        if any(kind.traced for kind, _ in steps):
            raise Uncontained("a view at a place that is computed within")
        described = _Tensor(tensor, steps, self._describe_storage(tensor._node.storage), None)
        self._remember(tensor, described)
        if tensor._viewed is not None:
            described._viewed = self._describe(tensor._viewed)
        own = {name: value for name, value in tensor.attributes.items() if name != "_restriction"}
        described.attributes = {name: self._describe(value) for name, value in own.items()}
        return described

    def _describe_storage(self, storage: Storage) -> Any:
        place = self._reached.place_of(storage)
        if place is not None:
            return place
        described = self._described.get(id(storage))
        if described is not None:
            return described
        if storage.is_older:
            raise Uncontained("a tensor that is in neither its module nor its arguments")
        if storage.is_outgrown:
            raise Uncontained("memory that grows")
        memory = storage.memory
        if memory.is_older:
            return self._remember(storage, _Storage(storage, self._twin(memory), 0, None))
        described = _Storage(storage, None, len(self.arrays), self._memories.get(id(memory)))
        self._memories.setdefault(id(memory), described)
        self._kept.append(memory)
        self.arrays.append(storage.held.array)
        return self._remember(storage, described)

    def _twin(self, memory: Memory) -> int:
        for number, storage in enumerate(self._reached.all_storages):
            if storage.memory is memory:
                return number
        raise Uncontained("a tensor that is in neither its module nor its arguments")
