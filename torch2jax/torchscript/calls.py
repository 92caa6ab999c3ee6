"""TorchScript's functions and methods, called within translated code."""

import torch

from ..seams import stands_in
from .interpreter import is_native, run_function, run_method


@stands_in(torch._C.ScriptFunction, "__call__")
def _call_function(function, *args, **kwargs):
    return run_function(function, args, kwargs)


_call_original = vars(torch._C.ScriptMethod)["__call__"]


@stands_in(torch._C.ScriptMethod, "__call__")
def _call_method(method, *args, **kwargs):
    return _call_original(method, *args, **kwargs) if is_native(method) else run_method(method, args, kwargs)
