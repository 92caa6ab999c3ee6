"""Refuses Python code that runs on a side of a condition without having been converted: C has called it.

What such code writes is in no journal.
"""

import gc
import os
import sys
from types import CodeType, FrameType

from ..runtime.caches import Cache
from ..runtime.errors.locations import is_library
from .convert import is_converted
from .purity import is_watched
from .state import Refused, current_run

_unwatched: Cache[int, CodeType] = Cache("unwatched code", 2**14)


class watching:
    """A context for code of one side. Where somebody else watches, as a profiler does, nobody is in its way."""

    def __enter__(self) -> None:
        self._is_first = sys.getprofile() is None
        if self._is_first:
            sys.setprofile(_profile)

    def __exit__(self, *exc_info: object) -> None:
        if self._is_first:
            sys.setprofile(None)


def _profile(frame: FrameType, event: str, arg: object) -> None:
    if event != "call":
        return
    code = frame.f_code
    if id(code) in _unwatched:
        return
    if is_converted(code) or not is_watched(code):
        _unwatched[id(code)] = code
    elif current_run().journal is not None and not _is_called_by_library(frame):
        sys.setprofile(None)
        raise Refused(
            f"{code.co_qualname} runs on one side of a condition without being converted, since C calls it: nobody "
            "knows what it changes"
        )


def _is_called_by_library(frame: FrameType) -> bool:
    """True if code of the standard library is called by code that is known to change nothing, or by nobody's wish."""
    caller = frame.f_back
    if _is_imported(frame) or _is_of_collector(frame):
        return True
    if caller is None or not is_library(frame.f_code.co_filename):
        return False
    file = caller.f_code.co_filename
    return is_library(file) and not file.startswith(_OPERATORS)


def _is_imported(frame: FrameType | None) -> bool:
    """True if an import has begun the code, which it does once."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _is_of_collector(frame: FrameType | None) -> bool:
    """True if the garbage collector has called the code, which it may do anywhere: it is no part of the side."""
    codes = {getattr(x, "__code__", None) for x in gc.callbacks}
    while codes and frame is not None:
        if frame.f_code in codes:
            return True
        frame = frame.f_back
    return False


_FILES = ("access.py", "asking.py", "calls.py", "expressions.py", "operators.py")
_HERE = os.path.dirname(os.path.abspath(__file__))
_OPERATORS = tuple(os.path.join(_HERE, name) for name in _FILES)
