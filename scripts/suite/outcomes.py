"""What became of PyTorch's tests: a record for each, the file they are kept in, and failures as reasons."""

import dataclasses
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from scripts.records import append_record, records

__all__ = ["MODES", "Collected", "Mode", "Outcome", "Results", "describe", "reason"]

Mode = Literal["pytorch", "translated"]
MODES: tuple[Mode, ...] = ("pytorch", "translated")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One test, run once, in PyTorch or translated."""

    test: str  # file::Class.method
    mode: Mode
    result: Literal["ok", "skip", "fail", "late", "crash"]
    error: str = ""
    traceback: str = ""
    apart: str | None = None  # told when PyTorch runs it
    seconds: float = 0

    @property
    def file(self) -> str:
        return self.test.partition("::")[0]


@dataclasses.dataclass(frozen=True)
class Collected:
    """How many tests a file has, and what it wants to import that is gone."""

    collected: str
    tests: int
    lost: list[str] = dataclasses.field(default_factory=list)


class Results:
    """Outcomes by ``(test, mode)``, the last of each, in a file of one JSON object a line."""

    def __init__(self, path: Path):
        self.path = path
        self.outcomes: dict[tuple[str, str], Outcome] = {}
        self.files: dict[str, Collected] = {}
        for found in records(path):
            self._take(Collected(**found) if "collected" in found else Outcome(**found))

    def _take(self, found: Outcome | Collected) -> None:
        if isinstance(found, Collected):
            self.files[found.collected] = found
        else:
            self.outcomes[found.test, found.mode] = found

    def append(self, found: Outcome | Collected) -> None:
        self._take(found)
        append_record(self.path, dataclasses.asdict(found))

    def counted(self, test: str) -> bool:
        """Whether PyTorch passes a test here, and it is not apart."""
        outcome = self.outcomes.get((test, "pytorch"))
        return outcome is not None and outcome.result == "ok" and not outcome.apart

    def wanted(self, tests: Iterable[str], mode: Mode, again: str | None) -> list[str]:
        """Of tests, those to run: the ones that were not, or all or the failed ones of those translated."""
        if mode == "pytorch":
            return [test for test in tests if (test, mode) not in self.outcomes or again == "pytorch"]
        return [test for test in tests if self.counted(test) and self._missing(test, again)]

    def _missing(self, test: str, again: str | None) -> bool:
        outcome = self.outcomes.get((test, "translated"))
        return outcome is None or again == "all" or (again == "failed" and outcome.result != "ok")


def describe(error: BaseException) -> str:
    """The type and message of an error, or of the one below where it only says which sample it came from."""
    while type(error) is Exception and "Caused by" in str(error) and error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {error}".strip()


_NOISE = (
    (r"\x1b\[[0-9;]*m", ""),
    (r"(?s)\n.*", ""),  # the first line says it
    (r'^".*?" does not match "', '"…" does not match "'),  # what was raised says it
    (r", called in \w+", ""),
    (r"\s*\(?(at|in|from) (line \d+ of )?\S*/\S+\.py(:\d+|, line \d+)?\)?", ""),
    (r"(/[\w.+-]+){2,}", "PATH"),
    (r"0x[0-9a-fA-F]+", "ADDRESS"),
    (r"\b\d+\.\d*(e[+-]?\d+)?|\b\d+e[+-]?\d+", "N"),
    (r"\b(bool|complex|bfloat|float|uint|int|[fiuc])(\d+)\b", r"\1\2<kept>"),
    (r"(?<![\w.])-?\d+(?!<kept>)(?![\w<])", "N"),
    (r"<kept>", ""),
    (r"[\[(]\s*((N|\[\]|\(\)),?\s*)*[\])]", "SHAPE"),
    (r"(SHAPE(, )?){2,}", "SHAPE"),
    (r"\s+", " "),
)


def reason(error: str, limit: int = 160) -> str:
    """An error without what differs from one test to another: numbers, shapes, addresses, places."""
    kind, _, message = error.partition(": ")
    message = message.strip()
    for pattern, replacement in _NOISE:
        message = re.sub(pattern, replacement, message)
    whole = f"{kind}: {message.strip()}" if message.strip() else kind.strip(": \n")
    return whole if len(whole) <= limit else whole[: limit - 1].rstrip() + "…"
