"""Warnings of code that runs several times: each is shown once, if every path gives it."""

import functools
import sys
import warnings
from collections.abc import Iterable
from typing import Any, NamedTuple

from ..patches import exchange
from .call import current

__all__ = ["Warned", "give"]


class Warned(NamedTuple):
    """A warning, and where it comes from."""

    message: Any
    category: type[Warning]
    file: str
    line: int
    module: str
    registry: dict

    @property
    def key(self) -> tuple:
        return str(self.message), self.category, self.file, self.line


def give(warned: Iterable[Warned]) -> None:
    """Gives warnings, unless the code around is on one of several paths: then they wait until it is over."""
    for warning in warned:
        if not _note(warning):
            warnings.warn_explicit(*warning)


def _note(warning: Warned) -> bool:
    """Notes a warning for the paths that the code is on; whether it is to wait."""
    call = current()
    for path in reversed(() if call is None else call.paths):
        path.warned.append(warning)
        if path.is_one_of_several:
            return True
    return False


_warn = warnings.warn


@functools.wraps(_warn)
def _note_or_warn(message, category=None, stacklevel=1, source=None, **options):
    stacklevel = max(stacklevel, 1)
    if current() is not None and _note(_warned(message, category, stacklevel + 1)):
        return
    _warn(message, category, stacklevel + 1, source, **options)


exchange(warnings, "warn", _note_or_warn)


def _warned(message, category, depth: int) -> Warned:
    frame: Any = sys._getframe(1)
    for _ in range(depth - 1):
        frame = frame.f_back or frame
    kind = type(message) if isinstance(message, Warning) else category or UserWarning
    names = frame.f_globals
    registry = names.setdefault("__warningregistry__", {})
    return Warned(message, kind, frame.f_code.co_filename, frame.f_lineno, names.get("__name__", "<string>"), registry)
