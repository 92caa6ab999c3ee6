"""Describes a function in words that tell it from others, and that are the same in another process."""

import functools
import hashlib
import types
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["identity_of"]

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


def identity_of(function: Callable) -> str | None:
    """A function's code, where that is, and what it holds, in words; None if something there has none.

    The values of weights are no part of it: programs get them from the function, where they call it.
    """
    words = _words(function, 8)
    return None if words is None else hashlib.sha256(words.encode()).hexdigest()


def _words(value: Any, depth: int) -> str | None:
    if isinstance(value, _PLAIN):
        return repr(value)
    if depth == 0:
        return None
    if isinstance(value, torch.nn.Module):
        return f"{type(value).__module__}.{type(value).__qualname__} {value!r} {value.training}"
    if isinstance(value, (types.BuiltinFunctionType, type)):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, types.MethodType):
        return _joined(("method", value.__func__, value.__self__), depth)
    if isinstance(value, functools.partial):
        return _joined(("partial", value.func, value.args, value.keywords), depth)
    if isinstance(value, dict):
        return _joined(("dict", *(x for item in value.items() for x in item)), depth)
    if isinstance(value, (tuple, list)):
        return _joined((type(value).__name__, *value), depth)
    if isinstance(value, types.FunctionType):
        code = value.__code__
        place = f"{value.__module__}.{value.__qualname__} {code.co_filename}:{code.co_firstlineno}"
        try:
            held = [cell.cell_contents for cell in value.__closure__ or ()]
        except ValueError:  # a cell is empty
            return None
        body = code.co_code.hex(), tuple(x for x in code.co_consts if isinstance(x, _PLAIN)), code.co_names
        return _joined((place, *body, value.__defaults__, value.__kwdefaults__, *held), depth)
    return None


def _joined(values: tuple, depth: int) -> str | None:
    words = [_words(value, depth - 1) for value in values]
    return None if None in words else f"({', '.join(map(str, words))})"
