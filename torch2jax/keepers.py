"""A search for the user's object that keeps another alive, for an error message; it begins when the error is raised."""

import gc
import sys
import types
from typing import Any


def keeper_of(value: Any) -> str | None:
    """The user's holder of an object, in words: an attribute, a global name, a container of that name, a cache."""
    holders = _holders(value)
    for holder in holders:
        name = _name_in(holder, value)
        if name is not None:
            return name
    for holder in holders:
        if isinstance(holder, (dict, list, tuple, set)):
            entry = _entry_in(holder, value)
            for outer in _holders(holder):
                name = _name_in(outer, holder)
                if name is not None:
                    return f"{entry} of {name}"
    return None


def _holders(value: Any) -> list[Any]:
    """The referrers of an object that the garbage collector knows, without frames and this package's own objects."""
    return [
        x
        for x in gc.get_referrers(value)
        if not isinstance(x, types.FrameType) and not type(x).__module__.startswith("torch2jax")
    ]


def _entry_in(container: Any, value: Any) -> str:
    if isinstance(container, dict):
        return next((f"the entry {key!r}" for key, item in container.items() if item is value), "a key")
    if isinstance(container, (list, tuple)):
        return next((f"item {i}" for i, item in enumerate(container) if item is value), "an item")
    return "an item"


def _name_in(holder: Any, value: Any) -> str | None:
    """The name of an object in its holder."""
    if isinstance(holder, types.CellType):
        for outer in gc.get_referrers(holder):
            for function in gc.get_referrers(outer) if isinstance(outer, tuple) else ():
                if isinstance(function, types.FunctionType) and function.__closure__ is outer:
                    names = function.__code__.co_freevars
                    return next((f"the variable {n}" for n, c in zip(names, outer, strict=True) if c is holder), None)
        return None
    if hasattr(type(holder), "cache_info") and "__wrapped__" in vars(holder):
        return f"the cache of {holder.__wrapped__.__qualname__}"
    if isinstance(holder, dict):
        module = sys.modules.get(str(holder.get("__name__")))
        if module is not None and vars(module) is holder:
            key = next((key for key, item in holder.items() if item is value), None)
            return None if key is None else f"the global {key}"
        owners = [x for x in _holders(holder) if getattr(x, "__dict__", None) is holder]
        return _attribute_of(owners[0], value) if owners else None
    return _attribute_of(holder, value) if not isinstance(holder, (list, tuple, set)) else None


def _attribute_of(owner: Any, value: Any) -> str | None:
    attributes = getattr(owner, "__dict__", None) or {}
    name = next((key for key, item in attributes.items() if item is value), None)
    if name is None:
        return None
    return f"the attribute {name} of {owner.__qualname__ if isinstance(owner, type) else f'a {type(owner).__name__}'}"
