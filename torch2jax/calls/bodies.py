"""The bodies of PyTorch's Python functions, which run in a call without their check for overrides."""

import functools
import types
from typing import Any

__all__ = ["body_of"]


class _Overlay(dict):
    """A module's globals, live, with some names replaced."""

    def __init__(self, below: dict, above: dict):
        super().__init__(above)
        self._below = below

    def __missing__(self, key: str) -> Any:
        return self._below[key]


def _no_overrides(*_args: object) -> bool:
    return False


@functools.cache
def body_of(func: types.FunctionType):
    """The body of a Python function of PyTorch, without its check for overrides."""
    answers = dict.fromkeys(
        ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"), _no_overrides
    )
    overlay = _Overlay(func.__globals__, {**answers, "__builtins__": func.__globals__["__builtins__"]})
    body = types.FunctionType(func.__code__, overlay, func.__name__, func.__defaults__, func.__closure__)
    body.__kwdefaults__ = func.__kwdefaults__
    return body
