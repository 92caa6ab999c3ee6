"""An undo log of changes to storages and views that existed before some code ran.

Code that runs in a JAX trace of its own leaves that trace's arrays in whatever it writes, and in what it reads, since
reads are cached. A journal puts all of that back; what is to last is done again outside (`tracing/scope.py`).

Also here: the memory that a tensor and all its aliases share.
"""

import itertools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from ..runtime.errors.unwinding import Unwind

if TYPE_CHECKING:
    from .storage import Storage


class Uncontained(Unwind):
    """Code within a journal does something that cannot be repeated outside."""

    ends_call = False


class NeedsLeaves(Uncontained):
    """Code within a journal differentiates with respect to leaves that were there before it."""


class _JournalOfThread(threading.local):
    journal: "Journal | None" = None


_active = _JournalOfThread()


def journal() -> "Journal | None":
    """The innermost journal that this thread keeps."""
    return _active.journal


class Journaled:
    """An object whose changes a journal undoes; it belongs to the journal that is active when it is made."""

    __slots__ = ("__weakref__", "_journal")

    changing: ClassVar[tuple[str, ...]] = ()
    """The attributes that change."""
    is_released = False
    """True if its values have been given up."""

    def _begin(self) -> None:
        self._journal = kept = _active.journal
        if kept is not None:
            kept.made.append(weakref.ref(self))

    @property
    def is_older(self) -> bool:
        """True if it was made before the active journal began."""
        return _active.journal is not None and self._journal is not _active.journal

    def _record(self) -> None:
        """Called before an attribute changes."""
        kept = _active.journal
        if kept is not None and self._journal is not kept:
            kept.remember(self)

    def forget(self) -> None:
        """Drops a cache that was computed within the ending journal."""


class Journal:
    """An undo log of changes to older objects, active while it is entered.

    Args:
        repeats: whether the code that it is kept of may run several times.
    """

    def __init__(self, *, repeats: bool = False):
        self.outer, self.repeats = _active.journal, repeats
        self.made: list[weakref.ref] = []
        self.written: dict[int, Any] = {}
        """The storages through which older memory was written, in the order of the last writes."""
        self.writes = 0
        """The number of these writes."""
        self._before: dict[int, tuple[Journaled, list]] = {}
        self.undo: list[Callable[[], None]] = []
        """Functions that undo changes of the tensors themselves, which would otherwise last."""
        self.changes_older = False
        """True if one of these tensors is older than the journal."""

    def __enter__(self) -> "Journal":
        self.outer, _active.journal = _active.journal, self
        return self

    def __exit__(self, *exc_info: object):
        _active.journal = self.outer
        for node, values in self._before.values():
            for name, value in zip(node.changing, values, strict=True):
                setattr(node, name, value)
        for node in self.survivors():
            node.forget()
            node._journal = self.outer
            if self.outer is not None:
                self.outer.made.append(weakref.ref(node))
        if self.outer is not None:
            self.outer.undo.extend(self.undo)

    def cancel(self) -> None:
        """Undoes changes of tensors themselves."""
        while self.undo:
            self.undo.pop()()

    def remember(self, node: Journaled) -> None:
        """Saves the attributes of an older node, to restore them at the end."""
        if id(node) not in self._before:
            self._before[id(node)] = (node, [getattr(node, name) for name in node.changing])

    def note_change(self, node: Journaled, undo: Callable[[], None]) -> None:
        """Saves the undo of a change of a tensor itself, which is at `node`."""
        self.undo.append(undo)
        self.changes_older = self.changes_older or node._journal is not self

    def note_write(self, storage: Journaled) -> None:
        self.writes += 1
        self.written.pop(id(storage), None)
        self.written[id(storage)] = storage

    def survivors(self) -> list[Any]:
        """The objects that were made within and are still referred to."""
        nodes = [reference() for reference in self.made]
        return [node for node in nodes if node is not None and not node.is_released]


class suspended:
    """A context without a journal."""

    def __enter__(self):
        self._before, _active.journal = _active.journal, None

    def __exit__(self, *exc_info: object):
        _active.journal = self._before


def expect_contained(node: Journaled, what: str) -> None:
    """Refuses an action on a node that is older than the active journal.

    Raises:
        Uncontained: one is kept.
    """
    if node.is_older:
        raise Uncontained(what)


def expect_no_journal(what: str) -> None:
    """Refuses an action within a journal.

    Raises:
        Uncontained: one is kept.
    """
    if _active.journal is not None:
        raise Uncontained(what)


def expect_no_repetition(what: str) -> None:
    """Refuses an action in code that may run several times.

    Raises:
        Uncontained: a journal of such code is kept.
    """
    kept = _active.journal
    while kept is not None:
        if kept.repeats:
            raise Uncontained(what)
        kept = kept.outer


_is_inference = torch.is_inference_mode_enabled
_numbers = itertools.count(1)


def next_number() -> int:
    """The number of the next memory: larger than those of all existing ones."""
    return next(_numbers)


class Located(Uncontained):
    """Code needs a tensor's position in memory, but only the tensor's part of the memory is there."""


class Memory(Journaled):
    """The memory that a tensor shares with its aliases: its size, and the number and the last of the writes to it."""

    changing = ("latest", "seen", "size", "version")

    # What most have all their life is the class's: every operator makes a memory.
    is_shared = False  # whether several storages are of this memory
    latest: "Storage | None" = None  # the last written of several
    version = 0
    seen = 0  # how many writes autograd has seen: not those to `Tensor.data`
    foreign = False  # whether it stands for memory from outside the call, where writes are not seen
    identity: Any = None  # what code tells it by from other memory, once it has asked
    is_part = False  # whether it stands for a part of some memory, wherever that is
    is_inference = False  # whether it was made in inference mode
    is_constant = False  # whether no input of the call decides the values, as far as that has been followed
    given: "torch.Tensor | None" = None  # the tensor from outside whose memory it stands for, if that is a constant
    followers: Sequence[weakref.WeakMethod] = ()

    def __init__(self, size: int):
        self._journal = kept = _active.journal  # as `_begin`, which would be a call for each operator
        if kept is not None:
            kept.made.append(weakref.ref(self))
        self.size = size
        if _is_inference():
            self.is_inference = True
        self.number = next(_numbers)  # in the order in which they were made; 0 if it was there before the call

    def expect_all(self) -> None:
        """Called where the rest of the memory matters, or the tensor's position in it.

        Raises:
            Located: that is not known.
        """
        if self.is_part:
            raise Located("a query of where a tensor is in memory")

    def follow(self, method: Callable[[], None]) -> None:
        """Calls a method after each write, as long as its object lives."""
        alive = [follower for follower in self.followers if follower() is not None]
        self.followers = [*alive, weakref.WeakMethod(method)]
