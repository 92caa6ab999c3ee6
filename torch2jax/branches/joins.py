"""Conditions whose paths join again at the next statement: what follows is traced once, not once for each path.

Without that, sequential conditions multiply: eight of them are 256 paths through the code. Where there would be many,
each run of the code ends where the paths from a condition join (`join_points`). When all paths up to there are known,
one of them goes on: a ``lax.cond`` chooses among what they have computed, and its values are put into the variables
(`met_paths`). For that to be right,

- a path may assign to variables of the function, to attributes and to items that are there, and write to tensors; all
  else that it can reach (`loop_state`) stays;
- all of these hold the like on all paths: trees of one form, of tensors and equal other values;
- what was answered on one of the paths is forgotten there: the others may answer otherwise.

Paths for which that does not hold join in the function that has called this one, or are followed to the end.
"""

import sys
from collections.abc import Container, Iterable
from types import CodeType, FrameType
from typing import Any, NamedTuple

from jax.extend.core import Primitive

from ..errors import is_translator
from ..internals.frames import set_locals
from ..tensors.history import UNRECORDED
from ..tensors.physical import PhysicalArray
from ..tensors.storage import Storage
from ..tracing.traces import running
from ..translation import current, this_call
from .code_graph import can_see_through
from .join_points import JoinPoint, join_point
from .loop_state import EVERYTHING, Place, State, Unlike
from .met_paths import MetPaths, PathResult
from .outcomes import outcome_of_variables

join_p = Primitive("join")
"""Marks where a path ends, since others join it: with what it has computed."""
join_p.multiple_results = True
join_p.def_abstract_eval(lambda *_, **__: [])
joined_p = Primitive("joined")
"""Marks where they go on as one: from what the path has on which the run is, to what any has."""
joined_p.multiple_results = True
joined_p.def_abstract_eval(lambda *avals, **_: [aval.strip_weak_type() for aval in avals])


_MOST = 32  # refused conditions: each has cost some runs, and others are likely to be refused as well


class AskedAt(NamedTuple):
    """The instruction in which a condition is asked, perhaps by a function that it calls."""

    code: CodeType
    offset: int


class JoinPoints:
    """What is known of the conditions whose paths join, from run to run."""

    def __init__(self):
        self.codes: set[CodeType] = set()
        """The code in which paths join."""
        self.refusals: dict[AskedAt, str] = {}
        self.written: dict[AskedAt, set[str]] = {}
        """The paths of memory that is written to before they join."""
        self.assigned: dict[AskedAt, set[str]] = {}
        """Those of attributes and items that are assigned to."""

    def around(self, base: FrameType | None) -> tuple[FrameType, AskedAt, JoinPoint] | None:
        """Where the paths join of a condition that is asked now: in the innermost function that it can be.

        Args:
            base: the frame of this package that has called the code.
        """
        frame = sys._getframe(1)
        if len(self.refusals) > _MOST:
            return None
        while frame is not None and frame is not base:
            code = frame.f_code
            if not is_translator(code.co_filename):
                if not can_see_through(code):
                    return None
                point, asked = join_point(code, frame.f_lasti), AskedAt(code, frame.f_lasti)
                if point is not None and asked not in self.refusals:
                    return frame, asked, point
            frame = frame.f_back
        return None

    def refuse(self, asked: AskedAt, reason: str) -> None:
        self.refusals[asked] = reason


class _JoiningPath(NamedTuple):
    """What is kept of a path that ends where others join it."""

    result: PathResult
    forms: list[tuple]
    """The shapes and dtypes of what it has computed."""
    written: list[tuple[bool, bool]]
    """Of what is written to, whether it has derivatives, and requires grad."""
    answers: tuple[bool, ...]
    """To all conditions up to there."""


class Join:
    """The paths from one condition, in one exploration of the code.

    Args:
        key: the answers that were given before.
    """

    def __init__(self, key: tuple[bool, ...], asked: AskedAt):
        self.key, self.asked = key, asked
        self.paths: list[_JoiningPath] = []
        self.met: MetPaths | None = None
        """What they give together, once all are known."""

    @property
    def answers(self) -> tuple[bool, ...]:
        """Those of the path that goes on."""
        assert self.met is not None
        return self.paths[self.met.chosen].answers

    def meet(self) -> None:
        """Is called when all paths are known.

        Raises:
            Unlike: they cannot go on as one.
        """
        met = MetPaths([path.result for path in self.paths])
        if any(path.forms != self.paths[0].forms for path in self.paths):
            raise Unlike("it has tensors of different shapes or dtypes on different paths")
        self.met = met


class _OpenCondition(NamedTuple):
    """A condition whose paths have not joined yet, in one run."""

    frame: FrameType
    asked: AskedAt
    point: JoinPoint
    known: dict
    """The answers that were known when it was asked."""
    number: int
    """How many conditions had been asked."""
    before: State | None
    """What lived there; None where the run only repeats what another one has done."""
    rest: State | None
    """All of that but what is assigned to before the paths join."""


class OpenConditions:
    """The conditions of one run whose paths have not joined yet.

    Args:
        path: the one that the run is on.
        joins: those of this exploration, by the answers that were given before.
    """

    def __init__(self, points: JoinPoints, path: Any, joins: dict[tuple[bool, ...], Join]):
        self._points, self._path, self._joins = points, path, joins
        self._open: list[_OpenCondition] = []
        self.joined: set[AskedAt] = set()
        """The conditions whose paths have joined on the way."""

    def note(self, repeats: bool) -> None:
        """Is called when a condition is asked.

        Args:
            repeats: whether the run only repeats what another one has done.
        """
        path, call = self._path, this_call()
        found = self._points.around(path.base)
        if found is None or call.paths[-1] is not path or not path.is_in_its_trace(call):
            return
        frame, asked, point = found
        known = {key: list(alike) for key, alike in path.known.items()}
        if repeats:
            self._open.append(_OpenCondition(frame, asked, point, known, 0, None, None))
            return
        if frame.f_code not in self._points.codes:
            self._points.codes.add(frame.f_code)
            path.begin_anew()
        assigned = self._points.assigned.setdefault(asked, set())
        try:
            before = _state(frame, frame.f_locals)
            rest = _state(frame, frame.f_locals, assigned) if assigned else before
        except Unlike as unlike:
            return self._refuse(asked, str(unlike))
        self._open.append(_OpenCondition(frame, asked, point, known, len(path.asked), before, rest))

    def arrive(self, frame: FrameType, offset: int) -> None:
        """Is called where a watched frame has come to an instruction."""
        while any(x.frame is frame and x.point.offset == offset for x in self._open):
            last = self._open.pop()
            if last.frame is not frame or last.point.offset != offset:
                if last.before is not None:
                    self._refuse(last.asked, "an exception leads to other statements")
                continue
            self._path.known = last.known
            if last.before is not None:
                self._join(last, last.before)

    def end(self) -> None:
        """Is called where the run has come to its end: none may be open, but for a check."""
        for condition in self._open:
            if condition.before is not None:
                self._points.refuse(condition.asked, "it ends elsewhere")
                self._path.learn()
        self._open.clear()

    def refuse_joined(self, error: Exception) -> None:
        """Lets the paths be followed to the end that cannot be translated behind where they joined."""
        for asked in self.joined:
            self._points.refuse(asked, f"{type(error).__name__}: {error}")
            self._path.learn()

    def _refuse(self, asked: AskedAt, reason: str) -> None:
        self._points.refuse(asked, reason)
        self._path.begin_anew()

    def _join(self, condition: _OpenCondition, before: State) -> None:
        """Ends the run, or lets it go on for all paths."""
        path, call = self._path, current()
        if path.is_abandoned or call is None:
            return
        key = tuple([x.answer for x in path.asked[: condition.number]])
        join = self._joins.setdefault(key, Join(key, condition.asked))
        try:
            if not path.is_in_its_trace(call):
                raise Unlike("it is inside a transformation that the code has started")
            self._join_at(condition, before, join)
        except Unlike as unlike:
            self._refuse(condition.asked, str(unlike))

    def _join_at(self, condition: _OpenCondition, before: State, join: Join) -> None:
        path, frame, call = self._path, condition.frame, this_call()
        places = self._assigned(condition, before)
        written = self._written(condition, before)
        shown = dict(frame.f_locals)
        variables = {name: shown[name] for name in condition.point.live if name in shown}
        variables |= {name: place.read() for name, place in places.items()}
        found = outcome_of_variables(variables, before, places)
        result, arrays = PathResult.of(found, before, path.guards)
        count = len(arrays)
        arrays = [*arrays, *(x.read() for x in written)]
        if call.tape is not None and any(map(call.tape.knows, arrays)):
            raise Unlike("it requires grad")
        met = join.met
        if met is None:
            answers = tuple([x.answer for x in path.asked])
            forms = [(x.shape, x.dtype) for x in arrays]
            marks = [(x.differentiable, x.history is not None) for x in written]
            join.paths.append(_JoiningPath(result, forms, marks, answers))
            with running(path.trace):
                join_p.bind(*arrays)
            return path.end_at(join)
        self.joined.add(condition.asked)
        if met.has_aliases:
            path.meetings.aliased.add(condition.asked)
        with running(path.trace):
            arrays = joined_p.bind(*arrays, number=condition.number, asked=condition.asked)
        marks = zip(*[other.written for other in join.paths], strict=True)
        for storage, array, of_paths in zip(written, arrays[count:], marks, strict=True):
            storage.replace(PhysicalArray(array, None), None, is_written=True)
            storage.differentiable = any(is_differentiable for is_differentiable, _ in of_paths)
            if storage.history is None and any(wants_grad for _, wants_grad in of_paths):
                storage.history = UNRECORDED
        own = dict(found.result)
        given = met.give(found, arrays, before, path.guards, condition.asked)
        new = {name: value for name, value in given.items() if value is not own[name]}
        set_locals(frame, {name: value for name, value in new.items() if name not in places})
        for name, place in places.items():
            if name in new:
                place.write(new[name])

    def _assigned(self, condition: _OpenCondition, before: State) -> dict[str, Place]:
        """The attributes and items that are assigned to on any path.

        Raises:
            Unlike: one is not always there.
        """
        known = self._points.assigned[condition.asked]
        changed = (path for path, place in before.places.items() if place.has_changed)
        self._expect_known(changed, known, before.places, "assigns to")
        try:
            for path in known:
                before.places[path].read()
        except LookupError as error:
            raise Unlike(f"it deletes something: {error}") from error
        return {path: before.places[path] for path in sorted(known)}

    def _written(self, condition: _OpenCondition, before: State) -> list[Storage]:
        """What is written to on any path.

        Raises:
            Unlike: something else changes that is no attribute or item which is assigned to.
        """
        rest: Any = condition.rest
        known = self._points.written.setdefault(condition.asked, set())
        later = _state(condition.frame, before.roots, self._points.assigned[condition.asked])
        other = next((change for change in rest.changes_until(later) if change.kind != "written"), None)
        if other is not None:
            raise Unlike(f"it changes {other.path}")
        self._expect_known(before.written(), known, before.storages, "writes to")
        return [before.storages[path] for path in sorted(known)]

    def _expect_known(self, found: Iterable[str], known: set[str], there: Container[str], what: str) -> None:
        """Begins anew if a path changes what was not known.

        Raises:
            Unlike: not all that is known is there.
        """
        new = {*found} - known
        if new:
            known.update(new)
            self._path.begin_anew()
        missing = next((path for path in known if path not in there), None)
        if missing is not None:
            raise Unlike(f"it {what} {missing}, which is not always there")


def _state(frame: FrameType, roots: Any, without: Any = ()) -> State:
    return State(roots, frame.f_code, frame.f_globals, EVERYTHING, without=without, heeds_grad=False)
