"""Ends code that catches every exception, such as a loop with a bare ``except`` around what would end the run.

A run of code is abandoned by an exception, and what cannot be is refused by one. ``while True: try: … except: pass``
handles each of them, and asks again for ever. Nothing that is raised within its ``try`` leaves it, but what is raised
where it handles an exception does. So code that has handled many is traced, as debuggers trace, and the exception is
raised once more at a line of the code's own: a later one each time, until none handles it. Other code is never traced.
"""

import dis
import sys
from collections import Counter
from collections.abc import Sequence
from types import FrameType
from typing import Any, Protocol, cast

from . import translation

_MANY = 2**12
_BETWEEN = {dis.opmap[name] for name in ("PUSH_EXC_INFO", "WITH_EXCEPT_START", "POP_EXCEPT", "RERAISE")}


class Abandoned(BaseException):
    """A run of code is over, and others take its place.

    No `Exception`, since code that handles these must not take it for one.
    """

    ends_call = True
    """Whether that is the whole call, and the code does nothing of use any more."""
    most = 16
    """How often code may handle one that ends the call."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        call = _given(self, type(self), self.most if self.ends_call else _MANY)
        if call is not None and self.ends_call:
            call.attempt.ended_by = call.attempt.ended_by or self


class _WaitingPath(Protocol):
    @property
    def patience(self) -> "Patience":
        """How often code may handle what ends it."""
        ...


class _AbandonableRun(Protocol):
    ended_by: Abandoned | None
    """Why it is over, even if the code has caught that."""


class AbandonableCall(Protocol):
    """A call as what abandons a run of its code sees it."""

    @property
    def attempt(self) -> _AbandonableRun:
        """The run."""
        ...

    @property
    def paths(self) -> Sequence[_WaitingPath]:
        """The paths through code that runs again for each answer to a condition, the innermost last."""
        ...


class NeedsLengths(Abandoned):
    """Data-dependent lengths have to be heeded from the beginning: Python has looked up ``len`` before."""


class NeedsNumbers(Abandoned):
    """Functions of Python's have to take numbers that data decide, from the beginning: one was asked for a float."""


def refused(error: Exception, place: Any) -> None:
    """Is called with an error, before it is raised, for what code asks for at a place, and may well go on without."""
    _given(error, (type(error), place), _MANY)


def _given(error: BaseException, key: Any, allowed: int) -> AbandonableCall | None:
    call = cast(AbandonableCall | None, translation.current())
    if call is not None:
        call.paths[-1].patience.give(error, key, allowed)
    return call


class Patience:
    """How often code may handle what ends it."""

    def __init__(self):
        self._given: Counter = Counter()
        self._watch: _ExceptionWatch | None = None
        self._lines = 0

    def give(self, error: BaseException, key: Any, allowed: int) -> None:
        """Is called before an exception is raised, of which so many of one key may be handled."""
        self._given[key] += 1
        if self._given[key] <= allowed:
            return
        if self._watch is None or not self._watch.is_open:
            self.end()
            self._lines += 1
            self._watch = _ExceptionWatch(self._lines)
        self._watch.error = error
        if isinstance(error, Exception):  # else the code runs again, and nobody sees it
            error.add_note(
                f"The code has handled this error {self._given[key] - 1} times at this line; wanted code that ends, or "
                "goes on, where it is raised"
            )

    def end(self) -> None:
        """Is called when the code is over."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None


class _ExceptionWatch:
    """Traces the code on the stack, but for PyTorch's, and raises an exception where it has handled that.

    Args:
        lines: at which of its lines from then on.
    """

    error: BaseException

    def __init__(self, lines: int):
        self.is_open = True
        self._left, self._before = lines, sys.gettrace()
        self._met: set[FrameType] = set()
        self._is_handled = False
        self._frames: list[tuple[FrameType, Any, bool]] = []
        frame = sys._getframe(1)
        while frame is not None:
            if not _is_library(frame):
                self._frames.append((frame, frame.f_trace, frame.f_trace_lines))
                frame.f_trace, frame.f_trace_lines = self._meet, True  # loops are watched without
            frame = frame.f_back
        sys.settrace(_ignore)

    def _meet(self, frame: FrameType, event: str, arg: Any):
        if not self.is_open:
            return None
        if event == "exception" and arg[1] is self.error:
            self._met.add(frame)
        elif event == "line" and not _is_between(frame):
            self._is_handled = self._is_handled or frame in self._met
            self._left -= self._is_handled
            if self._is_handled and self._left <= 0:
                self.is_open = False  # Python traces no longer what has raised while it was traced
                raise self.error
        return self._meet

    def close(self) -> None:
        self.is_open = False
        sys.settrace(self._before)
        for frame, before, had_lines in self._frames:
            frame.f_trace, frame.f_trace_lines = before, had_lines
        self._frames.clear()
        self._met.clear()


def _ignore(*_: Any) -> None:
    """Traces nothing that is called from now on."""


def _is_between(frame: FrameType) -> bool:
    """Whether Python is about to take up an exception, or to leave it behind: what is raised there stays with it."""
    return frame.f_code.co_code[frame.f_lasti] in _BETWEEN


def _is_library(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__", "").partition(".")[0] in ("torch2jax", "torch", "jax")
