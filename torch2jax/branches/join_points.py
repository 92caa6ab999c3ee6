"""Where the paths through a statement join again in bytecode: the next statement, whichever of them was taken.

That is the first instruction that all ways of the code lead to from there (its postdominator) and at which Python's
stack holds nothing but what the statements around it have put there, as the iterator of a ``for``. All else that the
code goes on with is in variables then. It lies in the same iteration of the loops around.
"""

import dis
import functools
import operator
from types import CodeType
from typing import NamedTuple

from .code_graph import CodeGraph, can_see_through
from .loop_heads import heads_of


class JoinPoint(NamedTuple):
    """The beginning of a statement where paths join."""

    offset: int
    live: frozenset[str]
    """The local variables that something may still read."""


def join_point(code: CodeType, offset: int) -> JoinPoint | None:
    """Where the paths join that part at an offset; None if they do not before the function ends.

    Args:
        offset: that of the instruction that runs, as a frame tells it.
    """
    graph = _graph(code)
    return None if graph is None else graph.behind(graph.running_at(offset))


@functools.lru_cache(maxsize=512)
def _graph(code: CodeType) -> "_Statements | None":
    return _Statements(code) if can_see_through(code) else None


class _Statements(CodeGraph):
    def __init__(self, code: CodeType):
        super().__init__(code)
        self._loops = {
            target: frozenset().union(*(self.natural_loop(target, jump) for jump in jumps))
            for target, jumps in self.jumps_back().items()
        }
        self._heads = heads_of(code)
        self._depths = self._found_depths()
        self._all = (1 << len(self.steps)) - 1
        self._behind = self._found_behind()
        self._found: dict[int, JoinPoint | None] = {}

    def behind(self, at: int) -> JoinPoint | None:
        """The join point of the paths that part in an instruction."""
        if at not in self._found:
            around = self._loops_around(at)
            ends = (i for i in self._postdominators(at) if self._loops_around(i) == around)
            end = next(filter(self._is_between_statements, ends), None)
            self._found[at] = None if end is None else JoinPoint(self.steps[end].offset, self.live[end])
        return self._found[at]

    def _loops_around(self, at: int) -> tuple[set[int], set[int]]:
        """Where the loops begin that an instruction is in; the conditions of a ``while`` are in it as well."""
        offset = self.steps[at].offset
        heads = {head.entry for head in self._heads if offset in head.within}
        return {target for target, loop in self._loops.items() if at in loop}, heads

    def _postdominators(self, at: int) -> list[int]:
        """The instructions that all ways lead to which end the function without an exception, the nearest first."""
        if self._behind[at] == self._all:  # no way ends it
            return []
        found = [i for i in range(len(self.steps)) if i != at and self._behind[at] >> i & 1]
        return sorted(found, key=lambda i: self._behind[i].bit_count(), reverse=True)

    def _found_behind(self) -> list[int]:
        """For each instruction, itself and its postdominators, as the bits of a number."""
        behind, changes = [self._all] * len(self.steps), True
        while changes:
            changes = False
            for i in range(len(self.steps) - 1, -1, -1):
                is_end = self.steps[i].opname.startswith("RETURN")
                found = functools.reduce(operator.and_, (behind[j] for j in self.nexts[i]), 0 if is_end else self._all)
                found |= 1 << i
                changes = changes or found != behind[i]
                behind[i] = found
        return behind

    def _is_between_statements(self, at: int) -> bool:
        depth, offset = self._depths[at], self.steps[at].offset
        if depth is None or self.steps[at].opname == "NOP":
            return False
        inner = min((x for x in self.handlers if x.covers(offset)), key=lambda x: x.end - x.start, default=None)
        block = None if inner is None else [x for x in self.handlers if x.target == inner.target]
        iterators = [
            target
            for target in self._loops_around(at)[0]
            if self.steps[target].opname == "FOR_ITER"
            and (block is None or any(x.covers(self.steps[target].offset) for x in block))
        ]
        return depth == (0 if inner is None else inner.depth) + len(iterators)

    def _found_depths(self) -> list[int | None]:
        """How much Python's stack holds before each instruction; None where that is not known."""
        depths: list[int | None] = [None] * len(self.steps)
        pending = [(0, 0), *((self.place(x.target), x.depth + 1 + x.keeps_place) for x in self.handlers)]
        while pending:
            at, depth = pending.pop()
            if depths[at] is not None:
                continue
            depths[at] = depth
            step = self.steps[at]
            for i in self.nexts[at]:
                jumps = i != at + 1 or step.opname.startswith("JUMP")
                pending.append((i, depth + dis.stack_effect(step.opcode, step.arg, jump=jumps)))
        return depths
