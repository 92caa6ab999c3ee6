"""What differs between two calls of one part, in words."""

import inspect
from collections.abc import Callable
from typing import Any

import torch

from ..tensors.objects import codec_of

__all__ = ["difference", "listed"]

_SHOWN = 3
_LONGEST = 60


def listed(function: Callable, module: Any, args: tuple, kwargs: dict) -> dict[str, str]:
    """What a call gets, and what its module holds, by the paths to it. PyTorch's overrides must be off meanwhile."""
    names = list(inspect.signature(function).parameters) if callable(function) else []
    found: dict[str, str] = {"gradients": "on" if torch.is_grad_enabled() else "off"}
    seen: set[int] = set()
    for number, value in enumerate(args):
        _list(names[number] if number < len(names) else f"argument {number}", value, found, seen)
    for name, value in kwargs.items():
        _list(name, value, found, seen)
    _list("self", module, found, seen)
    return found


def _list(path: str, value: Any, found: dict[str, str], seen: set[int]) -> None:
    if isinstance(value, torch.Tensor):
        found[path] = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        return
    codec = codec_of(type(value))
    if codec is None:
        text = repr(value)
        found[path] = text if len(text) < _LONGEST else f"{text[:_LONGEST]}..."
        return
    if id(value) in seen:
        return
    seen.add(id(value))
    head, items = codec.open(value)
    found[path] = f"{type(value).__name__} of {len(items)}"
    for number, item in enumerate(items):
        _list(_extended(path, value, head, number), item, found, seen)


def _extended(path: str, value: Any, head: Any, number: int) -> str:
    names: tuple = head if isinstance(head, tuple) else ()
    if isinstance(value, dict) and type(value).__dictoffset__:  # its keys, and the names of its attributes
        names = (*names[0], *names[1])
    if number >= len(names) or not isinstance(names[number], str):
        return f"{path}[{number}]"
    return f"{path}[{names[number]!r}]" if isinstance(value, dict) else f"{path}.{names[number]}"


def difference(before: dict[str, str], now: dict[str, str]) -> str:
    """What is not the same."""
    lines = [
        f"{path} was {before.get(path, 'not there')} and is {now.get(path, 'not there')}"
        for path in (*now, *(path for path in before if path not in now))
        if before.get(path) != now.get(path)
    ]
    more = f", and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
    return (", ".join(lines[:_SHOWN]) + more) if lines else "which tensors share memory, or what decides their layout"
