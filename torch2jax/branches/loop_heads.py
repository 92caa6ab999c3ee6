"""Where Python loops begin in bytecode: the place that each iteration returns to, and the variables alive there."""

import dis
import functools
from types import CodeType
from typing import NamedTuple

from .code_graph import CodeGraph, can_see_through

_HIDDEN = frozenset(("LIST_APPEND", "SET_ADD", "MAP_ADD"))  # what they add to lies where nobody sees it


class Head(NamedTuple):
    """Where the iterations of a loop begin.

    Python compiles the condition of a ``while`` twice: before the first iteration, and at the end of each. Both are the
    same place of the code, and so the head has two offsets.
    """

    entry: int
    again: int | None
    within: frozenset[int]
    """The offsets of all instructions of the loop, wherever Python has put them: an iteration can end at these. They
    are with their caches, where Python says that a frame is that has called another."""
    live: frozenset[str]
    """The local variables that something may still read."""
    line: int
    variables: tuple[str, ...] = ()
    """Of a ``for``, what it assigns to and what its iterations may read."""
    body: tuple[int, int] | None = None
    """Of a ``for``, the last instruction that assigns to these, and the one behind."""

    @property
    def is_for(self) -> bool:
        return self.body is not None

    def is_come_back(self, before: int | None) -> bool:
        """Whether an iteration has ended, if the head was reached by its first offset from another one."""
        return before in self.within


@functools.lru_cache(maxsize=512)
def heads_of(code: CodeType) -> tuple[Head, ...]:
    """The loops in some code that can be seen through, the outermost of those around one place first."""
    return _LoopCode(code).heads() if can_see_through(code) else ()


class _LoopCode(CodeGraph):
    def heads(self) -> tuple[Head, ...]:
        found: dict[int, Head] = {}
        for target, jumps in sorted(self.jumps_back().items()):
            within = [self.natural_loop(target, jump) for jump in jumps]
            if any(0 in loop and target != 0 for loop in within):
                continue  # there is another way in: where iterations begin is elsewhere
            head = self._head(target, sorted(jumps, reverse=True), frozenset().union(*within))
            if head is not None and head.entry in found:
                other = found[head.entry]
                again = other.again if head.again is None else head.again
                head = head._replace(again=again, within=head.within | other.within, live=head.live | other.live)
            if head is not None:
                found[head.entry] = head
        heads = [head for head in found.values() if not self._hides_something(head)]
        return tuple(sorted(heads, key=lambda head: len(head.within), reverse=True))

    def _hides_something(self, head: Head) -> bool:
        """Whether an iteration changes what only Python's stack has."""
        return any(step.opname in _HIDDEN for step in self.steps if step.offset in head.within)

    def _head(self, target: int, jumps: list[int], loop: frozenset[int]) -> Head | None:
        step = self.steps[target]
        within = frozenset(offset for i in loop for offset in self.offsets(i))
        if step.opname == "FOR_ITER":
            return self._for(target, within)
        for jump in jumps:
            first, second = target, jump
            is_apart = self.steps[second].opname == "JUMP_BACKWARD" and self._is_copy(
                self.steps[second - 1], self.steps[second]
            )
            second -= is_apart and "JUMP" in self.steps[second - 1].opname
            while first > 0 and self._is_copy(self.steps[first - 1], self.steps[second]):
                first, second = first - 1, second - 1
            if first != target:
                if _MERGES and self.line(first) == self.line(second):
                    break  # the condition may begin within an instruction of the body: iterations begin behind it
                within = within.union(offset for i in range(first, target) for offset in self.offsets(i))
                live = self.live[first] | self.live[second + 1]
                return Head(self.steps[first].offset, self.steps[second + 1].offset, within, live, self.line(first))
        return Head(step.offset, None, within, self.live[target], self.line(target))

    def _is_copy(self, one, other) -> bool:
        """Whether two instructions are of the same piece of source code, the second at the end of iterations."""
        kinds = [_without_direction(x.opname) for x in (one, other)]
        are_jumps = all("JUMP" in x.opname for x in (one, other))
        if one.positions != other.positions or one.positions is None or one.positions.lineno is None:
            return False
        return one.offset < other.offset and (are_jumps or (kinds[0] == kinds[1] and one.argval == other.argval))

    def _for(self, at: int, within: frozenset[int]) -> Head | None:
        names: list[str] = []
        behind, wanted = at + 1, 1
        while wanted:
            step = self.steps[behind]
            if step.opname == "UNPACK_SEQUENCE":
                wanted += step.argval - 1
            elif step.opname in ("STORE_FAST", "STORE_FAST_STORE_FAST"):
                given = step.argval if isinstance(step.argval, tuple) else (step.argval,)
                names.extend(given)
                wanted -= len(given)
            elif step.opname == "POP_TOP":
                wanted -= 1
            elif step.opname != "NOP":
                return None
            behind += 1
        read = tuple(name for name in names if name in self.live[behind])
        offset, body = self.steps[at].offset, (self.steps[behind - 1].offset, self.steps[behind].offset)
        return Head(offset, None, within, self.live[at], self.line(at), read, body)


_MERGES = "STORE_FAST_LOAD_FAST" in dis.opmap
"""Whether Python makes one instruction of two on one line, as of the end of a body and the condition that follows."""


def _without_direction(name: str) -> str:
    return name.replace("_FORWARD", "").replace("_BACKWARD", "")
