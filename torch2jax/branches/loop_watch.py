"""Loops that end on traced conditions: found while the code runs, they become loops of the graph.

Code asks the same condition at the same line again and again: it is in a loop. Its frame is then run with Python's
tracing on, which tells where iterations begin (`loop_heads`). What is learned there lasts from run to run
(`loop_facts`):

- The first runs look on. What lives where two iterations begin (`loop_state`) is compared: what has changed is what the
  loop carries. Where that cannot be carried, the loop stays what it was, one way for each iteration.
- Later ones put tracers into what is carried, at the beginning of an iteration. A path that comes back there ends: what
  has come of the values is what the next iteration begins with. All other ways leave the loop, and go on to the end of
  the code, with the values that the last iteration began with.
- How many iterations a `for` has is seen in a run that goes on to its end, and what it assigns to its variables. Where
  it ends by itself, the iterations run for Python's sake, and what they compute is dropped.

Of a path that comes back, what lives must be what lived when it began, but for what is carried. That makes every
iteration like the one that was seen: the code has nothing else to go by.
"""

import contextlib
import dis
import functools
import itertools
import sys
from collections import deque
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from jax.extend.core import Primitive

from ..errors import is_translator
from ..internals.frames import set_locals
from ..internals.jax import varying_axes
from ..internals.transforms import is_fwd_grad_enabled
from ..tracing.traces import current_trace, running, varying
from ..tracing.value_ranges import range_of
from ..translation import current, this_call
from .loop_bounds import MOST
from .loop_carry import number, put, with_room
from .loop_facts import Facts, Loops, Variable
from .loop_heads import Head
from .loop_state import Change, FlagDiffers, State, Unlike, WrittenAndReplaced
from .meetings import Meeting
from .programs import distance
from .unaliased import Unaliased, paths_that_share, unalias, variables_that_share

_SEEN = 4  # iterations that are compared, until two begin alike
_NONE: dict[int, Head] = {}
_NOP, _PREFIX = dis.opmap["NOP"], dis.opmap["EXTENDED_ARG"]
_FEWEST = 3  # iterations that a `for` is a loop for
_FOUND = 64  # paths on which one loop is found: it may be in one that is none of the graph
_RECOUNTED = 16  # how often a `for` is counted again at most


def _marker(name: str, results: Callable) -> Primitive:
    primitive = Primitive(name)
    primitive.multiple_results = True
    primitive.def_abstract_eval(results)
    return primitive


enter_p = _marker("loop", lambda *avals, **_: [aval.strip_weak_type() for aval in avals])
"""Marks where an iteration begins: its operands are what the first one has, its results what any has of them."""
again_p = _marker("iteration", lambda *_, **__: [])
"""Marks where an iteration ends, with what the next one has."""
skip_p = _marker("skip", lambda *_, **__: [])
"""Marks both ends of what is dropped."""


class _RunningLoop:
    """A loop that is running."""

    def __init__(self, frame: FrameType, head: Head, facts: Facts):
        self.frame, self.head, self.facts = frame, head, facts
        self.key = frame.f_code, head.entry
        """Which loop of the code it is."""
        self.before = 0
        """The iterations that came before those which are counted."""
        self.arrivals = 0
        self.begun: list[int] = []
        """How many conditions had been asked when iterations began."""
        self.values: list[tuple] = []
        """What a `for` has assigned."""
        self.state: State | None = None
        self.first: State | None = None
        """What lived when the very first iteration began."""
        self.new: set[str] = set()
        """The paths of what is in memory that iterations have made before those that are a loop."""
        self.found: tuple[int, list[Change]] | None = None
        self.carried: list | None = None
        """What iterations begin with."""
        self.is_skipping = False
        self.is_cut = False
        """Whether data have ended a `for` before its end, so that the run does not tell how many iterations it has."""
        self.is_left = False
        """Whether the last iteration has begun, and others follow that are not like it."""
        self.unlike: Unlike | None = None
        """Why they are not."""
        self.is_over = False
        """Whether the code is where no iteration follows any more."""


class Watch:
    """Watches loops during one run.

    Args:
        path: the path that the run is on.
    """

    def __init__(self, loops: Loops, path: Any):
        self._loops, self._path = loops, path
        self._is_learning = False
        self._running: dict[tuple[int, int], _RunningLoop] = {}
        self._last: dict[int, int] = {}
        self._frames: list[FrameType] = []  # which keep their ids
        self._count = 0
        self._undo: list[Callable[[], None]] = []
        self._given: list[Any] = []
        self._entered_loops: list[_RunningLoop] = []  # whose iterations the run was within

    @property
    def is_probing(self) -> bool:
        """Whether a `for` goes on to its end for its iterations to be counted."""
        return any(_is_probed(instance) and instance.found is not None for instance in self._running.values())

    def count(self, frame: FrameType) -> Any:
        """How many iterations a ``for`` in a frame has had, if the next one stands for all; None elsewhere."""
        instance = self._at_entry(frame)
        if instance is None or instance.is_skipping or instance.facts.iterations is None or not instance.carried:
            return None
        return lax.add(instance.carried[0], np.int32(instance.before)) if instance.before else instance.carried[0]

    def note_cut(self, frame: FrameType) -> None:
        """Takes note that data end a ``for`` of a frame, which would have had more iterations."""
        instance = self._at_entry(frame)
        if instance is not None:
            instance.is_cut = True

    def _at_entry(self, frame: FrameType) -> _RunningLoop | None:
        """The ``for`` that is about to begin an iteration, or to end."""
        for instance in self._running.values():
            if instance.frame is frame and instance.head.entry == frame.f_lasti and instance.head.is_for:
                return instance
        return None

    def note_given(self, value: Any) -> None:
        """Takes note of what a ``for`` assigns, which heeds `count`."""
        self._given.append(value)

    def note_other_answers(self) -> None:
        """Lets a `for` be counted again whose dropped iterations do not do what they did: they have had other loops.

        They ask more then, or come back to the beginning of an inner loop.
        """
        for instance in self._running.values():
            if instance.is_skipping:
                self._loops.recounted[instance.key] += 1
                if self._loops.recounted[instance.key] > _RECOUNTED:
                    self._refuse(instance, "its iterations test other conditions each time that they run")
                self._loops.forget(instance.facts, instance.frame.f_code, instance.head)
                self._path.abandon()

    def note_failure(self, error: Exception) -> None:
        """Takes back the loops that cannot be translated: what is one number in all iterations has to be known."""
        for instance in self._entered_loops:
            facts = instance.facts
            facts.refusal, facts.is_ready = f"{type(error).__name__}: {error}", False
            self._loops.give_up(instance.frame.f_code, instance.head, facts.refusal)
            self._loops.note(facts)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        before = sys.gettrace()
        sys._getframe().f_trace_opcodes = True  # Python 3.12 heeds it nowhere unless it is set before
        sys.settrace(self._entered)
        try:
            yield
        finally:
            sys.settrace(before)
            self._entered_loops = [x for x in self._running.values() if x.carried is not None]
            for frame in self._frames:
                frame.f_trace = None
            while self._undo:
                self._undo.pop()()
            self._running.clear()
            self._frames.clear()
            self._given.clear()

    def _entered(self, frame: FrameType, event: str, arg: Any) -> Any:
        del event, arg
        code = frame.f_code
        self._loops.executed.add(code)
        meetings = self._loops.meetings
        is_explored = meetings.explored is code
        if is_explored:
            meetings.explored = None
        elif code in meetings.codes:
            return self._meet(frame)
        if code not in self._loops.heads and code not in meetings.points.codes:
            return None
        self._look_into(frame, True)
        return self._step

    def _look_into(self, frame: FrameType, at_steps: bool) -> None:
        """Lets a frame tell of its instructions, or only of its end."""
        frame.f_trace_opcodes = frame.f_trace_lines = at_steps
        if at_steps:
            self._frames.append(frame)
            self._last.pop(id(frame), None)

    def _step(self, frame: FrameType, event: str, arg: Any) -> Any:
        del arg
        before = self._last.get(id(frame))
        at = self._offset(frame, event)
        if at is not None:
            if self._path.conditions is not None:
                self._path.conditions.arrive(frame, at)
            if self._running:
                self._within(frame, at, before)
            head = self._loops.heads.get(frame.f_code, _NONE).get(at)
            if head is not None:
                self._arrive(frame, head, head.is_come_back(before) or at == head.again)
        return self._step

    def _offset(self, frame: FrameType, event: str) -> int | None:
        """The offset of the instruction that a frame has come to; None if it was told of, or does nothing."""
        if event == "line":  # the first: since Python 3.12 a frame heeds only what is set after its call has begun
            frame.f_trace_opcodes = frame.f_trace_lines = False
            frame.f_trace_opcodes = True
        if event != "opcode":
            return None
        at, steps = frame.f_lasti, frame.f_code.co_code
        # Python 3.11 tells of the first prefix only, later ones tell of all and of what follows.
        while steps[at] == _PREFIX:
            at += 2
        if steps[at] == _NOP or at == self._last.get(id(frame)):
            return None
        self._last[id(frame)] = at
        return at

    # Functions whose paths meet where they return.

    def _meet(self, frame: FrameType) -> Any:
        path, meetings, call = self._path, self._loops.meetings, current()
        if path.is_abandoned or call is None or call.paths[-1] is not path or not path.is_in_its_trace(call):
            return None
        try:
            meeting = Meeting(meetings, path, frame, path.base)
        except Unlike as unlike:
            return self._refuse_guarded(frame.f_code, str(unlike))
        with running(path.trace):
            skip_p.bind(depth=1)
        path.begin_script(meeting.script, knows=False)
        self._look_into(frame, frame.f_code in meetings.points.codes)
        return functools.partial(self._return, meeting)

    def _return(self, meeting: Meeting, frame: FrameType, event: str, result: Any) -> Any:
        path = self._path
        if event != "return" or path.is_abandoned:
            at = self._offset(frame, event)
            if at is not None and path.conditions is not None:
                path.conditions.arrive(frame, at)
            return functools.partial(self._return, meeting)
        with running(path.trace):
            skip_p.bind(depth=-1)
        path.end_script()
        try:
            meeting.give(result)
        except Unlike as unlike:
            self._refuse_guarded(frame.f_code, str(unlike))

    def _refuse_guarded(self, cause: CodeType | Unaliased, reason: str) -> None:
        self._loops.refuse_guarded(cause, reason)
        self._path.abandon()

    # Where a `for` has assigned to its variables, and where it has ended.

    def _within(self, frame: FrameType, at: int, before: int | None) -> None:
        for instance in [*self._running.values()]:
            if instance.frame is not frame or instance.is_over:
                continue
            instance.is_over = at not in instance.head.within
            if instance.head.is_for and not instance.facts.refusal:
                self._within_for(instance, at, before)

    def _within_for(self, instance: _RunningLoop, at: int, before: int | None) -> None:
        head = instance.head
        if (before, at) == head.body and not instance.facts.is_ready:
            shown = instance.frame.f_locals
            instance.values.append(tuple([shown.get(name) for name in head.variables]))
        elif (before, at) == head.body and instance.carried is not None and not instance.is_skipping:
            self._place(instance)
        elif before == head.entry and instance.is_over and not instance.facts.is_ready:
            self._end_probe(instance)

    def _place(self, instance: _RunningLoop) -> None:
        carried: Any = instance.carried
        values = {
            name: number(lax.add(lax.mul(carried[0], np.int32(step)), np.int32(start)))
            for name, start, step in instance.facts.variables
        }
        set_locals(instance.frame, values)

    def _end_probe(self, instance: _RunningLoop) -> None:
        facts, count = instance.facts, instance.arrivals
        if instance.is_cut:
            return
        if instance.found is None or count - instance.found[0] < _FEWEST:
            self._refuse(instance, "too few of its iterations start alike")
            return
        at, changes = instance.found
        for place, name in enumerate(instance.head.variables):
            values = [row[place] for row in instance.values[at:count]]
            steps = {y - x for x, y in itertools.pairwise(values)} if _are_ints(values) else set()
            if len(steps) == 1:
                facts.variables.append(Variable(name, values[0] - at * min(steps), min(steps)))
            elif all(map(self._is_given, values)):
                continue
            elif not all(value is values[0] for value in values):
                self._refuse(instance, f"{name} is a different {type(values[0]).__name__} in each iteration")
                return
        asked = self._path.asked[instance.begun[at] :]
        facts.at, facts.iterations, facts.script = at, count, [condition.answer for condition in asked]
        self._is_ready(instance, changes)

    def _is_given(self, value: Any) -> bool:
        """Whether it is what an iterator gives that heeds `count`, or a part of that."""
        node = getattr(value, "_node", None)
        nodes = (getattr(given, "_node", None) for given in self._given)
        is_part = node is not None and any(x is not None and x.storage is node.storage for x in nodes)
        return is_part or any(value is given for given in self._given)

    # Where iterations begin.

    def _arrive(self, frame: FrameType, head: Head, is_back: bool) -> None:
        path = self._path
        call = current()
        if path.is_abandoned or call is None or call.paths[-1] is not path:
            return
        key = id(frame), head.entry
        instance = self._running.get(key) if is_back else None
        if instance is None:
            self._running.pop(key, None)  # what has ended
            if head.is_for and (is_back or any(x.is_skipping or _is_probed(x) for x in self._running.values())):
                return
            self._count += 1
            self._running[key] = instance = _RunningLoop(frame, head, self._facts_here(frame, head))
        else:
            instance.arrivals += 1
        instance.begun.append(len(path.asked))
        if instance.facts.refusal is not None:
            return
        try:
            if instance.facts.is_ready:
                self._iteration(instance)
            else:
                self._probe(instance)
        except (Unlike, KeyError) as error:
            if instance.facts.is_guess:
                self._look_again(instance)
            elif isinstance(error, KeyError):
                raise
            self._refuse(instance, str(error))

    def _facts_here(self, frame: FrameType, head: Head) -> Facts:
        answers = tuple([condition.answer for condition in self._path.asked])
        return self._loops.facts(frame.f_code, head, (answers, self._count))

    def _look_again(self, instance: _RunningLoop) -> None:
        """Lets a loop be found again: what is known of it is of another run, or of less code."""
        self._loops.forget(instance.facts, instance.frame.f_code, instance.head)
        self._path.abandon()

    def _refuse(self, instance: _RunningLoop, reason: str) -> None:
        facts = instance.facts
        facts.refusal = reason
        was_ready, facts.is_ready = facts.is_ready, False
        has_unaliased = bool(self._loops.unaliased.get(Unaliased(*instance.key)))
        if has_unaliased and not was_ready:  # the copies are in the trace, and in no other run's
            self._loops.note(facts)
        self._loops.give_up(instance.frame.f_code, instance.head, reason)
        if was_ready:
            self._loops.note(facts)
        if was_ready or has_unaliased:
            self._path.abandon()

    def _refuse_derivative(self, instance: _RunningLoop) -> None:
        self._refuse(instance, "the code takes a derivative through several iterations")
        self._path.abandon()

    def _state(self, instance: _RunningLoop) -> State:
        """What lives where iterations begin.

        Raises:
            Unlike: no loop can have that.
        """
        frame, call = instance.frame, this_call()
        if call.dual is not None:
            raise Unlike("it is part of a derivative")
        if not self._is_plain(call):
            raise Unlike("it is inside a transformation that the code has started")
        state = self._taken_down(instance)
        cause = Unaliased(*instance.key)
        paths = self._loops.unaliased.get(cause)
        undo = unalias(state, paths, frame, self._path.guards, cause) if paths else None
        if undo is not None:
            self._undo.extend(undo)
            state = self._taken_down(instance)
        if instance.first is None and instance.before + instance.arrivals == 0:
            instance.first = state
        return state

    def _expect_unaliased(self, instance: _RunningLoop, state: State) -> None:
        """Begins anew where something that iterations change shares memory with others on this path alone."""
        made = [change.path for change in instance.facts.changes if change.kind == "made"]
        shared = {path for path in made if path not in state.storages and state.tensor_at(path) is not None}
        if shared and self._loops.unalias(instance.frame.f_code, instance.head, shared):
            self._path.abandon()

    def _taken_down(self, instance: _RunningLoop) -> State:
        frame = instance.frame
        shown = frame.f_locals
        roots = {name: shown[name] for name in sorted(instance.head.live) if name in shown}
        flags = self._loops.flags.get(instance.key, ())
        return State(roots, frame.f_code, frame.f_globals, self._loops.executed, flags)

    def _is_plain(self, call: Any) -> bool:
        """As `Path.is_in_its_trace`, and no tape of the code's own is within another one."""
        trace, tape = self._path.trace, call.tape
        is_there = current_trace() is trace if tape is None else tape.is_all_beside(trace)
        return is_there and not call.transformations and call.dual is None

    def _probe(self, instance: _RunningLoop) -> None:
        count, facts = instance.arrivals, instance.facts
        if instance.found is not None:
            if count > MOST:
                self._refuse(instance, f"it has more than {MOST} iterations")
            return
        if count > _SEEN:
            raise Unlike(facts.refusal or "no two iterations start alike")
        before, instance.state = instance.state, self._state(instance)
        key = instance.key
        if before is None or (instance.before + count == 1 and key in self._loops.writes_to_new):
            return
        self._is_learning = self._is_learning or not before.unexecuted.isdisjoint(self._loops.executed)
        try:
            changes = before.changes_until(instance.state, before.new_since(instance.first))
        except Unlike as unlike:
            if isinstance(unlike, WrittenAndReplaced):
                self._loops.write_to_new(key)
            elif self._loops.unalias(instance.frame.f_code, instance.head, paths_that_share(before, instance.state)):
                self._path.abandon()
            if count == _SEEN:
                self._carry_flag(instance, unlike)
                self._unalias(instance, before, instance.state)
                raise
            return
        if count > 1 and self._is_learning:  # with what is known now, iterations may be alike before
            self._loops.note(facts)
            self._path.abandon()
        instance.found = count - 1, changes
        facts.begins, facts.unexecuted = (before.outline, before.unexecuted) if count > 1 else (None, set())
        if not instance.head.is_for:
            facts.at = count - 1
            self._is_ready(instance, changes)

    def _is_ready(self, instance: _RunningLoop, changes: list[Change]) -> None:
        facts = instance.facts
        self._loops.found[instance.key] += 1
        if self._loops.found[instance.key] > _FOUND:
            self._refuse(instance, "too many paths through the code around it lead there")
            self._loops.learn_anew()
            self._path.abandon()
        facts.add(changes)
        facts.growth.update((change.path, change.growth) for change in changes if change.kind == "sized")
        facts.is_ready = True
        self._loops.note(facts)
        self._path.abandon()

    def _iteration(self, instance: _RunningLoop) -> None:
        facts = instance.facts
        if instance.arrivals == 0 < facts.at and instance.key in self._loops.writes_to_new:
            self._state(instance)
        if instance.is_skipping:
            if instance.arrivals == facts.iterations:
                self._end_skip(instance)
        elif instance.is_left:
            self._carry_flag(instance, instance.unlike)
        elif instance.carried is not None:
            self._come_back(instance)
        elif instance.arrivals == facts.at:
            self._enter(instance)

    def _enter(self, instance: _RunningLoop) -> None:
        facts = instance.facts
        self._path.expect_loop_around(instance.key)
        state = self._state(instance)
        if facts.begins is not None and facts.begins != state.outline:
            if not facts.unexecuted.isdisjoint(self._loops.executed):  # what that has is seen since it has run
                self._look_again(instance)
            self._begin_here(instance)
            return
        self._expect_unaliased(instance, state)
        if len(this_call().paths) > 1 and any(change.kind == "draws" for change in facts.changes):
            raise Unlike("it draws random numbers inside other control flow")
        facts.is_detached = not is_fwd_grad_enabled() and not torch.is_inference_mode_enabled()
        arrays, ranges = self._begun(facts, state)
        if facts.iterations is not None:
            arrays, ranges = [np.int32(facts.at), *arrays], [None, *ranges]
        with running(self._path.trace):
            arrays = [varying(jnp.asarray(x), facts.axes.get(i, frozenset())) for i, x in enumerate(arrays)]
            first: Any = enter_p.bind(*arrays, loop=facts, ranges=tuple(ranges))
        self._note_guarded(facts, state)
        instance.carried, instance.new = first, state.new_since(instance.first)
        if facts.is_promised:
            self._expect_to_fit(facts, first)
        if facts.iterations is not None:
            goes_on = self._path.ask(lax.lt(first[0], np.int32(facts.iterations)), facts.place)
            if not goes_on:
                instance.is_skipping, instance.state = True, state
                self._path.begin_script(deque(facts.script))
                with running(self._path.trace):
                    skip_p.bind(depth=1)
                return
        self._put(instance, state)

    def _begin_here(self, instance: _RunningLoop) -> None:
        """Lets the next iterations be another loop: the path through those before is not the one that is known.

        What lives is not alike, and so the iterations may change something else.
        """
        instance.facts = self._facts_here(instance.frame, instance.head)
        instance.before, instance.arrivals = instance.before + instance.arrivals, 0
        instance.begun, instance.values = [len(self._path.asked)], []
        if instance.facts.refusal is not None:
            return
        if instance.facts.is_ready:
            self._iteration(instance)
        else:
            self._probe(instance)

    def _begun(self, facts: Facts, state: State) -> tuple[list, list]:
        """What the first iteration begins with, and between which bounds what is carried is, where that is known."""
        arrays, ranges = [], []
        for change in facts.changes:
            if change.kind == "sized":
                rows, length = state.rows_and_length(change)
                least, most = range_of(length)
                room = min(len(rows), max(most, 0)) + facts.growth.get(change.path, 0) * facts.room
                arrays += [with_room(rows, room), lax.convert_element_type(length, np.int32)]
                ranges += [None, (0 if change.path in facts.shrinks else max(least, 0), room)]
            elif change.is_carried:
                arrays.append(state.array(change))
                ranges.append(None)
        return arrays, ranges

    def _expect_to_fit(self, facts: Facts, carried: list) -> None:
        """Lets results tell where there are more iterations than the user has said."""
        given, run = iter(carried), this_call().attempt
        for change in facts.changes:
            rows = next(given) if change.is_carried else None
            if change.kind != "sized":
                continue
            fits = lax.le(next(given), np.int32(len(rows)))  # pyright: ignore[reportArgumentType]
            text = f"{change.path} became longer than max_steps= has room for, in the loop at {facts.place}"
            run.expect_to_fit(fits, text)

    def _ended(self, facts: Facts, state: State, carried: list) -> list:
        """What an iteration ends with.

        Raises:
            Unlike: the next one has no room for it.
        """
        arrays: list = []
        for change in facts.changes:
            if change.kind != "sized":
                arrays += [state.array(change)] if change.is_carried else []
                continue
            rows, length = state.rows_and_length(change)
            before, begun = carried[len(arrays) : len(arrays) + 2]
            self._expect_growth(facts, change, distance(length, begun), len(rows) > len(before))
            arrays += [with_room(rows, len(before)), lax.convert_element_type(length, np.int32)]
        return arrays

    def _expect_growth(self, facts: Facts, change: Change, growth: int | None, needs_room: bool) -> None:
        """Takes note of how much longer an iteration makes something.

        Raises:
            Unlike: nobody knows how much.
        """
        path = change.path
        if needs_room and growth is None:
            raise Unlike(f"{path} becomes longer in each iteration by a data-dependent number")
        has_learned = False
        if needs_room and growth > facts.growth.get(path, 0):  # pyright: ignore[reportOptionalOperand]
            facts.growth[path], facts.most, has_learned = growth, None, True  # pyright: ignore[reportArgumentType]
        if (growth is None or growth < 0) and path not in facts.shrinks:
            facts.shrinks.add(path)
            has_learned = True
        if has_learned:
            self._loops.note(facts)
            self._path.abandon()

    def _put(self, instance: _RunningLoop, state: State) -> None:
        facts, carried = instance.facts, instance.carried or []
        first = 0 if facts.iterations is None else 1
        refuse = functools.partial(self._refuse_derivative, instance)
        ask = functools.partial(self._path.ask, place=facts.place)
        self._undo.extend(put(state, facts.changes, carried[first:], instance.frame, refuse, facts.carried_float, ask))
        instance.state = self._state(instance)
        for path, cause in facts.guarded.items():
            self._path.guards.add(_guardable(instance.state, path), cause)

    def _note_guarded(self, facts: Facts, state: State) -> bool:
        """Takes note of what is carried that must not be written to; whether some of it was not known."""
        known = len(facts.guarded)
        for change in facts.changes if self._path.guards else ():
            if change.kind in ("made", "object"):
                cause = self._path.guards.cause(_guardable(state, change.path))
                if cause is not None:
                    facts.guarded.setdefault(change.path, cause)
        return len(facts.guarded) > known

    def _check_guards(self, changes: list[Change], state: State) -> None:
        guards = self._path.guards
        written = [_guardable(state, change.path) for change in changes if guards and change.kind == "written"]
        cause = next((x for x in map(guards.cause, written) if x is not None), None)
        if cause is not None:
            self._refuse_guarded(cause, "what it gives is written to in a loop")
        if guards and self._path.is_guard_broken():
            self._loops.learn_anew()
            self._path.abandon()

    def _carry_flag(self, instance: _RunningLoop, unlike: Unlike | None) -> None:
        """Begins anew if a bool differs where iterations begin, and lets the loop carry it.

        One that ends the loop where it differs is none of these: the path on which it does is left there.
        """
        if isinstance(unlike, FlagDiffers):
            self._loops.carry_flag(instance.key, unlike.path)
            self._loops.forget(instance.facts, instance.frame.f_code, instance.head)
            self._path.abandon()

    def _unalias(self, instance: _RunningLoop, begun: State, state: State) -> None:
        """Begins anew if tensors that share memory when one of two iterations begins can get their own.

        Raises:
            Unlike: they must not be.
        """
        code, head = instance.frame.f_code, instance.head
        paths = paths_that_share(begun, state) or variables_that_share(begun, state)
        if not paths:
            return
        if self._loops.unalias(code, head, paths):
            self._path.abandon()
        if self._loops.unaliased[Unaliased(*instance.key)] is None:
            raise Unlike(
                f"{min(paths)} shares memory with another tensor in some iterations only, and the code writes to "
                "it or asks whether they are the same: keep a copy, by .clone()"
            )

    def _changes(self, instance: _RunningLoop, begun: State, state: State) -> list[Change]:
        """What iterations have changed that stand for all.

        Raises:
            Unlike: that is nothing that a loop can carry.
        """
        try:
            return begun.changes_until(state, instance.new)
        except WrittenAndReplaced:
            is_behind_others = instance.before + instance.facts.at > 0
            if is_behind_others and instance.key in self._loops.writes_to_new:
                raise
            self._loops.write_to_new(instance.key)
            self._loops.forget(instance.facts, instance.frame.f_code, instance.head)
            return self._path.abandon()
        except Unlike as unlike:
            self._expect_executed(instance)
            if instance.head.is_for:
                self._carry_flag(instance, unlike)
            if not instance.facts.is_guess:
                self._unalias(instance, begun, state)
            raise

    def _end_skip(self, instance: _RunningLoop) -> None:
        facts, state, begun = instance.facts, self._state(instance), instance.state
        assert begun is not None
        if facts.add(self._changes(instance, begun, state)):
            self._loops.note(facts)
            self._path.abandon()
        with running(self._path.trace):
            skip_p.bind(depth=-1)
        self._path.end_script()
        instance.is_skipping = False
        self._put(instance, state)

    def _expect_executed(self, instance: _RunningLoop) -> None:
        """Begins anew where an iteration has executed code that was not known: nobody looked at what that has."""
        if instance.state is not None and not instance.state.unexecuted.isdisjoint(self._loops.executed):
            self._loops.note(instance.facts)
            self._path.abandon()

    def _come_back(self, instance: _RunningLoop) -> None:
        facts, carried, begun = instance.facts, instance.carried or [], instance.state
        assert begun is not None
        self.note_other_answers()
        self._expect_executed(instance)
        state = self._state(instance)
        try:
            changes = self._changes(instance, begun, state)
        except Unlike as unlike:
            if facts.is_guess:
                raise
            if instance.head.is_for:  # how far it is only Python knows
                raise
            facts.unlike, instance.unlike, instance.is_left = str(unlike), unlike, True
            return
        if facts.add(changes) | self._note_guarded(facts, state) | _note_rounded(facts, begun, state):
            self._loops.note(facts)
            self._path.abandon()
        self._check_guards(changes, state)
        arrays = self._ended(facts, state, carried if facts.iterations is None else carried[1:])
        if facts.iterations is not None:
            arrays = [lax.add(carried[0], np.int32(1)), *arrays]
        for before, array in zip(carried, arrays, strict=True):
            if (before.shape, before.dtype) != (array.shape, array.dtype):
                raise Unlike(
                    f"an iteration starts with {before.dtype}{before.shape} and ends with {array.dtype}{array.shape}"
                )
        facts.is_guess = False
        with running(self._path.trace):
            arrays = [varying(jnp.asarray(x), varying_axes(before)) for x, before in zip(arrays, carried, strict=True)]
            found = [*map(varying_axes, arrays)]
            if any(axes != varying_axes(before) for axes, before in zip(found, carried, strict=True)):
                facts.axes.update(enumerate(found))
                self._loops.note(facts)
                self._path.abandon()
            again_p.bind(*arrays, loop=facts)
        self._path.come_back(facts)


def _note_rounded(facts: Facts, begun: State, state: State) -> bool:
    """Takes note of Python floats that an iteration changes by steps which float32 rounds; whether one is new."""
    has_learned = False
    for path, carried in facts.floats.items():
        value = state.entries[path].value if path in state.entries else None
        how = getattr(value, "computed", None)
        if how is None or carried.is_rounded or value is begun.entries[path].value:
            continue
        if not how.is_exact or any(x.is_rounded for x in how.carried):
            carried.is_rounded = has_learned = True
    return has_learned


def _guardable(state: State, path: str) -> Any:
    """The memory of a tensor, or the list."""
    return state.storages[path].memory if path in state.storages else state.entries[path].value


def _is_probed(instance: _RunningLoop) -> bool:
    is_begun = instance.head.is_for and not instance.is_over
    return is_begun and not instance.facts.is_ready and instance.facts.refusal is None


def _are_ints(values: list) -> bool:
    return len(values) > 1 and all(type(value) is int for value in values)


def frames_of_code() -> list[FrameType]:
    """The frames on the stack that are of neither JAX nor this package, from the outermost."""
    frame, found = sys._getframe(1), []
    while frame is not None:
        if not is_translator(frame.f_code.co_filename):
            found.append(frame)
        frame = frame.f_back
    return found[::-1]
