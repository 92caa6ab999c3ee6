"""The path of converted code, on which only operators ask."""

from typing import Any

from ..branches.path import Path
from .state import Refused


class PathOfSource(Path):
    """The path of converted code: a question of code that is not converted is refused."""

    def _ask(self, flag: Any, place: Any, asked_in: str, settled: bool | None) -> bool:
        raise Refused(f"bool(tensor) at {place} tests a traced value in code that is not converted", other_paths=True)

    def convert(self) -> None:
        """Its code is converted."""
