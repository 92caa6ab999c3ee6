"""The carry of a loop: puts new values into the places where the code keeps them, and reads them back.

Values in memory that stays are written there, so that everything that sees the memory sees them. What the iterations
make anew is made anew here as well: nobody else may see it change.

Where the code takes derivatives, a tensor that requires grad by itself does so in each iteration. What else an
iteration has computed of such ends with it: a derivative that leads back there shows that the loop is none of the graph
(`Cut`).
"""

import functools
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import numpy as np
import torch
from jax import lax

from ..internals.dispatch import DisableTorchDispatch, DisableTorchFunction
from ..internals.frames import set_locals
from ..tensors.history import UNRECORDED, Node, Source
from ..tensors.journal import Memory
from ..tensors.objects import codec_of
from ..tensors.physical import PhysicalArray
from ..tensors.storage import Storage, View, steps_to
from ..tensors.tensor import Torchish, make_tensor, wrap
from ..tracing.carried_floats import CarriedFloat, begun
from ..translation import this_call
from .loop_state import Change, State, TensorEntry, Unlike, item_names


class Cut(Node):
    """The history of what the iterations before have computed.

    Args:
        before: what it was when the first iteration began.
        refuse: is called where a derivative leads back to it, and raises.
    """

    __slots__ = ("_refuse",)

    def __init__(self, before: Node, refuse: Callable[[], None]):
        super().__init__("Loop", [before])
        self._refuse = refuse

    def refuses(self, ends: set[int]) -> bool:
        del ends  # what it leads to in other iterations is not known
        return True

    def refuse(self) -> None:
        self._refuse()


def put(
    state: State,
    changes: Sequence[Change],
    arrays: Sequence,
    frame: FrameType,
    refuse: Callable[[], None],
    carried_float: Callable[[str], CarriedFloat],
    ask: Callable[[Any], bool],
) -> list[Callable[[], None]]:
    """Lets what a loop carries hold other values.

    Args:
        state: what lives, as it was just taken down.
        arrays: the values of what is carried, in order.
        frame: whose local variables are the roots.
        refuse: is called where a derivative leads back to iterations before, and raises.
        carried_float: gives what is known of a float, by its path.
        ask: gives the path's answer to whether a bool is True.

    Returns:
        What undoes changes of objects.

    Raises:
        Unlike: something cannot be put where it belongs.
    """
    return _Putting(state, changes, arrays, refuse, carried_float, ask).into(frame)


def with_room(rows: Any, room: int) -> Any:
    """Rows ``(n, ...)`` in an array of `room` rows, without those that there is no room for, and zeros behind them."""
    if len(rows) >= room:
        return lax.slice_in_dim(rows, 0, room)
    return lax.pad(rows, np.zeros((), rows.dtype), [(0, room - len(rows), 0), *[(0, 0, 0)] * (rows.ndim - 1)])


def number(array: Any) -> Any:
    """An array as a Python number, as far as the code can tell."""
    dtype = torch.int64 if array.dtype.kind in "iu" else torch.float64
    return wrap(array, dtype).item()


class _Putting:
    def __init__(
        self,
        state: State,
        changes: Sequence[Change],
        arrays: Sequence,
        refuse: Callable[[], None],
        carried_float: Callable[[str], CarriedFloat],
        ask: Callable[[Any], bool],
    ):
        self._state, self._refuse, self._carried_float = state, refuse, carried_float
        given = iter(arrays)
        self._arrays = {
            x.path: (next(given), next(given), x.axis) if x.kind == "sized" else next(given)
            for x in changes
            if x.is_carried
        }
        self._kinds = {x.path: x.kind for x in changes}
        self._flags = {x.path: ask(self._arrays[x.path]) for x in changes if x.kind == "flag"}
        self._done: set[str] = set()
        self._memo: dict[int, Any] = {}
        self._storages: dict[int, Storage] = {}
        self._memories: dict[int, Memory] = {}  # what takes the place of memory that a leaf and its values share
        self._undo: list[Callable[[], None]] = []

    def into(self, frame: FrameType) -> list[Callable[[], None]]:
        state, call = self._state, this_call()
        for path, kind in self._kinds.items():
            if kind == "written":
                self._write(state.storages[path], self._arrays[path])
                self._done.add(path)
            elif kind == "draws":
                stream: Any = call.stream
                stream.state = stream.state._replace(taken=0, before=self._arrays[path])
                self._done.add(path)
            elif kind == "object":
                self._done.add(path)
        found = {name: self._put(value, name) for name, value in state.roots.items()}
        set_locals(frame, {name: value for name, value in found.items() if value is not state.roots[name]})
        missing = [path for path in self._kinds if path not in self._done]
        if missing:
            raise Unlike(f"{missing[0]} changes in a way that no loop can carry")
        return self._undo

    def _write(self, storage: Storage, array: Any) -> None:
        history, tape = storage.history, this_call().tape
        physical = PhysicalArray(array, None)
        if isinstance(history, Source) and tape is not None:
            before, layout = storage.physical
            if not tape.has(before):
                raise Unlike("a leaf that requires grad no longer does")
            physical = PhysicalArray(tape.with_values(before, physical.arranged(layout)), layout)
        elif history is not None:
            physical = PhysicalArray(self._cut(storage, history, array), None)
        storage.replace(physical, None, is_written=True)
        storage.differentiable = storage.differentiable or array.dtype.kind not in "biu"

    def _cut(self, storage: Storage, history: Node, array: Any) -> Any:
        """The values of what iterations before have computed, on a storage; `history` was that of the first."""
        tape = this_call().tape
        if tape is None:
            storage.history = UNRECORDED
            return array
        storage.history, tape.refuses = Cut(history, self._refuse), True
        return tape.beginning(array, 0)

    def _put(self, value: Any, path: str) -> Any:
        """What takes the place of a value."""
        if path in self._flags:
            self._done.add(path)
            return self._flags[path]
        if self._kinds.get(path) == "number" or (path in self._kinds and type(value) in (int, float)):
            self._done.add(path)
            return self._number(value, path)
        if isinstance(value, torch.Tensor):
            return self._put_tensor(value, path)
        codec = codec_of(type(value)) if not isinstance(value, type) else None
        if codec is None:
            return value
        if id(value) in self._memo:
            return self._memo[id(value)]
        first = self._state.seen.get(id(value))
        if first is None:
            return value
        head, items = codec.open(value)
        items = list(items)
        fill: Any = codec.fill
        is_other = self._kinds.get(first) == "object" and codec.fill is not None
        self._memo[id(value)] = codec.make(type(value), head, ()) if is_other else value
        names = item_names(value, len(items))
        found = [self._put(item, first + name) for name, item in zip(names, items, strict=True)]
        is_same = all(map(lambda x, y: x is y, items, found))
        if is_other:
            fill(self._memo[id(value)], head, found)
        elif not is_same and codec.fill is None:
            self._memo[id(value)] = codec.make(type(value), head, found)
        elif not is_same:
            fill(value, head, found)
            self._undo.append(lambda: fill(value, head, items))
        return self._memo[id(value)]

    def _put_tensor(self, tensor: torch.Tensor, path: str) -> Any:
        if id(tensor) in self._memo:
            return self._memo[id(tensor)]
        first = self._state.seen.get(id(tensor), path)
        entry = self._state.entries.get(first)
        if self._kinds.get(first) == "sized":
            self._done.add(first)
            found = self._memo[id(tensor)] = self._with_length(tensor, *self._arrays[first])
            return found
        if entry is None or not isinstance(entry.like, TensorEntry) or not isinstance(tensor, Torchish):
            return tensor
        at = entry.like.storage
        if self._kinds.get(at) != "made":
            self._put_attributes(tensor, tensor, path)
            return tensor
        self._done.add(at)
        if tensor.stands_for is not None:
            return self._number(tensor, at)
        if type(tensor) is not Torchish:
            raise Unlike(f"{path} is a different {type(tensor).__name__} in each iteration")
        found = self._memo[id(tensor)] = self._again(tensor, self._arrays[at])
        self._put_attributes(tensor, found, path)
        return found

    def _number(self, first: Any, path: str) -> Any:
        found = number(self._arrays[path])
        if found.is_floating_point():
            found.computed = begun(self._carried_float(path), first)
        return found

    def _with_length(self, tensor: torch.Tensor, rows: Any, length: Any, axis: int) -> torch.Tensor:
        call = this_call()
        with call.inside():
            return call.with_length(rows, length, axis, tensor.dtype)

    def _put_attributes(self, tensor: Torchish, found: Torchish, path: str) -> None:
        self._memo[id(tensor)] = found
        for name, value in tensor.attributes.items():
            new = self._put(value, f"{path}.{name}") if name != "_restriction" else value
            if new is not value and found is tensor:
                self._undo.append(functools.partial(setattr, tensor, name, value))
            if new is not getattr(found, name):
                setattr(found, name, new)

    def _again(self, tensor: Torchish, array: Any) -> Torchish:
        """A tensor like another, in new memory."""
        old = tensor._node.storage
        node: Any = self._storages.get(id(old))
        if node is None:
            memory, first = self._memories.get(id(old.memory)), self._state.seen[id(old.memory)]
            is_alone = first == self._state.seen[id(old)]
            if (memory is None and not is_alone) or (memory is not None and old.is_data):
                raise Unlike(f"{self._state.seen[id(old)]} shares memory with a tensor that it was detached from")
            node = self._storages[id(old)] = Storage(PhysicalArray(array, None), None, old.order, memory, old.gaps)
            self._memories[id(old.memory)] = node.memory
            if old.history is not None and not isinstance(old.history, Source):
                node.replace(PhysicalArray(self._cut(node, old.history, array), None), None, is_written=False)
        for kind, place in steps_to(tensor._node):
            node = View(node, kind)
            node.place = place
        with DisableTorchFunction(), DisableTorchDispatch():
            shape, strides, offset = tensor.shape, tensor.stride(), tensor.storage_offset()
        found = make_tensor(node, shape, tensor.dtype, strides, offset, tensor._label)
        vars(found).update(tensor.attributes)
        if isinstance(old.history, Source):
            self._begin(old.history, tensor, found)
        return found

    def _begin(self, source: Source, tensor: Torchish, found: Torchish) -> None:
        """Lets a tensor require grad by itself as another does."""
        path = self._state.seen[id(tensor)]
        if source.variable is not tensor or found._node is not self._storages[id(tensor._node.storage)]:
            raise Unlike(f"{path} is a part of a leaf that requires grad, a different one in each iteration")
        if source.is_hooked or source.hooked is not None or tensor._retains_grad:
            raise Unlike(f"{path} has hooks on its gradient, and is a different tensor in each iteration")
        found.start_history(source.is_given)
        self._storages[id(tensor._node.storage)] = found._node.storage
