"""Where the package calls functions of the user's: in a converted run, converted."""

import functools
from collections.abc import Callable
from typing import Any

from ..translation import current


def of_user(function: Callable) -> Callable:
    """A function as the run in progress calls it."""
    call: Any = current()
    if call is None or not call.attempt.converts:
        return function
    from .operators import OPERATORS

    return functools.partial(OPERATORS.call, function)


def note_made(value: Any) -> None:
    """Is called with an object that the package has just made, before code of the user's writes to it."""
    call: Any = current()
    if call is not None and call.attempt.converts:
        from .writes import made

        made(value)
