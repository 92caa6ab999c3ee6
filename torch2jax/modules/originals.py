"""Finds the module, function or method that holds the PyTorch code behind an object."""

import sys
import types
from typing import Any

from ..internals.torchscript import ScriptMethod, wrap_cpp_module

__all__ = ["original"]


def original(thing: Any) -> Any:
    """What is translated in place of a thing: mostly itself.

    An exported program is the module that it unlifts to, with its names of parameters and buffers. A method of a
    TorchScript module is a method of that.
    """
    export = sys.modules.get("torch.export")
    if export is not None and isinstance(thing, export.ExportedProgram):
        return thing.module()
    if isinstance(thing, ScriptMethod):
        module = wrap_cpp_module(thing.owner)
        return types.MethodType(_Method(thing.name), module)
    return thing


class _Method:
    """A method of a TorchScript module, by its name."""

    def __init__(self, name: str):
        self.__name__ = name

    def __call__(self, module: Any, *args: Any, **kwargs: Any):
        return getattr(module, self.__name__)(*args, **kwargs)
