"""Questions of libraries on traced values that decide nothing: they save time, or warn.

Both answers give the same values, so one of them is given at once, and the other path is not traced.
"""

import linecache
from typing import NamedTuple

from ..errors import SourceLine


class _Idle(NamedTuple):
    function: str
    text: str
    decision: bool


_LINES = 16  # of a statement
_idle: dict[str, list[_Idle]] = {}


def add_idle_question(file: str, function: str, text: str, decision: bool) -> None:
    """Declares the answer to a question that decides nothing.

    Args:
        file: how the path of the file ends, from the library's name on.
        function: the name of the function that asks.
        text: a part of the line that asks, or of what stands in its brackets on the lines below. A line that has
            another text is asked as any other.
    """
    _idle.setdefault(file, []).append(_Idle(function, text, decision))


def idle_decision(asking: SourceLine) -> bool | None:
    """The answer to what a line asks, if that decides nothing."""
    found = _idle.get("/".join(asking.file.replace("\\", "/").split("/site-packages/")[-1:]))
    for question in found or ():
        if question.function == asking.function and question.text in _statement(asking.file, asking.line):
            return question.decision
    return None


def _statement(file: str, line: int) -> str:
    """A line of a file, and those below until all its brackets are closed."""
    text = linecache.getline(file, line)
    for below in range(line + 1, line + _LINES):
        if text.count("(") <= text.count(")"):
            break
        text += linecache.getline(file, below)
    return text
