"""Conditions on traced values: runs the code once for each path, so that both branches are traced.

A call begins without that. The first condition abandons the run. Then the code runs once for each path, each time in
its own trace. Python does the same in all runs until an answer differs, so two traces begin with the same equations,
which appear once in the graph. A ``lax.cond`` follows, whose branches have the remaining equations. Equations that both
branches end with move behind it.

A path that ends in an exception that the code itself raises is a check: it is assumed never to be taken.
"""

import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.core import Tracer
from jax.extend.core import Literal, Var

from ..errors import BranchError, SourceLine, is_raised_by_code
from ..loops.program import evaluated, pruned
from ..tensors.trees import flatten
from ..tracing.traces import current_trace, ending_with_errors
from ..translation import current
from .ends import StaticLeaf
from .joined_paths import Again, Ended, Met, PathNode, Raised, Side, program_of
from .joins import Join, join_p, joined_p
from .loop_facts import Loops
from .loop_room import Learned, guess_room
from .loop_state import Unlike
from .loop_watch import again_p, enter_p, skip_p
from .meetings import Meetings
from .path import Condition, Fork, Path, condition_p
from .policy import BranchPolicy
from .programs import is_same_step, new_var
from .reads_again import ReadsAgain

_LEARNED = 2**10  # times that paths are gone anew, since something was learned of loops; most programs take ten
_MANY = 24  # paths: where there are more, those of functions meet
_FEW = 4  # conditions that a way may ask though there may be no room for its other ways: they may be checks

# For each of the paths that are allowed, and for no fewer than this many:
_AT_LEAST = 64
_ITERATIONS = 4  # conditions of one line on one path: a loop that nothing but exceptions ends has no other bound
_RUNS = 16  # paths of all kinds
_ASKED = 512  # conditions on all of them: what is traced grows with the square of a loop's iterations

_MARKS = (condition_p, enter_p, again_p, join_p, joined_p)


class _PathRun(NamedTuple):
    """One run of the code: what it asked, and the equations that it left."""

    asked: list[Condition]
    end: Ended | Raised | Again | Met | None
    """None if the path was left unfinished."""
    steps: list
    results: list
    consts: list[tuple[Var, Any]]

    @property
    def loop(self) -> tuple[SourceLine, int]:
        """The line that asks most often, and how often it does."""
        asking = Counter(condition.place for condition in self.asked if not condition.is_settled)
        return max(asking.items(), key=lambda item: item[1], default=(SourceLine("", 0, ""), 0))


class _Gone(NamedTuple):
    """What counts of a run."""

    answers: tuple[bool, ...]
    is_live: bool
    """Whether it has ended, but not in a check."""
    is_raised: bool


class _PathStart(NamedTuple):
    """Where paths are still to be gone."""

    answers: tuple[bool, ...]
    side: tuple[SourceLine, bool] | None
    """The last of the answers, if no run has given it."""
    unfinished: _PathRun | None = None
    """The run that goes on there."""


def followed(run: Callable[[Path], tuple[Any, Any]], policy: BranchPolicy, pads: bool = False) -> tuple[Any, list]:
    """Runs code on every way through it, and computes in the current trace what it gives.

    Args:
        run: gives a tree of arrays and other things, and anything to note. It can run again and again.
        pads: whether an array that is longer on one path than on another becomes a padded one.

    Returns:
        The tree, and what each path noted.

    Raises:
        BranchError: the paths do not end alike, one cannot be translated, or there are too many.
        Exception: what the code raises, whatever the answers are.
    """
    call = current()
    around = None if call is None else call.paths[-1].meetings
    meetings = around or Meetings(followed)
    loops = Loops(meetings)
    while loops.tries < _LEARNED:
        were_on = meetings.are_on
        try:
            return _Paths(run, policy, loops, pads).joined()
        except Learned:
            loops.begin()
            if meetings.are_on and not were_on:
                loops = Loops(meetings)
    raise BranchError(
        f"the loops and functions of the code are not the same in any two of {_LEARNED} tries to trace its paths"
        f"{loops.refused}. Write the loop with torch.while_loop (torch._higher_order_ops.while_loop)"
    )


class _Paths:
    def __init__(self, run: Callable[[Path], tuple[Any, Any]], policy: BranchPolicy, loops: Loops, pads: bool):
        self._run, self._policy, self._loops, self._pads = run, policy, loops, pads
        self._root = PathNode()
        self._joins: dict[tuple[bool, ...], Join] = {}
        self._checks: set[tuple[SourceLine, bool]] = set()
        self._passed: set[tuple[SourceLine, bool]] = set()
        """Answers that are on paths which end, but not in checks."""
        self._confirmed = 0
        """How many paths were expected to be such ones, and were."""
        self._ask_again = False
        """Whether a path asks more than twice at one line."""
        self._gone: list[_Gone] = []
        self._consts: dict[Any, Var] = {}
        self._values: dict[Var, Any] = {}

    @property
    def _live(self) -> int:
        return sum(gone.is_live for gone in self._gone)

    def joined(self) -> tuple[Any, list]:
        self._explore()
        try:
            side = program_of(self._root, self._values, self._policy, self._loops, self._pads)
            results = iter(() if not isinstance(side, Side) else evaluated(pruned(side.program), self._values))
        except RecursionError as error:
            raise BranchError(
                f"branches are nested too deep: got {self._live} paths through the code, one inside another, more than "
                "Python's stack can hold. Write a loop that ends on data with torch.while_loop, or raise the limit by "
                "sys.setrecursionlimit"
            ) from error
        if isinstance(side, Raised):
            raise side.error
        leaves = [next(results) if leaf is None else leaf.value for leaf in side.leaves]
        return side.structure.unflatten(leaves), side.notes

    def _explore(self) -> None:
        """Goes all paths, the last first that part from one which was gone.

        Those behind answers that have led to an end are gone later, the shortest first: these are paths too, and more
        follow from a short one, so it shows soon if there are too many.
        """
        pending = [_PathStart((), None)]
        while pending:
            start = pending.pop(self._next(pending))
            expected = sum(other.side is not None and other.side not in self._checks for other in pending)
            budget = self._policy.max_paths - self._live - expected
            if start.unfinished is not None and budget <= 0:
                raise self._too_many(start.unfinished)
            try:
                run = self._go(start.answers, max(budget, _FEW))
            except Learned:
                pending = self._anew(start, pending)
                continue
            if run.end is None and budget <= 0:  # neither way out of a loop is one of a few
                raise self._too_many(run)
            self._insert(run)
            if isinstance(run.end, Again) and run.end.loop.needs_room:
                guess_room(self._loops, run.end.loop, self._root, self._values)
            self._count(run)
            pending.extend(self._others(start, run))
            self._confirmed += self._is_certain(start) and run.end is not None
            self._let_meet(run, pending)
            if self._are_certainly_many(pending):
                raise self._too_many(run)
            if self._joins:
                self._go_on_joined(pending)

    def _are_certainly_many(self, pending: list[_PathStart]) -> bool:
        """Whether there are too many paths, as those tell that were gone."""
        is_known = self._confirmed >= _FEW and not self._joins  # what joins others is no path of its own
        return is_known and self._live + self._certain(pending) > self._policy.max_paths

    def _next(self, pending: list[_PathStart]) -> int:
        """Which one is next."""
        last = len(pending) - 1
        if not last:
            return last
        unknown = (i for i in range(last, -1, -1) if not self._is_certain(pending[i]))
        return next(unknown, min(range(last + 1), key=lambda i: len(pending[i].answers)))

    def _is_certain(self, start: _PathStart) -> bool:
        """Whether it begins a path that counts: others have ended behind the same answer, and none in a check."""
        return start.side in self._passed and start.side not in self._checks

    def _certain(self, pending: list[_PathStart]) -> int:
        """How many paths there are at least that are still to be gone."""
        return sum(map(self._is_certain, pending))

    def _anew(self, start: _PathStart, pending: list[_PathStart]) -> list[_PathStart]:
        """Where paths are still to be gone if some have to be anew, since something was learned of a loop there.

        Raises:
            Learned: all have to be.
        """
        behind = self._loops.learned_behind
        if behind is None or self._joins or self._loops.tries + 1 >= _LEARNED:
            raise
        self._loops.begin_behind()
        if len(behind) > len(start.answers):  # nobody has been there
            return [*pending, start]

        def is_behind(answers: tuple[bool, ...]) -> bool:
            return answers[: len(behind)] == behind

        self._root.forget(behind)
        self._gone = [gone for gone in self._gone if not is_behind(gone.answers)]
        return [*(other for other in pending if not is_behind(other.answers)), _PathStart(behind, None)]

    def _go_on_joined(self, pending: list[_PathStart]) -> None:
        """Lets one path go on for all that part at a condition, when all are known; the innermost first."""
        for key in sorted(self._joins, key=len, reverse=True):
            join = self._joins[key]
            if join.met is not None or not join.paths:
                continue
            if any(len(start.answers) > len(key) and start.answers[: len(key)] == key for start in pending):
                continue
            try:
                join.meet()
            except Unlike as unlike:
                self._loops.meetings.points.refuse(join.asked, str(unlike))
                raise Learned from unlike
            pending.append(_PathStart(join.answers, None))

    def _let_meet(self, run: _PathRun, pending: list[_PathStart]) -> None:
        """Lets the paths through functions meet where these return, if there are many."""
        meetings = self._loops.meetings
        if meetings.are_on or not meetings.are_possible:
            return
        expected = sum(other.side is not None and other.side not in self._checks for other in pending)
        if self._live + (expected if _asks_again(run.asked) else self._certain(pending)) > _MANY:
            meetings.are_on = True
            raise Learned

    def _count(self, run: _PathRun) -> None:
        is_check = isinstance(run.end, Raised) and run.end.is_check
        is_live = run.end is not None and not is_check and not isinstance(run.end, Met)
        if is_check:
            self._checks.add(run.asked[-1].side)
        elif is_live:
            self._passed.update(condition.side for condition in run.asked)
        self._ask_again = self._ask_again or _asks_again(run.asked)
        answers = tuple([condition.answer for condition in run.asked])
        self._gone.append(_Gone(answers, is_live, isinstance(run.end, Raised)))
        asked = sum(len(gone.answers) for gone in self._gone) if len(self._gone) > _FEW else 0
        bound, (_, iterations) = max(self._policy.max_paths, _AT_LEAST), run.loop
        is_endless = run.end is None and iterations > _ITERATIONS * bound
        are_many = self._live > self._policy.max_paths or len(self._gone) > _RUNS * bound or asked > _ASKED * bound
        if is_endless or are_many:
            raise self._too_many(run)

    def _others(self, start: _PathStart, run: _PathRun) -> list[_PathStart]:
        """What is left to do behind a run, the first last."""
        given = tuple(condition.answer for condition in run.asked)
        others = [
            _PathStart((*given[:i], not given[i]), run.asked[i].other_side)
            for i in range(len(start.answers), len(given))
            if not run.asked[i].is_settled
        ]
        if run.end is not None:
            return others
        # Whether a loop may go on depends on what is beside it: are these paths, or checks? Of the exits of each line
        # the deepest and the shallowest tell.
        deepest = {other.side: other for other in others}
        shallowest = {other.side: other for other in reversed(others)}
        first, rest = [], []
        for other in others:
            tells = other is deepest[other.side] or other is shallowest[other.side]
            (first if tells and other.side not in self._checks else rest).append(other)
        return [*rest, _PathStart(given, None, run), *first]

    def _too_many(self, run: _PathRun) -> Exception:
        """What is raised: the first time, for loops to be looked for in what asks more than twice at one line."""
        if not self._loops.are_suspected_early and (self._ask_again or _asks_again(run.asked)):
            self._loops.suspect_early()
            return Learned()
        place, iterations = run.loop
        raised = sum(gone.is_raised for gone in self._gone)
        reason = self._loops.refused.removeprefix(". ")
        reason = f"{reason}. " if reason else ""
        return BranchError(
            f"{reason}bool(tensor) at {place} tests a traced value on too many paths: got more than "
            f"{self._policy.max_paths} paths through the code, or many more that raise exceptions (the code ran "
            f"{len(self._gone)} times; {raised} of these runs ended in an exception, and the last path tested this "
            f"line {iterations} times). A loop becomes a loop of the graph if its iterations change only tensors and "
            "numbers. Otherwise use torch.while_loop (torch._higher_order_ops.while_loop), or jax.lax.while_loop "
            "around the call. To choose between tensors, use torch.where or torch.cond. If a condition always has the "
            "same answer, state it: t2j(..., branches={'file.py:line': False}). Or allow more paths: "
            "t2j(..., max_paths=...)"
        )

    def _go(self, answers: tuple[bool, ...], limit: int) -> _PathRun:
        path: Any = None
        end: Any = None
        around = current_trace()

        def traced():
            with ending_with_errors(around):
                return go()

        def go():
            nonlocal path, end
            path = Path(self._policy, current_trace(), answers, limit, self._checks, self._loops, self._joins)
            try:
                with contextlib.nullcontext() if path.watch is None else path.watch.watching():
                    tree, note = self._run(path)
            except Fork as fork:
                if fork.path is not path:
                    raise
                end = _end_of(path)
                return []
            except Exception as error:
                if not path.asked:
                    raise
                is_check = is_raised_by_code(error, path.asked[-1].asked_in)
                if not is_check and path.watch is not None:
                    path.watch.note_failure(error)
                elif not is_check and _asks_again(path.asked):
                    self._loops.suspect_early()
                if not is_check and path.conditions is not None:
                    path.conditions.refuse_joined(error)
                end = Raised(_to_raise_later(error), is_check)
                return []
            finally:
                path.end()
            if path.is_abandoned:  # the code has handled even that
                end = _end_of(path)
                return []
            leaves, structure = flatten(tree)
            arrays = [leaf for leaf in leaves if isinstance(leaf, (jax.Array, np.ndarray))]
            static = [None if isinstance(leaf, (jax.Array, np.ndarray)) else StaticLeaf(leaf) for leaf in leaves]
            end = Ended(static, structure, note)
            return arrays

        jaxpr = jax.make_jaxpr(traced)()
        if end is not None and (path.is_guard_broken() or self._loops.must_keep_aliases()):
            raise Learned
        if path.conditions is not None and isinstance(end, (Ended, Again)):
            path.conditions.end()
        if self._loops.has_learned:
            raise Learned
        if path.refusal is not None:
            raise path.refusal
        consts = list(zip(jaxpr.jaxpr.constvars, jaxpr.consts, strict=True))
        return _PathRun(path.asked, end, jaxpr.jaxpr.eqns, jaxpr.jaxpr.outvars, consts)

    def _insert(self, run: _PathRun) -> None:
        """Puts a run into the tree, in terms of the variables that the tree has already."""
        names: dict[Var, Any] = {}
        consts = dict(run.consts)
        same: dict[Var, Any] = {}  # what loops of dropped iterations begin with
        joined: list[ReadsAgain] = []

        def named(atom: Any):
            while isinstance(atom, Var) and atom in same:
                atom = same[atom]
            if isinstance(atom, Literal):
                return atom
            if atom not in names and atom in consts:
                names[atom] = self._const(consts[atom])
            for reads in joined:
                names[atom] = reads.again(names[atom])
            return names[atom]

        segments: list[list] = [[]]
        marks, dropped = [], 0
        for step in run.steps:
            if step.primitive is skip_p:
                dropped += step.params["depth"]
            elif step.primitive in _MARKS and not dropped:
                marks.append(step)
                segments.append([])
            elif step.primitive is enter_p:
                same.update(zip(step.outvars, step.invars, strict=True))
            elif not dropped or not (step.effects or step.primitive in _MARKS):  # what was first read there serves
                segments[-1].append(step)
        node, asked = self._root, []
        for i, segment in enumerate(segments):
            mark = marks[i] if i < len(marks) else None
            if node.steps is None:
                node.steps = []
                for step in segment:
                    outvars = [new_var(var.aval) for var in step.outvars]
                    node.steps.append(step.replace(invars=[named(x) for x in step.invars], outvars=outvars))
                    names.update(zip(step.outvars, outvars, strict=True))
            elif mark is not None or run.end is not None:
                self._follow(node.steps, segment, names, run)
            if mark is None:
                if run.end is None:
                    node.steps = None  # nobody has been further
                else:
                    node.end, node.results = run.end, [named(x) for x in run.results]
            elif mark.primitive is condition_p:
                condition = run.asked[len(asked)]
                if node.condition is None:
                    node.condition, node.flag = condition, named(mark.invars[0])
                elif node.condition.place != condition.place:
                    raise self._uneven(run)
                asked.append(node)
                node = node.sides.setdefault(condition.answer, PathNode())
            elif mark.primitive is enter_p:
                if node.iteration is None:
                    node.loop, node.iteration = mark.params["loop"], PathNode()
                    node.first, node.carried = [named(x) for x in mark.invars], [new_var(x.aval) for x in mark.outvars]
                elif node.loop is not mark.params["loop"]:
                    raise self._uneven(run)
                names.update(zip(mark.outvars, node.carried, strict=True))
                node = node.iteration
            elif mark.primitive is joined_p:
                node = asked[mark.params["number"]]
                if node.joined is None:
                    node.joined, node.chosen = PathNode(), [new_var(x.aval) for x in mark.outvars]
                joined.append(ReadsAgain(node, mark.params["asked"], self._loops.meetings.points))
                names.update(zip(mark.outvars, node.chosen, strict=True))
                node = node.joined
            else:
                node.end, node.results = run.end, [named(x) for x in mark.invars]
                break

    def _follow(self, steps: list, again: list, names: dict[Var, Any], run: _PathRun) -> None:
        if len(steps) != len(again):
            raise self._uneven(run)
        for step, other in zip(steps, again, strict=True):
            if not is_same_step(step, other, with_params=False):
                raise self._uneven(run)
            names.update(zip(other.outvars, step.outvars, strict=True))
            names.update((x, y) for x, y in zip(other.invars, step.invars, strict=True) if isinstance(x, Var))

    def _uneven(self, run: _PathRun) -> BranchError:
        asked = run.asked[-1] if run.asked else self._root.condition
        return BranchError(
            f"bool(tensor) at {asked.place}: to trace both branches, the code runs several times, but it did not do "
            "the same each time up to there. Wanted code that does the same for the same arguments: no Python random "
            "numbers, no caches that the first run fills"
        )

    def _const(self, value: Any) -> Var:
        key = _key_of(value)
        if key not in self._consts:
            var = new_var(jax.typeof(value))
            self._consts[key], self._values[var] = var, value
        return self._consts[key]


def _end_of(path: Path) -> Again | Met | None:
    """Where a run has ended that was abandoned."""
    if path.joined_at is not None:
        return Met(path.joined_at)
    return None if path.came_back is None else Again(path.came_back)


def _to_raise_later(error: Exception) -> Exception:
    """An exception; without its frames, which have what is traced, where JAX looks for that after the trace."""
    config: Any = jax.config
    raised: BaseException | None = error if config.jax_check_tracer_leaks else None
    while raised is not None:
        raised.__traceback__ = None
        raised = raised.__cause__ or raised.__context__
    return error


def _asks_again(asked: list[Condition]) -> bool:
    """Whether a line has asked three times: it may be that of a loop whose later iterations are never reached."""
    return len(asked) > 2 and max(Counter(condition.place for condition in asked).values()) > 2


def _key_of(value: Any) -> Any:
    """What tells constants apart: small ones are made anew in every run."""
    if isinstance(value, Tracer) or jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended):
        return id(value)
    if value.size > 2**18:
        return id(value)
    array = np.asarray(value)
    return array.dtype, array.shape, array.tobytes(), getattr(value, "weak_type", False)
