"""The tensors and arrays that code closes over, or that its objects hold, found without running the code."""

import functools
import types
from collections.abc import Iterator
from typing import Any, TypeVar

import torch

from ..tensors.objects import attributes_of, has_attributes
from ..tensors.tensor import Torchish

__all__ = ["closed_over"]

T = TypeVar("T")


def closed_over(*values: Any, kind: type[T] = Torchish) -> list[T]:
    """The tensors that objects and functions among some values hold, at any depth; not those that are among them.

    Args:
        kind: what is looked for in their place.
    """
    found: dict[int, T] = {}
    seen: set[int] = set()
    left = [(value, False) for value in values]
    while left:
        value, is_within = left.pop()
        if isinstance(value, kind):
            if is_within:
                found[id(value)] = value
        elif not isinstance(value, torch.Tensor) and id(value) not in seen:
            seen.add(id(value))
            is_within = is_within or not isinstance(value, _CONTAINERS)
            left.extend((x, is_within) for x in _owned_by(value))
    return list(found.values())


_PACKAGE = __name__.partition(".")[0]
_CONTAINERS = (dict, list, tuple, set, frozenset)


def _owned_by(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.nn.Module):
        yield from torch.nn.Module.parameters(value)  # an attribute may have that name
        yield from torch.nn.Module.buffers(value)
        yield from vars(value).values()
    elif isinstance(value, types.MethodType):
        yield value.__self__
        yield value.__func__
    elif isinstance(value, types.FunctionType):
        yield from value.__defaults__ or ()
        for cell in value.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # empty
                continue
    elif isinstance(value, functools.partial):
        yield value.func
        yield from value.args
        yield from value.keywords.values()
    elif isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, _CONTAINERS):
        yield from value
    elif has_attributes(type(value)) and type(value).__module__.partition(".")[0] != _PACKAGE:
        yield from attributes_of(value).values()
