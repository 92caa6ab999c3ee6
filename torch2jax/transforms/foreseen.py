"""The tape that a call will need, as far as the code that it can reach says so by the names that it looks up.

A run that turns out to need a deeper one is given up, and the code runs again (`runs.py`). Functions in containers, as
a table of them, are left out: most of them are not called, and what is recorded on a tape has another graph.
"""

import dis
import functools
import types
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch

from ..runtime.caches import remembered
from ..runtime.errors.locations import is_users
from ..tensors.objects import codec_of, has_attributes

_FEW = 2**9  # objects that are looked at
_LEAVES = (torch.Tensor, str, int, float, type(None))
_METHODS = ("backward", "next_functions")
_DERIVATIVES = (torch.autograd.grad.__code__, torch.autograd.backward.__code__)


class _Names(NamedTuple):
    """The names that code looks up, with those in the functions that it defines."""

    of_globals: frozenset[str] = frozenset()
    of_attributes: frozenset[str] = frozenset()
    derivatives: int = 0
    """At how many places it takes derivatives."""
    keeps_graphs: bool = False
    """True if it may take derivatives of derivatives."""


def foreseen_depth(roots: Iterable[object]) -> int:
    """The depth of tape that the code of functions and modules reachable from `roots` shows to be needed: 0, 1 or 2."""
    seen: dict[int, object] = {}
    waiting: dict[str, list[object]] = defaultdict(list)  # methods that no code has named yet
    named, pending, taken, keeps_graphs = {"forward"}, [*roots], 0, False
    while pending and len(seen) < _FEW:
        value = pending.pop()
        if isinstance(value, _LEAVES) or id(value) in seen:
            continue
        seen[id(value)] = value
        if type(value) is types.FunctionType:
            names = _names_in(value.__code__)
            taken, keeps_graphs = taken + names.derivatives, keeps_graphs or names.keeps_graphs
            for name in names.of_attributes - named:
                named.add(name)
                pending.extend(waiting.pop(name, ()))
            pending.extend(value.__globals__[name] for name in names.of_globals & value.__globals__.keys())
        if isinstance(value, type):
            for name, method in vars(value).items():
                function = getattr(method, "__func__", method)  # of a class method
                if type(function) is types.FunctionType:
                    (pending if name in named or name.startswith("__") else waiting[name]).append(function)
        pending.extend(_held_by(value))
    return min(taken, 2 if keeps_graphs else 1)


def _held_by(value: Any) -> Iterator[object]:
    kind = type(value)
    if kind is types.MethodType:
        yield from (value.__self__, value.__func__)
    elif isinstance(value, torch.nn.Module):
        yield from {type(part): None for part in value.modules()}
    elif isinstance(value, type):
        yield from (base for base in value.__bases__ if base.__module__.split(".")[0] not in ("torch", "builtins"))
    elif kind in (types.FunctionType, types.CellType, functools.partial) or has_attributes(kind):
        yield from () if kind is types.FunctionType else (kind,)
        yield from codec_of(kind).open(value)[1]  # pyright: ignore[reportOptionalMemberAccess]


@remembered(2**12)
def _names_in(code: types.CodeType) -> _Names:
    if not is_users(code.co_filename):
        return _Names(derivatives=int(code in _DERIVATIVES))
    of_globals, of_attributes, taken, before = set[str](), set[str](), 0, None
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_ATTR", "LOAD_METHOD"):
            name = step.argval
            taken += name in _METHODS or (name == "grad" and before == "autograd")
            (of_globals if step.opname == "LOAD_GLOBAL" else of_attributes).add(name)
            before = name
    keeps = taken > 0 and any(type(x) is tuple and "create_graph" in x for x in code.co_consts)
    for inner in (_names_in(x) for x in code.co_consts if isinstance(x, types.CodeType)):
        of_globals |= inner.of_globals
        of_attributes |= inner.of_attributes
        taken, keeps = taken + inner.derivatives, keeps or inner.keeps_graphs
    return _Names(frozenset(of_globals), frozenset(of_attributes), taken, keeps)
