"""Functions whose paths meet where they return: what follows is traced once, whatever their conditions were.

Without that, each path through a function is followed to the end of the code. Where there would be many, a function
that asks is run by itself where it is called, once for each of its paths, and ``lax.cond`` chooses among what they
give. Then the call itself goes one of these paths; what it computes is dropped, and the tensors of its result get the
chosen values. For that to be right,

- the function must change nothing that it can reach: all of that (`loop_state`) is compared before and after each path;
- its results must be trees of one form, of tensors and equal other values;
- a tensor that is new on one path and an argument on another is one by itself behind the call. Nobody may write to
  either from then on (`guards`);
- where it may raise an exception, nobody may handle that.

Paths through a function for which that does not hold are followed as before, or meet where its caller returns.
"""

import dis
import functools
import sys
import types
from collections import deque
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, NamedTuple

import jax
from jax.extend.core import jaxpr_as_fun

from ..errors import is_library
from ..tensors.journal import Journal, Uncontained
from ..tensors.storage import lose_traced
from ..translation import this_call
from .code_graph import can_see_through
from .handlers import is_handled
from .joins import AskedAt, JoinPoints
from .leaves import beginning_anew
from .loop_heads import heads_of
from .loop_state import EVERYTHING, State, Unlike
from .met_paths import MetPaths, PathResult
from .outcomes import outcome_of
from .remembered import Beginning, Computed

_VARARGS, _VARKEYWORDS = 0x04, 0x08
_REBINDS = ("STORE_DEREF", "DELETE_DEREF")


class _CannotMeet(BaseException):
    """The paths through a function cannot meet: no `Exception`, which would be that of one path."""


class _ExploredPath(NamedTuple):
    """What is kept of one path through a function."""

    result: PathResult
    script: list[bool]


class _Explored(NamedTuple):
    """What all paths compute together."""

    beginning: Beginning
    computed: Computed
    paths: list[_ExploredPath]
    may_raise: bool
    executed: set[CodeType]
    """What has run on any path."""


class Meetings:
    """What is known of the functions whose paths meet.

    Args:
        follow: runs code on all paths through it, as `paths.followed` does.
    """

    def __init__(self, follow: Callable):
        self.follow = follow
        self.are_on = self.are_possible = False
        """Whether paths meet, and whether a condition was asked whose paths might."""
        self.aliased: set[CodeType | AskedAt] = set()
        """The functions and conditions behind which tensors are two that are one on some paths."""
        self.codes: set[CodeType] = set()
        self.refusals: dict[CodeType, str] = {}
        self.explored: CodeType | None = None
        """The function that is about to be run by itself."""
        self.known: dict[CodeType, list[_Explored]] = {}

    @functools.cached_property
    def points(self) -> JoinPoints:
        """The conditions whose paths join at the next statement."""
        return JoinPoints()

    def note_condition(self, base: FrameType | None) -> bool:
        """Takes note of the functions that a condition is asked in; whether the paths of a new one shall meet.

        Args:
            base: the frame of this package that has called the code.
        """
        if not self.are_on:
            self.are_possible = self.are_possible or bool(self.around(base) or self.points.around(base))
            return False
        code = self.around(base)
        if code is None or code in self.codes:
            return False
        self.codes.add(code)
        return True

    def around(self, base: FrameType | None) -> CodeType | None:
        """The innermost function that runs whose paths may meet."""
        return next((x for x in _asking(base) if x not in self.refusals), None)

    def refuse(self, code: CodeType, reason: str) -> None:
        """Lets the paths through a function be followed to the end of the code."""
        self.codes.discard(code)
        self.refusals[code] = reason
        self.known.clear()


def _asking(base: FrameType | None) -> list[CodeType]:
    """The functions that run, the innermost first, up to the one that is followed itself, or that has a loop there."""
    frame, found = sys._getframe(1), []
    while frame is not None and frame is not base:
        code = frame.f_code
        if not is_library(code.co_filename):
            if not can_see_through(code):
                return found
            if any(frame.f_lasti in head.within for head in heads_of(code)):
                return found
            found.append(code)
        frame = frame.f_back
    return found[:-1]


class Meeting:
    """A call of a function whose paths meet.

    Args:
        path: the one that the code around it is on.
        frame: that of the call, at its beginning.
        base: the frame of this package that has called the code.

    Raises:
        Unlike: the paths cannot meet.
    """

    def __init__(self, meetings: Meetings, path: Any, frame: FrameType, base: FrameType | None):
        self._meetings, self._path, self._code, self._frame = meetings, path, frame.f_code, frame
        shown = dict(frame.f_locals)
        self._free = {name: shown.get(name) for name in self._code.co_freevars}
        self._before = State(shown, self._code, frame.f_globals, EVERYTHING)
        beginning = Beginning(self._before)
        known = meetings.known.setdefault(self._code, [])
        found = next((x for x in known if x.beginning.is_like(beginning)), None)
        if found is None:
            found, self._arrays = self._explored(beginning)
            if found.computed.serves_again:
                known.append(found)
        else:
            self._arrays = found.computed.run(self._before)
        if found.may_raise and is_handled(frame.f_back, base):
            raise Unlike("an exception of it may be handled")
        path.executed.update(found.executed)
        self._met = MetPaths([path.result for path in found.paths])
        self._chosen = found.paths[self._met.chosen]

    @property
    def script(self) -> deque[bool]:
        """The answers with which the call goes on."""
        return deque(self._chosen.script)

    def _explored(self, beginning: Beginning) -> tuple[_Explored, list]:
        """Runs the function by itself on all of its paths."""
        self._function, self._args, self._keywords = _called(self._frame)
        self._raises, self._executed, paths = False, set(), []

        def follow() -> list:
            arrays, paths[:] = self._meetings.follow(self._run, self._path.policy)
            return arrays

        try:
            jaxpr = sys.call_tracing(jax.make_jaxpr(follow), ())
        except (_CannotMeet, Uncontained, Exception) as error:
            kind = "" if isinstance(error, _CannotMeet) else f"{type(error).__name__}: "
            raise Unlike(f"{kind}{error}") from error
        finally:
            self._meetings.explored = None
        computed = Computed(self._before, jaxpr)
        return _Explored(beginning, computed, paths, self._raises, self._executed), jaxpr_as_fun(jaxpr)()

    def _run(self, path: Any) -> tuple[list, _ExploredPath]:
        call = this_call()
        stream, journal = call.stream.state, Journal()
        call.paths.append(path)
        try:
            with journal, call.nested():
                try:
                    with beginning_anew(self._before, call.tape) as has_begun:
                        begun = self._state() if has_begun else self._before
                        self._meetings.explored = self._code
                        result = self._function(*self._args, **self._keywords)
                        self._expect_unchanged(begun, path, journal)
                    return self._ended(result, path)
                except BaseException as error:
                    self._raises = self._raises or isinstance(error, Exception)
                    journal.cancel()
                    raise
        finally:
            self._meetings.explored = None
            call.paths.pop()
            path.end()
            call.stream.state = stream
            lose_traced(journal.survivors())

    def _state(self) -> State:
        return State(self._before.roots, self._code, self._before.globals, EVERYTHING)

    def _expect_unchanged(self, before: State, path: Any, journal: Journal) -> None:
        shown = self._frame.f_locals
        try:
            if journal.writes or journal.changes_older:
                raise Unlike("it writes to tensors from outside")
            if any(shown.get(name) is not value for name, value in self._free.items()):
                raise Unlike("a variable around it changes")
            changes = before.changes_until(self._state())
            if changes:
                raise Unlike(f"it changes {changes[0].path}")
            if path.has_loops:
                raise Unlike("it has a loop on data")
        except Unlike as unlike:
            raise _CannotMeet(str(unlike)) from unlike

    def _ended(self, result: Any, path: Any) -> tuple[list, _ExploredPath]:
        call, before = this_call(), self._before
        self._executed.update(path.executed)
        try:
            found = outcome_of(result, before)
        except Unlike as unlike:
            raise _CannotMeet(str(unlike)) from unlike
        given, arrays = PathResult.of(found, before, path.guards)
        script = [condition.answer for condition in path.asked]
        return [*map(call.leaving, arrays)], _ExploredPath(given, script)

    def give(self, result: Any) -> None:
        """Lets what the call gives hold the values of all paths.

        Raises:
            Unlike: the call has not gone the path that it was to go.
        """
        found = outcome_of(result, self._before)
        if self._met.has_aliases:
            self._meetings.aliased.add(self._code)
        self._met.give(found, self._arrays, self._before, self._path.guards, self._code)


def _called(frame: FrameType) -> tuple[Callable, list, dict]:
    """The function that a frame has begun to run, and its arguments.

    Raises:
        Unlike: it rebinds variables of functions around it, which cannot be seen.
    """
    code, shown = frame.f_code, frame.f_locals
    if _rebinds(code):
        raise Unlike("it assigns to a variable of a function around it")
    cells = [types.CellType(shown[name]) if name in shown else types.CellType() for name in code.co_freevars]
    function = types.FunctionType(code, frame.f_globals, code.co_name, None, tuple(cells))
    count, names = code.co_argcount, code.co_varnames
    args, behind = [shown[name] for name in names[:count]], count + code.co_kwonlyargcount
    keywords = {name: shown[name] for name in names[count:behind]}
    if code.co_flags & _VARARGS:
        args.extend(shown[names[behind]])
        behind += 1
    if code.co_flags & _VARKEYWORDS:
        keywords.update(shown[names[behind]])
    return function, args, keywords


@functools.cache
def _rebinds(code: CodeType) -> bool:
    return any(x.opname in _REBINDS and x.argval in code.co_freevars for x in dis.get_instructions(code))
