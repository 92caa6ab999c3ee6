"""Ctrl-C: the exit code 130, and not a word."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

__all__ = ["ends_silently", "leaves"]

_EXIT_CODE = 128 + signal.SIGINT
_SHOWN = "\r\x1b[K\x1b[?25h"  # the line of a spinner is cleared, and the cursor is there again


def ends_silently() -> None:
    """Lets Ctrl-C end the process from now on, also while modules are imported, which would show a traceback."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _end)


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
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        raise SystemExit(_EXIT_CODE) from None
    finally:
        signal.signal(signal.SIGINT, before)
