"""Access to the translated call that code runs in: the innermost one on a stack that each thread has.

The call is `calls.dispatch.Call`, a class above every room that asks it. So its name is imported for the type checker
alone: a room reads from the call what the class has, and pyright says where it has not.
"""

import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import torch

    from ..calls.dispatch import Call as Call
    from ..tensors.tensor import Torchish
else:
    Call = Any


class CallMode:
    """A mode of PyTorch's that belongs to a call."""


class _CallsOfThread(threading.local):
    stack: "list[Call | None]"
    made: dict[int, weakref.ref[Any]]
    """The tensors that the outermost call has made, by their ids: a later one takes the place of one that is gone."""

    def __init__(self):
        self.stack, self.made = [], {}


C = TypeVar("C", bound="Call")
T = TypeVar("T")
calls_of_thread = _CallsOfThread()


def enter(call: C) -> C:
    """Pushes a call on this thread's stack."""
    calls_of_thread.stack.append(call)
    return call


def leave() -> None:
    """Pops the call of the last `enter`."""
    calls_of_thread.stack.pop()


def is_in_progress(call: "Call") -> bool:
    """Returns True if this thread is within a call."""
    return any(call is other for other in calls_of_thread.stack)


def current() -> "Call | None":
    """The innermost call of this thread, or None."""
    stack = calls_of_thread.stack
    return stack[-1] if stack else None


def this_call() -> "Call":
    """The innermost call of this thread, for code that runs in one alone.

    Raises:
        RuntimeError: there is none.
    """
    stack = calls_of_thread.stack
    call = stack[-1] if stack else None
    if call is None:
        raise RuntimeError("got code that only a translated call runs, and no such call in progress")
    return call


def lift(value: object) -> "Torchish":
    """The tensor of the call in progress for a tensor or an array from outside, which is a constant of the call."""
    return this_call().constants.lift(value)


def lift_own(tensor: "torch.Tensor") -> "Torchish":
    """As `lift`, for a tensor that the call may write to, since nothing outside refers to it."""
    return this_call().constants.lift_own(tensor)


def kept(kind: type[T]) -> T:
    """The object of a class that the call in progress has once, with the calls around it; made when first needed.

    So a feature has its own state for the time of a call, which the call does not know.
    """
    objects = this_call().kept
    if kind not in objects:
        objects[kind] = kind()
    return objects[kind]


@contextlib.contextmanager
def hidden() -> Iterator[None]:
    """A context in which no call is in progress for the code within."""
    calls_of_thread.stack.append(None)
    try:
        yield
    finally:
        calls_of_thread.stack.pop()
