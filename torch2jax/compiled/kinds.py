"""What PyTorch functions do with tensors, as far as it decides whether PyTorch runs them around compiled parts."""

import types
from collections.abc import Callable
from enum import Enum
from typing import Any

import torch

from ..rules import registry
from ..rules.inplace import WithFlag
from ..rules.rule import MetadataRule
from ..rules.tags import Tag

__all__ = [
    "WRITING",
    "FunctionKind",
    "asks_for_gradients",
    "gives_memory",
    "gives_new",
    "is_new",
    "kind_as_told",
    "kind_of",
]


class FunctionKind(Enum):
    """What a function does with tensors."""

    PURE = "gives new ones, or what is no tensor"
    FACTORY = "as PURE, also of no tensor"
    WRITES = "writes to its first"
    WRITES_OTHERS = "writes to others than its first"
    WRITES_IF_TOLD = "is as PURE, or WRITES if its argument `inplace` says so"
    INDEXES = "gives a view, or a new one where a tensor tells the elements"
    SHARES = "lets its first have the memory of another"
    CONVERTS = "gives the same, or a new one of another dtype"
    METADATA = "answers from a tensor's form, without its values"
    OTHER = "gives views, or whatever else"
    PYTHON = "calls others, which come by themselves"
    NONE = "is not for PyTorch"


WRITING = (FunctionKind.WRITES, FunctionKind.WRITES_OTHERS, FunctionKind.WRITES_IF_TOLD)
"""The kinds of functions that may write."""
_OF_TAGS = (
    (Tag.SHARES, FunctionKind.SHARES),
    (Tag.WRITES_OTHERS, FunctionKind.WRITES_OTHERS),
    (Tag.WRITES, FunctionKind.WRITES),
    (Tag.INDEXES, FunctionKind.INDEXES),
    (Tag.CONVERTS, FunctionKind.CONVERTS),
    (Tag.FACTORY, FunctionKind.FACTORY),
    (Tag.FRESH, FunctionKind.PURE),
    (Tag.READS, FunctionKind.PURE),
)


@registry.cached
def kind_of(function: Callable[..., Any]) -> FunctionKind:
    rule = registry.lookup(function)
    if isinstance(rule, MetadataRule):
        return FunctionKind.METADATA
    tags = registry.tags_of(function)
    if Tag.AUTOGRAD in tags or Tag.RANDOM in tags or not registry.is_provided(rule):
        return FunctionKind.NONE
    if rule is None and isinstance(function, types.FunctionType):
        return FunctionKind.PYTHON
    if isinstance(rule, WithFlag):
        return FunctionKind.WRITES_IF_TOLD
    found = next((kind for tag, kind in _OF_TAGS if tag in tags), None)
    if found is not None:
        return found
    is_setter = rule is None and getattr(function, "__name__", "") == "__set__"  # of a property
    return FunctionKind.WRITES if is_setter else FunctionKind.OTHER


def kind_as_told(function: Callable[..., Any], args: tuple, kwargs: dict) -> FunctionKind:
    """What a function of the kind WRITES_IF_TOLD does that has these arguments."""
    rule: WithFlag = registry.lookup(function)  # pyright: ignore[reportAssignmentType]
    return FunctionKind.WRITES if rule.writes(args, kwargs) else FunctionKind.PURE


def is_new(kind: FunctionKind, function: Callable[..., Any], args: tuple, kwargs: dict) -> bool:
    """Whether what a function gives shares no memory with tensors that are not PyTorch's own among its arguments."""
    if kind is FunctionKind.INDEXES:
        return len(args) == 2 and _has_tensor(args[1])
    if kind is FunctionKind.CONVERTS:
        wanted = getattr(torch, function.__name__, None)
        found = [x for x in (wanted, *args[1:], *kwargs.values()) if isinstance(x, torch.dtype)]
        return kwargs.get("copy") is True or bool(found and found[0] != args[0].dtype)
    return kind is FunctionKind.PURE or kind is FunctionKind.FACTORY


def _has_tensor(index: object) -> bool:
    if isinstance(index, (tuple, list)):
        return any(map(_has_tensor, index))
    return isinstance(index, torch.Tensor)


@registry.cached
def gives_new(function: Callable[..., Any]) -> bool:
    return Tag.FRESH in registry.tags_of(function)


@registry.cached
def gives_memory(function: Callable[..., Any]) -> bool:
    return Tag.UNINITIALIZED in registry.tags_of(function)


@registry.cached
def asks_for_gradients(function: Callable[..., Any]) -> bool:
    """Whether a function asks how a tensor came about, or begins to note that."""
    return Tag.AUTOGRAD in registry.tags_of(function)
