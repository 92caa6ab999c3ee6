"""What was rolled, and what was not, in words."""

import logging
from collections.abc import Sequence
from typing import NamedTuple

from jax.extend.core import JaxprEqn

__all__ = ["Entry", "Report"]

_LOG = logging.getLogger("torch2jax.loops")


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


class Report:
    """What became of the turns in a program.

    Args:
        is_silent: whether the log is not told.
    """

    def __init__(self, *, is_silent: bool = False):
        self._is_silent = is_silent
        self.entries: list[Entry] = []

    def rolled(self, turns: Sequence[Sequence[JaxprEqn]]) -> None:
        self._add(Entry(len(turns), len(turns[0]), None))

    def left(self, turns: Sequence[Sequence[JaxprEqn]], reason: str) -> None:
        self._add(Entry(len(turns), len(turns[0]), reason))

    def _add(self, entry: Entry) -> None:
        self.entries.append(entry)
        if not self._is_silent:
            _LOG.info("%s", entry)
