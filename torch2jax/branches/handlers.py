"""Whether code would handle an exception: by an ``except``, a ``finally`` or a context manager that swallows it."""

import contextlib
import dis
from types import FrameType
from typing import Any

from ..errors import is_library, is_translator

_ENTERS = ("BEFORE_WITH", "LOAD_SPECIAL")  # the latter since Python 3.14
_BASES = ("LOAD_GLOBAL", "LOAD_NAME")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_BETWEEN = ("POP_TOP", "STORE_FAST", "NOP", "PUSH_NULL", "PRECALL", "COPY", "SWAP", "CALL", "RESUME", "EXTENDED_ARG")
_SWALLOWS = frozenset(("suppress", "raises", "assertRaises"))


def is_handled(frame: FrameType | None, base: FrameType | None) -> bool:
    """Whether an exception that a frame's call raises might be handled; a library's code that does raises it again.

    Args:
        base: the frame on the stack where the search ends.
    """
    while frame is not None and frame is not base:
        code = frame.f_code
        if not is_translator(code.co_filename) and _handles(frame, is_library(code.co_filename)):
            return True
        frame = frame.f_back
    return False


def _handles(frame: FrameType, is_of_library: bool) -> bool:
    code, entries = frame.f_code, [*getattr(dis.Bytecode(frame.f_code), "exception_entries", ())]
    if not entries:
        return False
    instructions = [*dis.get_instructions(code)]
    kinds = {x.offset: x.opname for x in instructions}
    for target in _handlers(entries, kinds, frame.f_lasti):
        if not any(kinds.get(offset) == "WITH_EXCEPT_START" for offset in range(target, target + 6, 2)):
            if not is_of_library:
                return True
        elif is_of_library:
            if _SWALLOWS & {*code.co_names}:
                return True
        elif not _is_known(_manager(instructions, min(x.start for x in entries if x.target == target)), frame):
            return True
    return False


def _handlers(entries: list[Any], kinds: dict[int, str], at: int) -> set[int]:
    """Where what an instruction raises is handled, and what is raised there again; not where Python cleans up."""
    found, waiting = set[int](), [at]
    while waiting:
        offset = waiting.pop()
        for entry in entries:
            if entry.start <= offset < entry.end and entry.target not in found:
                found.add(entry.target)
                waiting.append(entry.target)
    return {offset for offset in found if kinds.get(offset) == "PUSH_EXC_INFO"}


def _manager(instructions: list[dis.Instruction], start: int) -> list[str] | None:
    """The names by which code gets the context manager of the block from an offset on; None if it does otherwise."""
    before = [x for x in instructions if x.offset < start]
    enters = [i for i, x in enumerate(before) if x.opname in _ENTERS and x.argrepr != "__enter__"]
    if not enters:
        return None
    line = before[enters[-1]].positions.lineno  # pyright: ignore[reportOptionalMemberAccess]
    first = enters[-2] + 1 if len(enters) > 1 else 0
    found: list[str] = []
    for x in before[first : enters[-1]]:
        if x.positions is None or x.positions.lineno != line or x.argrepr == "__enter__":
            found = []
        elif not found and x.opname in _BASES:
            found = [x.argval]
        elif found and x.opname in _ATTRIBUTES:
            found.append(x.argval)
        elif found:
            break
        elif x.opname not in _BETWEEN:
            return None
    return found or None


def _is_known(names: list[str] | None, frame: FrameType) -> bool:
    """Whether a context manager is one of PyTorch's, which swallow nothing, or does nothing."""
    if names is None:
        return False
    found: Any = frame.f_globals.get(names[0])
    for name in names[1:]:
        found = getattr(found, name, None)
    return found is contextlib.nullcontext or str(getattr(found, "__module__", "")).partition(".")[0] == "torch"
