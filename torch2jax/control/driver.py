"""The beginning of converted code: a call whose plain run lacked something starts again, converted."""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import jax
import numpy as np
import torch
from jax.core import eval_jaxpr

from ..runtime.errors import BranchError, TracedValueError
from ..runtime.errors.tracebacks import add_note
from ..runtime.errors.unwinding import Restart
from ..runtime.translation import this_call
from ..tensors.ended import is_kept
from ..tensors.tensor import Torchish
from ..tensors.trees import flatten, map_results
from ..tracing.conditions import BranchPolicy, Path
from ..tracing.traces import Bookmark, current_trace, ending_with_errors, is_transforming
from ..tracing.user_code import UserCode
from ..values.traced_numbers import Number
from .merge import Unmergeable, expect_there
from .operators import OPERATORS
from .programs import sunk
from .rest import Rest, Split, Way
from .state import PathOfSource, Refused, Run, current_run, is_of_translation, running
from .ties import tied_to
from .writes import (
    Doubted,
    JournaledSlot,
    ObjectJournal,
    can_be_put_back,
    expect_not_consumed,
    expect_restored_at_end,
    is_from_outside,
    made,
    note_gradient,
)


class ConvertedCode(UserCode):
    """The user's code in a run in which operators ask and call, and what it writes is journaled."""

    is_converted = True

    def function(self, function: Callable) -> Callable:
        return functools.partial(OPERATORS.call, function)

    def result(self, function: Callable, args: tuple, kwargs: dict) -> Any:
        call, run = this_call(), current_run()
        journal = run.outside
        if journal is not None and not journal.slots:
            call.ends.append(lambda: _put_back_traced(journal))
        result = map_results(_there, OPERATORS.call(function, *args, **kwargs))
        if call.is_top_level:
            expect_restored_at_end()  # here, where what the run has done is undone if it is not the last
            if journal is not None and run.way is not None:
                run.left = {key: (x, x.read()) for key, x in journal.slots.items() if not x.is_variable}
        return result

    def is_on_side(self) -> bool:
        return current_run().journal is not None

    def path(self, policy: BranchPolicy, trace: object) -> Path:
        return PathOfSource(policy, trace)

    @contextlib.contextmanager
    def asking_within(self) -> Iterator[None]:
        call = this_call()
        call.paths.append(self.path(call.execution.path.policy, current_trace()))
        try:
            yield
        finally:
            call.paths.pop().end()

    def note_made(self, value: object) -> None:
        made(value)

    def set_gradient(self, tensor: Any, value: Any) -> None:
        if note_gradient(tensor):
            tensor._gradient = value
        else:
            super().set_gradient(tensor, value)

    def expect_settled(
        self, objects: Callable[[], Mapping[int, str]], tensors: Mapping[str, object], others: Iterable[object]
    ) -> None:
        expect_there(*others)
        chosen = current_run().chosen
        kept = objects() if chosen else {}
        for one, other, _ in chosen:
            if id(one) in kept and id(other) in kept:
                raise Refused(_either(kept[id(one)], kept[id(other)]))
        for name, other in tied_to(tensors):
            raise Refused(_either(name, other))


def _there(value: object) -> object:
    expect_there(value)
    return value


def _put_back_traced(journal: ObjectJournal) -> None:
    """Puts back what objects from outside held in place of what is nothing outside of the call."""
    for key, slot in journal.slots.items():
        if _has_numbers(slot.read()):
            slot.write(journal.before[key])


def _has_numbers(left: Any) -> bool:
    """True for numbers that data decide, alone or in a container: outside of the call they are nothing."""
    kind = type(left)  # not by isinstance, which asks what has ended
    parts = left if kind in (list, set) else left.values() if kind is dict else (left,)
    return any(issubclass(type(x), (Number, Unmergeable)) for x in parts)


def _either(name: str, other: str) -> str:
    return (
        f"data decide whether {name} is {other}, and the next step has to know. Keep an index in its place, or copy "
        f"what is in {other}"
    )


_CONVERTED = ConvertedCode()
T = TypeVar("T")


def journaled_run(
    execute: Callable[[Path, UserCode], T],
    policy: BranchPolicy,
    restored: Callable[[object], bool],
    ended_at_condition: bool | None,
) -> T:
    """The run of code that asks nothing of traced values: a `LaterRun`."""

    def run(kept: Run) -> T:
        kept.outside, kept.was_restored, kept.is_journaled = ObjectJournal(), restored, True
        path = Path(policy, current_trace())
        try:
            result = execute(path, _CONVERTED)
            expect_restored_at_end()
            return result
        except Refused as refused:
            if refused.other_paths and is_transforming():
                raise Restart(follows=True) from None
            raise

    try:
        return _sure_of_outside(run)
    except Refused as refused:
        raise BranchError(refused.reason) from None


def _sure_of_outside(code: Callable[[Run], T]) -> T:
    """The result of a run, or of a second one, if the first has written to objects that may be from outside.

    An object that code has made which is not converted is not known to be made. If the second run, before which all is
    put back, writes to the same object, it is from outside; else that run has made another one.
    """
    kept, bookmark = Run(), Bookmark()
    try:
        with running(kept):
            return code(kept)
    except Doubted as doubted:
        owners = {id(x): x for x in doubted.owners}
    bookmark.return_to()
    if kept.outside is not None:
        kept.outside.undo()
    again = Run()
    again.doubted = owners
    with running(again):
        return code(again)


def converted_run(
    execute: Callable[[Path, UserCode], object],
    policy: BranchPolicy,
    restored: Callable[[object], bool],
    ended_at_condition: bool | None,
) -> Any:
    """The run in which conditions on traced values are a part of the graph: a `LaterRun`."""
    split = Split()
    while True:
        ways = _Ways(execute, policy, restored, split, ended_at_condition)
        try:
            if not split.is_used:
                return _computed(lambda run=ways.run: run(Way(split)))
            result = _computed(lambda run=ways.run: Rest(run, split, policy).result())
            ways.leave()
            return result
        except Refused as refused:
            if not refused.other_paths or not split.add(refused):
                ways.undo()
                raise BranchError(refused.reason) from None
            ended_at_condition = ended_at_condition is not False  # there is a run before now, which has met one
        except BranchError:
            ways.undo()
            raise


def _computed(function: Callable[[], object]) -> Any:
    """The tree that a function gives, computed by a program in which all is where it is used.

    It is staged as a whole: only when the last condition is known is it known what sinks into a side (`programs.py`).
    """
    around, left = current_trace(), []

    def staged() -> list:
        with ending_with_errors(around):
            leaves, structure = flatten(function())
        is_array = [isinstance(x, (jax.Array, np.ndarray)) for x in leaves]
        left.extend((structure, [(None if is_one else x, is_one) for x, is_one in zip(leaves, is_array, strict=True)]))
        return [x for x, is_one in zip(leaves, is_array, strict=True) if is_one]

    program = sunk(jax.make_jaxpr(staged)())
    structure, leaves = left
    arrays = iter(eval_jaxpr(program.jaxpr, program.consts))
    return structure.unflatten([next(arrays) if is_one else x for x, is_one in leaves])


class _Ways:
    """The runs of the code on all ways through conditions that are split."""

    def __init__(
        self,
        execute: Callable[[Path, UserCode], object],
        policy: BranchPolicy,
        restored: Callable[[object], bool],
        split: Split,
        ended_at_condition: bool | None,
    ):
        self._execute, self._policy, self._restored, self._split = execute, policy, restored, split
        self._ended_at_condition = ended_at_condition
        self._left: dict[tuple, tuple[JournaledSlot, object]] | None = None
        """What the last way has left in places of objects from outside."""
        self._journal: ObjectJournal | None = None
        """The writes of the last way."""
        self._held: dict[tuple, object] = {}
        """What such places held before the call."""
        self._ended: dict[tuple, tuple[JournaledSlot, object]] = {}
        """The tensors that some way has left there, and whose values are gone with the call."""
        self._others: dict[tuple, JournaledSlot] = {}
        """The places where ways have left numbers that differ, or other items in a container."""

    def run(self, way: Way) -> object:
        """The result of the code on one way.

        Raises:
            Refused: a condition has to be split, or cannot be followed at all.
        """
        return _sure_of_outside(functools.partial(self._run_once, way))

    def _run_once(self, way: Way, kept: Run) -> object:
        restored = self._restored
        kept.outside = self._journal = ObjectJournal()
        kept.way = way
        way.begin()
        if self._ended_at_condition is not None:
            kept.was_restored, kept.ended_at_condition = restored, self._ended_at_condition
        try:
            result = self._execute(PathOfSource(self._policy, current_trace(), self._split.is_used), _CONVERTED)
            expect_restored_at_end()
        except Refused as refused:
            refused.other_paths = refused.other_paths and can_be_put_back(kept, restored)
            raise
        except RecursionError as error:
            add_note(error, _RECURSION)
            raise
        except TypeError as error:
            if not isinstance(error, TracedValueError) and not is_of_translation(error):
                raise
            if self._split.has_all or not can_be_put_back(kept, restored):
                raise
            raise Refused(str(error), other_paths=True) from error
        finally:
            way.raised = kept.raised
        if way.decisions:
            expect_not_consumed(
                kept, restored, f"in the rest of the code, which runs more than once: {self._split.reason}"
            )
            self._expect_same_writes(kept)
        return result

    def _expect_same_writes(self, kept: Run) -> None:
        """Refuses ways that leave something else in objects from outside: the last one would decide."""
        left: dict[tuple, tuple[JournaledSlot, object]] = {}
        for key, (slot, value) in kept.left.items():
            if is_from_outside(kept, slot.owner, self._restored) and not _has_numbers(value):  # which are put back
                left[key] = slot, value
                self._held.setdefault(key, kept.outside.before[key] if kept.outside is not None else None)
                if _ends_with_call(value):
                    self._ended[key] = slot, value
        before, self._left = self._left, left
        for key in {*left} | {*(left if before is None else before)}:
            one, other = (side.get(key) for side in (left, left if before is None else before))
            slot = (one or other)[0]  # pyright: ignore[reportOptionalSubscript]
            values = [self._held[key] if x is None else x[1] for x in (one, other)]
            if _is_put_back(one) or _is_put_back(other) or _is_same(*values):
                continue
            if slot.is_contents or all(type(x) in _NUMBERS for x in values):
                self._others[key] = slot
            elif key not in self._ended or not all(map(_is_tensor, values)):
                raise Refused(
                    f"{self._split.reason}. So the code runs once for each side, and each leaves another {slot.name}"
                )

    def undo(self) -> None:
        """Puts objects from outside back, which a refused call leaves as they were."""
        if self._journal is not None:
            self._journal.undo()

    def leave(self) -> None:
        """Leaves outside what data decide, as after any call: tensors are gone, all else is put back."""
        for slot, value in self._ended.values():
            slot.write(value)
        for key, slot in self._others.items():
            slot.write(self._held[key])


_RECURSION = (
    "Both sides of a condition on data are traced. So a function that calls itself until such a condition holds has no "
    "end: write it as a `while` loop"
)


_NUMBERS = (bool, int, float, complex)


def _is_put_back(left: tuple[JournaledSlot, object] | None) -> bool:
    """True for a tensor in a module: the call puts modules back that hold any."""
    return left is not None and isinstance(left[0].owner, torch.nn.Module) and isinstance(left[1], torch.Tensor)


def _is_same(one: Any, other: Any) -> bool:
    """True if it does not matter which of two values a call leaves in an object from outside.

    Of a tensor that data decide the values are gone with the call: whoever uses it later gets an error, and no number.
    """
    if one is other or (_ends_with_call(one) and _ends_with_call(other)):
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if type(one) in (list, tuple):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if type(one) is dict:
        return [*one] == [*other] and all(map(_is_same, one.values(), other.values()))
    return isinstance(one, (bool, int, float, str, bytes)) and one == other


def _ends_with_call(value: Any) -> bool:
    return issubclass(type(value), Torchish) and not is_kept(value)


def _is_tensor(value: object) -> bool:
    return issubclass(type(value), torch.Tensor)  # not by isinstance, which asks what has ended
