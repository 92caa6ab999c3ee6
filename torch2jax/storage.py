"""Storages, views of them, and values that are known while JAX traces.

A storage holds one immutable jax array. A tensor reads it through a chain of views; a write through any view
replaces the storage's array, so that every tensor on that storage sees it. Reads are cached until the storage
changes: code without aliasing pays nothing and leaves no trace in its jaxpr.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

__all__ = ["Deferred", "Storage", "View", "ViewKind", "evaluate", "is_traced", "known_result"]

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


class Storage:
    """Memory: one array, replaced as a whole by every write.

    Args:
        array: the values, in the shape of the tensor that the storage was made for.
        known: the array or `Deferred` of the values if no traced input decides them.
        order: the dimensions of `array` from the outermost to the innermost in memory, None if in order.
    """

    __slots__ = ("array", "foreign", "known", "order", "version")

    def __init__(self, array, known=None, order: tuple[int, ...] | None = None):
        self.array = array
        self.known = known if is_traced(array) else array
        self.order = order
        self.version = 0
        self.foreign = False  # whether it stands for memory from outside the call, where writes are not seen

    @property
    def storage(self) -> "Storage":
        return self

    def read(self):
        return self.array

    def write(self, array, known) -> None:
        self.array = array
        self.known = known if is_traced(array) else array
        self.version += 1


class ViewKind(NamedTuple):
    """How one kind of view reads its parent's array, and how a write to it changes the parent's array."""

    read: Callable[[Any], Any]
    write: Callable[[Any, Any], Any]
    """``write(parent, value)`` is the parent's new array."""
    reads_back: bool = True
    """Whether a read after ``write(parent, value)`` gives `value` as it is."""


class View:
    """A node that reads its parent through a `ViewKind`; its root is a `Storage`."""

    __slots__ = ("_array", "_version", "kind", "parent", "storage")

    def __init__(self, parent: "Storage | View", kind: ViewKind):
        self.parent, self.kind = parent, kind
        self.storage = parent.storage
        self._array = None
        self._version = -1

    def read(self):
        if self._version != self.storage.version:
            self._array = self.kind.read(self.parent.read())
            self._version = self.storage.version
        return self._array

    @property
    def known(self):
        parent = self.parent.known
        return None if parent is None else known_result(self.read(), self.kind.read, (parent,), {}, [parent])

    def write(self, array, known) -> None:
        before, before_known = self.parent.read(), self.parent.known
        after = self.kind.write(before, array)
        self.parent.write(
            after, known_result(after, self.kind.write, (before_known, known), {}, [before_known, known])
        )
        if self.kind.reads_back:
            self._array, self._version = array, self.storage.version
