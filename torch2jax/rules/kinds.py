"""Kinds of tensors: classes of arguments that decide how a function is served before its rule is looked up.

The classes are a call's own (a mask selection, a number that is not known, a parameter without a shape), or no tensors
with values at all: where one of these is met, an error is raised, which leads to what serves it. Each kind is served in
its own file, and the call that asks here knows none of them.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from ..errors import WithoutValuesError

__all__ = ["Changed", "Served", "run_without_values", "servers_of", "serves", "serves_without_values"]

Served = Callable[[Any, Any, tuple, dict], Any]
"""Gives what a function gives, of the call, the function, its arguments and keywords; or `Changed`."""
S = TypeVar("S", bound=Served)
W = TypeVar("W", bound=Callable[..., Any])

_servers: list[tuple[int, type, Served]] = []
_without_values: dict[type[WithoutValuesError], Callable[..., Any]] = {}


class Changed(NamedTuple):
    """The arguments with which a function goes on to what serves another of their kinds, and to its rule."""

    args: tuple
    kwargs: dict


def serves(kind: type, rank: int) -> Callable[[S], S]:
    """Declares the decorated function to serve whatever has an argument of a class; the lowest rank comes first."""

    def register(server: S) -> S:
        _servers.append((rank, kind, server))
        _servers.sort(key=lambda entry: entry[0])
        servers_of.cache_clear()
        return server

    return register


@functools.lru_cache(maxsize=256)  # classes are made in functions too
def servers_of(types: tuple[type, ...]) -> tuple[Served, ...]:
    """What serves functions of arguments of these classes, one after the other."""
    return tuple(server for _, kind, server in _servers if any(issubclass(x, kind) for x in types))


def serves_without_values(error: type[WithoutValuesError]) -> Callable[[W], W]:
    """Declares the decorated function to serve what has an argument of which an error tells that it has no values.

    It gets the error, the call, the function, its arguments and keywords.
    """

    def register(server: W) -> W:
        _without_values[error] = server
        return server

    return register


def run_without_values(error: WithoutValuesError, call: Any, function: Any, args: tuple, kwargs: dict) -> Any:
    """What a function gives that has met an argument without values."""
    return _without_values[type(error)](error, call, function, args, kwargs)
