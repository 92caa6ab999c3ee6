"""The way in from the rooms below: the user's code as a converted run has it."""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ..runtime.translation import this_call
from ..tensors.trees import map_results
from ..tracing.conditions import BranchPolicy, Path
from ..tracing.traces import current_trace
from ..tracing.user_code import UserCode
from ..values.traced_numbers import Number
from .merge import Unmergeable, expect_there
from .operators import OPERATORS
from .state import PathOfSource, Refused, current_run
from .ties import tied_to
from .writes import ObjectJournal, expect_restored_at_end, made, note_gradient


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
        left = slot.read()
        kind = type(left)  # not by isinstance, which asks what has ended
        parts = left if kind in (list, set) else left.values() if kind is dict else (left,)
        if any(issubclass(type(x), (Number, Unmergeable)) for x in parts):
            slot.write(journal.before[key])


def _either(name: str, other: str) -> str:
    return (
        f"data decide whether {name} is {other}, and the next step has to know. Keep an index in its place, or copy "
        f"what is in {other}"
    )
