"""The list of PyTorch's operators, each with the level that implements it."""

import fnmatch
import warnings
from collections.abc import Callable, Iterator

import torch
from torch.overrides import get_overridable_functions, resolve_name

from ..internals.operators import dispatch_get_all_op_names
from .routes import Route, level_of, operator_of

__all__ = ["operators"]


def operators(pattern: str = "*", aten: bool = False) -> dict[str, Route]:
    """Returns how every operator with a matching name is implemented, by name.

    Args:
        pattern: a shell pattern for the whole name, or a part of it.
        aten: list the operators of PyTorch's dispatcher, instead of the functions and methods of its Python interface.
    """
    if not any(character in pattern for character in "*?["):
        pattern = f"*{pattern}*"
    pairs = _aten() if aten else _functions()
    return {name: _level(function) for name, function in sorted(pairs) if fnmatch.fnmatch(name, pattern)}


def _level(function: Callable) -> Route:
    """The level that serves it; for a compiled function without a rule, that of the ATen operator that it calls."""
    level = level_of(function)
    operator = operator_of(function) if level is Route.COMPILED else None
    return level if operator is None else level_of(operator)


def _functions() -> Iterator[tuple[str, Callable]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some functions warn of their age when they are looked at
        namespaces = get_overridable_functions()
    seen = {}
    for functions in namespaces.values():
        for function in functions:
            name = resolve_name(function)
            if name and not name.endswith((".__get__", ".__set__", ".__delete__")):
                seen.setdefault(name.removeprefix("torch."), function)
    return iter(seen.items())


def _aten() -> Iterator[tuple[str, Callable]]:
    for name in {name.split(".")[0] for name in dispatch_get_all_op_names()}:
        namespace, _, operator = name.partition("::")
        packet = getattr(torch.ops.aten, operator, None) if namespace == "aten" else None
        if packet is not None:
            yield f"aten.{operator}", packet
