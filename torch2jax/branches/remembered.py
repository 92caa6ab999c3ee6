"""What the paths through a function compute together, kept for calls that begin with the like.

Code runs again and again, and so do its functions. What a function does is given by all that it can reach: where that
is alike but for traced values, the program that was found serves again, with the present values in it.
"""

from collections.abc import Sequence
from typing import Any

import jax
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from ..tensors.tensor import Torchish
from .loop_state import State, is_same_array


class Beginning:
    """What a call begins with, without its traced values."""

    def __init__(self, state: State):
        self._entries = [(entry.path, entry.like) for entry in state.entries.values()]
        self._kept = [entry.value for entry in state.entries.values() if entry.is_leaf]  # compared by their ids
        self._numbers = [repr(entry.value) for entry in state.entries.values() if entry.is_number]
        self._values = {path: _kind(held) for path, held in state.held.items()}

    def is_like(self, other: "Beginning") -> bool:
        return (
            self._entries == other._entries
            and self._numbers == other._numbers
            and self._values.keys() == other._values.keys()
            and all(_is_alike(value, other._values[path]) for path, value in self._values.items())
        )


def _kind(held: Any) -> Any:
    return str(jax.typeof(held)) if isinstance(held, Tracer) else held


def _is_alike(one: Any, other: Any) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return isinstance(one, str) and isinstance(other, str) and one == other
    return is_same_array(one, other)


class Computed:
    """A program, and which values of a state it begins with.

    Args:
        state: what lives where it begins, which has been read.
        jaxpr: whose constants are the values.
    """

    def __init__(self, state: State, jaxpr: ClosedJaxpr):
        self._jaxpr = jaxpr.jaxpr
        places = {id(array): place for place, array in _arrays(state).items()}
        self._sources = [places.get(id(x)) if isinstance(x, Tracer) else x for x in jaxpr.consts]
        self.serves_again = all(x is not None for x in self._sources)

    def run(self, state: State) -> Sequence[Any]:
        """What it gives for the values of another state like the first."""
        arrays = _arrays(state)
        consts = [arrays[x] if isinstance(x, tuple) else x for x in self._sources]
        return jaxpr_as_fun(ClosedJaxpr(self._jaxpr, consts))()


def _arrays(state: State) -> dict[tuple[str, str], Any]:
    """The traced arrays of a state."""
    found = {}
    for path, storage in state.storages.items():
        found["memory", path] = storage.physical.array
        found["storage", path] = storage.read()
    for path, entry in state.entries.items():
        if isinstance(entry.value, Torchish):
            found["tensor", path] = entry.value.read()
    return found
