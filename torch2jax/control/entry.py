"""The package's calls of functions of the user's: in a converted run, converted."""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ..translation import current


def of_user(function: Callable) -> Callable:
    """A function as the run in progress calls it."""
    call: Any = current()
    if call is None or not call.execution.converts:
        return function
    from .operators import OPERATORS

    return functools.partial(OPERATORS.call, function)


def is_on_side() -> bool:
    """True if the code is on a side of a condition, or in a loop of the graph."""
    call: Any = current()
    if call is None or not call.execution.converts:
        return False
    from .state import current_run

    return current_run().journal is not None


def call_of_user(function: Callable, args: tuple, kwargs: dict) -> Any:
    """The result of the function that a converted run begins with."""
    from .driver import call_converted

    return call_converted(function, args, kwargs)


@contextlib.contextmanager
def asking_within() -> Iterator[None]:
    """A context of code in a trace of its own that runs once: in a converted run its conditions are a part of that."""
    call: Any = current()
    if not call.execution.converts:
        yield
        return
    from ..tracing.traces import current_trace
    from .path import PathOfSource

    call.paths.append(PathOfSource(call.execution.path.policy, current_trace()))
    try:
        yield
    finally:
        call.paths.pop().end()


def set_gradient(tensor: Any, value: Any) -> None:
    """Sets `Tensor.grad` to another tensor, or None."""
    call: Any = current()
    if call is not None and call.execution.converts:
        from .writes import note_gradient

        if note_gradient(tensor):
            tensor._gradient = value
            return
    tensor.change("_gradient", value)


def note_made(value: Any) -> None:
    """Is called with an object that the package has just made, before code of the user's writes to it."""
    call: Any = current()
    if call is not None and call.execution.converts:
        from .writes import made

        made(value)


def expect_settled(objects: Callable[[], Mapping[int, str]], tensors: Mapping[str, Any], others: Iterable[Any]) -> None:
    """Refuses to keep two objects, or tensors, of which data decide whether they are one.

    Args:
        objects: gives all that are kept, by their ids, and where they are.
        tensors: all that are kept.
        others: all else that is kept, which is the same on both sides of each condition.

    Raises:
        BaseException: to who runs the code.
    """
    call: Any = current()
    if call is None or not call.execution.converts:
        return
    from .merge import expect_there
    from .state import Refused, current_run
    from .ties import tied_to

    expect_there(*others)
    chosen = current_run().chosen
    kept = objects() if chosen else {}
    for one, other, _ in chosen:
        if id(one) in kept and id(other) in kept:
            raise Refused(_either(kept[id(one)], kept[id(other)]))
    for name, other in tied_to(tensors):
        raise Refused(_either(name, other))


def _either(name: str, other: str) -> str:
    return (
        f"data decide whether {name} is {other}, and the next step has to know. Keep an index in its place, or copy "
        f"what is in {other}"
    )
