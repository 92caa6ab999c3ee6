"""Questions of Python's about values that are traced: both answers are followed.

A call begins without that. The first question abandons the run, and the code runs again, once for each way through it
that the answers make, in a trace of its own each time. Python does the same again until another answer is given, so
that two traces begin with the same equations: these are the graph's. Then comes a ``lax.cond``, whose branches have the
rest, but for what they have in common at their ends.

A way that ends in an exception which the code itself raises is a check: it is taken to be never gone.
"""

import contextlib
import os
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from types import CodeType
from typing import Any, NamedTuple, NoReturn, TypeVar

import jax
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.experimental import checkify
from jax.extend.core import Literal, Primitive, Var

from ..abandoning import Abandoned, Patience
from ..errors import BranchError, SourceLine, TracedValueError, asking_place, is_raised_by_code, user_place
from ..loops.program import Program, evaluated, free, pruned
from ..tensors.tensor import Torchish
from ..tensors.trees import flatten
from ..tracing.traces import current_trace, decides, ending_with_errors, running, without_derivatives
from .call import this_call
from .ends import End, StaticLeaf, alike
from .loop_bounds import Way, most_turns
from .loop_watch import Facts, Loops, Watch, again_p, enter_p, frames_of_code, skip_p
from .programs import (
    Assertion,
    constant,
    is_same_step,
    is_same_value,
    joined,
    new_var,
    values_alike,
)
from .said import Said
from .warnings_once import Warned, give
from .while_loops import Same, While

__all__ = ["FOLLOWING", "BranchPolicy", "Fork", "Path", "answer", "followed"]

T = TypeVar("T")


class Fork(Abandoned):
    """The code asks what `path` has no answer to."""

    def __init__(self, path: "Path"):
        super().__init__()
        self.path = path


class BranchPolicy(NamedTuple):
    """How branches on traced values are translated, as `t2j` is told."""

    checks: str = "assume"
    branches: Said | None = None
    """Which branch is taken where."""
    max_paths: int = 64
    max_steps: int | None = None
    """How many turns a loop may have that is differentiated backwards."""

    bounds: Said | None = None
    """How long at most what data decide is, and where."""
    groups: tuple[tuple[Any, tuple[str, ...]], ...] = ()
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
                "taken to find nothing, are errors of jax.experimental.checkify, or raise while the program runs"
            )
        if not isinstance(max_paths, int) or max_paths < 1:
            raise ValueError(f"max_paths got {max_paths!r}; wanted a positive integer")
        if max_steps is not None and (not isinstance(max_steps, int) or max_steps < 1):
            raise ValueError(f"max_steps got {max_steps!r}; wanted a positive integer or None")
        is_count = lambda value: type(value) is int and value >= 0
        said = (
            Said("branches", branches, lambda value: isinstance(value, bool), "True or False", "ask traced values"),
            Said("bounds", bounds, is_count, "how many there are at most", "make what is as long as data decide"),
        )
        return cls(checks, said[0] or None, max_paths, max_steps, said[1] or None)

    def answer(self, *places: SourceLine) -> bool | None:
        """What was said to be answered at one of some places."""
        return None if self.branches is None else self.branches.at(*places)

    def bound(self, *places: SourceLine) -> int | None:
        """What was said to be the bound of what data decide at one of some places."""
        return None if self.bounds is None else self.bounds.at(*places)

    def warn_of_misses(self) -> None:
        """Warns of places of which something was said that are none."""
        for said in (self.branches, self.bounds):
            if said is not None:
                said.warn_of_misses()

    def check(self, is_right, message: str) -> None:
        """Checks that a traced bool is true, as checks of code's own are made."""
        check = _CHECKS[self.checks]
        if check is not None:
            check(is_right, message)


FOLLOWING = BranchPolicy()


def _by_checkify(is_right, message: str) -> None:
    checkify.check(is_right, message.replace("{", "{{").replace("}", "}}"))


def _at_run_time(is_right, message: str) -> None:
    def expect(is_right):
        if not is_right:
            raise RuntimeError(message)

    jax.debug.callback(expect, is_right)


_CHECKS: dict[str, Callable[[Any, str], None] | None] = {
    "assume": None,
    "checkify": _by_checkify,
    "raise": _at_run_time,
}


_FEW = 4  # questions that a way may ask though there may be no room for its other ways: they may be checks

# For each of the ways that are allowed, and for no fewer than this many:
_AT_LEAST = 64
_TURNS = 4  # questions of one line on one way: a loop that nothing but exceptions ends has no other bound
_RUNS = 16  # ways of all kinds
_ASKED = 512  # questions on all of them: what is traced grows with the square of a loop's turns

_OFTEN = 8  # questions of one line on one way: more are those of a loop

_ANSWERED = 2**11  # answers on one way that are known already: more are a loop which they do not end


class _Question(NamedTuple):
    place: SourceLine
    asked_in: str
    answer: bool
    is_settled: bool
    """Whether the user has said what the answer is."""

    @property
    def side(self) -> tuple[SourceLine, bool]:
        """Where the answer leads to."""
        return self.place, self.answer

    @property
    def other_side(self) -> tuple[SourceLine, bool]:
        return self.place, not self.answer


_question_p = Primitive("question")
_question_p.multiple_results = True
_question_p.def_abstract_eval(lambda _: [])
_MARKS = (_question_p, enter_p, again_p)


class Path:
    """One way through some code.

    Args:
        trace: what JAX traces the code with.
        answers: to the first questions; None for code that runs as it is, without any.
        limit: how many questions more get an answer.
        checks: sides of questions on which the code has raised an exception of its own.
        loops: what is known of the loops in the code.
    """

    def __init__(
        self,
        policy: BranchPolicy,
        trace: Any,
        answers: tuple[bool, ...] | None = None,
        limit: int = 0,
        checks: Collection[tuple[SourceLine, bool]] = (),
        loops: Loops | None = None,
    ):
        self.policy, self.trace, self._answers, self._limit, self._checks = policy, trace, answers, limit, checks
        self.asked: list[_Question] = []
        self.is_abandoned = False
        self.refusal: BranchError | None = None
        """Why it cannot be followed, if it was abandoned for that."""
        self.warned: list[Warned] = []
        self._patience: Patience | None = None
        self._known: dict[Any, list[tuple[Any, bool]]] = {}
        self._count = 0
        self._loops, self._frames = loops, {}
        self._often = min(_OFTEN, max(1, policy.max_paths // 2))
        if loops is not None and loops.are_suspected_early:
            self._often = 1
        self._script: deque[bool] | None = None
        self.watch = Watch(loops, self) if loops is not None and loops.heads else None
        self.came_back: Facts | None = None
        """The loop of which it was a turn."""

    @property
    def patience(self) -> Patience:
        """How often the code may handle what ends it."""
        if self._patience is None:
            self._patience = Patience()
        return self._patience

    @property
    def is_one_of_several(self) -> bool:
        return self._answers is not None

    def can_answer(self, tensor: Torchish) -> bool:
        """Whether questions about a tensor can be asked where the code is."""
        return self.policy.max_paths > 1 and decides(_array(tensor), self.trace)

    def answer(self, tensor: Torchish, what: str) -> bool:
        """The answer to ``bool(tensor)``.

        Raises:
            TracedValueError: it cannot be asked there.
            Fork: there is none yet.
        """
        if self.is_abandoned:
            raise Fork(self)
        place, asking = user_place(), asking_place()
        self._count += not self._is_probing
        if self._count > _ANSWERED:
            self._refuse(place)
        settled = self.policy.answer(place, asking) if self.policy.branches else None
        checks = self.policy.checks != "assume"
        if settled is not None and not checks:
            return settled
        flag = _flag(tensor)
        if not decides(flag, self.trace) or (settled is None and self.policy.max_paths == 1):
            raise TracedValueError(what)
        alike = self._known.setdefault(values_alike(flag), [])
        for before, found in alike:
            if is_same_value(flag, before):
                return found
        if self._script is not None:
            found = self._script.popleft() if self._script else self.abandon()
        else:
            if len(self.asked) >= self._often and settled is None:
                self._suspect(place)
            found = self._ask(flag, place, asking.file, settled)
        alike.append((flag, found))
        return found

    def ask(self, flag: Any, place: SourceLine) -> bool:
        """The answer to whether a loop goes on which Python ends itself."""
        return self._ask(flag, place, place.file, None)

    def _ask(self, flag: Any, place: SourceLine, asked_in: str, settled: bool | None) -> bool:
        if self._answers is None:
            self.abandon()
        number, given = len(self.asked), self._answers or ()
        if settled is not None:
            found = settled
        elif number < len(given):
            found = given[number]
        elif number - len(given) < self._limit or self._is_probing:
            found = self._likely(place)
        else:
            self.abandon()
        self.asked.append(_Question(place, asked_in, found, settled is not None))
        with running(self.trace):
            _question_p.bind(flag)
        return found

    @property
    def _is_probing(self) -> bool:
        return self.watch is not None and (self.watch.is_probing or self._script is not None)

    def _suspect(self, place: SourceLine) -> None:
        """Lets a loop be watched that asks again and again."""
        asked = sum(question.place == place for question in self.asked)
        if self._loops is None or asked < self._often or self._is_probing:
            return
        frames, before = frames_of_code(), self._frames.get(place)
        self._frames[place] = frames
        if before is not None and self._loops is not None and self._loops.suspect(frames, before):
            self.abandon()

    def expect_loops(self, *codes: CodeType) -> None:
        """Lets the loops of some code be watched from their first turns."""
        if self._loops is not None and self._loops.expect(codes):
            self.abandon()

    def begin_script(self, answers: deque[bool]) -> None:
        """Gives these answers from now on, until `end_script`; what is asked meanwhile does not count."""
        self._script = answers
        self._before = {key: list(alike) for key, alike in self._known.items()}

    def end_script(self) -> None:
        self._script, self._known = None, self._before

    def come_back(self, loop: Facts) -> NoReturn:
        """Ends the run, which was one turn of a loop."""
        self.came_back = loop
        self.abandon()

    def end(self) -> None:
        """Lets go of what is of the run that ends."""
        self._known.clear()
        self._frames.clear()
        if self._patience is not None:
            self._patience.end()

    def _likely(self, place: SourceLine) -> bool:
        """An answer with which the code goes far: a loop goes on, and no check finds something."""
        before = next((question.answer for question in reversed(self.asked) if question.place == place), None)
        if before is not None:
            return before
        return (place, True) not in self._checks or (place, False) in self._checks

    def _refuse(self, place: SourceLine):
        self.refusal = BranchError(
            f"bool(tensor) at {place} is asked of a traced value again and again on one way, with an answer that is "
            f"known: got {self._count} questions. Wanted code that ends with these answers: one that a loop waits for "
            "changes in the loop, and what `branches=` says of it ends it"
        )
        self.abandon()

    def abandon(self) -> NoReturn:
        """Ends the run."""
        self.is_abandoned = True
        raise Fork(self)


def _array(tensor: Torchish):
    tape = this_call().tape
    array = tensor.read()
    return without_derivatives(array if tape is None else tape.primal(array))


def _flag(tensor: Torchish):
    array = _array(tensor)
    array = array if array.shape == () else lax.reshape(array, ())
    return array if array.dtype == bool else lax.ne(array, lax.full_like(array, 0))


def answer(tensor: Torchish, what: str) -> bool:
    """The answer to ``bool(tensor)`` of a traced tensor of one element, on the path that the code is on.

    Args:
        what: the question, for errors.

    Raises:
        TracedValueError: both answers cannot be followed there.
        BaseException: to `followed`.
    """
    return this_call().paths[-1].answer(tensor, what)


class _Ended(NamedTuple):
    """The end of a way: a tree of arrays and other things."""

    leaves: list
    structure: Any
    note: Any
    warned: list[Warned]


class _Raised(NamedTuple):
    error: Exception
    is_check: bool


class _Again(NamedTuple):
    """The end of a turn."""

    loop: Facts


class _Run(NamedTuple):
    asked: list[_Question]
    end: _Ended | _Raised | _Again | None
    """None if the way was left unfinished."""
    steps: list
    results: list
    consts: list[tuple[Var, Any]]

    @property
    def loop(self) -> tuple[SourceLine, int]:
        """The line that asks most often, and how often it does."""
        asking = Counter(question.place for question in self.asked if not question.is_settled)
        return max(asking.items(), key=lambda item: item[1], default=(SourceLine("", 0, ""), 0))


class _Start(NamedTuple):
    """Where ways are still to be gone."""

    answers: tuple[bool, ...]
    side: tuple[SourceLine, bool] | None
    """The last of the answers, if no run has given it."""
    unfinished: _Run | None = None
    """The run that goes on there."""


class _Side(NamedTuple):
    """Where an answer leads to."""

    program: Program
    leaves: list[StaticLeaf | None]
    structure: Any
    notes: list
    """Of all ways."""
    warned: list[Warned]
    """Of every way."""

    @property
    def end(self) -> End:
        return End(self.program, self.leaves, self.structure)

    def behind(self, statements: list) -> "_Side":
        """The same with something before it."""
        return self._replace(program=self.program._replace(statements=[*statements, *self.program.statements]))


class _Node:
    """What is computed up to a question, or to the end."""

    def __init__(self):
        self.steps: list | None = None
        self.flag: Any = None
        self.question: Any = None
        self.sides: dict[bool, _Node] = {}
        self.end: _Ended | _Raised | _Again | None = None
        self.results: list = []
        self.loop: Facts | None = None
        """The loop that begins there."""
        self.first: list = []
        """What its first turn begins with."""
        self.carried: list[Var] = []
        """The same, of every turn."""
        self.turn: _Node | None = None

    @property
    def next(self) -> "Iterable[_Node]":
        return self.sides.values() if self.turn is None else [self.turn]

    @cached_property
    def ends(self) -> list["_Ended | _Raised | _Again"]:
        """Those of all ways from there on."""
        return [self.end] if self.end is not None else [end for node in self.next for end in node.ends]

    def ways(self, loop: Facts | None) -> "Iterable[Way]":
        """Those from there on that are turns of a loop."""
        steps = self.steps or []
        if isinstance(self.end, _Again) and self.end.loop is loop:
            yield Way(steps, [], self.results)
        for side in self.next:
            answers = [(self.flag, answer) for answer, other in self.sides.items() if other is side]
            for way in side.ways(loop):
                yield Way([*steps, *way.steps], [*answers, *way.answers], way.results)

    def comes_back(self, loop: Facts | None) -> bool:
        """Whether a way is a turn of a loop."""
        return any(isinstance(end, _Again) and end.loop is loop for end in self.ends)

    @property
    def is_check(self) -> bool:
        """Whether all ways raise exceptions of the code's."""
        return all(isinstance(end, _Raised) and end.is_check for end in self.ends)


class _View(NamedTuple):
    """Which ways are of interest."""

    turn: "_Node | None" = None
    """Where the loop begins of which these are the turns; None for the ends of the code."""
    cut: tuple[Facts, ...] = ()
    """The loops that have ended: nothing comes back to them."""


def followed(
    run: Callable[[Path], tuple[Any, Any]], policy: BranchPolicy, warned: Iterable[Warned] = (), pads: bool = False
) -> tuple[Any, list]:
    """Runs code on every way through it, and computes in the current trace what it gives.

    Args:
        run: gives a tree of arrays and other things, and anything to note. It can run again and again.
        warned: what it has warned of before, when it was abandoned.
        pads: whether an array that is longer on one way than on another becomes a padded one.

    Returns:
        The tree, and what each way noted.

    Raises:
        BranchError: the ways do not end alike, one cannot be translated, or there are too many.
        Exception: what the code raises, whatever the answers are.
    """
    loops, before = Loops(), {warning.key for warning in warned} if warned else set()
    while True:
        try:
            return _Ways(run, policy, loops, pads).joined(before)
        except _Learned:
            loops.has_learned = False


class _Learned(Exception):
    """What is known of loops has changed, and all ways are gone anew."""


class _Ways:
    def __init__(self, run: Callable[[Path], tuple[Any, Any]], policy: BranchPolicy, loops: Loops, pads: bool):
        self._run, self._policy, self._loops, self._pads = run, policy, loops, pads
        self._root = _Node()
        self._checks: set[tuple[SourceLine, bool]] = set()
        self._live = self._runs = self._asked = 0
        self._consts: dict[Any, Var] = {}
        self._values: dict[Var, Any] = {}

    def joined(self, warned: set) -> tuple[Any, list]:
        self._explore()
        try:
            side = self._side(self._root, _View())
            results = iter(() if not isinstance(side, _Side) else evaluated(pruned(side.program), self._values))
        except RecursionError as error:
            raise BranchError(
                f"branches are nested too deep: got {self._live} ways through the code, one inside of another, more "
                "than Python's stack has room for. A loop that ends when the data say so is torch.while_loop; or "
                "allow more by sys.setrecursionlimit"
            ) from error
        if isinstance(side, _Raised):
            raise side.error
        assert side is not None
        new = {warning.key: warning for warning in side.warned if warning.key not in warned}
        give(new.values())
        leaves = [next(results) if leaf is None else leaf.value for leaf in side.leaves]
        return side.structure.unflatten(leaves), side.notes

    def _explore(self) -> None:
        """Goes all ways, the last first that part from one which was gone."""
        pending = [_Start((), None)]
        while pending:
            start = pending.pop()
            expected = sum(other.side is not None and other.side not in self._checks for other in pending)
            budget = self._policy.max_paths - self._live - expected
            if start.unfinished is not None and budget <= 0:
                raise self._too_many(start.unfinished)
            run = self._go(start.answers, max(budget, _FEW))
            if run.end is None and budget <= 0:  # neither way out of a loop is one of a few
                raise self._too_many(run)
            self._insert(run)
            self._count(run)
            pending.extend(self._others(start, run))

    def _count(self, run: _Run) -> None:
        is_check = isinstance(run.end, _Raised) and run.end.is_check
        if is_check:
            self._checks.add(run.asked[-1].side)
        self._live += run.end is not None and not is_check
        self._runs += 1
        self._asked += len(run.asked)
        bound, (_, turns) = max(self._policy.max_paths, _AT_LEAST), run.loop
        is_endless = run.end is None and turns > _TURNS * bound
        are_many = self._live > self._policy.max_paths or self._runs > _RUNS * bound or self._asked > _ASKED * bound
        if is_endless or are_many:
            raise self._too_many(run)

    def _others(self, start: _Start, run: _Run) -> list[_Start]:
        """What is left to do behind a run, the first last."""
        given = tuple(question.answer for question in run.asked)
        others = [
            _Start((*given[:i], not given[i]), run.asked[i].other_side)
            for i in range(len(start.answers), len(given))
            if not run.asked[i].is_settled
        ]
        if run.end is not None:
            return others
        # Whether a loop may go on depends on what is beside it: are these ways, or checks? Of the exits of each line
        # the deepest and the shallowest tell.
        deepest = {other.side: other for other in others}
        shallowest = {other.side: other for other in reversed(others)}
        first, rest = [], []
        for other in others:
            tells = other is deepest[other.side] or other is shallowest[other.side]
            (first if tells and other.side not in self._checks else rest).append(other)
        return [*rest, _Start(given, None, run), *first]

    def _too_many(self, run: _Run) -> Exception:
        """What is raised: the first time, for loops to be looked for in what asks more than twice at one line."""
        if not self._loops.are_suspected_early and _asks_again(run.asked):
            self._loops.suspect_early()
            return _Learned()
        place, turns = run.loop
        raised = self._runs - self._live
        refusals = "".join(f". No loop of the graph is {refusal}" for refusal in self._loops.refusals[:3])
        return BranchError(
            f"bool(tensor) at {place} is asked of a traced value on more ways than can be followed: got more than "
            f"{self._policy.max_paths} ways through the code, or many more that raise exceptions (it ran "
            f"{self._runs} times, {raised} of these to no end but an exception; on the last way this line asked "
            f"{turns} times){refusals}. A loop becomes one of the graph where its turns change tensors and numbers "
            "alone; else it is torch.while_loop (torch._higher_order_ops.while_loop), or jax.lax.while_loop around "
            "the call; a choice of tensors is torch.where or torch.cond; a question whose answer is "
            "always the same can be told it: t2j(..., branches={'file.py:line': False}); or allow more ways: "
            "t2j(..., max_paths=...)"
        )

    def _go(self, answers: tuple[bool, ...], limit: int) -> _Run:
        path: Any = None
        end: Any = None
        around = current_trace()

        def traced():
            with ending_with_errors(around):
                return go()

        def go():
            nonlocal path, end
            path = Path(self._policy, current_trace(), answers, limit, self._checks, self._loops)
            try:
                with contextlib.nullcontext() if path.watch is None else path.watch.watching():
                    tree, note = self._run(path)
            except Fork as fork:
                if fork.path is not path:
                    raise
                end = None if path.came_back is None else _Again(path.came_back)
                return []
            except Exception as error:
                if not path.asked:
                    raise
                is_check = is_raised_by_code(error, path.asked[-1].asked_in)
                if not is_check and path.watch is not None:
                    path.watch.note_failure(error)
                elif not is_check and _asks_again(path.asked):
                    self._loops.suspect_early()
                end = _Raised(_to_raise_later(error), is_check)
                return []
            finally:
                path.end()
            if path.is_abandoned:  # the code has handled even that
                end = None if path.came_back is None else _Again(path.came_back)
                return []
            leaves, structure = flatten(tree)
            arrays = [leaf for leaf in leaves if isinstance(leaf, (jax.Array, np.ndarray))]
            static = [None if isinstance(leaf, (jax.Array, np.ndarray)) else StaticLeaf(leaf) for leaf in leaves]
            end = _Ended(static, structure, note, path.warned)
            return arrays

        jaxpr = jax.make_jaxpr(traced)()
        if self._loops.has_learned:
            raise _Learned
        if path.refusal is not None:
            raise path.refusal
        consts = list(zip(jaxpr.jaxpr.constvars, jaxpr.consts, strict=True))
        return _Run(path.asked, end, jaxpr.jaxpr.eqns, jaxpr.jaxpr.outvars, consts)

    def _insert(self, run: _Run) -> None:
        """Puts a run into the tree, in terms of the variables that the tree has already."""
        names: dict[Var, Any] = {}
        consts = dict(run.consts)
        same: dict[Var, Any] = {}  # what loops of dropped turns begin with

        def named(atom):
            while isinstance(atom, Var) and atom in same:
                atom = same[atom]
            if isinstance(atom, Literal):
                return atom
            if atom not in names and atom in consts:
                names[atom] = self._const(consts[atom])
            return names[atom]

        segments: list[list] = [[]]
        marks, is_dropped = [], False
        for step in run.steps:
            if step.primitive is skip_p:
                is_dropped = not is_dropped
            elif step.primitive in _MARKS and not is_dropped:
                marks.append(step)
                segments.append([])
            elif step.primitive is enter_p:
                same.update(zip(step.outvars, step.invars, strict=True))
            elif not is_dropped or not step.effects:  # what was read there for the first time is used behind
                segments[-1].append(step)
        node, asked = self._root, 0
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
            elif mark.primitive is _question_p:
                if node.question is None:
                    node.question, node.flag = run.asked[asked], named(mark.invars[0])
                elif node.question.place != run.asked[asked].place:
                    raise self._uneven(run)
                node = node.sides.setdefault(run.asked[asked].answer, _Node())
                asked += 1
            elif mark.primitive is enter_p:
                if node.turn is None:
                    node.loop, node.turn = mark.params["loop"], _Node()
                    node.first, node.carried = [named(x) for x in mark.invars], [new_var(x.aval) for x in mark.outvars]
                elif node.loop is not mark.params["loop"]:
                    raise self._uneven(run)
                names.update(zip(mark.outvars, node.carried, strict=True))
                node = node.turn
            else:
                node.end, node.results = run.end, [named(x) for x in mark.invars]
                break

    def _follow(self, steps: list, again: list, names: dict[Var, Any], run: _Run) -> None:
        if len(steps) != len(again):
            raise self._uneven(run)
        for step, other in zip(steps, again, strict=True):
            if not is_same_step(step, other, with_params=False):
                raise self._uneven(run)
            names.update(zip(other.outvars, step.outvars, strict=True))
            names.update((x, y) for x, y in zip(other.invars, step.invars, strict=True) if isinstance(x, Var))

    def _uneven(self, run: _Run) -> BranchError:
        asked = run.asked[-1] if run.asked else self._root.question
        return BranchError(
            f"bool(tensor) at {asked.place}: to follow both answers the code runs several times, and it has "
            "not done the same again up to there. Wanted code that does the same for the same arguments: no Python "
            "random numbers, no caches that the first run fills"
        )

    def _const(self, value) -> Var:
        key = _key_of(value)
        if key not in self._consts:
            var = new_var(jax.typeof(value))
            self._consts[key], self._values[var] = var, value
        return self._consts[key]

    def _side(self, node: _Node, view: _View) -> _Side | _Raised | None:
        """What the ways from a node on compute; None if none of them is gone."""
        if view.turn is not None and not node.comes_back(view.turn.loop) and not node.is_check:
            return _end_of_turn(view.turn.carried, goes_on=False)
        if isinstance(node.end, _Raised):
            return node.end
        if isinstance(node.end, _Again):
            if node.end.loop in view.cut:
                return None
            side = _end_of_turn(node.results, goes_on=True)
            return side._replace(program=Program(node.steps or [], side.program.results))
        if node.end is not None:
            program = Program(node.steps or [], node.results)
            return _Side(program, node.end.leaves, node.end.structure, [node.end.note], node.end.warned)
        if node.turn is not None:
            return self._looped(node, node.turn, view)
        question = node.question
        sides = {given: self._side(side, view) for given, side in node.sides.items()}
        if len(sides) == 1:
            ((wanted, side),) = sides.items()
            message = f"t2j was told that the answer is {wanted}, at {question.place}"
            return side if not isinstance(side, _Side) else self._checked(node, side, wanted, message)
        yes, no = sides[True], sides[False]
        if yes is None or no is None:
            side = no if yes is None else yes
            return side if not isinstance(side, _Side) else side.behind(node.steps or [])
        for wanted, side, other in ((True, yes, no), (False, no, yes)):
            if isinstance(other, _Raised) and other.is_check:
                if isinstance(side, _Raised):
                    return side
                found = None if isinstance(other.error, TracedValueError) else _message(other.error)
                text = "an exception with traced values in its message"
                if found is not None:
                    text = f"{type(other.error).__name__}: {found}"
                return self._checked(node, side, wanted, f"{text} (at {question.place})")
        if isinstance(yes, _Raised) and isinstance(no, _Raised) and _is_same_error(yes.error, no.error):
            return yes
        if isinstance(yes, _Raised):
            raise _obstacle(question, True, yes.error) from yes.error
        if isinstance(no, _Raised):
            raise _obstacle(question, False, no.error) from no.error
        pads = self._pads and view.turn is None
        end, other = alike(yes.end, no.end, question.place, pads=pads, may_overflow=self._policy.bounds is not None)
        rest = joined(node.flag, end.program, other.program)
        program = Program([*(node.steps or []), *rest.statements], rest.results)
        keys = {warned.key for warned in no.warned}
        warned = [warned for warned in yes.warned if warned.key in keys]
        return _Side(program, end.leaves, end.structure, [*yes.notes, *no.notes], warned)

    def _looped(self, node: _Node, turn: _Node, view: _View) -> _Side | _Raised | None:
        """What the ways compute from a node on where a loop begins."""
        loop: Any = node.loop
        is_loop = turn.comes_back(loop)
        after = _View(view.turn, (*view.cut, loop))
        wanted = next((given for given, side in turn.sides.items() if not side.comes_back(loop)), None)
        body = None if wanted is None else turn.sides.get(not wanted)
        has_test = body is not None and all(isinstance(x, _Raised) or x == _Again(loop) for x in body.ends)
        rest = self._side(turn.sides[wanted] if has_test and is_loop else turn, after)  # pyright: ignore[reportArgumentType]
        if rest is None and view == _View():
            raise BranchError(f"the loop at {loop.place} never ends: nothing but its own turns comes after each turn")
        if not isinstance(rest, _Side):
            return rest
        if not is_loop:
            return rest.behind([*(node.steps or []), Same(node.carried, node.first)])
        found: Any = self._side(body if has_test else turn, _View(node))  # pyright: ignore[reportArgumentType]
        test, kept = None, []
        if has_test:
            found = found._replace(program=Program(found.program.statements, found.program.results[:-1]))
            used = free(found.program) | free(rest.program)
            kept = [var for step in turn.steps or () for var in step.outvars if var in used]
            test = pruned(Program(turn.steps or [], [turn.flag, *kept]))
        bound = self._bound(node, turn) if loop.turns is None else loop.turns - loop.at + 1
        statement = While(
            node.carried, node.first, test, kept, not wanted, pruned(found.program), bound, str(loop.place)
        )
        return rest.behind([*(node.steps or []), statement])

    def _bound(self, node: _Node, turn: _Node) -> int | None:
        """How many turns a `while` has at most, the last included that does not come back."""

        def known(var: Any) -> Any:
            value = self._values.get(var)
            return None if isinstance(value, Tracer) else value

        said = self._policy.max_steps
        found = most_turns([*turn.ways(node.loop)], node.carried, node.first, known)
        return said if found is None or (said is not None and said <= found) else found + 1

    def _checked(self, node: _Node, side: _Side, wanted: bool, message: str) -> _Side:
        check = _CHECKS[self._policy.checks]
        checks = [] if check is None else [Assertion(node.flag, wanted, message, check)]
        statements = [*(node.steps or []), *checks, *side.program.statements]
        return side._replace(program=Program(statements, side.program.results))


def _end_of_turn(results: Sequence, goes_on: bool) -> _Side:
    results = [*results, constant(goes_on, np.bool_)]
    return _Side(Program([], results), [None] * len(results), None, [], [])


def _to_raise_later(error: Exception) -> Exception:
    """An exception; without its frames, which have what is traced, where JAX looks for that after the trace."""
    config: Any = jax.config
    raised: BaseException | None = error if config.jax_check_tracer_leaks else None
    while raised is not None:
        raised.__traceback__ = None
        raised = raised.__cause__ or raised.__context__
    return error


def _message(error: Exception) -> str | None:
    """The message of an exception; None if that is of values which are traced."""
    try:
        return str(error)
    except TracedValueError:
        return None


def _is_same_error(one: Exception, other: Exception) -> bool:
    return type(one) is type(other) and _message(one) is not None and _message(one) == _message(other)


def _obstacle(question: _Question, given: bool, error: Exception) -> BranchError:
    name = f"{os.path.basename(question.place.file)}:{question.place.line}"
    return BranchError(
        f"bool(tensor) at {question.place} is asked of a traced value, so that both answers are followed; where it "
        f"is {given}, the code goes on to what cannot be translated: {type(error).__name__}: {error} If the answer is "
        f"never {given}, say so: t2j(..., branches={{{name!r}: {not given}}})"
    )


def _asks_again(asked: list[_Question]) -> bool:
    """Whether a line has asked three times: it may be that of a loop whose later turns are never reached."""
    return max(Counter(question.place for question in asked).values(), default=0) > 2


def _key_of(value) -> Any:
    """What tells constants apart: small ones are made anew in every run."""
    if isinstance(value, Tracer) or jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended):
        return id(value)
    if value.size > 2**18:
        return id(value)
    array = np.asarray(value)
    return array.dtype, array.shape, array.tobytes(), getattr(value, "weak_type", False)
