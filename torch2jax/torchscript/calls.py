"""TorchScript's functions and methods, called within translated code."""

import torch

from ..seams import stands_in
from .interpreter import run_function, run_method


@stands_in(torch._C.ScriptFunction, "__call__")
def _call_function(function, *args, **kwargs):
    return run_function(function, args, kwargs)


@stands_in(torch._C.ScriptMethod, "__call__")
def _call_method(method, *args, **kwargs):
    return run_method(method, args, kwargs)
