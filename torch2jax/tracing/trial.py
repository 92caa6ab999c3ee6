"""A trial run that shows whether code leaves loops in a program, and ends as soon as it knows."""

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from ..abandoning import Abandoned
from ..loops.program import sizes_of
from ..loops.rolled import Wanted
from .added import Added
from .traces import Bookmark

__all__ = ["HasLoops", "Tried", "tried"]

_FIRST, _FURTHER = 2, 4


class HasLoops(Abandoned):
    """The code has loops, and what else it would do is of no use."""

    def __init__(self, shown_by: Any):
        super().__init__()
        self.shown_by = shown_by


class Tried(NamedTuple):
    """The outcome of a run."""

    result: Any
    has_loops: bool
    """Then there is no result, and the program is what it was."""


def tried(code: Callable[[Any], Any], given: Any, program: Any, wanted: Wanted) -> Tried:
    """Runs code that adds to a program.

    Args:
        wanted: which iterations are to be loops.
    """
    bookmark, frame = Bookmark(), program.frame
    before = frame.tracing_eqns
    added = Added(program, wanted, len(before))
    watched = frame.tracing_eqns = _Watched(before, wanted.least, added.has_loops)
    try:
        result = code(given)
        if not added.has_loops():
            return Tried(result, False)
        del result
    except HasLoops as found:
        if found.shown_by is not watched:
            raise
    finally:
        if frame.tracing_eqns is watched:
            before[:] = watched
            frame.tracing_eqns = before
    bookmark.return_to()
    return Tried(None, True)


class _Watched(list):
    """A program's equations. Each time that they have become some times as many, with those within, they are looked
    through.

    So that costs no more than some looks at all of them, however many there will be.
    """

    def __init__(self, steps: list, least: int, has_loops: Callable[[], bool]):
        super().__init__(steps)
        self._has_loops = has_loops
        self._size, self._next = 0, _FIRST * least

    def append(self, step: Any) -> None:
        super().append(step)
        self._size += sizes_of([step() if isinstance(step, weakref.ref) else step])[0]
        if self._size >= self._next:
            self._next = _FURTHER * self._size
            if self._has_loops():
                raise HasLoops(self)
