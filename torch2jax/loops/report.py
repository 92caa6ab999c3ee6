"""What was rolled, and what was not, in words."""

import contextlib
import logging
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import NamedTuple

from jax.extend.core import JaxprEqn

__all__ = ["Entry", "Report", "noting_loops"]

_LOG = logging.getLogger("torch2jax.loops")

_noted: ContextVar["list[Entry] | None"] = ContextVar("noted", default=None)


class Entry(NamedTuple):
    """Turns that are alike."""

    turns: int
    equations: int
    """Of one turn."""
    reason: str | None
    """Why they are no loop; None if they are."""

    def __str__(self) -> str:
        found = f"{self.turns} turns of {self.equations} equations"
        return f"{found} are one loop" if self.reason is None else f"{found} stay unrolled: {self.reason}"


@contextlib.contextmanager
def noting_loops() -> Iterator[list[Entry]]:
    """A context that gives what becomes of turns in the programs that are traced within."""
    found: list[Entry] = []
    token = _noted.set(found)
    try:
        yield found
    finally:
        _noted.reset(token)


class Report:
    """What became of the turns in a program.

    Args:
        is_silent: whether the log is not told.
    """

    def __init__(self, *, is_silent: bool = False):
        self._is_silent = is_silent

    def rolled(self, turns: Sequence[Sequence[JaxprEqn]]) -> None:
        self._add(Entry(len(turns), len(turns[0]), None))

    def left(self, turns: Sequence[Sequence[JaxprEqn]], reason: str) -> None:
        self._add(Entry(len(turns), len(turns[0]), reason))

    def _add(self, entry: Entry) -> None:
        if self._is_silent:
            return
        noted = _noted.get()
        if noted is not None:
            noted.append(entry)
        _LOG.info("%s", entry)
