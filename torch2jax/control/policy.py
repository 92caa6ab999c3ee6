"""The options of branches on traced values: for all of them, and for single lines of code."""

import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
from jax.experimental import checkify

from ..errors import SourceLine, user_level

_MOST_SHOWN = 8


class LineHints:
    """Hints for lines, by the file and the line or function, and the lines that have asked for them.

    Args:
        name: of the argument that says it.
        given: a mapping from ``"file.py:line"`` or ``"file.py:function"`` to what is said there.
        is_allowed: whether a value is one that may be said.
        wanted: describes such a value, in errors.
        what_they_do: describes the lines that ask, in warnings.

    Raises:
        TypeError: a key names no place, or a value is not allowed.
    """

    def __init__(self, name: str, given: Mapping[str, Any] | None, is_allowed: Any, wanted: str, what_they_do: str):
        self._name, self._what_they_do = name, what_they_do
        self._entries: list[tuple[str, str, str, Any]] = []
        self._queried: dict[tuple[SourceLine, ...], None] = {}
        self._warned: set[str] = set()
        for key, value in (given or {}).items():
            file, _, at = key.rpartition(":") if isinstance(key, str) else ("", "", "")
            if not file or not at or not is_allowed(value):
                raise TypeError(
                    f"{name} got {key!r}: {value!r}; wanted 'file.py:line' or 'file.py:function', and {wanted}"
                )
            self._entries.append((key, os.path.normpath(file), at, value))

    def __bool__(self) -> bool:
        return bool(self._entries)

    def at(self, *locations: SourceLine) -> Any:
        """What is said of a line, which has these places on the stack, the user's first; None for nothing."""
        if not self._entries:
            return None
        self._queried[locations] = None
        return next(
            (value for _, *of, value in self._entries if any(_is_at(location, *of) for location in locations)), None
        )

    def warn_of_misses(self) -> None:
        """Warns once of each key that no line has met, where other lines have asked, which it names."""
        for key, file, at, _ in self._entries if self._queried else ():
            if key in self._warned or any(
                _is_at(location, file, at) for locations in self._queried for location in locations
            ):
                continue
            self._warned.add(key)
            lines = list(dict.fromkeys(str(locations[0]) for locations in self._queried))
            more = f" and {len(lines) - _MOST_SHOWN} more" if len(lines) > _MOST_SHOWN else ""
            warnings.warn(
                f"{self._name}= names {key!r}, which is none of the lines that {self._what_they_do}: got "
                f"{', '.join(lines[:_MOST_SHOWN])}{more}; wanted one of these, or its function",
                stacklevel=user_level(),
            )


def _is_at(location: SourceLine, file: str, at: str) -> bool:
    return at in (str(location.line), location.function) and (os.sep + location.file).endswith(os.sep + file)


class BranchPolicy(NamedTuple):
    """The options of `t2j` for branches on traced values."""

    checks: str = "assume"
    branches: LineHints | None = None
    """Which branch is taken where."""
    max_paths: int = 64
    max_steps: int | None = None
    """How many iterations a loop may have that is differentiated backwards."""

    bounds: LineHints | None = None
    """How long at most what data decide is, and where."""
    groups: tuple[tuple[Any, tuple[str, ...]], ...] = ()
    """Process groups, None for the default one, and the axes of a mesh that they stand for: it goes where this goes."""

    @classmethod
    def of(
        cls,
        checks: str,
        branches: Mapping[str, bool] | None,
        max_paths: int,
        max_steps: int | None = None,
        bounds: Mapping[str, int] | None = None,
    ) -> "BranchPolicy":
        """The policy of these arguments of `t2j`.

        Raises:
            TypeError, ValueError: an argument is none that `t2j` takes.
        """
        if checks not in _CHECKS:
            raise ValueError(
                f"checks got {checks!r}; wanted one of {', '.join(map(repr, _CHECKS))}: checks of traced values are "
                "assumed to pass, become errors of jax.experimental.checkify, or raise while the program runs"
            )
        if not isinstance(max_paths, int) or max_paths < 1:
            raise ValueError(f"max_paths got {max_paths!r}; wanted a positive integer")
        if max_steps is not None and (not isinstance(max_steps, int) or max_steps < 1):
            raise ValueError(f"max_steps got {max_steps!r}; wanted a positive integer or None")
        is_count = lambda value: type(value) is int and value >= 0
        hinted = (
            LineHints(
                "branches", branches, lambda value: isinstance(value, bool), "True or False", "test traced values"
            ),
            LineHints("bounds", bounds, is_count, "the largest number of rows", "create data-dependent lengths"),
        )
        return cls(checks, hinted[0] or None, max_paths, max_steps, hinted[1] or None)

    def decision(self, *locations: SourceLine) -> bool | None:
        """What was said to be answered at one of some places."""
        return None if self.branches is None else self.branches.at(*locations)

    def bound(self, *locations: SourceLine) -> int | None:
        """What was said to be the bound of what data decide at one of some places."""
        return None if self.bounds is None else self.bounds.at(*locations)

    def warn_of_misses(self) -> None:
        """Warns of places of which something was said that are none."""
        for hinted in (self.branches, self.bounds):
            if hinted is not None:
                hinted.warn_of_misses()

    def check(self, is_right: Any, message: str) -> None:
        """Checks that a traced bool is true, as checks of code's own are made."""
        check = self.checking
        if check is not None:
            check(is_right, message)

    @property
    def checking(self) -> Callable[[Any, str], None] | None:
        """The function that checks that a traced bool is true, with a message; None if there is none."""
        return _CHECKS[self.checks]


FOLLOWING = BranchPolicy()


def _by_checkify(is_right: Any, message: str) -> None:
    checkify.check(is_right, message.replace("{", "{{").replace("}", "}}"))


def _at_run_time(is_right: Any, message: str) -> None:
    def expect(is_right: Any):
        if not is_right:
            raise RuntimeError(message)

    jax.debug.callback(expect, is_right)


_CHECKS: dict[str, Callable[[Any, str], None] | None] = {
    "assume": None,
    "checkify": _by_checkify,
    "raise": _at_run_time,
}
