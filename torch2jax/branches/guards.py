"""What nobody may write to, since it depends on data what else shares its memory.

Where paths go on as one, a tensor that was another's alias on some of them is one by itself. So is a list. That is
right as long as neither is written to. It is checked where a run ends, and where an iteration of a loop does.
"""

from typing import Any

from ..tensors.journal import Memory


class Guards:
    """The memories and lists of one run that must stay as they are."""

    def __init__(self):
        self._memories: dict[int, tuple[Memory, int, Any]] = {}
        self._containers: dict[int, tuple[Any, list, Any]] = {}

    def __bool__(self) -> bool:
        return bool(self._memories or self._containers)

    def add(self, thing: Any, cause: Any) -> None:
        """Guards a memory or a container from now on; `cause` is what `broken` gives."""
        if isinstance(thing, Memory):
            self._memories.setdefault(id(thing), (thing, thing.version, cause))
        else:
            self._containers.setdefault(id(thing), (thing, _items(thing), cause))

    def cause(self, thing: Any) -> Any:
        """Why a memory or a container is guarded; None if it is not."""
        known = self._memories if isinstance(thing, Memory) else self._containers
        return known[id(thing)][2] if id(thing) in known else None

    def things(self) -> list[Any]:
        return [thing for thing, *_ in (*self._memories.values(), *self._containers.values())]

    def broken(self) -> Any:
        """The cause of something that was written to; None if nothing was."""
        for memory, version, cause in self._memories.values():
            if memory.version != version:
                return cause
        for container, items, cause in self._containers.values():
            now = _items(container)
            if len(now) != len(items) or any(x is not y for x, y in zip(items, now, strict=True)):
                return cause
        return None


def _items(container: Any) -> list:
    return [*container, *container.values()] if isinstance(container, dict) else [*container]
