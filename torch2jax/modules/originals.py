"""Finds the module, function or method that holds the PyTorch code behind an object."""

import sys
from typing import Any

from ..internals.torchscript import ScriptMethod
from .scripted import bound_method

__all__ = ["original"]


def original(thing: Any) -> Any:
    """What is translated in place of a thing: mostly itself.

    An exported program is the module that it unlifts to, with its names of parameters and buffers. A method of a
    TorchScript module is a method of that.
    """
    export = sys.modules.get("torch.export")
    if export is not None and isinstance(thing, export.ExportedProgram):
        return thing.module()
    return bound_method(thing) if isinstance(thing, ScriptMethod) else thing
