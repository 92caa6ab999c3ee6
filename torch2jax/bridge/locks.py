"""Locks around calls of PyTorch, which a nested call may take again."""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["holding", "inheriting"]

_process_lock = threading.Lock()
_thread = threading.local()


@contextlib.contextmanager
def holding(lock: Any) -> Iterator[None]:
    """Holds a lock (True: the one of the process), unless this call was made from one that holds it."""
    lock = _process_lock if lock is True else lock
    held: tuple = getattr(_thread, "held", ())
    if any(lock is other for other in held):
        yield
        return
    with lock:
        _thread.held = (*held, lock)
        try:
            yield
        finally:
            _thread.held = held


def inheriting(job: Callable[[], None]) -> Callable[[], None]:
    """A job that holds, on whatever thread it runs, the locks that this thread holds while it waits for it."""
    held = getattr(_thread, "held", ())
    return functools.partial(_run_holding, held, job) if held else job


def _run_holding(held: tuple, job: Callable[[], None]) -> None:
    before = getattr(_thread, "held", ())
    _thread.held = held
    try:
        job()
    finally:
        _thread.held = before
