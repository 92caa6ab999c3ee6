"""The names by which TorchScript's compiler knows functions that are replaced within a call."""

import inspect
from typing import Any

from ..internals.torchscript import builtins, jit_internal
from ..patches import stands_in

_find = builtins._find_builtin


@stands_in(builtins, "_find_builtin")
def _find_builtin(fn: Any):
    """The operator that a function is to TorchScript, which knows PyTorch's and Python's own by their identity."""
    found = _find(fn)
    return _find(inspect.unwrap(fn)) if found is None and callable(fn) else found


_closure_of = jit_internal.get_closure


@stands_in(jit_internal, "get_closure")
def get_closure(fn: Any):
    """The names that the source of a function knows: that of what it stands in for, which is what is compiled."""
    return _closure_of(inspect.unwrap(fn))
