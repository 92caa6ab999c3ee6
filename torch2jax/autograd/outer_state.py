"""What Python's objects from outside of a call hold, so that each of its runs begins with the same.

Code that asks for traced values runs once for each path. What it assigns on one path, to an attribute of an object that
it closes over or to an item of a list, must not be there on another. A module is copied for each run. Other objects are
the user's own: they are looked at before the first run, and set back before each later one. The last run leaves them as
they are then, as any function that JAX traces does.

Not looked into are PyTorch's modules, classes, objects and functions of libraries, functions of other files that global
names lead to, and containers of many items.
"""

import dis
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ..branches.loop_state import named_by
from ..errors import is_library
from ..tensors.objects import codec_of, has_attributes
from ..tensors.trees import flatten

__all__ = ["OuterState"]

_MANY = 2**12  # items of one container: as of a data set, which nobody changes
_STORES_GLOBAL = dis.opmap["STORE_GLOBAL"]
_NOTHING: Any = object()


class OuterState:
    """What the leaves of a tree lead to, before the first run.

    Of functions that is what they close over, name or are methods of, and the globals that they assign to. It may live
    as long as a derivative that runs the code again, and so it keeps no arrays of the tree.
    """

    def __init__(self, roots: Any):
        self._roots, self._is_noted = roots, False
        self._objects: list[tuple[Any, Any, Any, Sequence]] = []
        self._globals: dict[tuple[int, str], tuple[dict[str, Any], Any]] = {}

    def begin(self) -> None:
        """Is called before each run: notes all of it the first time, and lets it be like that from then on."""
        if self._is_noted:
            self._restore()
        else:
            self._note(flatten(self._roots)[0])
            self._roots, self._is_noted = None, True

    def _note(self, leaves: list) -> None:
        seen, pending = set(), [*leaves]
        while pending:
            value = pending.pop()
            codec: Any = codec_of(type(value))
            if codec is None or id(value) in seen or _is_left_out(value):
                continue
            seen.add(id(value))
            head, items = codec.open(value)
            items = list(items)
            if len(items) > _MANY:
                continue
            if codec.fill is not None:
                self._objects.append((value, codec, head, items))
            pending.extend(items)
            for function in _functions_of(value):
                self._note_stored(function)
                pending.extend(_named_by(function))

    def _note_stored(self, function: types.FunctionType) -> None:
        code, names = function.__code__, function.__globals__
        if _STORES_GLOBAL in code.co_code[::2]:
            for name in {step.argval for step in dis.get_instructions(code) if step.opcode == _STORES_GLOBAL}:
                self._globals[id(names), name] = names, names.get(name, _NOTHING)

    def _restore(self) -> None:
        """Lets all of it be as it was."""
        for value, codec, head, items in self._objects:
            head_now, items_now = codec.open(value)
            if head_now != head or any(x is not y for x, y in zip(items, items_now, strict=False)):
                codec.fill(value, head, items)
        for (_, name), (names, value) in self._globals.items():
            if value is _NOTHING:
                names.pop(name, None)
            else:
                names[name] = value


def _is_left_out(value: Any) -> bool:
    kind = type(value)
    if issubclass(kind, torch.nn.Module):
        return True
    if kind is types.FunctionType:
        return is_library(value.__code__.co_filename)
    return has_attributes(kind) and _is_of_library(kind)


def _is_of_library(kind: type) -> bool:
    return is_library(getattr(sys.modules.get(kind.__module__), "__file__", None) or "")


def _functions_of(value: Any) -> Iterator[types.FunctionType]:
    """A function itself, or the methods of an object."""
    if type(value) is types.FunctionType:
        yield value
    elif has_attributes(type(value)):
        methods = [x for kind in type(value).__mro__ if not _is_of_library(kind) for x in vars(kind).values()]
        yield from (x for x in methods if type(x) is types.FunctionType)


def _named_by(function: types.FunctionType) -> Iterator[Any]:
    """What a function has global names for, but functions of other files."""
    names = function.__globals__
    values = (names.get(name) for name in named_by(function.__code__))
    yield from (x for x in values if type(x) is not types.FunctionType or x.__globals__ is names)
