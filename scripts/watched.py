"""Processes that run what may hang or end them, and that another process watches."""

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

__all__ = ["silence", "watched"]

_CONTEXT = multiprocessing.get_context("spawn")


@contextlib.contextmanager
def watched(target: Callable, *args) -> Iterator[tuple[Connection, multiprocessing.process.BaseProcess]]:
    """A process that runs ``target(send, *args)``, and where what it sends arrives; it ends with the context."""
    receive, send = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=target, args=(send, *args), daemon=True)
    process.start()
    send.close()
    try:
        yield receive, process
    finally:
        _end(process)
        receive.close()


def _end(process: multiprocessing.process.BaseProcess) -> None:
    """The process, and those that it has started where it leads a group."""
    assert process.pid is not None
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if os.getpgid(process.pid) == process.pid:
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()


def silence() -> None:
    """Lets this process, and what it starts, read and print nothing."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
