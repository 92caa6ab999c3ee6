"""The control flow graph of a function's bytecode: where instructions lead to, its loops, and the variables alive."""

import dis
from types import CodeType
from typing import Any, NamedTuple

_OPTIMIZED, _SUSPENDED = 0x1, 0x20 | 0x80 | 0x100 | 0x200  # code flags: has fast locals; generators, coroutines
_UNCONDITIONAL = frozenset(
    ("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD")
    + ("JUMP_ABSOLUTE", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_NO_INTERRUPT")
)
_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))


def can_see_through(code: CodeType) -> bool:
    """Whether all that code keeps is in local variables: it is a function, and no generator."""
    return bool(code.co_flags & _OPTIMIZED) and not code.co_flags & _SUSPENDED


class _Handler(NamedTuple):
    """Where exceptions of a range of offsets lead to."""

    start: int
    end: int
    target: int
    depth: int
    """How much of Python's stack stays."""
    keeps_place: bool
    """Whether the offset of the instruction is put on the stack."""

    def covers(self, offset: int) -> bool:
        return self.start <= offset < self.end


class CodeGraph:
    """Instructions are known by their places in `steps`, without prefixes of arguments and caches."""

    def __init__(self, code: CodeType):
        self.code = code
        listing = dis.Bytecode(code)
        self.steps = [step for step in listing if step.opname not in ("EXTENDED_ARG", "CACHE")]
        self._index = {step.offset: i for i, step in enumerate(self.steps)}
        entries: Any = getattr(listing, "exception_entries", ())
        self.handlers = [_Handler(x.start, x.end, x.target, x.depth, x.lasti) for x in entries]
        self.nexts = [self._successors(i) for i in range(len(self.steps))]
        """Where each instruction leads to, if it raises nothing."""
        self.befores: list[set[int]] = [set() for _ in self.steps]
        """What leads to each instruction."""
        for i, nexts in enumerate(self.nexts):
            for j in (*nexts, *self.handlers_of(i)):
                self.befores[j].add(i)
        self.live = self._liveness()
        """For each instruction, the local variables that are read from there on before they are assigned."""

    def jumps_back(self) -> dict[int, list[int]]:
        """The backward jumps, by their targets."""
        found: dict[int, list[int]] = {}
        for i, step in enumerate(self.steps):
            if "JUMP_BACKWARD" in step.opname and "NO_INTERRUPT" not in step.opname:
                found.setdefault(self._beyond_nothing(step.argval), []).append(i)
        return found

    def natural_loop(self, target: int, jump: int) -> set[int]:
        """The instructions that lead to a jump without its target between.

        What Python puts behind the function, as the end of a ``with`` that an exception leaves, is among them.
        """
        found, pending = {target, jump}, [jump]
        while pending:
            i = pending.pop()
            if i != target:
                new = self.befores[i] - found
                found |= new
                pending.extend(new)
        return found

    def _beyond_nothing(self, offset: int) -> int:
        """The instruction that is at an offset, or behind what does nothing there."""
        at = self.place(offset)
        while self.steps[at].opname == "NOP":
            at += 1
        return at

    def place(self, offset: int) -> int:
        """The instruction that is at an offset, or whose argument begins there."""
        while offset not in self._index:
            offset += 2
        return self._index[offset]

    def running_at(self, offset: int) -> int:
        """The instruction that runs where Python says that a frame is, perhaps at one of its caches."""
        while offset not in self._index:
            offset -= 2
        return self._index[offset]

    def offsets(self, at: int) -> range:
        """Those of an instruction and its caches."""
        end = self.steps[at + 1].offset if at + 1 < len(self.steps) else len(self.code.co_code)
        return range(self.steps[at].offset, end, 2)

    def line(self, at: int) -> int:
        positions = self.steps[at].positions
        return self.code.co_firstlineno if positions is None or positions.lineno is None else positions.lineno

    def _liveness(self) -> list[frozenset[str]]:
        always = frozenset((*self.code.co_cellvars, *self.code.co_freevars))
        live = [always] * len(self.steps)
        changes = True
        while changes:
            changes = False
            for i in range(len(self.steps) - 1, -1, -1):
                after = set(always).union(*(live[j] for j in self.nexts[i]))
                handled = [live[j] for j in self.handlers_of(i)]
                _step_back(self.steps[i], after)
                found = frozenset(after.union(*handled))
                if found != live[i]:
                    live[i], changes = found, True
        return live

    def _successors(self, i: int) -> list[int]:
        step = self.steps[i]
        found = []
        if step.opname not in _UNCONDITIONAL and i + 1 < len(self.steps):
            found.append(i + 1)
        if step.opcode in _JUMPS:
            found.append(self.place(step.argval))
        return found

    def handlers_of(self, i: int) -> list[int]:
        offset = self.steps[i].offset
        return [self.place(x.target) for x in self.handlers if x.covers(offset)]


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
