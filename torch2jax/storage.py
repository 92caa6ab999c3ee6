"""Storages, views of them, and values that are known while JAX traces.

A storage holds one immutable jax array. A tensor reads it through a chain of views; a write through any view
replaces the storage's array, so that every tensor on that storage sees it. Reads are cached until the storage
changes: code without aliasing pays nothing and leaves no trace in its jaxpr.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax import lax

__all__ = ["Deferred", "Held", "Storage", "View", "ViewKind", "evaluate", "is_traced", "known_result"]

_MAX_DEPTH = 100


def is_traced(array) -> bool:
    """Whether JAX is tracing `array`, so that it may have no value yet."""
    return isinstance(array, jax.core.Tracer)


class Deferred:
    """A value that is traced, but computed from constants alone: it can be evaluated at trace time, on demand.

    The graph keeps its compact form (an iota, a broadcast), and only a question of Python's pays for the answer.
    """

    __slots__ = ("_args", "_fn", "_kwargs", "_value", "depth")

    def __init__(self, fn: Callable, args: tuple, kwargs: dict, depth: int):
        self._fn: Callable | None = fn
        self._args, self._kwargs = args, kwargs
        self._value: Any = None
        self.depth = depth
        if depth > _MAX_DEPTH:  # bounds the recursion of force()
            self.force()
            self.depth = 0

    def force(self):
        """The value, computed at most once."""
        if self._fn is not None:
            args = jax.tree.map(evaluate, self._args, is_leaf=_is_deferred)
            kwargs = jax.tree.map(evaluate, self._kwargs, is_leaf=_is_deferred)
            with jax.ensure_compile_time_eval():
                self._value = self._fn(*args, **kwargs)
            self._fn = self._args = self._kwargs = None
        return self._value


def _is_deferred(value) -> bool:
    return isinstance(value, Deferred)


def evaluate(known):
    """The concrete array of a known value: the array itself, or what a `Deferred` computes."""
    return known.force() if isinstance(known, Deferred) else known


def known_result(result, fn: Callable, args: tuple, kwargs: dict, knowns: list):
    """What is known of `result`, computed by `fn`: itself if concrete, a `Deferred` if all `knowns` are, or None.

    `args` and `kwargs` hold the operands' known values in place of their arrays.
    """
    if not is_traced(result):
        return result
    if any(known is None for known in knowns):
        return None
    depth = 1 + max((known.depth for known in knowns if isinstance(known, Deferred)), default=0)
    return Deferred(fn, args, kwargs, depth)


class Held(NamedTuple):
    """An array as it is held: with its dimensions in another order than the tensor's, or in order.

    Operators that do not care for the order of dimensions work on what is held, so that a transposition is emitted
    only where one is needed: a convolution net stays in channels-last order from its first layer to its last.
    """

    array: Any
    layout: tuple[int, ...] | None
    """The tensor's dimension at each place of `array`, None if they are in order."""

    def arranged(self, layout: tuple[int, ...] | None):
        """The array with its dimensions in the order `layout` asks for."""
        if layout == self.layout:
            return self.array
        own = self.layout or range(self.array.ndim)
        wanted = range(self.array.ndim) if layout is None else layout
        return lax.transpose(self.array, [list(own).index(dim) for dim in wanted])


class Storage:
    """Memory: one array, replaced as a whole by every write.

    Args:
        held: the values, in the shape of the tensor that the storage was made for.
        known: the array or `Deferred` of the values if no traced input decides them.
        order: the tensor's dimensions from the outermost to the innermost in PyTorch's memory, None if in order.
    """

    __slots__ = ("_array", "foreign", "held", "known", "order", "version")

    def __init__(self, held: Held, known=None, order: tuple[int, ...] | None = None):
        self._hold(held, known)
        self.order = order
        self.version = 0
        self.foreign = False  # whether it stands for memory from outside the call, where writes are not seen

    @property
    def storage(self) -> "Storage":
        return self

    @property
    def layout(self) -> tuple[int, ...] | None:
        return self.held.layout

    def read(self):
        if self._array is None:
            self._array = self.held.arranged(None)
        return self._array

    def write(self, held: Held, known) -> None:
        self._hold(held, known)
        self.version += 1

    def _hold(self, held: Held, known) -> None:
        self.held = held
        self._array = held.array if held.layout is None else None
        self.known = known if is_traced(held.array) else self.read()


class ViewKind(NamedTuple):
    """How one kind of view reads its parent's array, and how a write to it changes the parent's array."""

    read: Callable[[Any], Any]
    write: Callable[[Any, Any], Any]
    """``write(parent, value)`` is the parent's new array."""
    reads_back: bool = True
    """Whether a read after ``write(parent, value)`` gives `value` as it is."""
    permutation: tuple[int, ...] | None = None
    """The parent's dimension at each place of the view, if the view is a permutation of dimensions."""


class View:
    """A node that reads its parent through a `ViewKind`; its root is a `Storage`."""

    __slots__ = ("_array", "_version", "kind", "parent", "storage")

    def __init__(self, parent: "Storage | View", kind: ViewKind):
        self.parent, self.kind = parent, kind
        self.storage = parent.storage
        self._array = None
        self._version = -1

    @property
    def layout(self) -> tuple[int, ...] | None:
        permutation = self.kind.permutation
        if permutation is None:
            return None
        below = self.parent.layout or range(len(permutation))
        layout = tuple(permutation.index(dim) for dim in below)
        return None if layout == tuple(range(len(layout))) else layout

    @property
    def held(self) -> Held:
        if self.kind.permutation is None or self._version == self.storage.version:
            return Held(self.read(), None)
        return Held(self.parent.held.array, self.layout)

    def read(self):
        if self._version != self.storage.version:
            if self.kind.permutation is None:
                self._array = self.kind.read(self.parent.read())
            else:
                self._array = self.held.arranged(None)
            self._version = self.storage.version
        return self._array

    @property
    def known(self):
        parent = self.parent.known
        return None if parent is None else known_result(self.read(), self.kind.read, (parent,), {}, [parent])

    def write(self, held: Held, known) -> None:
        array = held.arranged(None)
        before, before_known = self.parent.read(), self.parent.known
        after = self.kind.write(before, array)
        self.parent.write(
            Held(after, None),
            known_result(after, self.kind.write, (before_known, known), {}, [before_known, known]),
        )
        if self.kind.reads_back:
            self._array, self._version = array, self.storage.version
