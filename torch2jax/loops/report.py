"""What was rolled, and what was not, in words."""

import logging
from collections.abc import Sequence

from jax.extend.core import JaxprEqn

__all__ = ["Report"]

_LOG = logging.getLogger("torch2jax.loops")


class Report:
    """What became of the turns in a program.

    Args:
        is_silent: whether the log is not told.
    """

    def __init__(self, *, is_silent: bool = False):
        self._is_silent = is_silent

    def rolled(self, turns: Sequence[Sequence[JaxprEqn]]) -> None:
        self._add(turns, "are one loop")

    def left(self, turns: Sequence[Sequence[JaxprEqn]], reason: str) -> None:
        self._add(turns, f"stay unrolled: {reason}")

    def _add(self, turns: Sequence[Sequence[JaxprEqn]], outcome: str) -> None:
        if not self._is_silent:
            _LOG.info("%d turns of %d equations %s", len(turns), len(turns[0]), outcome)
