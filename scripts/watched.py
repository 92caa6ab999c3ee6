"""Processes that run what may hang or end them, and that another process watches."""

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

__all__ = ["each", "silence", "watched"]

_LOAD = 120  # seconds for the imports of a process
_STILL = 60  # seconds without any CPU time after which a thing hangs
_GLANCE = 1  # seconds between two looks at the CPU time of a process
_CONTEXT = multiprocessing.get_context("spawn")


@contextlib.contextmanager
def watched(target: Callable, *args) -> Iterator[tuple[Connection, multiprocessing.process.BaseProcess]]:
    """A process that runs ``target(send, *args)``, and where what it sends arrives.

    It ends with the context, and with this process, whatever ends that.
    """
    receive, send = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=_run, args=(target, send, *args), daemon=True)
    process.start()
    send.close()
    try:
        yield receive, process
    finally:
        _end(process)
        receive.close()


def _run(target: Callable, *args) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    target(*args)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


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
        timeout: seconds of CPU time for each, which other processes do not lengthen.

    Yields:
        A name and its result, or why there is none.
    """
    left = list(names)
    while left:
        given = left[:batch]
        with watched(run, given) as (receive, process):
            found = _next(receive, process, _LOAD)
            for name in given:
                found = _next(receive, process, timeout) if not isinstance(found, str) else found
                left.remove(name)
                yield name, found
                if isinstance(found, str):
                    break


def _next(receive: Connection, process: multiprocessing.process.BaseProcess, seconds: float) -> Any:
    used, since = _cpu_time(process), time.monotonic()
    last = used + seconds
    try:
        while not receive.poll(min(seconds, _GLANCE)):
            before, used = used, _cpu_time(process)
            since = time.monotonic() if used > before else since
            if used > last:
                return f"TimeoutError: more than {seconds:g} s"
            if time.monotonic() > since + _STILL:
                return "TimeoutError: it waits for something"
        return receive.recv()
    except EOFError:
        return "the process ended"


def _cpu_time(process: multiprocessing.process.BaseProcess) -> float:
    """Seconds that a process has computed; those of the clock, where the system does not say."""
    stat = Path(f"/proc/{process.pid}/stat")
    try:
        user, system = stat.read_text().rpartition(")")[2].split()[11:13]
    except (FileNotFoundError, ProcessLookupError):
        return time.monotonic()
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def silence() -> None:
    """Lets this process, and what it starts, read and print nothing."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
