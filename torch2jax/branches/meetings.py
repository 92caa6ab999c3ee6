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
import torch
from jax import lax
from jax.extend.core import jaxpr_as_fun

from ..errors import is_library
from ..tensors.journal import Journal, Uncontained
from ..tensors.rebinding import set_geometry
from ..tensors.storage import lose_traced
from ..tensors.tensor import strides_of_shape
from ..tracing.tensor_spec import TensorSpec
from .call import this_call
from .handlers import is_handled
from .leaves import beginning_anew
from .loop_heads import heads_of
from .loop_state import State, Unlike
from .outcomes import ResultTree, joined, outcome_of, with_tensors
from .remembered import Beginning, Computed

__all__ = ["Meeting", "Meetings"]

_OPTIMIZED, _SUSPENDED = 0x1, 0x20 | 0x80 | 0x100 | 0x200  # code flags: has fast locals; generators, coroutines
_VARARGS, _VARKEYWORDS = 0x04, 0x08
_REBINDS = ("STORE_DEREF", "DELETE_DEREF")


class _CannotMeet(BaseException):
    """The paths through a function cannot meet: no `Exception`, which would be that of one path."""


class _All(set[CodeType]):
    """All code: what functions see that do not run on one path may be seen on another."""

    def __contains__(self, code: object) -> bool:
        return True


class _ExploredPath(NamedTuple):
    """What is kept of one path through a function."""

    outcome: ResultTree
    specs: list[TensorSpec]
    places: list[tuple[tuple[int, ...], Any]]
    """The strides of its tensors, and where they begin in memory."""
    script: list[bool]
    guarded: tuple[str, ...]
    """What must not be written to from now on, by its path before."""
    are_guarded: tuple[bool, ...]
    """The same of the tensors that it gives."""


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
        """Whether paths meet, and whether a function has asked whose paths might."""
        self.codes: set[CodeType] = set()
        self.refusals: dict[CodeType, str] = {}
        self.explored: CodeType | None = None
        """The function that is about to be run by itself."""
        self.known: dict[CodeType, list[_Explored]] = {}

    def note_condition(self, base: FrameType | None) -> bool:
        """Takes note of the functions that a condition is asked in; whether the paths of a new one shall meet.

        Args:
            base: the frame of this package that has called the code.
        """
        code = next((x for x in _asking(base) if x not in self.refusals), None)
        self.are_possible = self.are_possible or code is not None
        if code is None or not self.are_on or code in self.codes:
            return False
        self.codes.add(code)
        return True

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
            if not code.co_flags & _OPTIMIZED or code.co_flags & _SUSPENDED:
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
        self._before = State(shown, self._code, frame.f_globals, _All())
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
        self._paths = found.paths
        self._differ, chosen = joined([path.outcome for path in found.paths])
        self._chosen = found.paths[chosen]

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
        return State(self._before.roots, self._code, self._before.globals, _All())

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
            outcome, tensors, _ = outcome_of(result, before)
        except Unlike as unlike:
            raise _CannotMeet(str(unlike)) from unlike
        lifted = [call.lift(tensor) for tensor in tensors]
        guarded = tuple([before.seen[id(x)] for x in path.guards.things() if id(x) in before.seen])
        are_guarded = tuple([path.guards.cause(x._node.storage.memory) is not None for x in lifted])
        script = [condition.answer for condition in path.asked]
        specs = [TensorSpec.of(x) for x in lifted]
        places = [(x.stride(), x.storage_offset()) for x in lifted]
        path_found = _ExploredPath(outcome, specs, places, script, guarded, are_guarded)
        return [call.leaving(x.read()) for x in lifted], path_found

    def give(self, result: Any) -> None:
        """Lets what the call gives hold the values of all paths.

        Raises:
            Unlike: the call has not gone the path that it was to go.
        """
        outcome, tensors, containers = outcome_of(result, self._before)
        if outcome != self._chosen.outcome:
            raise Unlike("it does not do the same each time")
        put: list[Any] = [None] * len(tensors)
        for i, (leaf, tensor) in enumerate(zip(outcome.leaves, tensors, strict=True)):
            if self._differ[i]:
                new = self._tensor(i)
                self._guard(i, new)
                if leaf.existing is None:
                    _take(tensor, new)
                else:
                    put[i] = new
        with_tensors(result, iter(put))
        self._guard_lists(containers)

    def _tensor(self, place: int) -> Any:
        """The tensor that holds the values of all paths; where their strides differ, it is contiguous."""
        specs = [path.specs[place] for path in self._paths]
        if len({(spec.dtype, spec.device) for spec in specs}) > 1:
            raise Unlike("it gives tensors of different dtypes")
        array, spec, tape = self._arrays[place], specs[0]._replace(wants_grad=False, layout=None), this_call().tape
        is_recorded = torch.is_grad_enabled()
        if is_recorded and tape is not None and tape.knows(array):
            raise Unlike("its result requires grad")
        if not is_recorded and spec.is_differentiable:
            array = lax.stop_gradient(array)
        found = {path.places[place] for path in self._paths}
        strides, offset = found.pop() if len(found) == 1 else (strides_of_shape(array.shape), 0)
        new = spec.at(array, strides, offset)
        if not is_recorded:
            new._node.storage.differentiable = False
        return new

    def _guard(self, place: int, new: Any) -> None:
        leaves = [path.outcome.leaves[place] for path in self._paths]
        is_alias = any(leaf.existing is not None or leaf.shares is not None or leaf.is_entangled for leaf in leaves)
        if is_alias or any(path.are_guarded[place] for path in self._paths):
            self._path.guards.add(new._node.storage.memory, self._code)
        for leaf in leaves:
            if leaf.shares is not None:
                self._add_guard(leaf.shares)

    def _guard_lists(self, containers: list) -> None:
        for place, container in enumerate(containers):
            existing = {path.outcome.containers[place] for path in self._paths}
            if len(existing) > 1:
                self._path.guards.add(container, self._code)
                for path in existing - {None}:
                    self._add_guard(path)
        for path in self._paths:
            for guarded in path.guarded:
                self._add_guard(guarded)

    def _add_guard(self, path: str | None) -> None:
        before: Any = self._before
        storage = before.storages.get(path)
        self._path.guards.add(before.entries[path].value if storage is None else storage.memory, self._code)


def _take(tensor: Any, new: Any) -> None:
    """Lets a tensor be where another is."""
    if (tensor.stride(), tensor.storage_offset()) != (new.stride(), new.storage_offset()):
        set_geometry(tensor, new)
    tensor._node, tensor._writes = new._node, new._writes
    tensor._viewed = tensor._restriction = None


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
