"""What users say of places in code, by the file and the line, or the function: answers to questions, and bounds."""

import os
import warnings
from collections.abc import Mapping
from typing import Any

from ..errors import SourceLine, user_level

__all__ = ["Said"]

_MOST_SHOWN = 8


class Said:
    """What is said of places, and which places have asked for it.

    Args:
        name: of the argument that says it.
        given: a mapping from ``"file.py:line"`` or ``"file.py:function"`` to what is said there.
        is_allowed: whether a value is one that may be said.
        wanted: describes such a value, in errors.
        askers: describes the lines that ask, in warnings.

    Raises:
        TypeError: a key names no place, or a value is not allowed.
    """

    def __init__(self, name: str, given: Mapping[str, Any] | None, is_allowed: Any, wanted: str, askers: str):
        self._name, self._askers = name, askers
        self._entries: list[tuple[str, str, str, Any]] = []
        self._asked: dict[tuple[SourceLine, ...], None] = {}
        self._told: set[str] = set()
        for key, value in (given or {}).items():
            file, _, at = key.rpartition(":") if isinstance(key, str) else ("", "", "")
            if not file or not at or not is_allowed(value):
                raise TypeError(
                    f"{name} got {key!r}: {value!r}; wanted 'file.py:line' or 'file.py:function', and {wanted}"
                )
            self._entries.append((key, os.path.normpath(file), at, value))

    def __bool__(self) -> bool:
        return bool(self._entries)

    def at(self, *places: SourceLine) -> Any:
        """What is said of a line, which has these places on the stack, the user's first; None for nothing."""
        if not self._entries:
            return None
        self._asked[places] = None
        return next((value for _, *of, value in self._entries if any(_is_at(place, *of) for place in places)), None)

    def warn_of_misses(self) -> None:
        """Warns once of each key that no line has met, where other lines have asked, which it names."""
        for key, file, at, _ in self._entries if self._asked else ():
            if key in self._told or any(_is_at(place, file, at) for places in self._asked for place in places):
                continue
            self._told.add(key)
            lines = list(dict.fromkeys(str(places[0]) for places in self._asked))
            more = f" and {len(lines) - _MOST_SHOWN} more" if len(lines) > _MOST_SHOWN else ""
            warnings.warn(
                f"{self._name}= says something of {key!r}, which none of the lines is that {self._askers}: got "
                f"{', '.join(lines[:_MOST_SHOWN])}{more}; wanted one of these, or its function",
                stacklevel=user_level(),
            )


def _is_at(place: SourceLine, file: str, at: str) -> bool:
    return at in (str(place.line), place.function) and (os.sep + place.file).endswith(os.sep + file)
