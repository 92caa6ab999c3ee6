"""Processes that run what may hang or end them, and that another process watches."""

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

__all__ = ["each", "silence", "watched"]

_LOAD = 120  # seconds for the imports of a process
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


def each(run: Callable, names: Sequence[str], batch: int, timeout: float) -> Iterator[tuple[str, Any]]:
    """What becomes of each of many things that may hang or end their process, in as many as that takes.

    Args:
        run: called as ``run(send, names)`` in a process of its own; sends None when it is ready, and then a result,
            which is no string, for each name, in their order.
        names: of the things.
        batch: how many one process is given.
        timeout: seconds for each.

    Yields:
        A name and its result, or why there is none.
    """
    left = list(names)
    while left:
        given = left[:batch]
        with watched(run, given) as (receive, _):
            found = _next(receive, _LOAD)
            for name in given:
                found = _next(receive, timeout) if not isinstance(found, str) else found
                left.remove(name)
                yield name, found
                if isinstance(found, str):
                    break


def _next(receive: Connection, seconds: float) -> Any:
    try:
        return receive.recv() if receive.poll(seconds) else f"TimeoutError: more than {seconds:g} s"
    except EOFError:
        return "the process ended"


def silence() -> None:
    """Lets this process, and what it starts, read and print nothing."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
