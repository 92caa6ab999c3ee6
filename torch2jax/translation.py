"""How code finds the translated call that it runs in.

Here it is an object on a stack that each thread has, and nothing is asked of it. Each room has a file ``call.py`` with
`current` as that room sees it: what it may ask of the call is listed there, and provided by `calls.dispatch.Call`.
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import Protocol, TypeVar


class CallInProgress(Protocol):
    """A call, of which nothing is asked but that it is there."""


class CallMode:
    """A mode of PyTorch's that belongs to a call."""


class _CallsOfThread(threading.local):
    stack: "list[CallInProgress | None]"

    def __init__(self):
        self.stack = []


C = TypeVar("C", bound=CallInProgress)
_active = _CallsOfThread()


def enter(call: C) -> C:
    """Lets a call be the innermost one of this thread."""
    _active.stack.append(call)
    return call


def leave() -> None:
    """Ends what the last `enter` began."""
    _active.stack.pop()


def is_in_progress(call: CallInProgress) -> bool:
    """Whether this thread is within a call."""
    return any(call is other for other in _active.stack)


def current() -> CallInProgress | None:
    """The innermost call of this thread, or None."""
    stack = _active.stack
    return stack[-1] if stack else None


def this_call() -> CallInProgress:
    """The innermost call of this thread, for code that runs in one alone.

    Raises:
        RuntimeError: there is none.
    """
    stack = _active.stack
    call = stack[-1] if stack else None
    if call is None:
        raise RuntimeError("got code that only a translated call runs, and no such call in progress")
    return call


@contextlib.contextmanager
def hidden() -> Iterator[None]:
    """A context in which no call is in progress for the code within."""
    _active.stack.append(None)
    try:
        yield
    finally:
        _active.stack.pop()
