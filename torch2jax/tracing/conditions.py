"""Conditions on traced values: what the user says of them, and who answers them.

A plain run of code gives up at the first. A converted one has operators (`control/`), and asks here only where code is
not converted. What decides nothing has an answer at once: questions of libraries that save time, or warn. Both answers
give the same values, so one of them is given, and the other path is not traced.
"""

import linecache
import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn

import jax
from jax import lax
from jax.experimental import checkify

from ..runtime.errors import BranchError, TracedValueError
from ..runtime.errors.locations import SourceLine, caller_line, user_level, user_line
from ..runtime.errors.unwinding import Restart, RetryBudget
from ..runtime.translation import Call, this_call
from ..tensors.tensor import Torchish
from .traces import current_trace, decides, without_derivatives

_MOST_SHOWN = 8


class LineHints:
    """Hints for lines, by the file and the line or function, and the lines that have asked for them.

    Args:
        name: of the argument that says it.
        given: a mapping from ``"file.py:line"``, ``"file.py:function"`` or ``"function"`` to what is said there.
        is_allowed: whether a value is one that may be said.
        wanted: describes such a value, in errors.
        what_they_do: describes the lines that ask, in warnings.

    Raises:
        TypeError: a key names no place, or a value is not allowed.
    """

    def __init__(
        self,
        name: str,
        given: Mapping[str, object] | None,
        is_allowed: Callable[..., object],
        wanted: str,
        what_they_do: str,
    ):
        self._name, self._what_they_do = name, what_they_do
        self._entries: list[tuple[str, str, str, object]] = []
        self._queried: dict[tuple[SourceLine, ...], None] = {}
        self._warned: set[str] = set()
        for key, value in (given or {}).items():
            file, colon, at = key.rpartition(":") if isinstance(key, str) else ("", "", "")
            is_valid = file and at if colon else at.isidentifier() or at == "<lambda>"
            if not is_valid or not is_allowed(value):
                raise TypeError(
                    f"{name} got {key!r}: {value!r}; wanted 'file.py:line', 'file.py:function' or 'function', "
                    f"and {wanted}"
                )
            self._entries.append((key, os.path.normpath(file) if file else "", at, value))

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
    is_in_file = not file or (os.sep + location.file).endswith(os.sep + file)
    return is_in_file and at in (str(location.line), location.function)


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
    groups: tuple[tuple[object, tuple[str, ...]], ...] = ()
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

    def check(self, is_right: jax.Array, message: str) -> None:
        """Checks that a traced bool is true, as checks of code's own are made."""
        check = self.checking
        if check is not None:
            check(is_right, message)

    @property
    def checking(self) -> Callable[[object, str], None] | None:
        """The function that checks that a traced bool is true, with a message; None if there is none."""
        return _CHECKS[self.checks]


FOLLOWING = BranchPolicy()


def _by_checkify(is_right: jax.Array, message: str) -> None:
    checkify.check(is_right, message.replace("{", "{{").replace("}", "}}"))


def _at_run_time(is_right: object, message: str) -> None:
    def expect(is_right: object):
        if not is_right:
            raise RuntimeError(message)

    jax.debug.callback(expect, is_right)


_CHECKS: dict[str, Callable[[Any, str], None] | None] = {
    "assume": None,
    "checkify": _by_checkify,
    "raise": _at_run_time,
}


_SETTLED = 2**11  # answers that the user has said: more are a loop which they do not end


class Path:
    """The path of a plain run, on which every condition has one answer.

    Args:
        trace: what JAX traces the code with.
    """

    def __init__(self, policy: BranchPolicy, trace: object):
        self.policy, self.trace = policy, trace
        self._retry_budget: RetryBudget | None = None
        self._settled = 0
        """How many conditions had the answer that the user has said."""

    is_one_of_several = False
    """Whether the code runs again for other answers."""

    @property
    def retry_budget(self) -> RetryBudget:
        """The number of times that the code may catch what ends it."""
        if self._retry_budget is None:
            self._retry_budget = RetryBudget()
        return self._retry_budget

    def is_in_its_trace(self, call: Call) -> bool:
        """True if the code runs in the path's own trace, within no transformation that it has started."""
        return self.is_above(call) and (call.tape is None or call.tape.is_beside(self.trace))

    def is_above(self, call: Call) -> bool:
        """The same, also within derivatives that JAX takes of the code."""
        tape = call.tape
        is_there = current_trace() is self.trace if tape is None else tape.is_above(self.trace)
        return is_there and not call.transformations and call.dual is None

    def can_decide(self, tensor: Torchish) -> bool:
        """True if conditions on a tensor can be asked where the code is."""
        return self.policy.max_paths > 1 and decides(deciding_array(tensor), self.trace)

    def decision(self, tensor: Torchish, what: str) -> bool:
        """The answer to ``bool(tensor)``.

        Raises:
            TracedValueError: it cannot be asked there.
            BaseException: to who runs the code.
        """
        if this_call().execution.ended_by is not None:
            raise Restart(follows=True)
        location, asking = user_line(), caller_line()
        idle = idle_decision(asking)
        if idle is not None:
            return idle
        settled = self.policy.decision(location, asking) if self.policy.branches else None
        if settled is not None:
            self._expect_end(location)
        if settled is not None and self.policy.checks == "assume":
            self.expect(tensor, settled, location)
            return settled
        flag = _flag(tensor)
        if not decides(flag, self.trace) or (settled is None and self.policy.max_paths == 1):
            raise TracedValueError(what)
        if settled is not None:
            holds = flag if settled else lax.bitwise_not(flag)
            self.policy.check(holds, f"t2j was told that the answer is {settled}, at {location}")
            return settled
        return self._ask(flag, location)

    def _expect_end(self, location: SourceLine) -> None:
        """Refuses a loop that goes on for ever by what the user has said."""
        self._settled += 1
        if self._settled > _SETTLED:
            raise BranchError(
                f"bool(tensor) at {location} tests a traced value again and again, and `branches=` says the answer: "
                f"got {self._settled} tests. Wanted code that ends with these answers: choose one that ends the loop"
            )

    def expect(self, tensor: Torchish, decision: bool, location: SourceLine) -> None:
        """Lets results of the call tell, by nan, where a condition has another answer than was said."""
        call = this_call()
        if not self.is_in_its_trace(call):
            return
        flag = _flag(tensor)
        if decides(flag, self.trace):
            holds = flag if decision else lax.bitwise_not(flag)
            call.execution.expect_to_fit(holds, f"bool(tensor) at {location} was told that the answer is {decision}")

    def _ask(self, flag: jax.Array, location: SourceLine) -> bool:
        self.discard()

    def convert(self) -> None:
        """Is called where converted code goes on, and other code does not: a first run is over."""
        if self.policy.max_paths > 1:
            self.discard()

    def discard(self) -> NoReturn:
        """Ends the run."""
        raise Restart(follows=True)

    def end(self) -> None:
        """Releases what is of the run that ends."""
        if self._retry_budget is not None:
            self._retry_budget.end()


def deciding_array(tensor: Torchish) -> Any:
    """The array of a tensor that is asked, without derivatives."""
    tape = this_call().tape
    array = tensor.read()
    return without_derivatives(array if tape is None else tape.primal(array))


def _flag(tensor: Torchish) -> Any:
    array = deciding_array(tensor)
    array = array if array.shape == () else lax.reshape(array, ())
    return array if array.dtype == bool else lax.ne(array, lax.full_like(array, 0))


def decision(tensor: Torchish, what: str) -> bool:
    """The answer to ``bool(tensor)`` of a traced tensor of one element, where the code is.

    Args:
        what: the condition, for errors.

    Raises:
        TracedValueError: it cannot be asked there.
        BaseException: to who runs the code.
    """
    return this_call().paths[-1].decision(tensor, what)


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
