"""Storages and views of them.

A storage holds one immutable jax array. A tensor reads it through a chain of views; a write through any view
replaces the storage's array, so that every tensor on that storage sees it. Reads are cached until the storage
changes: code without aliasing pays nothing and leaves no trace in its jaxpr.

Why it is not an array and a chain of indices:

- A write goes up its own chain to the storage, and to no other view. Those notice at their next read, by the version of
  the memory, so that a view which nobody reads again costs nothing.
- `detach` and `Tensor.data` share values but no derivatives, which one jax array cannot. So a memory may have several
  storages; each takes over in value what was last written to another (`Storage._settle`).
- Memory may grow under its tensors (`resize_`). A larger storage then has the values, and the old one, which tensors
  and views refer to, reads it as a view (`Storage._larger`).
- On a tape a view has variables of its own: a gradient with respect to it is not one with respect to its parent. A new
  read keeps them as long as autograd has seen no write (`View._is_as_it_was`).
"""

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np
import torch
from jax import lax

from ..translation import Tape, current
from .dtypes import canonical
from .history import Node
from .journal import Journaled, Memory, expect_contained, journal
from .known import (
    Deferred,
    DenseLayout,
    Geometry,
    Known,
    LazyConstant,
    defer,
    defer_body,
    evaluate,
    in_pytorch,
    is_small,
    value_of_body,
)
from .physical import LazyArray, PhysicalArray
from .traced import evaluating, is_traced, lowered, with_derivatives_of
from .view_kind import Gaps, ViewKind, beginning, flattening, spreading


def _in_order(constant: jax.Array, layout: tuple[int, ...] | None) -> Known:
    """A constant of the graph as a known value."""
    with evaluating():
        return PhysicalArray(constant, layout).arranged(None)


class Storage(Journaled):
    """Memory with one history of derivatives: an array, replaced as a whole by every write.

    A detached tensor has the values of the tensor it came from, but derivatives of its own. So the two read different
    storages of one `Memory`; what is written to one, the other follows in value alone.

    Invariants, between any two calls of its methods:

    - `_physical` is the values. While it is a `LazyArray`, the graph does not have them.
    - `_array` is the same array in the tensor's own order of dimensions, or None until somebody reads it.
    - `_version` is that of the memory, unless another storage of the memory was written since: `_settle`, with which
      each read and write begins, then takes over the values of `memory.latest`.
    - `_larger` is a view of another storage once the memory has grown: all reads and writes go there from then on.
    - `_known` is None if a traced input decides the values; else it has them for PyTorch and Python.
    - `differentiable` is False only where no derivative can lead through the values; `history` is None unless they
      require grad.

    Args:
        physical: the values, in the shape of the tensor that the storage was made for.
        known: the values as PyTorch and Python may have them, if no traced input decides them; see `known`.
        order: the tensor's dimensions from the outermost to the innermost in PyTorch's memory, None if in order.
        memory: the memory that this is one more storage of; by default a new one.
        gaps: where the elements lie in memory that has others between them, of which nobody will ask.
    """

    __slots__ = (
        *("_array", "_flat", "_physical", "_known", "_larger", "_version"),
        *("differentiable", "gaps", "history", "is_data", "memory", "order"),
    )
    changing = ("_array", "_flat", "_physical", "_known", "_larger", "_version", "differentiable", "history")

    overlaps = is_chosen = False
    covers = True
    bits: frozenset[str] = frozenset()

    def __init__(
        self,
        physical: PhysicalArray | LazyArray,
        known: Known | None = None,
        order: tuple[int, ...] | None = None,
        memory: Memory | None = None,
        gaps: Gaps | None = None,
    ):
        self._begin()
        self.gaps = gaps
        self.is_data = False  # whether it is that of `Tensor.data`
        self.history: Node | None = None  # how the values came about, if they require grad
        self._set_physical(physical, known, touches=False)
        self.order = order
        self._flat: weakref.ref[View] | None = None
        self._larger: View | None = None  # where the values are, once the memory has grown
        if memory is None:
            memory = Memory(physical.size if gaps is None else gaps.reach(physical.shape))
        else:
            memory.is_shared = True
        self.memory = memory
        self._version = self.memory.version
        self.differentiable = self._may_differ()  # whether the values may have a derivative

    @classmethod
    def waiting(cls, physical: LazyArray, known: Known | None, order: tuple[int, ...] | None = None) -> "Storage":
        """New memory of a known value that the graph may never need, made in a third of the time."""
        storage = cls.__new__(cls)
        storage._begin()
        storage._physical, storage._known, storage.order = physical, known, order
        storage.memory, storage._version = Memory(physical.size), 0
        storage._array = storage._flat = storage._larger = storage.gaps = storage.history = None
        storage.is_data = storage.differentiable = False
        return storage

    @classmethod
    def computed(cls, physical: PhysicalArray, size: int, order: tuple[int, ...] | None) -> "Storage":
        """New memory of an operator's result while there is no tape, made in half of the time."""
        array, layout = physical
        storage = cls.__new__(cls)
        storage._begin()
        is_unknown = is_traced(array)
        constant = None
        if is_unknown:  # perhaps by a transformation that it does not depend on
            lower = array.full_lower()
            if lower is not array:
                array, constant = lowered(array, lower)
                physical, is_unknown = PhysicalArray(array, layout), constant is None and is_traced(array)
        storage._physical, storage.order, storage._known = physical, order, None
        storage._array = array if layout is None else None
        if constant is not None:
            storage._known = _in_order(constant, layout)
        elif not is_unknown:
            storage._known = storage._array = physical.arranged(None)
        storage.memory, storage._version = Memory(size), 0
        storage._flat = storage._larger = storage.gaps = storage.history = None
        storage.is_data = False
        storage.differentiable = is_unknown and array.dtype.kind not in "biu"
        return storage

    @classmethod
    def evaluated(
        cls, array: jax.Array, layout: tuple[int, ...] | None, size: int, order: tuple[int, ...] | None
    ) -> "Storage":
        """As `computed`, for an array that JAX does not trace."""
        storage = cls.__new__(cls)
        storage._begin()
        storage._physical, storage.order = PhysicalArray(array, layout), order
        storage._array = array if layout is None else None
        storage._known = array if layout is None else PhysicalArray(array, layout).arranged(None)
        storage.memory, storage._version = Memory(size), 0
        storage._flat = storage._larger = storage.gaps = storage.history = None
        storage.is_data = storage.differentiable = False
        return storage

    @property
    def storage(self) -> "Storage":
        return self

    @property
    def physical(self) -> PhysicalArray:
        if self._version != self.memory.version:
            self._settle()
        if self._larger is not None:
            return self._larger.physical
        physical = self._physical
        if isinstance(physical, LazyArray):
            physical = physical.physical
            self._touch()
            self._physical = physical
            if physical.layout is None:
                self._array = physical.array
        return physical

    def lazy(self, shape: Any, dtype: Any) -> PhysicalArray | LazyArray:
        """The values as they are, though the graph may not have them yet."""
        del shape, dtype
        self._settle()
        return self.physical if self._larger is not None else self._physical

    @property
    def known(self):
        if self._version != self.memory.version:
            self._settle()
        if self.differentiable and self._known is not None and self.is_older:
            return None  # a tape outside differentiates what is computed of it
        return self._known if self._larger is None else self._larger.known

    @property
    def root(self) -> "Storage":
        """The storage that has the values: another one, once the memory has grown."""
        return self if self._larger is None else self._larger.storage.root

    @property
    def frame(self) -> DenseLayout:
        return DenseLayout(tuple(self._physical.shape), self.order)

    @property
    def layout(self) -> tuple[int, ...] | None:
        return self.physical.layout

    def read(self) -> Any:
        if self._version != self.memory.version:
            self._settle()
        if self._larger is not None:
            return self._larger.read()
        if self._array is None:
            physical = self.physical
            self._touch()
            self._array = physical.arranged(None)
        return self._array

    def write(
        self, physical: PhysicalArray | LazyArray, known: Known | None, *, in_place_of_itself: bool = False
    ) -> None:
        """Replaces the values.

        Args:
            known: what is known of all values in memory after that.
            in_place_of_itself: the new values have the derivatives of the old ones.
        """
        self._settle()
        if self._larger is not None:
            self._larger.write(physical.physical, known)
        else:
            self._set_physical(physical, known, is_new=not in_place_of_itself)
            self.differentiable = self.differentiable or self._may_differ()
            self._publish()

    def receive(self, physical: PhysicalArray) -> None:
        """Replaces the values by computed ones, if nothing is traced, and there is neither a tape nor a journal."""
        memory = self.memory
        is_plain = self._larger is None and not memory.is_shared and not memory.followers
        if not is_plain or self._version != memory.version:
            self.write(physical, None)
            return
        array, layout = physical
        self._physical = physical
        self._array = self._known = array if layout is None else physical.arranged(None)
        memory.version = self._version = self._version + 1
        memory.seen += not self.is_data
        if memory.is_constant:
            memory.is_constant = False

    @property
    def has_grown(self) -> bool:
        """True if the memory is larger than it was."""
        return self._larger is not None or self.memory.size > self._reach

    def known_after(self, written: Known, place: "Geometry") -> Known | None:
        """The known value of all memory after `written` replaces the storage's own values; None if there is none."""
        del place
        self._settle()
        larger = self._larger
        if larger is None:
            return written
        return None if larger.place is None else larger.known_after(written, larger.place)

    def replace(self, physical: PhysicalArray, known: Known | None, *, is_written: bool) -> None:
        """Holds the same values as they are outside the trace that has ended.

        Args:
            is_written: they were written to memory that is older than that trace.
        """
        self._set_physical(physical, known)
        if is_written:
            self._publish()

    def note_known(self, known: Known | None) -> None:
        """Notes the known value of the initial values."""
        self._known = known
        self.differentiable = self.differentiable and self._may_differ()

    def settle_as_is(self) -> None:
        """Declares the values to be the memory's latest."""
        self._version = self.memory.version

    def empty(self) -> None:
        """Drops the array, but not its type, until `replace`: a trace ends, and JAX may look for its leaked tracers."""
        array, layout = self.physical
        self._array, self._physical = None, PhysicalArray(jax.ShapeDtypeStruct(array.shape, array.dtype), layout)

    def lose(self) -> None:
        """Drops values that nothing outside of the ended trace needs, unless they are known."""
        if self._known is None:
            self._array, self._physical, self._version = None, PhysicalArray(None, None), -1
        else:
            self._array = evaluate(self._known)
            self._physical = PhysicalArray(self._array, None)

    @property
    def is_lost(self) -> bool:
        """True if its values have been given up."""
        return isinstance(self._physical, PhysicalArray) and self._physical.array is None

    @property
    def is_outgrown(self) -> bool:
        """True if another storage has the values, since the memory has grown."""
        return self._larger is not None

    def detached(self, stop: Callable[[Any], Any] = lax.stop_gradient) -> "Storage | View":
        """The same memory without derivatives, until something is written there that has one.

        Args:
            stop: takes these from an array.
        """
        self._settle()
        if self._larger is not None:
            return self._larger.detached(stop)
        physical = self._physical
        if self.differentiable:
            physical = PhysicalArray(stop(self.physical.array), self.physical.layout)
        twin = Storage(physical, self._known, self.order, self.memory, self.gaps)
        twin.differentiable = False
        return twin

    def grafted(self, physical: PhysicalArray) -> "Storage | View":
        """The same memory with a history of its own, which begins with `physical`: the same values."""
        self._settle()
        if self._larger is not None:
            return self._larger.grafted(physical)
        return Storage(physical, self._known, self.order, self.memory, self.gaps)

    def track(self, origins: Sequence[jax.Array] = ()) -> None:
        """Makes the values differentiable on the tape, even those without a derivative of their own (of a floor).

        Args:
            origins: the arrays that they were computed from.
        """
        self._settle()
        if self._larger is not None:
            self._larger.storage.track(origins)
            return
        tape, (array, layout) = _tape(), self.physical
        placed = array if tape is None else tape.tracked(array, origins)
        if placed is not array:
            self._set_physical(PhysicalArray(placed, layout), self._known, is_new=False)
            self.differentiable = True
            self._publish()

    @property
    def dtype(self) -> np.dtype:
        return self._physical.dtype

    @property
    def flat(self) -> "Storage | View":
        """All of the memory, in its order, as one dimension."""
        self._settle()
        if self._larger is not None:
            return self._larger.storage.flat
        shape = self._physical.shape
        if len(shape) == 1 and self.gaps is None:
            return self
        flat = None if self._flat is None else self._flat()
        if flat is None:
            self._touch()
            flat = View(self, self._flattening)
            flat.place = Geometry((self._reach,), (1,), 0, None)
            self._flat = weakref.ref(flat)  # whoever reads it keeps it: storages are freed without garbage collection
        return flat

    @property
    def _flattening(self) -> ViewKind:
        shape = self._physical.shape
        return flattening(shape, self.order) if self.gaps is None else spreading(shape, self.gaps)

    @property
    def _reach(self) -> int:
        """The number of elements of memory that the values span."""
        return self._physical.size if self.gaps is None else self.gaps.reach(self._physical.shape)

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
        flat, shape = self.flat, self._physical.shape
        before, known = flat.read(), flat.known
        more = self.memory.size - before.size
        after = lax.pad(before, np.zeros((), before.dtype), [(0, more, 0)])
        if known is not None:
            known = defer(torch.nn.functional.pad, known, (0, more))
        larger = Storage(PhysicalArray(after, None), known, None, self.memory)
        larger.differentiable, larger.history = self.differentiable, self.history
        self._larger = View(larger, beginning(self._flattening, self._reach))
        strides, offset = self.gaps or (_strides(shape, self.order), 0)
        self._larger.place = Geometry(tuple(shape), strides, offset, None)
        return larger

    def _set_physical(
        self, physical: PhysicalArray | LazyArray, known: Known | None, is_new: bool = True, touches: bool = True
    ) -> None:
        if touches:
            self._touch()
        self._array = None
        if isinstance(physical, LazyArray):
            self._physical, self._known = physical, known
            return
        call = current()
        tape = None if call is None else call.tape
        if call is not None and call.dual is not None:
            call.dual.note(self)
        traced, constant = is_traced(physical.array), None
        if traced:  # perhaps by a transformation that it does not depend on
            lower = physical.array.full_lower()
            if lower is not physical.array:
                lower, constant = lowered(physical.array, lower)
                physical = PhysicalArray(lower, physical.layout)
                traced = is_traced(physical.array)
        if constant is not None:
            known = _in_order(constant, physical.layout) if known is None else known
        elif not traced:
            if known is None:
                known = self._array = physical.arranged(None)
        elif tape is not None:
            values = tape.primal(physical.array)
            if not is_traced(values) and known is None:
                known = PhysicalArray(values, physical.layout).arranged(None)
            if is_new:
                physical = PhysicalArray(tape.with_own_variable(physical.array), physical.layout)
        self._physical, self._known = physical, known if self.gaps is None else None
        if physical.layout is None:
            self._array = physical.array

    def _may_differ(self) -> bool:
        call = current()
        if self._known is not None:  # of constants, unless derivatives with respect to these are asked for
            if call is None or (call.tape is None and call.dual is None) or isinstance(self._physical, LazyArray):
                return False
            return any(x is not None and x.has(self._physical.array) for x in (call.tape, call.dual))
        return self._physical.dtype.kind not in "biu"

    def _publish(self) -> None:
        active = journal()
        if active is not None and self.memory.is_older:
            self.memory._touch()
            active.note_write(self)
        if self.memory.is_shared:
            self.memory.latest = self
        self.memory.version += 1
        self.memory.seen += not self.is_data
        if self.memory.is_constant:
            self.memory.is_constant = False
        self._version = self.memory.version
        for follower in self.memory.followers:
            follow = follower()
            if follow is not None:
                follow()

    def _settle(self) -> None:
        """Takes over the last write to this memory, in value alone."""
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
            (array, layout), known = latest.physical, latest.known
            if array is self.physical.array:  # another history has begun with these values, or ended
                return
            if self.differentiable:
                array = with_derivatives_of(
                    self.physical.array, PhysicalArray(array, layout).arranged(self.physical.layout)
                )
                layout = self.physical.layout
            elif latest.differentiable:
                array = lax.stop_gradient(array)
            self._set_physical(PhysicalArray(array, layout), known, is_new=False)


def _tape():
    call = current()
    return None if call is None else call.tape


def _strides(shape: Sequence[int], order: tuple[int, ...] | None) -> tuple[int, ...]:
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
        self.place: Geometry | None = None  # which part of memory it is, where PyTorch has said so
        self._array = None
        self._lazy: tuple[int, LazyArray] | None = None  # of which version, where it is not in the graph yet
        self._root: PhysicalArray | None = None  # what is held, where that has a place on a tape
        self._origin: tuple | None = None  # the places on a tape of what it was read from, and after how many writes
        self._part: tuple[Any, torch.Tensor] | None = None  # what PyTorch has of known values, and of which: all stay
        self._version = -1

    def forget(self) -> None:
        self._array, self._lazy, self._origin, self._root, self._version = None, None, None, None, -1

    @property
    def layout(self) -> tuple[int, ...] | None:
        return self.physical.layout

    @property
    def physical(self) -> PhysicalArray:
        permutation = self.kind.permutation
        if self._version == self.storage.memory.version:
            return PhysicalArray(self._array, None) if self._root is None else self._root
        if permutation is None:
            return PhysicalArray(self.read(), None)
        array, below = self.parent.physical
        layout = tuple(permutation.index(dim) for dim in below or range(array.ndim))
        physical = PhysicalArray(array, None if layout == tuple(range(array.ndim)) else layout)
        tape = _tape()
        if tape is not None and is_traced(array):
            self._touch()
            before: Any = self._array
            if self._is_as_it_was(tape) and self._root is not None:
                values = PhysicalArray(tape.primal(array), physical.layout).arranged(self._root.layout)
                self._root = PhysicalArray(tape.with_values(self._root.array, values), self._root.layout)
                self._array = tape.with_values(before, tape.primal(self._root.arranged(None)))
            else:
                self._root = PhysicalArray(tape.with_own_variable(array), physical.layout)
                self._array = self._root.arranged(None)
            self._version = self.storage.memory.version
            return self._root
        return physical

    def read(self) -> Any:
        if self._version != self.storage.memory.version:
            self._touch()
            if self.kind.permutation is None:
                tape = _tape()
                if tape is None:
                    self._array = self._number()
                elif self._is_as_it_was(tape):
                    before: Any = self._array
                    self._array = tape.with_values(before, tape.primal(self._read()))
                else:
                    self._array = tape.with_own_variable(self._read())
            else:
                self._array = self.physical.arranged(None)
            self._version = self.storage.memory.version
        return self._array

    def _is_as_it_was(self, tape: Tape) -> bool:
        """True if autograd sees no write since this was read, but perhaps to `Tensor.data`; notes the present state.

        A leaf is written to unseen alone, perhaps as another one on the same memory.
        """
        before = self._origin
        self._origin = tape.variables(self.parent.physical.array), self.storage.memory.seen
        return self._array is not None and bool(self._origin[0]) and (self._origin == before or self._is_leaf())

    def _is_leaf(self) -> bool:
        return self.storage.history is not None and self.storage.history.begins_at(self)

    def _read(self) -> Any:
        return self.kind.read(self.parent.read())

    def _number(self):
        """The array; a single known number is a constant of the graph, not a part of another array."""
        is_number = self.place is not None and not self.place.shape and not self.is_chosen
        known = self.known if is_number and isinstance(self.storage.known, (torch.Tensor, Deferred)) else None
        if known is not None:
            return evaluate(known)
        if self._lazy is not None and self._lazy[0] == self.storage.memory.version:
            return self._lazy[1].physical.array
        return self._read()

    def lazy(self, shape: Any, dtype: Any) -> PhysicalArray | LazyArray:
        """The values as they are, though the graph may not have them yet."""
        if self._version == self.storage.memory.version:
            return self.physical
        parent, kind = self.parent.lazy(None, None), self.kind
        if isinstance(parent, PhysicalArray):
            return self.physical
        version = self.storage.memory.version
        if self._lazy is None or self._lazy[0] != version:
            self._touch()
            lazy = parent.then(lambda physical: PhysicalArray(kind.read(physical.arranged(None)), None), shape, dtype)
            self._lazy = version, lazy
        lazy = self._lazy[1]
        if shape is not None:  # whoever asked before, for the sake of another view, need not know
            lazy.shape, lazy.dtype = shape, dtype
        return lazy

    @property
    def known(self):
        """The known value of the view, or None; see `known`."""
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

    def known_after(self, written: Known, place: Geometry) -> Known | None:
        """The known value of the memory after a write of `written` to the tensor at `place`; None if there is none."""
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

    def write(
        self, physical: PhysicalArray | LazyArray, known: Known | None, *, in_place_of_itself: bool = False
    ) -> None:
        """Replaces the values.

        Args:
            known: what is known of all values in memory after that.
            in_place_of_itself: the new values have the derivatives of the old ones.
        """
        if isinstance(physical, LazyArray):
            self._write_lazily(physical, known)
            return
        tape = _tape()
        if in_place_of_itself and tape is not None and tape.has(self.parent.physical.array):
            self._write_values(tape, physical.physical, known)
            return
        if self.kind.permutation is not None:
            self.parent.write(self._permuted(physical.physical), known)
            return
        array = physical.physical.arranged(None)
        before = None if self.kind.covers else self.parent.read()
        self._touch()
        self.parent.write(PhysicalArray(self.kind.write(before, array), None), known)
        if self.is_chosen or (tape is not None and is_traced(array)):
            # To be read anew: there may be no such place, and a tape has the view behind what it is a view of.
            self._version = -1
        else:
            self._array, self._version = array, self.storage.memory.version

    def _write_values(self, tape: Tape, physical: PhysicalArray, known: Known | None) -> None:
        """Writes values alone, below derivatives that stay as they are."""
        whole, physical = self.parent.physical, PhysicalArray(tape.primal(physical.array), physical.layout)
        mine = self._with_values(tape, physical)
        if self.kind.permutation is not None:
            physical = self._permuted(physical)
        else:
            before = None if self.kind.covers else tape.primal(self.parent.read())
            physical = PhysicalArray(self.kind.write(before, physical.arranged(None)), None)
        values = tape.with_values(whole.array, physical.arranged(whole.layout))
        self.parent.write(PhysicalArray(values, whole.layout), known, in_place_of_itself=True)
        if mine is not None:
            self._take(mine)
            self._is_as_it_was(tape)

    def _with_values(self, tape: Tape, values: PhysicalArray) -> PhysicalArray | None:
        """The array after a write to a leaf whose history begins at this view, not at its parent; else None."""
        if self._version != self.storage.memory.version or not self._is_leaf():
            return None
        array, layout = PhysicalArray(self._array, None) if self._root is None else self._root
        return PhysicalArray(tape.with_values(array, values.arranged(layout)), layout)

    def _take(self, physical: PhysicalArray) -> None:
        """Caches `physical` as what was read."""
        self._touch()
        self._root = None if self.kind.permutation is None else physical
        self._array, self._version = physical.arranged(None), self.storage.memory.version

    def _write_lazily(self, physical: LazyArray, known: Any) -> None:
        storage, kind = self.storage, self.kind
        if kind.permutation is not None:
            changed = physical.then(self._permuted, storage.frame.shape, storage.dtype)
        else:
            before: Any = None if kind.covers else self.parent.lazy(None, None)

            def change(written: PhysicalArray) -> PhysicalArray:
                whole = None if before is None else before.physical.arranged(None)
                return PhysicalArray(kind.write(whole, written.arranged(None)), None)

            changed = physical.then(change, storage.frame.shape, storage.dtype)
            changed.depth = 1 + max(physical.depth, 0 if before is None else getattr(before, "depth", 0))
        self._touch()
        self._array, self._root, self._version = None, None, -1
        if changed.is_long:
            storage.write(LazyConstant(known), known)
        else:
            self.parent.write(changed, known)

    def _permuted(self, physical: PhysicalArray) -> PhysicalArray:
        """The parent's physical array, given that of the view, which is a permutation of it."""
        array, layout = physical
        layout = tuple(self.kind.permutation[dim] for dim in layout or range(array.ndim))  # pyright: ignore[reportOptionalSubscript]
        return PhysicalArray(array, None if layout == tuple(range(array.ndim)) else layout)

    def detached(self, stop: Callable[[Any], Any] = lax.stop_gradient) -> "View":
        """The same view of detached memory."""
        return self._again(self.parent.detached(stop))

    def _again(self, parent: "Storage | View") -> "View":
        view = View(parent, self.kind)
        view.place = self.place
        return view

    def grafted(self, physical: PhysicalArray) -> "View":
        """The same view of memory with a history of its own, which begins with `physical`: the same values."""
        if self.kind.permutation is not None:
            view = self._again(self.parent.grafted(self._permuted(physical)))
        else:
            physical = PhysicalArray(physical.arranged(None), None)
            before = None if self.kind.covers else self.parent.read()
            view = self._again(self.parent.grafted(PhysicalArray(self.kind.write(before, physical.array), None)))
        if self.kind.permutation is None or _tape() is not None:
            view._take(physical)
        return view


def lose_traced(nodes: Iterable[Any], is_undone: bool = False) -> None:
    """Drops the values that an ended trace leaves in storages; `nodes` were made within.

    Args:
        is_undone: whether what was written to older memory is undone. What shares it has no values then.
    """
    for node in nodes:
        if not isinstance(node, Storage):
            continue
        memory = node.memory
        is_stale = is_undone and node._version != memory.version and memory.latest is None and not node.has_grown
        if is_stale or is_traced(node.physical.array):
            node.lose()


def steps_to(node: Storage | View) -> list[tuple[ViewKind, Geometry | None]]:
    """The kinds and places of the views on the way from a storage to a node, the innermost first."""
    steps = []
    while isinstance(node, View):
        steps.append((node.kind, node.place))
        node = node.parent
    return steps[::-1]
