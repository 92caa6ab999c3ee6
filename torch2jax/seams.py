"""Python code of PyTorch that no override reaches: something else is in its place while a translated call is made.

The exchange is seen by all threads, so that what stands in must do as the original does where no call is translated.
"""

import functools
import threading
import types
from collections.abc import Callable
from typing import Any

from .translation import current

__all__ = ["applies", "close_seams", "exchange", "open_seams", "shadow", "stands_in"]

_ABSENT = object()
_seams: list[tuple[Any, str, Any]] = []
_originals: list[tuple[Any, str, Any]] = []
_lock = threading.Lock()
_calls = 0


def exchange(owner, name: str, stand_in) -> None:
    """Declares what is ``owner.name``, an attribute of a module or class, while calls are translated."""
    if name in vars(owner):
        _seams.append((owner, name, stand_in))


def shadow(module, name: str, stand_in) -> None:
    """Declares what code of `module` finds under the name of a builtin while calls are translated."""
    _seams.append((module, name, stand_in))


def stands_in(owner, name: str) -> Callable[[Callable], Callable]:
    """Declares the decorated function to be what a function or property is within translated calls."""

    def register(body: Callable) -> Callable:
        original = vars(owner).get(name)
        if isinstance(original, property):
            exchange(owner, name, property(_chosen(original.fget, body)))
        elif original is not None:
            exchange(owner, name, _chosen(original, body))
        return body

    return register


def applies(owner, name: str) -> Callable[[Callable], Callable]:
    """Declares the decorated function to be what ``owner.name``, an autograd function, applies in translated calls."""

    def register(body: Callable) -> Callable:
        exchange(owner, name, types.SimpleNamespace(apply=_chosen(vars(owner)[name].apply, body)))
        return body

    return register


def _chosen(original, body: Callable) -> Callable:
    @functools.wraps(original)
    def stand_in(*args, **kwargs):
        return (original if current() is None else body)(*args, **kwargs)

    return stand_in


def open_seams() -> None:
    """Exchanges what was declared, until `close_seams`."""
    global _calls
    with _lock:
        _calls += 1
        if _calls == 1:
            for owner, name, stand_in in _seams:
                _originals.append((owner, name, vars(owner).get(name, _ABSENT)))
                setattr(owner, name, stand_in)


def close_seams() -> None:
    """Undoes one `open_seams`; with the last one, everything is as it was."""
    global _calls
    with _lock:
        _calls -= 1
        if _calls == 0:
            while _originals:
                owner, name, original = _originals.pop()
                if original is _ABSENT:
                    delattr(owner, name)
                else:
                    setattr(owner, name, original)
