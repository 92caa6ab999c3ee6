"""How code finds the translated call that it runs in: the innermost one of a stack that each thread has.

The call is `calls.dispatch.Call`, a class above every room that asks it. So its name is imported for the type checker
alone: a room reads from the call what the class has, and pyright says where it has not.
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from .autograd.tape import Tape as Tape
    from .calls.dispatch import Call as Call
else:
    Call = Tape = Any


class CallMode:
    """A mode of PyTorch's that belongs to a call."""


class _CallsOfThread(threading.local):
    stack: "list[Call | None]"

    def __init__(self):
        self.stack = []


C = TypeVar("C", bound="Call")
_active = _CallsOfThread()


def enter(call: C) -> C:
    """Lets a call be the innermost one of this thread."""
    _active.stack.append(call)
    return call


def leave() -> None:
    """Ends what the last `enter` began."""
    _active.stack.pop()


def is_in_progress(call: "Call") -> bool:
    """Whether this thread is within a call."""
    return any(call is other for other in _active.stack)


def current() -> "Call | None":
    """The innermost call of this thread, or None."""
    stack = _active.stack
    return stack[-1] if stack else None


def this_call() -> "Call":
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
