"""One path through code that tests traced values: its conditions and their answers.

A condition that was already answered gets the same answer again. Otherwise the trace records it, by an equation that
computes nothing and separates what comes before it from what comes after it.
"""

import functools
import sys
from collections import deque
from collections.abc import Collection, Hashable
from types import CodeType
from typing import Any, NamedTuple, NoReturn

from jax import lax
from jax.extend.core import Primitive

from ..abandoning import Abandoned, Patience
from ..errors import BranchError, SourceLine, TracedValueError, asking_place, user_place
from ..tensors.tensor import Torchish
from ..tracing.traces import current_trace, decides, running, without_derivatives
from ..translation import Call, this_call
from . import switch
from .guards import Guards
from .idle import idle_answer
from .joins import Join, OpenConditions
from .loop_facts import Facts, Loops
from .loop_watch import Watch, frames_of_code
from .policy import BranchPolicy
from .programs import is_same_value, values_alike

_OFTEN = 8  # conditions of one line on one path: more are those of a loop

_FEW = 3  # conditions, with which there are not many paths yet
_ANSWERED = 2**11  # answers on one path that are known already: more are a loop which they do not end


class Fork(Abandoned):
    """The code asks what `path` has no answer to."""

    def __init__(self, path: "Path"):
        super().__init__()
        self.path = path


class Condition(NamedTuple):
    """What was asked of a traced value, and the answer."""

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


condition_p = Primitive("condition")
condition_p.multiple_results = True
condition_p.def_abstract_eval(lambda _: [])


class Path:
    """One path through some code.

    Args:
        trace: what JAX traces the code with.
        answers: to the first conditions; None for code that runs as it is, without any.
        limit: how many conditions more get an answer.
        checks: sides of conditions on which the code has raised an exception of its own.
        loops: what is known of the loops in the code.
        joins: the conditions whose paths join, by the answers that were given before.
    """

    def __init__(
        self,
        policy: BranchPolicy,
        trace: Any,
        answers: tuple[bool, ...] | None = None,
        limit: int = 0,
        checks: Collection[tuple[SourceLine, bool]] = (),
        loops: Loops | None = None,
        joins: dict[tuple[bool, ...], Join] | None = None,
    ):
        self.policy, self.trace, self._answers, self._limit, self._checks = policy, trace, answers, limit, checks
        self.asked: list[Condition] = []
        self.is_abandoned = False
        self.refusal: BranchError | None = None
        """Why it cannot be followed, if it was abandoned for that."""
        self._patience: Patience | None = None
        self.known: dict[Any, list[tuple[Any, bool]]] = {}
        """Conditions, and what was answered."""
        self._count = 0
        self._loops, self._frames = loops, {}
        self.base: Any = sys._getframe(1)
        """The frame that calls the code."""
        self._often = min(_OFTEN, max(1, policy.max_paths // 2))
        if loops is not None and loops.are_suspected_early:
            self._often = 1
        self._script: deque[bool] | None = None
        self._scripts: list[tuple] = []
        self.conditions: OpenConditions | None = None
        """The conditions whose paths have not joined yet; None where none joins."""
        if loops is not None and joins is not None and loops.meetings.are_on:
            self.conditions = OpenConditions(loops.meetings.points, self, joins)
        self.watch = Watch(loops, self) if loops is not None and loops.are_watched else None
        self.came_back: Facts | None = None
        """The loop of which it was an iteration."""
        self.joined_at: Join | None = None
        """Where it has ended since others join it."""

    @property
    def patience(self) -> Patience:
        """How often the code may handle what ends it."""
        if self._patience is None:
            self._patience = Patience()
        return self._patience

    @functools.cached_property
    def guards(self) -> Guards:
        """What must not be written to any more."""
        return Guards()

    @property
    def meetings(self) -> Any:
        """The functions whose paths meet; None for code that runs as it is."""
        return None if self._loops is None else self._loops.meetings

    @property
    def executed(self) -> set[CodeType]:
        """The code that has run on this path and others."""
        return set() if self._loops is None else self._loops.executed

    @property
    def has_loops(self) -> bool:
        """Whether loops of the code are watched."""
        return self._loops is not None and bool(self._loops.heads)

    @property
    def is_one_of_several(self) -> bool:
        return self._answers is not None

    def is_in_its_trace(self, call: Call) -> bool:
        """Whether the code runs in the path's own trace, within no transformation that it has started."""
        tape = call.tape
        is_there = current_trace() is self.trace if tape is None else tape.is_beside(self.trace)
        return is_there and not call.transformations and call.dual is None

    def can_answer(self, tensor: Torchish) -> bool:
        """Whether conditions on a tensor can be asked where the code is."""
        return self.policy.max_paths > 1 and decides(deciding_array(tensor), self.trace)

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
        idle = idle_answer(asking)
        if idle is not None:
            return idle
        settled = self.policy.answer(place, asking) if self.policy.branches else None
        checks = self.policy.checks != "assume"
        if settled is not None and not checks:
            self.expect(tensor, settled, place)
            return settled
        flag = _flag(tensor)
        if not decides(flag, self.trace) or (settled is None and self.policy.max_paths == 1):
            raise TracedValueError(what)
        alike = self.known.setdefault(values_alike(flag), [])
        for before, found in alike:
            if is_same_value(flag, before):
                return found
        if self._script is not None:
            if not self._script and self.watch is not None:
                self.watch.note_other_answers()
            if self.conditions is not None:
                self.conditions.note(repeats=True)
            found = self._script.popleft() if self._script else self.abandon()
        else:
            if len(self.asked) >= self._often and settled is None:
                self._suspect(place)
            if self.conditions is not None and settled is None and self._loops.meetings.around(self.base) is None:  # pyright: ignore[reportOptionalMemberAccess]
                self.conditions.note(repeats=False)
            found = self._ask(flag, place, asking.file, settled)
        alike.append((flag, found))
        return found

    def expect(self, tensor: Torchish, answer: bool, place: SourceLine) -> None:
        """Lets results of the call tell, by nan, where a condition has another answer than was said."""
        call = this_call()
        if not self.is_in_its_trace(call) or self._script is not None:
            return
        flag = _flag(tensor)
        if decides(flag, self.trace):
            holds = flag if answer else lax.bitwise_not(flag)
            call.attempt.expect_to_fit(holds, f"bool(tensor) at {place} was told that the answer is {answer}")

    def ask(self, flag: Any, place: SourceLine) -> bool:
        """The answer to whether a loop goes on which Python ends itself."""
        return self._ask(flag, place, place.file, None)

    def _ask(self, flag: Any, place: SourceLine, asked_in: str, settled: bool | None) -> bool:
        if self._answers is None:
            self.abandon()
        number, given = len(self.asked), self._answers or ()
        meetings = self.meetings if settled is None else None
        if meetings is not None and (meetings.are_on or number >= _FEW) and meetings.note_condition(self.base):
            self.begin_anew()
        if settled is not None:
            found = settled
        elif number < len(given):
            found = given[number]
        elif number - len(given) < self._limit or self._is_probing:
            found = self._likely(place)
        else:
            self.abandon()
        self.asked.append(Condition(place, asked_in, found, settled is not None))
        with running(self.trace):
            condition_p.bind(flag)
        return found

    @property
    def _is_probing(self) -> bool:
        return self.watch is not None and (self.watch.is_probing or self._script is not None)

    def _suspect(self, place: SourceLine) -> None:
        """Lets a loop be watched that asks again and again."""
        asked = sum(condition.place == place for condition in self.asked)
        if asked >= self._often and not self._is_probing:
            self.expect_loop_around(place)

    def expect_loop_around(self, reached: Hashable) -> None:
        """Lets the loop be watched that leads to something again: to a condition's line, or to a loop's beginning."""
        frames, before = frames_of_code(), self._frames.get(reached)
        self._frames[reached] = frames
        if before is not None and self._loops is not None and self._loops.suspect(frames, before):
            self.abandon()

    def is_guard_broken(self) -> bool:
        """Whether something was written to that must not be: then what it was guarded for is given up."""
        cause = self.guards.broken()
        if cause is not None:
            reason = "what it gives is written to, and is one of its arguments on some paths only"
            self._loops.refuse_guarded(cause, reason)  # pyright: ignore[reportOptionalMemberAccess]
        return cause is not None

    def begin_script(self, answers: deque[bool], knows: bool = True) -> None:
        """Gives these answers from now on, until `end_script`; what is asked meanwhile does not count.

        Args:
            knows: whether conditions that were answered before are not among them.
        """
        self._scripts.append((self._script, self.known))
        self.known = {key: list(alike) for key, alike in self.known.items()} if knows else {}
        self._script = answers

    def end_script(self) -> None:
        self._script, self.known = self._scripts.pop()

    def come_back(self, loop: Facts) -> NoReturn:
        """Ends the run, which was one iteration of a loop."""
        self.came_back = loop
        self.abandon()

    def end_at(self, join: Join) -> NoReturn:
        """Ends the run where other paths join it."""
        self.joined_at = join
        self.abandon()

    def learn(self) -> None:
        """Lets all paths be gone anew, since something was learned."""
        self._loops.learn_anew()  # pyright: ignore[reportOptionalMemberAccess]

    def begin_anew(self) -> NoReturn:
        """Ends the run, for all paths to be gone anew."""
        self.learn()
        self.abandon()

    def end(self) -> None:
        """Lets go of what is of the run that ends."""
        self.known.clear()
        self._frames.clear()
        self._scripts.clear()
        self.base = None
        if self._patience is not None:
            self._patience.end()

    def _likely(self, place: SourceLine) -> bool:
        """An answer with which the code goes far: a loop goes on, and no check finds something."""
        before = next((condition.answer for condition in reversed(self.asked) if condition.place == place), None)
        if before is not None:
            return before
        return (place, True) not in self._checks or (place, False) in self._checks

    def _refuse(self, place: SourceLine):
        self.refusal = BranchError(
            f"bool(tensor) at {place} tests a traced value again and again on one path, with an answer that is already "
            f"known: got {self._count} tests. Wanted code that ends with these answers: a loop must change the values "
            "that its condition depends on, and `branches=` must choose an answer that ends it"
        )
        self.abandon()

    def convert(self) -> None:
        """Is called where converted code goes on, and other code does not: a first run is over."""
        if switch.is_on and self._answers is None and self.policy.max_paths > 1:
            self.abandon()

    def abandon(self) -> NoReturn:
        """Ends the run."""
        self.is_abandoned = True
        raise Fork(self)


def deciding_array(tensor: Torchish) -> Any:
    """The array of a tensor that is asked, without derivatives."""
    tape = this_call().tape
    array = tensor.read()
    return without_derivatives(array if tape is None else tape.primal(array))


def _flag(tensor: Torchish) -> Any:
    array = deciding_array(tensor)
    array = array if array.shape == () else lax.reshape(array, ())
    return array if array.dtype == bool else lax.ne(array, lax.full_like(array, 0))


def answer(tensor: Torchish, what: str) -> bool:
    """The answer to ``bool(tensor)`` of a traced tensor of one element, on the path that the code is on.

    Args:
        what: the condition, for errors.

    Raises:
        TracedValueError: both answers cannot be followed there.
        BaseException: to `followed`.
    """
    return this_call().paths[-1].answer(tensor, what)
