"""The command line of torch2jax, a thin layer over `torch2jax.tools`.

It is a package beside `torch2jax`, not within: whatever is imported of that package has its rules registered, so
PyTorch and JAX are imported first, which takes seconds. What is here imports them once a command runs.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

_INTERRUPTED = 128 + signal.SIGINT
_SHOWN = "\r\x1b[K\x1b[?25h"  # the line of a spinner is cleared, and the cursor is there again


def main() -> None:
    """Runs the command line; the console script of the package."""
    with ends_silently():
        _run()


def _run() -> None:
    try:
        from .app import app
        from .running import BrokenError
    except ModuleNotFoundError as error:
        if error.name not in ("rich", "typer"):
            raise
        from torch2jax.runtime.errors.locations import how_to_install

        print(f"torch2jax: the command line needs {error.name}: {how_to_install('cli')}", file=sys.stderr)
        sys.exit(2)
    try:
        app(prog_name="torch2jax")
    except BrokenError as error:
        print(f"torch2jax cannot be imported: {error}\n`torch2jax doctor` tells what is installed", file=sys.stderr)
        sys.exit(2)


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
    os._exit(_INTERRUPTED)


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
        raise SystemExit(_INTERRUPTED) from None


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
