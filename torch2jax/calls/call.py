"""The interface of the call in progress, for this room and those above it: all of it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from .. import translation

if TYPE_CHECKING:
    from .dispatch import Call

current = cast("Callable[[], Call | None]", translation.current)
this_call = cast("Callable[[], Call]", translation.this_call)
