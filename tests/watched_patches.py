"""Which stand-ins of the package's patches are called."""

import contextlib
import functools
import importlib
import types
from collections.abc import Callable, Iterator
from typing import Any, cast

from torch2jax.runtime import patches
from torch2jax.runtime.layers import LAYERS
from torch2jax.runtime.translation import current

__all__ = ["names", "watching"]


def _name(owner, attribute: str) -> str:
    """What a patch stands in for: functions of which the code is exchanged are by themselves."""
    if isinstance(owner, types.ModuleType):
        return f"{owner.__name__}.{attribute}"
    path = f"{owner.__module__}.{owner.__qualname__}"
    return path if attribute == "__code__" else f"{path}.{attribute}"


def names() -> dict[str, Any]:
    """The stand-ins of functions, classes and objects of PyTorch's and Python's, by the name of what they replace.

    A number in the place of another is nothing that is called.
    """
    for layer in LAYERS:
        layer.load()
    for module in {module for module, _ in patches.awaited() if module.startswith("torch.")}:
        importlib.import_module(module)
    patches.apply_patches(names)
    patches.remove_patches(names)
    return {_name(owner, name): stand_in for owner, name, stand_in in patches._patches if not isinstance(stand_in, int)}


@contextlib.contextmanager
def watching() -> Iterator[set[str]]:
    """Gives the set of the patches whose stand-ins are called within translated calls; none is applied at first."""
    called: set[str] = set()
    before, kinds = list(patches._patches), []
    for place, (owner, name, stand_in) in enumerate(before):
        note = functools.partial(called.add, _name(owner, name))
        if not isinstance(stand_in, int):
            patches._patches[place] = owner, name, _watched(stand_in, note, kinds)
    patches._exchanges._count = -1  # what it has taken over before is not what is there
    try:
        yield called
    finally:
        patches._patches[: len(before)] = before
        patches._exchanges._count = -1
        for stand_in, kind in kinds:
            stand_in.__class__ = kind


def _watched(stand_in, note: Callable[[], None], kinds: list) -> Any:
    """A stand-in that tells that it is called."""

    def watched(function: Callable) -> Callable:
        @functools.wraps(function)
        def noting(*args, **kwargs):
            if current() is not None:
                note()
            return function(*args, **kwargs)

        noting.__code__ = noting.__code__.replace(co_filename=patches.__file__)  # no code of a user's
        return noting

    if isinstance(stand_in, types.CodeType):
        constants = tuple(watched(x) if callable(x) else x for x in stand_in.co_consts)
        return stand_in.replace(co_consts=constants)
    if isinstance(stand_in, (classmethod, staticmethod)):
        return type(stand_in)(watched(stand_in.__func__))
    if isinstance(stand_in, property):
        return property(watched(cast(Any, stand_in.fget)))
    if isinstance(stand_in, types.FunctionType):
        return watched(stand_in)
    if isinstance(stand_in, types.SimpleNamespace):
        return types.SimpleNamespace(apply=watched(stand_in.apply))
    # An object: any of its methods, and whatever is asked of it.
    kind = type(stand_in)
    methods = {name: watched(x) for name, x in vars(kind).items() if isinstance(x, types.FunctionType)}
    kinds.append((stand_in, kind))
    stand_in.__class__ = type(kind.__name__, (kind,), {"__getattribute__": watched(kind.__getattribute__), **methods})
    return stand_in
