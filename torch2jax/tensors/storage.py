"""Storages and views of them.

A storage holds one immutable jax array. A tensor reads it through a chain of views; a write through any view
replaces the storage's array, so that every tensor on that storage sees it. Reads are cached until the storage
changes: code without aliasing pays nothing and leaves no trace in its jaxpr.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import torch
from jax import lax

from ..translation import current
from .derivatives import with_derivatives_of
from .dtypes import canonical
from .held import Held, Lazy
from .history import Node
from .journal import Journaled, expect_contained, journal
from .known import Deferred, Frame, Made, Place, defer, defer_body, evaluate, in_pytorch, is_small, value_of_body
from .memory import Memory
from .traced import is_traced
from .view_kind import Gaps, ViewKind, beginning, flattening, spreading

__all__ = ["Storage", "View", "steps_to"]


class Storage(Journaled):
    """Memory with one history of derivatives: an array, replaced as a whole by every write.

    A detached tensor has the values of the tensor it came from, but derivatives of its own. So the two read different
    storages of one `Memory`; what is written to one, the other follows in value alone.

    Args:
        held: the values, in the shape of the tensor that the storage was made for.
        known: the values as PyTorch and Python may have them, if no traced input decides them; see `known`.
        order: the tensor's dimensions from the outermost to the innermost in PyTorch's memory, None if in order.
        memory: the memory that this is one more storage of; by default a new one.
        gaps: where the elements lie in memory that has others between them, of which nobody will ask.
    """

    __slots__ = (
        *("_array", "_flat", "_held", "_known", "_larger", "_version"),
        *("differentiable", "gaps", "history", "is_data", "memory", "order"),
    )
    changing = ("_array", "_flat", "_held", "_known", "_larger", "_version", "differentiable", "history")

    overlaps = is_chosen = False
    covers = True
    bits: frozenset[str] = frozenset()

    def __init__(
        self,
        held: Held | Lazy,
        known=None,
        order: tuple[int, ...] | None = None,
        memory: Memory | None = None,
        gaps: Gaps | None = None,
    ):
        self._begin()
        self.gaps = gaps
        self.is_data = False  # whether it is that of `Tensor.data`
        self.history: Node | None = None  # how the values came about, if they require grad
        self._hold(held, known, touches=False)
        self.order = order
        self._flat: weakref.ref[View] | None = None
        self._larger: View | None = None  # where the values are, once the memory has grown
        if memory is None:
            memory = Memory(held.size if gaps is None else gaps.reach(held.shape))
        else:
            memory.is_shared = True
        self.memory = memory
        self._version = self.memory.version
        self.differentiable = self._may_differ()  # whether the values may have a derivative

    @classmethod
    def waiting(cls, held: Lazy, known, order: tuple[int, ...] | None = None) -> "Storage":
        """New memory of a known value that the graph may never ask for, made in a third of the time."""
        storage = cls.__new__(cls)
        storage._begin()
        storage._held, storage._known, storage.order = held, known, order
        storage.memory, storage._version = Memory(held.size), 0
        storage._array = storage._flat = storage._larger = storage.gaps = storage.history = None
        storage.is_data = storage.differentiable = False
        return storage

    @classmethod
    def computed(cls, held: Held, size: int, order: tuple[int, ...] | None) -> "Storage":
        """New memory of what an operator has given while no tape is kept, made in half of the time."""
        array, layout = held
        storage = cls.__new__(cls)
        storage._begin()
        is_unknown = is_traced(array)
        if is_unknown:  # perhaps by a transformation that it does not depend on
            lowered = array.full_lower()
            if lowered is not array:
                array, held, is_unknown = lowered, Held(lowered, layout), is_traced(lowered)
        storage._held, storage.order, storage._known = held, order, None
        storage._array = array if layout is None else None
        if not is_unknown:
            storage._known = storage._array = held.arranged(None)
        storage.memory, storage._version = Memory(size), 0
        storage._flat = storage._larger = storage.gaps = storage.history = None
        storage.is_data = False
        storage.differentiable = is_unknown and array.dtype.kind not in "biu"
        return storage

    @classmethod
    def evaluated(cls, array, layout: tuple[int, ...] | None, size: int, order: tuple[int, ...] | None) -> "Storage":
        """As `computed`, of an array that JAX does not trace."""
        storage = cls.__new__(cls)
        storage._begin()
        storage._held, storage.order = Held(array, layout), order
        storage._array = array if layout is None else None
        storage._known = array if layout is None else Held(array, layout).arranged(None)
        storage.memory, storage._version = Memory(size), 0
        storage._flat = storage._larger = storage.gaps = storage.history = None
        storage.is_data = storage.differentiable = False
        return storage

    @property
    def storage(self) -> "Storage":
        return self

    @property
    def held(self) -> Held:
        self._settle()
        if self._larger is not None:
            return self._larger.held
        held = self._held
        if isinstance(held, Lazy):
            held = held.held
            self._touch()
            self._held = held
            if held.layout is None:
                self._array = held.array
        return held

    def lazy(self, shape, dtype) -> Held | Lazy:
        """The values as they are, though the graph may not have them yet."""
        del shape, dtype
        self._settle()
        return self.held if self._larger is not None else self._held

    @property
    def known(self):
        if self._version != self.memory.version:
            self._settle()
        if self.differentiable and self._known is not None and self.is_older:
            return None  # a tape outside differentiates what is computed of it
        return self._known if self._larger is None else self._larger.known

    @property
    def root(self) -> "Storage":
        """Where the values are: another storage, once the memory has grown."""
        return self if self._larger is None else self._larger.storage.root

    @property
    def frame(self) -> Frame:
        return Frame(tuple(self._held.shape), self.order)

    @property
    def layout(self) -> tuple[int, ...] | None:
        return self.held.layout

    def read(self) -> Any:
        self._settle()
        if self._larger is not None:
            return self._larger.read()
        if self._array is None:
            held = self.held
            self._touch()
            self._array = held.arranged(None)
        return self._array

    def write(self, held: Held | Lazy, known, *, in_place_of_itself: bool = False) -> None:
        """Replaces the values.

        Args:
            known: what is known of all values in memory after that.
            in_place_of_itself: the new values have the derivatives of the old ones.
        """
        self._settle()
        if self._larger is not None:
            self._larger.write(held.held, known)
        else:
            self._hold(held, known, is_new=not in_place_of_itself)
            self.differentiable = self.differentiable or self._may_differ()
            self._publish()

    def receive(self, held: Held) -> None:
        """Replaces the values by computed ones, where JAX traces nothing, and no tape and no journal is kept."""
        memory = self.memory
        is_plain = self._larger is None and not memory.is_shared and not memory.followers
        if not is_plain or self._version != memory.version:
            self.write(held, None)
            return
        array, layout = held
        self._held = held
        self._array = self._known = array if layout is None else held.arranged(None)
        memory.version = self._version = self._version + 1
        memory.seen += not self.is_data

    @property
    def has_grown(self) -> bool:
        """Whether the memory is larger than it was."""
        return self._larger is not None or self.memory.size > self._reach

    def known_after(self, written, place: "Place"):
        """What is known of all memory after these values, the storage's own, are replaced by known ones."""
        del place
        self._settle()
        larger = self._larger
        if larger is None:
            return written
        return None if larger.place is None else larger.known_after(written, larger.place)

    def replace(self, held: Held, known, *, is_written: bool) -> None:
        """Holds the same values as they are outside the trace that has ended.

        Args:
            is_written: they were written to memory that is older than that trace.
        """
        self._hold(held, known)
        if is_written:
            self._publish()

    def note_known(self, known) -> None:
        """Notes what is known of the values that it has been made with."""
        self._known = known
        self.differentiable = self.differentiable and self._may_differ()

    def settle_as_is(self) -> None:
        """Notes that the values are what the memory holds now."""
        self._version = self.memory.version

    def empty(self) -> None:
        """Keeps the kind of array alone, until `replace`: a trace ends, and JAX may look for what is left of it."""
        array, layout = self.held
        self._array, self._held = None, Held(jax.ShapeDtypeStruct(array.shape, array.dtype), layout)

    def lose(self) -> None:
        """Gives up values that are nobody's outside the trace that has ended, unless they are known."""
        if self._known is None:
            self._array, self._held, self._version = None, Held(None, None), -1
        else:
            self._array = evaluate(self._known)
            self._held = Held(self._array, None)

    @property
    def is_lost(self) -> bool:
        """Whether its values have been given up."""
        return isinstance(self._held, Held) and self._held.array is None

    @property
    def is_outgrown(self) -> bool:
        """Whether the values are in another storage, since the memory has grown."""
        return self._larger is not None

    def detached(self, stop: Callable[[Any], Any] = lax.stop_gradient) -> "Storage | View":
        """The same memory without derivatives, until something is written there that has one.

        Args:
            stop: takes these from an array.
        """
        self._settle()
        if self._larger is not None:
            return self._larger.detached(stop)
        held = self._held
        if self.differentiable:
            held = Held(stop(self.held.array), self.held.layout)
        twin = Storage(held, self._known, self.order, self.memory, self.gaps)
        twin.differentiable = False
        return twin

    def grafted(self, held: Held) -> "Storage | View":
        """The same memory with a history of its own, which begins with `held`: the same values."""
        self._settle()
        if self._larger is not None:
            return self._larger.grafted(held)
        return Storage(held, self._known, self.order, self.memory, self.gaps)

    def place(self, origins: Sequence = ()) -> None:
        """Lets a tape take derivatives with respect to the values, also where they have none themselves (a floor).

        Args:
            origins: the arrays that they were computed from.
        """
        self._settle()
        if self._larger is not None:
            self._larger.storage.place(origins)
            return
        tape, (array, layout) = _tape(), self.held
        placed = array if tape is None else tape.placed(array, origins)
        if placed is not array:
            self._hold(Held(placed, layout), self._known, is_new=False)
            self.differentiable = True
            self._publish()

    @property
    def dtype(self) -> np.dtype:
        return self._held.dtype

    @property
    def flat(self) -> "Storage | View":
        """All of the memory, in its order, as one dimension."""
        self._settle()
        if self._larger is not None:
            return self._larger.storage.flat
        shape = self._held.shape
        if len(shape) == 1 and self.gaps is None:
            return self
        flat = None if self._flat is None else self._flat()
        if flat is None:
            self._touch()
            flat = View(self, self._flattening)
            flat.place = Place((self._reach,), (1,), 0, None)
            self._flat = weakref.ref(flat)  # whoever reads it keeps it: storages are freed without garbage collection
        return flat

    @property
    def _flattening(self) -> ViewKind:
        shape = self._held.shape
        return flattening(shape, self.order) if self.gaps is None else spreading(shape, self.gaps)

    @property
    def _reach(self) -> int:
        """How much memory the values take."""
        return self._held.size if self.gaps is None else self.gaps.reach(self._held.shape)

    def grow(self, size: int) -> None:
        """Makes room for `size` elements; every tensor on this memory stays on it."""
        self._settle()
        if self._larger is not None:
            self._larger.storage.grow(size)
            return
        expect_contained(self.memory, "memory grows")
        self.memory.size = size
        self._enlarge()._publish()
        self._version = self.memory.version

    def _enlarge(self) -> "Storage":
        self._touch()
        flat, shape = self.flat, self._held.shape
        before, known = flat.read(), flat.known
        more = self.memory.size - before.size
        after = lax.pad(before, np.zeros((), before.dtype), [(0, more, 0)])
        if known is not None:
            known = defer(torch.nn.functional.pad, known, (0, more))
        larger = Storage(Held(after, None), known, None, self.memory)
        larger.differentiable, larger.history = self.differentiable, self.history
        self._larger = View(larger, beginning(self._flattening, self._reach))
        strides, offset = self.gaps or (_strides(shape, self.order), 0)
        self._larger.place = Place(tuple(shape), strides, offset, None)
        return larger

    def _hold(self, held: Held | Lazy, known, is_new: bool = True, touches: bool = True) -> None:
        if touches:
            self._touch()
        self._array = None
        if isinstance(held, Lazy):
            self._held, self._known = held, known
            return
        call = current()
        tape = None if call is None else call.tape
        if call is not None and call.dual is not None:
            call.dual.note(self)
        traced = is_traced(held.array)
        if traced:  # perhaps by a transformation that it does not depend on
            lowered = held.array.full_lower()
            if lowered is not held.array:
                held, traced = Held(lowered, held.layout), is_traced(lowered)
        if not traced:
            if known is None:
                known = self._array = held.arranged(None)
        elif tape is not None:
            values = tape.lowered(held.array)
            if not is_traced(values) and known is None:
                known = Held(values, held.layout).arranged(None)
            if is_new:
                held = Held(tape.claimed(held.array), held.layout)
        self._held, self._known = held, known if self.gaps is None else None
        if held.layout is None:
            self._array = held.array

    def _may_differ(self) -> bool:
        call = current()
        if self._known is not None:  # of constants, unless derivatives with respect to these are asked for
            if call is None or (call.tape is None and call.dual is None) or isinstance(self._held, Lazy):
                return False
            return any(x is not None and x.has(self._held.array) for x in (call.tape, call.dual))
        return self._held.dtype.kind not in "biu"

    def _publish(self) -> None:
        kept = journal()
        if kept is not None and self.memory.is_older:
            self.memory._touch()
            kept.note_write(self)
        if self.memory.is_shared:
            self.memory.latest = self
        self.memory.version += 1
        self.memory.seen += not self.is_data
        self._version = self.memory.version
        for follower in self.memory.followers:
            follow = follower()
            if follow is not None:
                follow()

    def _settle(self) -> None:
        """Takes over what was last written to this memory, in value alone."""
        if self._version == self.memory.version:
            return
        if self.is_lost:
            raise RuntimeError(
                "a tensor that was made in a branch or in the body of a loop was put aside there, and is used outside, "
                "where it has no value; wanted it among the results"
            )
        self._touch()
        self._version = self.memory.version
        if self._larger is None and self.memory.size > self._reach:
            self._enlarge()._version = -1
        if self._larger is None:
            latest: Any = self.memory.latest
            (array, layout), known = latest.held, latest.known
            if array is self.held.array:  # another history has begun with these values, or ended
                return
            if self.differentiable:
                array = with_derivatives_of(self.held.array, Held(array, layout).arranged(self.held.layout))
                layout = self.held.layout
            elif latest.differentiable:
                array = lax.stop_gradient(array)
            self._hold(Held(array, layout), known, is_new=False)


def _tape():
    call = current()
    return None if call is None else call.tape


def _strides(shape, order) -> tuple[int, ...]:
    """PyTorch's, of a tensor whose elements are in memory without gaps."""
    strides, step = [0] * len(shape), 1
    for dim in reversed(order or range(len(shape))):
        strides[dim], step = step, step * max(shape[dim], 1)
    return tuple(strides)


class View(Journaled):
    """A node that reads its parent through a `ViewKind`; its root is a `Storage`."""

    __slots__ = (
        *("_array", "_lazy", "_origin", "_part", "_root", "_version", "bits", "covers", "is_chosen", "kind"),
        *("overlaps", "parent", "place", "storage"),
    )
    changing = ("_array", "_lazy", "_origin", "_root", "_version")

    def __init__(self, parent: "Storage | View", kind: ViewKind):
        self._begin()
        self.parent, self.kind = parent, kind
        self.storage = parent.storage
        self.overlaps = kind.overlaps or parent.overlaps
        self.bits = parent.bits if kind.bit is None else parent.bits ^ {kind.bit}
        self.is_chosen = bool(kind.traced) or parent.is_chosen  # whether its place depends on a traced input
        self.covers: bool = kind.covers and parent.covers  # whether it has all elements
        self.place: Place | None = None  # which part of memory it is, where PyTorch has said so
        self._array = None
        self._lazy: tuple[int, Lazy] | None = None  # of which version, where it is not in the graph yet
        self._root: Held | None = None  # what is held, where that has a place on a tape
        self._origin: tuple | None = None  # the places on a tape of what it was read from, and after how many writes
        self._part: tuple[Any, torch.Tensor] | None = None  # what PyTorch has of known values, and of which: all stay
        self._version = -1

    def forget(self) -> None:
        self._array, self._lazy, self._origin, self._root, self._version = None, None, None, None, -1

    @property
    def layout(self) -> tuple[int, ...] | None:
        return self.held.layout

    @property
    def held(self) -> Held:
        permutation = self.kind.permutation
        if self._version == self.storage.memory.version:
            return Held(self._array, None) if self._root is None else self._root
        if permutation is None:
            return Held(self.read(), None)
        array, below = self.parent.held
        layout = tuple(permutation.index(dim) for dim in below or range(array.ndim))
        held = Held(array, None if layout == tuple(range(array.ndim)) else layout)
        tape = _tape()
        if tape is not None and is_traced(array):
            self._touch()
            before = self._array
            if self._is_as_it_was(tape) and self._root is not None:
                values = Held(tape.lowered(array), held.layout).arranged(self._root.layout)
                self._root = Held(tape.with_values(self._root.array, values), self._root.layout)
                self._array = tape.with_values(before, tape.lowered(self._root.arranged(None)))
            else:
                self._root = Held(tape.claimed(array), held.layout)
                self._array = self._root.arranged(None)
            self._version = self.storage.memory.version
            return self._root
        return held

    def read(self) -> Any:
        if self._version != self.storage.memory.version:
            self._touch()
            if self.kind.permutation is None:
                tape = _tape()
                if tape is None:
                    self._array = self._number()
                elif self._is_as_it_was(tape):
                    self._array = tape.with_values(self._array, tape.lowered(self._read()))
                else:
                    self._array = tape.claimed(self._read())
            else:
                self._array = self.held.arranged(None)
            self._version = self.storage.memory.version
        return self._array

    def _is_as_it_was(self, tape) -> bool:
        """Whether to autograd nothing was written since this was read, only to `Tensor.data`; notes how it is now.

        A leaf is written to unseen alone, perhaps as another one on the same memory.
        """
        before = self._origin
        self._origin = tape.variables(self.parent.held.array), self.storage.memory.seen
        return self._array is not None and bool(self._origin[0]) and (self._origin == before or self._is_leaf())

    def _is_leaf(self) -> bool:
        return self.storage.history is not None and self.storage.history.begins_at(self)

    def _read(self) -> Any:
        return self.kind.read(self.parent.read())

    def _number(self):
        """The array; where it is one known number, that number is a constant in the graph, and not a part of others."""
        is_number = self.place is not None and not self.place.shape and not self.is_chosen
        if is_number and isinstance(self.storage.known, (torch.Tensor, Deferred)):
            return evaluate(self.known)
        if self._lazy is not None and self._lazy[0] == self.storage.memory.version:
            return self._lazy[1].held.array
        return self._read()

    def lazy(self, shape, dtype) -> Held | Lazy:
        """The values as they are, though the graph may not have them yet."""
        if self._version == self.storage.memory.version:
            return self.held
        parent, kind = self.parent.lazy(None, None), self.kind
        if isinstance(parent, Held):
            return self.held
        version = self.storage.memory.version
        if self._lazy is None or self._lazy[0] != version:
            self._touch()
            lazy = parent.then(lambda held: Held(kind.read(held.arranged(None)), None), shape, dtype)
            self._lazy = version, lazy
        lazy = self._lazy[1]
        if shape is not None:  # whoever asked before, for the sake of another view, need not know
            lazy.shape, lazy.dtype = shape, dtype
        return lazy

    @property
    def known(self):
        """What is known of the values; see `known`."""
        if self.is_chosen or self.storage.known is None:
            return None
        root = self.storage.root
        known = root.known
        if isinstance(known, jax.Array) and not is_traced(array := self.read()):
            return array
        if self.place is None:
            known = self.parent.known
            return None if known is None else defer_body(value_of_body, self.kind.read, known)
        place = self.place._replace(bits=self.bits) if self.bits else self.place
        if not isinstance(known, torch.Tensor):
            return defer(place.read, known, root.frame)
        if self._part is None or self._part[0] is not known:
            self._part = known, in_pytorch(place.read, known, root.frame)
        return self._part[1]

    def known_after(self, written, place: Place):
        """What is known of all memory after the values of a tensor there are replaced by known ones."""
        storage, place = self.storage.root, place._replace(bits=self.bits)
        covers = self.covers and storage is self.storage  # memory may have grown since
        before = None if covers else storage.known
        if self.is_chosen or self.storage.gaps is not None or (before is None and not covers):
            return None
        if covers and place.dtype is not None and canonical(place.dtype) != storage.dtype:
            return None
        is_there = isinstance(written, torch.Tensor) and (before is None or isinstance(before, torch.Tensor))
        if is_there and is_small(storage.memory.size):
            return in_pytorch(place.write, before, storage.frame, written)
        return defer(place.write, before, storage.frame, written)

    def write(self, held: Held | Lazy, known, *, in_place_of_itself: bool = False) -> None:
        """Replaces the values.

        Args:
            known: what is known of all values in memory after that.
            in_place_of_itself: the new values have the derivatives of the old ones.
        """
        if isinstance(held, Lazy):
            self._write_lazily(held, known)
            return
        tape = _tape()
        if in_place_of_itself and tape is not None and tape.has(self.parent.held.array):
            self._write_values(tape, held.held, known)
            return
        if self.kind.permutation is not None:
            self.parent.write(self._permuted(held.held), known)
            return
        array = held.held.arranged(None)
        before = None if self.kind.covers else self.parent.read()
        self._touch()
        self.parent.write(Held(self.kind.write(before, array), None), known)
        if tape is not None and is_traced(array):
            self._version = -1  # to be read anew: a tape has the view behind what it is a view of
        else:
            self._array, self._version = array, self.storage.memory.version

    def _write_values(self, tape, held: Held, known) -> None:
        """Writes values alone, below derivatives that stay as they are."""
        whole, held = self.parent.held, Held(tape.lowered(held.array), held.layout)
        mine = self._with_values(tape, held)
        if self.kind.permutation is not None:
            held = self._permuted(held)
        else:
            before = None if self.kind.covers else tape.lowered(self.parent.read())
            held = Held(self.kind.write(before, held.arranged(None)), None)
        values = tape.with_values(whole.array, held.arranged(whole.layout))
        self.parent.write(Held(values, whole.layout), known, in_place_of_itself=True)
        if mine is not None:
            self._take(mine)
            self._is_as_it_was(tape)

    def _with_values(self, tape, values: Held) -> Held | None:
        """Other values of a leaf, whose history begins at what was read of it, and not at what it is a view of."""
        if self._version != self.storage.memory.version or not self._is_leaf():
            return None
        array, layout = Held(self._array, None) if self._root is None else self._root
        return Held(tape.with_values(array, values.arranged(layout)), layout)

    def _take(self, held: Held) -> None:
        """Lets what is held be what was read."""
        self._touch()
        self._root = None if self.kind.permutation is None else held
        self._array, self._version = held.arranged(None), self.storage.memory.version

    def _write_lazily(self, held: Lazy, known) -> None:
        storage, kind = self.storage, self.kind
        if kind.permutation is not None:
            changed = held.then(self._permuted, storage.frame.shape, storage.dtype)
        else:
            before: Any = None if kind.covers else self.parent.lazy(None, None)

            def change(written: Held) -> Held:
                whole = None if before is None else before.held.arranged(None)
                return Held(kind.write(whole, written.arranged(None)), None)

            changed = held.then(change, storage.frame.shape, storage.dtype)
            changed.depth = 1 + max(held.depth, 0 if before is None else getattr(before, "depth", 0))
        self._touch()
        self._array, self._root, self._version = None, None, -1
        if changed.is_long:
            storage.write(Made(known), known)
        else:
            self.parent.write(changed, known)

    def _permuted(self, held: Held) -> Held:
        """What the parent holds where the view, a permutation of it, holds `held`."""
        array, layout = held
        layout = tuple(self.kind.permutation[dim] for dim in layout or range(array.ndim))  # pyright: ignore[reportOptionalSubscript]
        return Held(array, None if layout == tuple(range(array.ndim)) else layout)

    def detached(self, stop: Callable[[Any], Any] = lax.stop_gradient) -> "View":
        """The same view of detached memory."""
        return self._again(self.parent.detached(stop))

    def _again(self, parent: "Storage | View") -> "View":
        view = View(parent, self.kind)
        view.place = self.place
        return view

    def grafted(self, held: Held) -> "View":
        """The same view of memory with a history of its own, which begins with `held`: the same values."""
        if self.kind.permutation is not None:
            view = self._again(self.parent.grafted(self._permuted(held)))
        else:
            held = Held(held.arranged(None), None)
            before = None if self.kind.covers else self.parent.read()
            view = self._again(self.parent.grafted(Held(self.kind.write(before, held.array), None)))
        if self.kind.permutation is None or _tape() is not None:
            view._take(held)
        return view


def steps_to(node: Storage | View) -> list[tuple[ViewKind, Place | None]]:
    """The kinds and places of the views on the way from a storage to a node, the innermost first."""
    steps = []
    while isinstance(node, View):
        steps.append((node.kind, node.place))
        node = node.parent
    return steps[::-1]
