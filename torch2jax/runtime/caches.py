"""The caches of the process: what calls find out for later ones.

Each has a name and a bound, is listed by `usage`, and may be cleared at any time: what was in it is found out again. It
is a `Cache` where code asks it by keys, or else a function that is `remembered`.

Not here are

- functions of PyTorch's operators, functions and dtypes: there are only so many, and `functools.cache` keeps them;
- what belongs to one call, trace or object, and is gone with it, as `Call.casts`. But an object that lives on, with a
  key for each shape that a program has, needs a bound, and has a `Cache`.
"""

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

K = TypeVar("K")
V = TypeVar("V")
_all: weakref.WeakValueDictionary[int, object] = weakref.WeakValueDictionary()
_lock = threading.RLock()
_ABSENT: Any = object()


class Cache(dict[K, V]):
    """A dictionary that gives up its oldest entry for a new one when it is full.

    To look up a key is to ask a dictionary, so that it takes no call of a Python function. Threads may share it.

    Args:
        name: in `usage`, which counts caches of one name together.
        most: the number of entries.
    """

    __slots__ = ("__weakref__", "misses", "most", "name")

    def __init__(self, name: str, most: int):
        self.name, self.most = name, most
        self.misses = 0
        """The number of entries so far."""
        _all[id(self)] = self

    def __setitem__(self, key: K, value: V) -> None:
        while len(self) >= self.most and key not in self:
            with contextlib.suppress(RuntimeError, StopIteration):  # where another thread changes it
                self.pop(next(iter(self)), None)
        self.misses += 1
        super().__setitem__(key, value)

    def obtain(self, key: K, make: Callable[[], V]) -> V:
        """The entry of a key, which is made if it is not there. It is the newest from now on."""
        with _lock:
            found = self.pop(key, _ABSENT)
            if found is not _ABSENT:
                super().__setitem__(key, found)
                return found
        made = make()
        with _lock:
            self[key] = made = self.get(key, made)  # another thread's, if that was first
        return made


def remembered(most: int):
    """Keeps the results of the decorated function for the arguments that it was called with last.

    Args:
        most: the number of results.
    """

    def remember(function: Callable[..., V]):
        found = functools.lru_cache(most)(function)
        _all[id(found)] = found
        return found

    return remember


class Usage(NamedTuple):
    """The caches of one name."""

    name: str
    most: int
    """The bound of each."""
    caches: int
    entries: int
    """The number of entries of all, as they are."""
    misses: int
    """The number of entries so far, since they were cleared."""


def usage() -> list[Usage]:
    """All caches there are, by their names."""
    found: dict[str, Usage] = {}
    for cache in _caches():
        if isinstance(cache, Cache):
            one = Usage(cache.name, cache.most, 1, len(cache), cache.misses)
        else:
            info, function = cache.cache_info(), cache.__wrapped__
            name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
            one = Usage(name, info.maxsize, 1, info.currsize, info.misses)
        before = found.get(one.name, one._replace(caches=0, entries=0, misses=0))
        found[one.name] = Usage(one.name, one.most, *(x + y for x, y in zip(before[2:], one[2:], strict=True)))
    return sorted(found.values())


def clear() -> None:
    """Empties all caches."""
    for cache in _caches():
        if isinstance(cache, Cache):
            cache.clear()
            cache.misses = 0
        else:
            cache.cache_clear()


def _caches() -> list[Any]:
    return [cache for reference in _all.valuerefs() if (cache := reference()) is not None]
