"""Reports what was rolled and what was not."""

import contextlib
import logging
from collections.abc import Iterator
from contextvars import ContextVar

__all__ = ["RollingReport", "noting_loops"]

_LOG = logging.getLogger("torch2jax.loops")

_noted: ContextVar["list[str] | None"] = ContextVar("noted", default=None)


@contextlib.contextmanager
def noting_loops() -> Iterator[list[str]]:
    """A context that collects, in words, which iterations were rolled in the programs traced inside."""
    found: list[str] = []
    token = _noted.set(found)
    try:
        yield found
    finally:
        _noted.reset(token)


class RollingReport:
    """What became of the iterations in a program: of how many, of how many equations each.

    Args:
        is_silent: whether nobody is told.
    """

    def __init__(self, *, is_silent: bool = False):
        self._is_silent = is_silent

    def rolled(self, iterations: int, equations: int) -> None:
        self._tell(f"{iterations} iterations of {equations} equations are one loop")

    def left(self, iterations: int, equations: int, reason: str) -> None:
        self._tell(f"{iterations} iterations of {equations} equations stay unrolled: {reason}")

    def undone(self, reason: str) -> None:
        """Notes that what was rolled stays unrolled."""
        self._tell(f"all iterations stay unrolled: {reason}")

    def _tell(self, text: str) -> None:
        if self._is_silent:
            return
        noted = _noted.get()
        if noted is not None:
            noted.append(text)
        _LOG.info("%s", text)
