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

from .. import translation

_MANY = 2**12
_BETWEEN = {dis.opmap[name] for name in ("PUSH_EXC_INFO", "WITH_EXCEPT_START", "POP_EXCEPT", "RERAISE")}


class Unwind(BaseException):
    """A run of code is over, and others take its place.

    No `Exception`, since code that handles these must not take it for one.
    """

    ends_call = True
    """True if it ends the whole call, after which the code does nothing useful."""
    most = 16
    """The number of times that code may catch one that ends the call."""

    def __init__(self, *args: object):
        super().__init__(*args)
        call = _given(self, type(self), self.most if self.ends_call else _MANY)
        if call is not None and self.ends_call:
            call.execution.ended_by = call.execution.ended_by or self


class _WaitingPath(Protocol):
    @property
    def retry_budget(self) -> "RetryBudget":
        """The number of times that code may catch what ends it."""
        ...


class _AbandonableRun(Protocol):
    ended_by: Unwind | None
    """Why it is over, even if the code has caught that."""


class UnwindableCall(Protocol):
    """The attributes of a call that are used when a run of its code is abandoned."""

    @property
    def execution(self) -> _AbandonableRun:
        """The run."""
        ...

    @property
    def paths(self) -> Sequence[_WaitingPath]:
        """The paths through code that runs again for each answer to a condition, the innermost last."""
        ...


class Restart(Unwind):
    """The call starts again, with what this run lacked (`transforms/runs.py`).

    Each run but the first heeds lengths, numbers and classes of tensors that data decide from its beginning: Python may
    have looked up ``len`` before, or asked a number for a float.

    Args:
        tape: how deep a tape the next run needs.
        follows: whether the code has asked a traced value, which is to be a condition of the graph.
    """

    def __init__(self, *, tape: int = 0, follows: bool = False):
        super().__init__()
        self.tape, self.follows = tape, follows


def refused(error: Exception, location: object) -> None:
    """Called with an error before it is raised, if it answers a request that code may well do without."""
    _given(error, (type(error), location), _MANY)


def _given(error: BaseException, key: object, allowed: int) -> UnwindableCall | None:
    call = cast(UnwindableCall | None, translation.current())
    if call is not None:
        call.paths[-1].retry_budget.give(error, key, allowed)
    return call


class RetryBudget:
    """The number of times that code may catch what ends it."""

    def __init__(self):
        self._given: Counter = Counter()
        self._tracer: _ExceptionTracer | None = None
        self._lines = 0

    def give(self, error: BaseException, key: object, allowed: int) -> None:
        """Called before an exception is raised; allows code to catch `allowed` exceptions of one key."""
        self._given[key] += 1
        if self._given[key] <= allowed:
            return
        if self._tracer is None or not self._tracer.is_open:
            self.end()
            self._lines += 1
            self._tracer = _ExceptionTracer(self._lines)
        self._tracer.error = error
        if isinstance(error, Exception):  # else the code runs again, and nobody sees it
            error.add_note(
                f"The code has handled this error {self._given[key] - 1} times at this line; wanted code that ends, or "
                "goes on, where it is raised"
            )

    def end(self) -> None:
        """Called when the code is over."""
        if self._tracer is not None:
            self._tracer.close()
            self._tracer = None


class _ExceptionTracer:
    """A tracer of the frames on the stack, except PyTorch's, that raises an exception again where code has handled it.

    Args:
        lines: at which of its lines from then on.
    """

    error: BaseException

    def __init__(self, lines: int):
        self.is_open = True
        self._left, self._before = lines, sys.gettrace()
        self._raising: set[FrameType] = set()
        self._is_handled = False
        self._frames: list[tuple[FrameType, Any, bool]] = []
        frame = sys._getframe(1)
        while frame is not None:
            if not _is_library(frame):
                self._frames.append((frame, frame.f_trace, frame.f_trace_lines))
                frame.f_trace, frame.f_trace_lines = self._trace, True  # loops are watched without
            frame = frame.f_back
        sys.settrace(_ignore)

    def _trace(self, frame: FrameType, event: str, arg: Any):
        if not self.is_open:
            return None
        if event == "exception" and arg[1] is self.error:
            self._raising.add(frame)
        elif event == "line" and not _is_between(frame):
            self._is_handled = self._is_handled or frame in self._raising
            self._left -= self._is_handled
            if self._is_handled and self._left <= 0:
                self.is_open = False  # Python traces no longer what has raised while it was traced
                raise self.error
        return self._trace

    def close(self) -> None:
        self.is_open = False
        sys.settrace(self._before)
        for frame, before, had_lines in self._frames:
            frame.f_trace, frame.f_trace_lines = before, had_lines
        self._frames.clear()
        self._raising.clear()


def _ignore(*_: object) -> None:
    """Ignores all later trace events."""


def _is_between(frame: FrameType) -> bool:
    """True if Python is about to catch or to drop an exception: one that is raised there keeps it as its context."""
    return frame.f_code.co_code[frame.f_lasti] in _BETWEEN


def _is_library(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__", "").partition(".")[0] in ("torch2jax", "torch", "jax")
