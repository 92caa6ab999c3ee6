"""Python frames: how to write the local variables of a running one."""

import ctypes
import sys
from types import FrameType
from typing import Any

_locals_to_fast: Any = None
if sys.version_info < (3, 13):
    _locals_to_fast = ctypes.pythonapi.PyFrame_LocalsToFast
    _locals_to_fast.argtypes = [ctypes.py_object, ctypes.c_int]
    _locals_to_fast.restype = None


def set_locals(frame: FrameType, values: dict[str, Any]) -> None:
    """Assigns to local variables of a frame.

    From Python 3.13, ``f_locals`` writes through. Before that it is a copy, which `PyFrame_LocalsToFast` puts back.
    """
    shown = frame.f_locals
    shown.update(values)
    if _locals_to_fast is not None:
        _locals_to_fast(frame, 0)
