"""TorchScript's functions and methods, called within translated code."""

from typing import Any

import torch

from ..internals.torchscript import ScriptFunction, ScriptMethod
from ..patches import stands_in
from .interpreter import is_native, run_function, run_method, run_native


@stands_in(torch._C.ScriptFunction, "__call__")
def _call_function(function: ScriptFunction, *args: Any, **kwargs: Any):
    return run_function(function, args, kwargs)


_call_original = vars(ScriptMethod)["__call__"]


@stands_in(torch._C.ScriptMethod, "__call__")
def _call_method(method: ScriptMethod, *args: Any, **kwargs: Any):
    if is_native(method):
        return run_native(_call_original, method, args, kwargs)
    return run_method(method, args, kwargs)
