"""Ctrl-C: the exit code 130, and not a word."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

__all__ = ["ends_silently", "leaves"]

_EXIT_CODE = 128 + signal.SIGINT
_SHOWN = "\r\x1b[K\x1b[?25h"  # the line of a spinner is cleared, and the cursor is there again


@contextlib.contextmanager
def ends_silently() -> Iterator[None]:
    """Lets Ctrl-C end the process within it, also while modules are imported, which would show a traceback."""
    with _handled(_end):
        yield


def _end(number: int, frame: FrameType | None) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(_SHOWN)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_EXIT_CODE)


@contextlib.contextmanager
def leaves() -> Iterator[None]:
    """Within it Ctrl-C raises `KeyboardInterrupt`, so that what is open is closed: files, and the display.

    Raises:
        SystemExit: with 130, where that happens.
    """
    try:
        with _handled(signal.default_int_handler):
            yield
    except KeyboardInterrupt:
        raise SystemExit(_EXIT_CODE) from None


@contextlib.contextmanager
def _handled(handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    """Lets a handler have Ctrl-C; only the main thread may say so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
