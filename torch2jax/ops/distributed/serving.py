"""How functions of `torch.distributed` find their implementation."""

from collections.abc import Callable
from typing import Any

from ...patches import runs_instead_of
from ...rules.registry import implements_tensors

__all__ = ["serves"]


def serves(*functions: Any) -> Callable[[Callable], Callable]:
    """Declares the decorated function to serve some functions.

    Most ask whether their call is overridden, and have a rule; in place of others it runs: releases differ.
    """

    def register(body: Callable) -> Callable:
        for function in functions:
            if _asks(function):
                implements_tensors(function)(body)
            else:
                runs_instead_of(function)(body)
        return body

    return register


def _asks(function: Any) -> bool:
    """Whether a function asks if somebody overrides it."""
    inner = function
    while hasattr(inner, "__wrapped__"):
        inner = inner.__wrapped__
    return "has_torch_function" in inner.__code__.co_names
