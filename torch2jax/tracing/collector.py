"""Python's garbage collector while JAX traces: it finds next to nothing there.

What a trace makes lives until its end, and by its default the collector begins once for every 700 objects that live.
Each time it looks at the new ones again, and every tenth time at older ones, the modules of a large library included.
That is up to half of the time to trace some thousand operators.
"""

import gc

__all__ = ["RareCollections"]

_OBJECTS = 100_000  # which cycles of garbage may hold, before they are looked for


class RareCollections:
    """A context in which the collector begins rarely. It does not where it is told to begin more rarely, or never."""

    _before: tuple[int, int, int] | None = None

    def __enter__(self) -> None:
        before = gc.get_threshold()
        if 0 < before[0] < _OBJECTS:
            self._before = before
            gc.set_threshold(_OBJECTS, *before[1:])

    def __exit__(self, *_: object) -> None:
        # Another thread, or the code, may have set something else meanwhile.
        if self._before is not None and gc.get_threshold()[0] == _OBJECTS:
            gc.set_threshold(*self._before)
