"""Tensors of which data decide whether they are one: what is written to one is chosen into the others, or refused.

A tensor that was chosen between two sides has memory of its own. Where one side has left an older tensor in its place,
it *is* that tensor wherever the flag holds. A tie says so. It costs nothing until one of the two is written to.

Ties join nodes, one for each memory. A node outlives its memory, so that two tensors are still known to be perhaps one
when what ties them is gone. A write follows the ties of its node:

- with a flag, the other's values become ``where(flag, written, before)``;
- without one (nobody has computed it), or where there are two ways to the same node, the write is refused, if the
  other memory is still there.
"""

import weakref
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
from jax import lax

from ..runtime.translation import this_call
from ..tensors.array_buffer import ArrayBuffer
from ..tensors.journal import Journal, Memory, journal
from ..tensors.storage import Storage, View, steps_to
from ..tensors.tensor import Torchish
from ..tensors.view_kind import ViewKind
from .state import Refused

_MANY = 8  # ways in which a tensor may be one of those from outside: with more, nobody computes the flags


class Tie:
    """That the whole of `target` is a view of `base` where a flag holds.

    Args:
        flag: a traced bool; None if nobody knows it.
        steps: the kinds of the views.
    """

    def __init__(self, flag: Any, target: Storage, base: Storage, steps: list[ViewKind]):
        self.flag, self.target, self.base, self.steps = flag, target, base, steps
        self._journal = journal()
        self.nodes = _node_of(target.memory), _node_of(base.memory)
        for node in self.nodes:
            node.ties.append(self)
        if flag is None:
            self.target = self.base = None  # for the nodes to tell whether they are there

    @property
    def lasts(self) -> bool:
        """True if the side that it was made on has not ended."""
        kept: Journal | None = journal()
        while kept is not None:
            if kept is self._journal:
                return True
            kept = kept.outer
        return self._journal is None

    def other(self, node: "_Node") -> "_Node":
        return self.nodes[1] if node is self.nodes[0] else self.nodes[0]

    def carry(self, origin: "_Node") -> None:
        """Chooses the values at one end into the other."""
        target: Any = self.target
        view: Any = self.base
        for kind in self.steps:
            view = View(view, kind)
        one, other = (target, view) if origin is self.nodes[0] else (view, target)
        array = other.read()
        flag = lax.broadcast_in_dim(self.flag, array.shape, ())
        values = lax.select_n(flag, array, lax.convert_element_type(one.read(), array.dtype))
        other.write(ArrayBuffer(values, None), None)


class _Node:
    """A memory among the ties."""

    def __init__(self, memory: Memory):
        self.ties: list[Tie] = []
        self._memory = weakref.ref(memory)
        memory.follow(self._written)

    @property
    def is_there(self) -> bool:
        return self._memory() is not None

    @property
    def lasting(self) -> list[Tie]:
        self.ties = [tie for tie in self.ties if tie.lasts]
        return self.ties

    def _written(self) -> None:
        if silently.depth == 0 and self.lasting:
            with silently():
                self._spread()

    def _spread(self) -> None:
        seen = {id(self)}
        pending: list[tuple[_Node, bool, Tie | None]] = [(self, True, None)]
        while pending:
            node, is_exact, by = pending.pop()
            for tie in node.lasting:
                if tie is by:
                    continue
                other = tie.other(node)
                is_exact_there = is_exact and tie.flag is not None and id(other) not in seen
                if id(other) not in seen:
                    seen.add(id(other))
                    pending.append((other, is_exact_there, tie))
                if is_exact_there:
                    if this_call().tape is not None:
                        raise Refused(
                            "the code takes gradients, and writes to a tensor that may be another one", other_paths=True
                        )
                    tie.carry(node)
                elif other.is_there and other is not self:
                    raise Refused(
                        "a tensor is written to in place, and data decide whether another one is the same tensor",
                        other_paths=True,
                    )


class silently:
    """A context in which writes follow no ties: what is written has been carried along already."""

    depth = 0

    def __enter__(self) -> None:
        silently.depth += 1

    def __exit__(self, *exc_info: object) -> None:
        silently.depth -= 1


def _node_of(memory: Memory) -> _Node:
    found = vars(memory).get("tied")
    if found is None:
        found = memory.tied = _Node(memory)  # pyright: ignore[reportAttributeAccessIssue]
    return found


def is_tied(memory: Memory) -> bool:
    """True if data decide what else a memory is."""
    found = vars(memory).get("tied")
    return found is not None and bool(found.lasting)


def tied_to(tensors: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Those of some tensors of which data decide whether they are one."""
    names = {id(x._node.storage.memory): name for name, x in tensors.items()}
    for name, tensor in tensors.items():
        node = vars(tensor._node.storage.memory).get("tied")
        for tie in () if node is None else node.lasting:
            other = names.get(id(tie.other(node)._memory()))
            if other is not None and other != name:
                yield other, name


class Relation(NamedTuple):
    """What a tensor is that a side leaves: a view of an older storage, or of one that the side has made."""

    flag: jax.Array | None
    """Where that is so; None for everywhere."""
    base: Storage
    steps: list[ViewKind]
    is_older: bool
    is_known: bool = True
    """Whether the flag is; else the tensor may be that one."""


def relations(tensor: Torchish) -> list[Relation]:
    """What a tensor is or may be, as code within a side, or outside of all, sees it."""
    node = tensor._node
    storage, steps = node.storage, [kind for kind, _ in steps_to(node)]
    found = [*_relations(storage, steps, None, storage.is_older, set())]
    is_many = len(found) > _MANY
    # What a view has that begins where data decide was computed in the trace that ends.
    return [x._replace(is_known=False) if is_many or any(y.traced for y in x.steps) else x for x in found]


def _relations(
    storage: Storage, steps: list, flag: jax.Array | None, is_older: bool, seen: set[int]
) -> Iterator[Relation]:
    if id(storage.memory) in seen:
        return
    seen.add(id(storage.memory))
    if not is_older and storage.memory.is_older:  # a detached part of a tensor from outside
        yield Relation(None, _any_storage(storage.memory), steps, True, is_known=False)
        return
    yield Relation(flag, storage, steps, is_older)
    if is_older or not is_tied(storage.memory):
        return
    for tie in vars(storage.memory)["tied"].lasting:
        if tie.flag is None:
            memory = tie.other(_node_of(storage.memory))._memory()
            if memory is not None and memory.is_older:
                yield Relation(None, _any_storage(memory), steps, True, is_known=False)
        elif tie.target is storage:
            both = tie.flag if flag is None else lax.bitwise_and(flag, tie.flag)
            yield from _relations(tie.base, [*tie.steps, *steps], both, tie.base.is_older, seen)
        else:
            yield Relation(None, tie.target, steps, tie.target.is_older, is_known=False)


def _any_storage(memory: Memory) -> Any:
    """Stands for a storage of a memory, where only the memory counts."""
    return _OfMemory(memory)


class _OfMemory(NamedTuple):
    memory: Memory
