"""Where Python loops begin in bytecode: the place that each iteration returns to, and the variables alive there."""

import dis
import functools
from types import CodeType
from typing import Any, NamedTuple

__all__ = ["Head", "heads_of"]

_OPTIMIZED, _SUSPENDED = 0x1, 0x20 | 0x80 | 0x100 | 0x200  # code flags: has fast locals; generators, coroutines
_HIDDEN = frozenset(("LIST_APPEND", "SET_ADD", "MAP_ADD"))  # what they add to lies where nobody sees it
_UNCONDITIONAL = frozenset(
    ("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD")
    + ("JUMP_ABSOLUTE", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_NO_INTERRUPT")
)


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
    if not code.co_flags & _OPTIMIZED or code.co_flags & _SUSPENDED:
        return ()
    return _LoopCode(code).heads()


class _LoopCode:
    def __init__(self, code: CodeType):
        self._code = code
        listing = dis.Bytecode(code)
        self._steps = [step for step in listing if step.opname not in ("EXTENDED_ARG", "CACHE")]
        self._index = {step.offset: i for i, step in enumerate(self._steps)}
        entries: Any = getattr(listing, "exception_entries", ())
        self._handlers = [(x.start, x.end, x.target) for x in entries]
        self._nexts = [self._successors(i) for i in range(len(self._steps))]
        self._befores: list[set[int]] = [set() for _ in self._steps]
        for i, nexts in enumerate(self._nexts):
            for j in (*nexts, *self._handlers_of(i)):
                self._befores[j].add(i)
        self._live = self._liveness()

    def heads(self) -> tuple[Head, ...]:
        found: dict[int, Head] = {}
        for target, jumps in sorted(self._jumps_back().items()):
            within = [self._natural_loop(target, jump) for jump in jumps]
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

    def _jumps_back(self) -> dict[int, list[int]]:
        """The backward jumps, by their targets: positions of instructions."""
        found: dict[int, list[int]] = {}
        for i, step in enumerate(self._steps):
            if "JUMP_BACKWARD" in step.opname and "NO_INTERRUPT" not in step.opname:
                found.setdefault(self._beyond_nothing(step.argval), []).append(i)
        return found

    def _natural_loop(self, target: int, jump: int) -> set[int]:
        """The places of the instructions that lead to a jump without its target between.

        What Python puts behind the function, as the end of a ``with`` that an exception leaves, is among them.
        """
        found, pending = {target, jump}, [jump]
        while pending:
            i = pending.pop()
            if i != target:
                new = self._befores[i] - found
                found |= new
                pending.extend(new)
        return found

    def _beyond_nothing(self, offset: int) -> int:
        """The place of the instruction that is at an offset, or behind what does nothing there."""
        at = self._index[self._at(offset)]
        while self._steps[at].opname == "NOP":
            at += 1
        return at

    def _at(self, offset: int) -> int:
        """The offset of the instruction that is there, behind the prefixes of its argument."""
        while offset not in self._index:
            offset += 2
        return offset

    def _hides_something(self, head: Head) -> bool:
        """Whether an iteration changes what only Python's stack has."""
        return any(step.opname in _HIDDEN for step in self._steps if step.offset in head.within)

    def _head(self, target: int, jumps: list[int], loop: frozenset[int]) -> Head | None:
        step = self._steps[target]
        within = frozenset(offset for i in loop for offset in self._offsets(i))
        if step.opname == "FOR_ITER":
            return self._for(target, within)
        for jump in jumps:
            first, second = target, jump
            is_apart = self._steps[second].opname == "JUMP_BACKWARD" and self._is_copy(
                self._steps[second - 1], self._steps[second]
            )
            second -= is_apart and "JUMP" in self._steps[second - 1].opname
            while first > 0 and self._is_copy(self._steps[first - 1], self._steps[second]):
                first, second = first - 1, second - 1
            if first != target:
                if _MERGES and self._line(first) == self._line(second):
                    break  # the condition may begin within an instruction of the body: iterations begin behind it
                within = within.union(offset for i in range(first, target) for offset in self._offsets(i))
                live = self._live[first] | self._live[second + 1]
                return Head(self._steps[first].offset, self._steps[second + 1].offset, within, live, self._line(first))
        return Head(step.offset, None, within, self._live[target], self._line(target))

    def _offsets(self, at: int) -> range:
        """Those of an instruction and its caches."""
        end = self._steps[at + 1].offset if at + 1 < len(self._steps) else len(self._code.co_code)
        return range(self._steps[at].offset, end, 2)

    def _line(self, at: int) -> int:
        positions = self._steps[at].positions
        return self._code.co_firstlineno if positions is None or positions.lineno is None else positions.lineno

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
            step = self._steps[behind]
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
        read = tuple(name for name in names if name in self._live[behind])
        offset, body = self._steps[at].offset, (self._steps[behind - 1].offset, self._steps[behind].offset)
        return Head(offset, None, within, self._live[at], self._line(at), read, body)

    def _liveness(self) -> list[frozenset[str]]:
        """For each instruction, the local variables that are read from there on before they are assigned."""
        always = frozenset((*self._code.co_cellvars, *self._code.co_freevars))
        live = [always] * len(self._steps)
        changes = True
        while changes:
            changes = False
            for i in range(len(self._steps) - 1, -1, -1):
                after = set(always).union(*(live[j] for j in self._nexts[i]))
                handled = [live[j] for j in self._handlers_of(i)]
                _step_back(self._steps[i], after)
                found = frozenset(after.union(*handled))
                if found != live[i]:
                    live[i], changes = found, True
        return live

    def _successors(self, i: int) -> list[int]:
        step = self._steps[i]
        found = []
        if step.opname not in _UNCONDITIONAL and i + 1 < len(self._steps):
            found.append(i + 1)
        if step.opcode in _JUMPS:
            found.append(self._index[self._at(step.argval)])
        return found

    def _handlers_of(self, i: int) -> list[int]:
        offset = self._steps[i].offset
        return [self._index[self._at(target)] for start, end, target in self._handlers if start <= offset < end]


_MERGES = "STORE_FAST_LOAD_FAST" in dis.opmap
"""Whether Python makes one instruction of two on one line, as of the end of a body and the condition that follows."""
_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))


def _without_direction(name: str) -> str:
    return name.replace("_FORWARD", "").replace("_BACKWARD", "")


def _step_back(step, live: set[str]) -> None:
    """Lets the variables that live behind an instruction be those that live before it."""
    if "_FAST" not in step.opname:
        return
    names = step.argval if isinstance(step.argval, tuple) else (step.argval,)
    kinds = [word for word in step.opname.split("_") if word in ("LOAD", "STORE", "DELETE")]
    for name, kind in reversed([*zip(names, kinds * len(names), strict=False)]):
        if kind == "STORE":
            live.discard(name)
        else:
            live.add(name)
