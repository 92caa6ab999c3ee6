"""Storages and views of them.

A storage holds one immutable jax array. A tensor reads it through a chain of views; a write through any view
replaces the storage's array, so that every tensor on that storage sees it. Reads are cached until the storage
changes: code without aliasing pays nothing and leaves no trace in its jaxpr.

Why it is not an array and a chain of indices:

- A write goes up its own chain to the storage, and to no other view. Those notice at their next read, by the version of
  the memory, so that a view which nobody reads again costs nothing.
- `detach` and `Tensor.data` share values but no derivatives, which one jax array cannot. So a memory may have several
  storages; each takes over in value what was last written to another (`Storage._sync`).
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

from ..runtime.translation import current
from .array_buffer import ArrayBuffer, LazyArray
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
from .levels import Recorder
from .traced import evaluating, is_traced, lowered, with_derivatives_of
from .view_kind import Gaps, ViewKind, beginning, flattening, spreading


def _in_order(constant: jax.Array, layout: tuple[int, ...] | None) -> Known:
    """A constant of the graph as a known value."""
    with evaluating():
        return ArrayBuffer(constant, layout).arranged(None)


class Storage(Journaled):
    """Memory with one history of derivatives: an array, replaced as a whole by every write.

    A detached tensor has the values of the tensor it came from, but derivatives of its own. So the two read different
    storages of one `Memory`; what is written to one, the other follows in value alone.

    Invariants, between any two calls of its methods:

    - `_buffer` is the values. While it is a `LazyArray`, the graph does not have them.
    - `_array` is the same array in the tensor's own order of dimensions, or None until somebody reads it.
    - `_version` is that of the memory, unless another storage of the memory was written since: `_sync`, with which
      each read and write begins, then takes over the values of `memory.latest`.
    - `_larger` is a view of another storage once the memory has grown: all reads and writes go there from then on.
    - `_known` is None if a traced input decides the values; else it has them for PyTorch and Python.
    - `differentiable` is False only where no derivative can lead through the values; `history` is None unless they
      require grad.

    Args:
        buffer: the values, in the shape of the tensor that the storage was made for.
        known: the values as PyTorch and Python may have them, if no traced input decides them; see `tensors/known.py`.
        order: the tensor's dimensions from the outermost to the innermost in PyTorch's memory, None if in order.
        memory: the memory that this is one more storage of; by default a new one.
        gaps: where the elements lie in memory that has others between them, of which nobody will ask.
    """

    __slots__ = (
        *("_array", "_flat", "_buffer", "_known", "_larger", "_version"),
        *("differentiable", "gaps", "history", "is_data", "memory", "order"),
    )
    changing = ("_array", "_flat", "_buffer", "_known", "_larger", "_version", "differentiable", "history")

    overlaps = is_chosen = False
    covers = True
    bits: frozenset[str] = frozenset()

    def __init__(
        self,
        buffer: ArrayBuffer | LazyArray,
        known: Known | None = None,
        order: tuple[int, ...] | None = None,
        memory: Memory | None = None,
        gaps: Gaps | None = None,
    ):
        self._begin()
        self.gaps = gaps
        self.is_data = False  # whether it is that of `Tensor.data`
        self.history: Node | None = None  # how the values came about, if they require grad
        self._set_buffer(buffer, known, touches=False)
        self.order = order
        self._flat: weakref.ref[View] | None = None
        self._larger: View | None = None  # where the values are, once the memory has grown
        if memory is None:
            memory = Memory(buffer.size if gaps is None else gaps.reach(buffer.shape))
        else:
            memory.is_shared = True
        self.memory = memory
        self._version = self.memory.version
        self.differentiable = self._may_differ()  # whether the values may have a derivative

    @classmethod
    def waiting(cls, buffer: LazyArray, known: Known | None, order: tuple[int, ...] | None = None) -> "Storage":
        """New memory of a known value that the graph may never need, made in a third of the time."""
        storage = cls.__new__(cls)
        storage._begin()
        storage._buffer, storage._known, storage.order = buffer, known, order
        storage.memory, storage._version = Memory(buffer.size), 0
        storage._array = storage._flat = storage._larger = storage.gaps = storage.history = None
        storage.is_data = storage.differentiable = False
        return storage

    @classmethod
    def computed(cls, buffer: ArrayBuffer, size: int, order: tuple[int, ...] | None) -> "Storage":
        """New memory of an operator's result while there is no tape, made in half of the time."""
        array, layout = buffer
        storage = cls.__new__(cls)
        storage._begin()
        is_unknown = is_traced(array)
        constant = None
        if is_unknown:  # perhaps by a transformation that it does not depend on
            lower = array.full_lower()
            if lower is not array:
                array, constant = lowered(array, lower)
                buffer, is_unknown = ArrayBuffer(array, layout), constant is None and is_traced(array)
        storage._buffer, storage.order, storage._known = buffer, order, None
        storage._array = array if layout is None else None
        if constant is not None:
            storage._known = _in_order(constant, layout)
        elif not is_unknown:
            storage._known = storage._array = buffer.arranged(None)
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
        storage._buffer, storage.order = ArrayBuffer(array, layout), order
        storage._array = array if layout is None else None
        storage._known = array if layout is None else ArrayBuffer(array, layout).arranged(None)
        storage.memory, storage._version = Memory(size), 0
        storage._flat = storage._larger = storage.gaps = storage.history = None
        storage.is_data = storage.differentiable = False
        return storage

    @property
    def storage(self) -> "Storage":
        return self

    @property
    def buffer(self) -> ArrayBuffer:
        if self._version != self.memory.version:
            self._sync()
        if self._larger is not None:
            return self._larger.buffer
        buffer = self._buffer
        if isinstance(buffer, LazyArray):
            buffer = buffer.buffer
            self._record()
            self._buffer = buffer
            if buffer.layout is None:
                self._array = buffer.array
        return buffer

    def lazy(self, shape: tuple[int, ...] | None, dtype: np.dtype | None) -> ArrayBuffer | LazyArray:
        """The values as they are, though the graph may not have them yet."""
        del shape, dtype
        self._sync()
        return self.buffer if self._larger is not None else self._buffer

    @property
    def known(self):
        if self._version != self.memory.version:
            self._sync()
        if self.differentiable and self._known is not None and self.is_older:
            return None  # a tape outside differentiates what is computed of it
        return self._known if self._larger is None else self._larger.known

    @property
    def root(self) -> "Storage":
        """The storage that has the values: another one, once the memory has grown."""
        return self if self._larger is None else self._larger.storage.root

    @property
    def frame(self) -> DenseLayout:
        return DenseLayout(tuple(self._buffer.shape), self.order)

    @property
    def layout(self) -> tuple[int, ...] | None:
        return self.buffer.layout

    def read(self) -> Any:
        if self._version != self.memory.version:
            self._sync()
        if self._larger is not None:
            return self._larger.read()
        if self._array is None:
            buffer = self.buffer
            self._record()
            self._array = buffer.arranged(None)
        return self._array

    def write(self, buffer: ArrayBuffer | LazyArray, known: Known | None, *, keeps_derivatives: bool = False) -> None:
        """Replaces the values.

        Args:
            known: what is known of all values in memory after that.
            keeps_derivatives: the new values have the derivatives of the old ones.
        """
        self._sync()
        if self._larger is not None:
            self._larger.write(buffer.buffer, known)
        else:
            self._set_buffer(buffer, known, is_new=not keeps_derivatives)
            self.differentiable = self.differentiable or self._may_differ()
            self._commit()

    def receive(self, buffer: ArrayBuffer) -> None:
        """Replaces the values by computed ones, if nothing is traced, and there is neither a tape nor a journal."""
        memory = self.memory
        is_plain = self._larger is None and not memory.is_shared and not memory.followers
        if not is_plain or self._version != memory.version:
            self.write(buffer, None)
            return
        array, layout = buffer
        self._buffer = buffer
        self._array = self._known = array if layout is None else buffer.arranged(None)
        memory.version = self._version = self._version + 1
        memory.seen += not self.is_data
        if memory.is_constant:
            memory.is_constant = False

    @property
    def has_grown(self) -> bool:
        """True if the memory is larger than it was."""
        return self._larger is not None or self.memory.size > self._reach

    def known_after(self, written: Known, region: "Geometry") -> Known | None:
        """The known value of all memory after `written` replaces the storage's own values; None if there is none."""
        del region
        self._sync()
        larger = self._larger
        if larger is None:
            return written
        return None if larger.region is None else larger.known_after(written, larger.region)

    def replace(self, buffer: ArrayBuffer, known: Known | None, *, is_written: bool) -> None:
        """Holds the same values as they are outside the trace that has ended.

        Args:
            is_written: they were written to memory that is older than that trace.
        """
        self._set_buffer(buffer, known)
        if is_written:
            self._commit()

    def note_known(self, known: Known | None) -> None:
        """Notes the known value of the initial values."""
        self._known = known
        self.differentiable = self.differentiable and self._may_differ()

    def mark_synced(self) -> None:
        """Declares the values to be the memory's latest."""
        self._version = self.memory.version

    def empty(self) -> None:
        """Drops the array, but not its type, until `replace`: a trace ends, and JAX may look for its leaked tracers."""
        array, layout = self.buffer
        self._array, self._buffer = None, ArrayBuffer(jax.ShapeDtypeStruct(array.shape, array.dtype), layout)

    def lose(self) -> None:
        """Drops values that nothing outside of the ended trace needs, unless they are known."""
        if self._known is None:
            self._array, self._buffer, self._version = None, ArrayBuffer(None, None), -1
        else:
            self._array = evaluate(self._known)
            self._buffer = ArrayBuffer(self._array, None)

    @property
    def is_released(self) -> bool:
        """True if its values have been given up."""
        return isinstance(self._buffer, ArrayBuffer) and self._buffer.array is None

    @property
    def is_outgrown(self) -> bool:
        """True if another storage has the values, since the memory has grown."""
        return self._larger is not None

    def detached(self, stop: Callable[[jax.Array], jax.Array] = lax.stop_gradient) -> "Storage | View":
        """The same memory without derivatives, until something is written there that has one.

        Args:
            stop: takes these from an array.
        """
        self._sync()
        if self._larger is not None:
            return self._larger.detached(stop)
        buffer = self._buffer
        if self.differentiable:
            buffer = ArrayBuffer(stop(self.buffer.array), self.buffer.layout)
        twin = Storage(buffer, self._known, self.order, self.memory, self.gaps)
        twin.differentiable = False
        return twin

    def rebased(self, buffer: ArrayBuffer) -> "Storage | View":
        """The same memory with a history of its own, which begins with `buffer`: the same values."""
        self._sync()
        if self._larger is not None:
            return self._larger.rebased(buffer)
        return Storage(buffer, self._known, self.order, self.memory, self.gaps)

    def track(self, origins: Sequence[jax.Array] = ()) -> None:
        """Makes the values differentiable on the tape, even those without a derivative of their own (of a floor).

        Args:
            origins: the arrays that they were computed from.
        """
        self._sync()
        if self._larger is not None:
            self._larger.storage.track(origins)
            return
        tape, (array, layout) = _tape(), self.buffer
        placed = array if tape is None else tape.tracked(array, origins)
        if placed is not array:
            self._set_buffer(ArrayBuffer(placed, layout), self._known, is_new=False)
            self.differentiable = True
            self._commit()

    @property
    def dtype(self) -> np.dtype:
        return self._buffer.dtype

    @property
    def flat(self) -> "Storage | View":
        """All of the memory, in its order, as one dimension."""
        self._sync()
        if self._larger is not None:
            return self._larger.storage.flat
        shape = self._buffer.shape
        if len(shape) == 1 and self.gaps is None:
            return self
        flat = None if self._flat is None else self._flat()
        if flat is None:
            self._record()
            flat = View(self, self._flattening)
            flat.region = Geometry((self._reach,), (1,), 0, None)
            self._flat = weakref.ref(flat)  # whoever reads it keeps it: storages are freed without garbage collection
        return flat

    @property
    def _flattening(self) -> ViewKind:
        shape = self._buffer.shape
        return flattening(shape, self.order) if self.gaps is None else spreading(shape, self.gaps)

    @property
    def _reach(self) -> int:
        """The number of elements of memory that the values span."""
        return self._buffer.size if self.gaps is None else self.gaps.reach(self._buffer.shape)

    def grow(self, size: int) -> None:
        """Makes room for `size` elements; every tensor on this memory stays on it."""
        self._sync()
        if self._larger is not None:
            self._larger.storage.grow(size)
            return
        expect_contained(self.memory, "memory grows")
        self.memory.size = size
        self._enlarge()._commit()
        self._version = self.memory.version

    def _enlarge(self) -> "Storage":
        self._record()
        flat, shape = self.flat, self._buffer.shape
        before, known = flat.read(), flat.known
        more = self.memory.size - before.size
        after = lax.pad(before, np.zeros((), before.dtype), [(0, more, 0)])
        if known is not None:
            known = defer(torch.nn.functional.pad, known, (0, more))
        larger = Storage(ArrayBuffer(after, None), known, None, self.memory)
        larger.differentiable, larger.history = self.differentiable, self.history
        self._larger = View(larger, beginning(self._flattening, self._reach))
        strides, offset = self.gaps or (_strides(shape, self.order), 0)
        self._larger.region = Geometry(tuple(shape), strides, offset, None)
        return larger

    def _set_buffer(
        self, buffer: ArrayBuffer | LazyArray, known: Known | None, is_new: bool = True, touches: bool = True
    ) -> None:
        if touches:
            self._record()
        self._array = None
        if isinstance(buffer, LazyArray):
            self._buffer, self._known = buffer, known
            return
        call = current()
        tape = None if call is None else call.tape
        if call is not None and call.dual is not None:
            call.dual.note(self)
        traced, constant = is_traced(buffer.array), None
        if traced:  # perhaps by a transformation that it does not depend on
            lower = buffer.array.full_lower()
            if lower is not buffer.array:
                lower, constant = lowered(buffer.array, lower)
                buffer = ArrayBuffer(lower, buffer.layout)
                traced = is_traced(buffer.array)
        if constant is not None:
            known = _in_order(constant, buffer.layout) if known is None else known
        elif not traced:
            if known is None:
                known = self._array = buffer.arranged(None)
        elif tape is not None:
            values = tape.primal(buffer.array)
            if not is_traced(values) and known is None:
                known = ArrayBuffer(values, buffer.layout).arranged(None)
            if is_new:
                buffer = ArrayBuffer(tape.with_own_variable(buffer.array), buffer.layout)
        self._buffer, self._known = buffer, known if self.gaps is None else None
        if buffer.layout is None:
            self._array = buffer.array

    def _may_differ(self) -> bool:
        call = current()
        if self._known is not None:  # of constants, unless derivatives with respect to these are asked for
            if call is None or (call.tape is None and call.dual is None) or isinstance(self._buffer, LazyArray):
                return False
            return any(x is not None and x.has(self._buffer.array) for x in (call.tape, call.dual))
        return self._buffer.dtype.kind not in "biu"

    def _commit(self) -> None:
        active = journal()
        if active is not None and self.memory.is_older:
            self.memory._record()
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

    def _sync(self) -> None:
        """Takes over the last write to this memory, in value alone."""
        if self._version == self.memory.version:
            return
        if self.is_released:
            raise RuntimeError(
                "a tensor that was made in a branch or in the body of a loop was put aside there, and is used outside, "
                "where it has no value; wanted it among the results"
            )
        self._record()
        self._version = self.memory.version
        if self._larger is None and self.memory.size > self._reach:
            self._enlarge()._version = -1
        if self._larger is None:
            latest: Any = self.memory.latest
            (array, layout), known = latest.buffer, latest.known
            if array is self.buffer.array:  # another history has begun with these values, or ended
                return
            if self.differentiable:
                array = with_derivatives_of(self.buffer.array, ArrayBuffer(array, layout).arranged(self.buffer.layout))
                layout = self.buffer.layout
            elif latest.differentiable:
                array = lax.stop_gradient(array)
            self._set_buffer(ArrayBuffer(array, layout), known, is_new=False)


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
        *("overlaps", "parent", "region", "storage"),
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
        self.region: Geometry | None = None  # which part of memory it is, where PyTorch has said so
        self._array = None
        self._lazy: tuple[int, LazyArray] | None = None  # of which version, where it is not in the graph yet
        self._root: ArrayBuffer | None = None  # what is held, where that has a place on a tape
        self._origin: tuple | None = None  # the places on a tape of what it was read from, and after how many writes
        self._part: tuple[Any, torch.Tensor] | None = None  # what PyTorch has of known values, and of which: all stay
        self._version = -1

    def forget(self) -> None:
        self._array, self._lazy, self._origin, self._root, self._version = None, None, None, None, -1

    @property
    def layout(self) -> tuple[int, ...] | None:
        return self.buffer.layout

    @property
    def buffer(self) -> ArrayBuffer:
        permutation = self.kind.permutation
        if self._version == self.storage.memory.version:
            return ArrayBuffer(self._array, None) if self._root is None else self._root
        if permutation is None:
            return ArrayBuffer(self.read(), None)
        array, below = self.parent.buffer
        layout = tuple(permutation.index(dim) for dim in below or range(array.ndim))
        buffer = ArrayBuffer(array, None if layout == tuple(range(array.ndim)) else layout)
        tape = _tape()
        if tape is not None and is_traced(array):
            self._record()
            before: object = self._array
            if self._is_as_it_was(tape) and self._root is not None:
                values = ArrayBuffer(tape.primal(array), buffer.layout).arranged(self._root.layout)
                self._root = ArrayBuffer(tape.with_values(self._root.array, values), self._root.layout)
                self._array = tape.with_values(before, tape.primal(self._root.arranged(None)))
            else:
                self._root = ArrayBuffer(tape.with_own_variable(array), buffer.layout)
                self._array = self._root.arranged(None)
            self._version = self.storage.memory.version
            return self._root
        return buffer

    def read(self) -> Any:
        if self._version != self.storage.memory.version:
            self._record()
            if self.kind.permutation is None:
                tape = _tape()
                if tape is None:
                    self._array = self._number()
                elif self._is_as_it_was(tape):
                    before: object = self._array
                    self._array = tape.with_values(before, tape.primal(self._read()))
                else:
                    self._array = tape.with_own_variable(self._read())
            else:
                self._array = self.buffer.arranged(None)
            self._version = self.storage.memory.version
        return self._array

    def _is_as_it_was(self, tape: Recorder) -> bool:
        """True if autograd sees no write since this was read, but perhaps to `Tensor.data`; notes the present state.

        A leaf is written to unseen alone, perhaps as another one on the same memory.
        """
        before = self._origin
        self._origin = tape.variables(self.parent.buffer.array), self.storage.memory.seen
        return self._array is not None and bool(self._origin[0]) and (self._origin == before or self._is_leaf())

    def _is_leaf(self) -> bool:
        return self.storage.history is not None and self.storage.history.begins_at(self)

    def _read(self) -> jax.Array:
        return self.kind.read(self.parent.read())

    def _number(self):
        """The array; a single known number is a constant of the graph, not a part of another array."""
        is_number = self.region is not None and not self.region.shape and not self.is_chosen
        known = self.known if is_number and isinstance(self.storage.known, (torch.Tensor, Deferred)) else None
        if known is not None:
            return evaluate(known)
        if self._lazy is not None and self._lazy[0] == self.storage.memory.version:
            return self._lazy[1].buffer.array
        return self._read()

    def lazy(self, shape: Any, dtype: Any) -> ArrayBuffer | LazyArray:
        """The values as they are, though the graph may not have them yet."""
        if self._version == self.storage.memory.version:
            return self.buffer
        parent, kind = self.parent.lazy(None, None), self.kind
        if isinstance(parent, ArrayBuffer):
            return self.buffer
        version = self.storage.memory.version
        if self._lazy is None or self._lazy[0] != version:
            self._record()
            lazy = parent.then(lambda buffer: ArrayBuffer(kind.read(buffer.arranged(None)), None), shape, dtype)
            self._lazy = version, lazy
        lazy = self._lazy[1]
        if shape is not None:  # whoever asked before, for the sake of another view, need not know
            lazy.shape, lazy.dtype = shape, dtype
        return lazy

    @property
    def known(self):
        """The known value of the view, or None; see `tensors/known.py`."""
        if self.is_chosen or self.storage.known is None:
            return None
        root = self.storage.root
        known = root.known
        if isinstance(known, jax.Array) and not is_traced(array := self.read()):
            return array
        if self.region is None:
            known = self.parent.known
            return None if known is None else defer_body(value_of_body, self.kind.read, known)
        region = self.region._replace(bits=self.bits) if self.bits else self.region
        if not isinstance(known, torch.Tensor):
            return defer(region.read, known, root.frame)
        if self._part is None or self._part[0] is not known:
            self._part = known, in_pytorch(region.read, known, root.frame)
        return self._part[1]

    def known_after(self, written: Known, region: Geometry) -> Known | None:
        """The known value of the memory after a write of `written` to the tensor at `region`; None if there is none."""
        storage, region = self.storage.root, region._replace(bits=self.bits)
        covers = self.covers and storage is self.storage  # memory may have grown since
        before = None if covers else storage.known
        if self.is_chosen or self.storage.gaps is not None or (before is None and not covers):
            return None
        if covers and region.dtype is not None and canonical(region.dtype) != storage.dtype:
            return None
        is_there = isinstance(written, torch.Tensor) and (before is None or isinstance(before, torch.Tensor))
        if is_there and is_small(storage.memory.size):
            return in_pytorch(region.write, before, storage.frame, written)
        return defer(region.write, before, storage.frame, written)

    def write(self, buffer: ArrayBuffer | LazyArray, known: Known | None, *, keeps_derivatives: bool = False) -> None:
        """Replaces the values.

        Args:
            known: what is known of all values in memory after that.
            keeps_derivatives: the new values have the derivatives of the old ones.
        """
        if isinstance(buffer, LazyArray):
            self._write_lazily(buffer, known)
            return
        tape = _tape()
        if keeps_derivatives and tape is not None and tape.has(self.parent.buffer.array):
            self._write_values(tape, buffer.buffer, known)
            return
        if self.kind.permutation is not None:
            self.parent.write(self._permuted(buffer.buffer), known)
            return
        array = buffer.buffer.arranged(None)
        before = None if self.kind.covers else self.parent.read()
        self._record()
        self.parent.write(ArrayBuffer(self.kind.write(before, array), None), known)
        if self.is_chosen or (tape is not None and is_traced(array)):
            # To be read anew: there may be no such place, and a tape has the view behind what it is a view of.
            self._version = -1
        else:
            self._array, self._version = array, self.storage.memory.version

    def _write_values(self, tape: Recorder, buffer: ArrayBuffer, known: Known | None) -> None:
        """Writes values alone, below derivatives that stay as they are."""
        full, buffer = self.parent.buffer, ArrayBuffer(tape.primal(buffer.array), buffer.layout)
        mine = self._with_values(tape, buffer)
        if self.kind.permutation is not None:
            buffer = self._permuted(buffer)
        else:
            before = None if self.kind.covers else tape.primal(self.parent.read())
            buffer = ArrayBuffer(self.kind.write(before, buffer.arranged(None)), None)
        values = tape.with_values(full.array, buffer.arranged(full.layout))
        self.parent.write(ArrayBuffer(values, full.layout), known, keeps_derivatives=True)
        if mine is not None:
            self._take(mine)
            self._is_as_it_was(tape)

    def _with_values(self, tape: Recorder, values: ArrayBuffer) -> ArrayBuffer | None:
        """The array after a write to a leaf whose history begins at this view, not at its parent; else None."""
        if self._version != self.storage.memory.version or not self._is_leaf():
            return None
        array, layout = ArrayBuffer(self._array, None) if self._root is None else self._root
        return ArrayBuffer(tape.with_values(array, values.arranged(layout)), layout)

    def _take(self, buffer: ArrayBuffer) -> None:
        """Caches `buffer` as what was read."""
        self._record()
        self._root = None if self.kind.permutation is None else buffer
        self._array, self._version = buffer.arranged(None), self.storage.memory.version

    def _write_lazily(self, buffer: LazyArray, known: Any) -> None:
        storage, kind = self.storage, self.kind
        if kind.permutation is not None:
            changed = buffer.then(self._permuted, storage.frame.shape, storage.dtype)
        else:
            before: object = None if kind.covers else self.parent.lazy(None, None)

            def change(written: ArrayBuffer) -> ArrayBuffer:
                full = None if before is None else before.buffer.arranged(None)
                return ArrayBuffer(kind.write(full, written.arranged(None)), None)

            changed = buffer.then(change, storage.frame.shape, storage.dtype)
            changed.depth = 1 + max(buffer.depth, 0 if before is None else getattr(before, "depth", 0))
        self._record()
        self._array, self._root, self._version = None, None, -1
        if changed.is_long:
            storage.write(LazyConstant(known), known)
        else:
            self.parent.write(changed, known)

    def _permuted(self, buffer: ArrayBuffer) -> ArrayBuffer:
        """The parent's physical array, given that of the view, which is a permutation of it."""
        array, layout = buffer
        layout = tuple(self.kind.permutation[dim] for dim in layout or range(array.ndim))  # pyright: ignore[reportOptionalSubscript]
        return ArrayBuffer(array, None if layout == tuple(range(array.ndim)) else layout)

    def detached(self, stop: Callable[[jax.Array], jax.Array] = lax.stop_gradient) -> "View":
        """The same view of detached memory."""
        return self._again(self.parent.detached(stop))

    def _again(self, parent: "Storage | View") -> "View":
        view = View(parent, self.kind)
        view.region = self.region
        return view

    def rebased(self, buffer: ArrayBuffer) -> "View":
        """The same view of memory with a history of its own, which begins with `buffer`: the same values."""
        if self.kind.permutation is not None:
            view = self._again(self.parent.rebased(self._permuted(buffer)))
        else:
            buffer = ArrayBuffer(buffer.arranged(None), None)
            before = None if self.kind.covers else self.parent.read()
            view = self._again(self.parent.rebased(ArrayBuffer(self.kind.write(before, buffer.array), None)))
        if self.kind.permutation is None or _tape() is not None:
            view._take(buffer)
        return view


def lose_traced(nodes: Iterable[object], is_undone: bool = False) -> None:
    """Drops the values that an ended trace leaves in storages; `nodes` were made within.

    Args:
        is_undone: whether what was written to older memory is undone. What shares it has no values then.
    """
    for node in nodes:
        if not isinstance(node, Storage):
            continue
        memory = node.memory
        is_stale = is_undone and node._version != memory.version and memory.latest is None and not node.has_grown
        if is_stale or is_traced(node.buffer.array):
            node.lose()


def steps_to(node: Storage | View) -> list[tuple[ViewKind, Geometry | None]]:
    """The kinds and places of the views on the way from a storage to a node, the innermost first."""
    steps = []
    while isinstance(node, View):
        steps.append((node.kind, node.region))
        node = node.parent
    return steps[::-1]
