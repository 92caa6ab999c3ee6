"""Conditions on traced values in code that changes a few known places: both sides run, and one is selected.

Only for code as short as a scheduler's step, since it runs once for each way through it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..abandoning import Abandoned
from ..errors import BranchError, user_place
from ..tensors.tensor import Torchish
from ..translation import this_call
from .traced_numbers import Number


class Slot:
    """Where something is that code changes.

    Args:
        owner: a dictionary, a list, or the attributes of an object.
        key: what it is there.
        path: its name.
    """

    __slots__ = ("key", "owner", "path")

    def __init__(self, owner: Any, key: Any, path: str):
        self.owner, self.key, self.path = owner, key, path

    def get(self):
        return self.owner[self.key]

    def set(self, value: Any) -> None:
        self.owner[self.key] = value


_RUNS = 4
"""Runs for each path that is allowed: half of them end at a condition, and others in checks."""


class _ComparisonAsked(Abandoned):
    """The code asks what nobody has answered yet."""

    ends_call = False

    def __init__(self, condition: Torchish):
        super().__init__()
        self.condition = condition


class Answers:
    def __init__(self, answers: tuple[bool, ...]):
        self._answers = iter(answers)

    def answer(self, condition: Torchish) -> bool:
        for answer in self._answers:
            return answer
        raise _ComparisonAsked(condition)


@contextmanager
def _answering(answers: Answers | None):
    call = this_call()
    before, call.answers = call.answers, answers
    try:
        yield
    finally:
        call.answers = before


def answered(condition: Torchish) -> bool | None:
    """The answer to a condition on a traced value, None where none is to be given.

    Raises:
        BaseException: to `follow`, which follows both.
    """
    answers = this_call().answers
    return None if answers is None else answers.answer(condition)


def follow(run: Callable[[], Any], places: Callable[[], Iterator[Slot]]) -> Any:
    """Calls `run`, whatever it asks of traced values, and leaves in `places` what the true answers lead to.

    A path on which the code raises a `ValueError` is not gone: it checks what cannot be checked before there are
    values.

    Args:
        run: it changes nothing but what is at `places`. The result is that of any path.
        places: gives them anew: numbers, and tensors that are written in place.
    """
    if this_call().answers is not None:  # it is asked for within another
        return run()
    before, paths, bound = _taken(places()), 0, this_call().attempt.path.policy.max_paths

    def path(answers: tuple[bool, ...]):
        nonlocal paths
        paths += 1
        if paths > _RUNS * bound:
            raise BranchError(
                f"{user_place()} asks more of traced values than can be followed: got more than {paths - 1} paths "
                "through it. Wanted code without a loop that ends when the data say so; or allow more paths: "
                "t2j(..., max_paths=...)"
            )
        _put_back(places(), before)
        try:
            with _answering(Answers(answers)):
                result = run()
        except _ComparisonAsked as condition:
            return both(condition.condition, answers)
        return result, _taken(places())

    def both(condition: Torchish, answers: tuple[bool, ...]):
        try:
            yes = path((*answers, True))
        except ValueError:
            return path((*answers, False))
        try:
            no = path((*answers, False))
        except ValueError:
            return yes
        return yes[0], _joined(condition, yes[1], no[1])

    call = this_call()
    call.memo = {}
    try:
        with torch.no_grad():
            result, after = path(())
            _put_back(places(), after)
        return result
    finally:
        call.memo = None


def _taken(places: Iterator[Slot]) -> dict[str, Any]:
    found = {}
    for place in places:
        value = place.get()
        found[place.path] = _copy(value)
    return found


def _copy(value: Any):
    if isinstance(value, Number):
        return value.again()
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _put_back(places: Iterator[Slot], values: dict[str, Any]) -> None:
    for place in places:
        if place.path not in values:
            continue
        now, value = place.get(), values[place.path]
        if _is_written(now) and _is_written(value):
            with torch.no_grad():
                now.copy_(value)
        else:
            place.set(_copy(value))


def _is_written(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not isinstance(value, Number)


def _joined(condition: Torchish, yes: dict[str, Any], no: dict[str, Any]) -> dict[str, Any]:
    return {path: _selected(condition, value, no[path]) for path, value in yes.items() if path in no}


def _selected(condition: Torchish, yes: Any, no: Any) -> Any:
    if yes is no or (not isinstance(yes, torch.Tensor) and not isinstance(no, torch.Tensor) and yes == no):
        return yes
    if isinstance(yes, Torchish) and isinstance(no, Torchish) and yes.physical.array is no.physical.array:
        return yes
    if isinstance(yes, torch.Tensor) and not isinstance(yes, Number):
        return torch.where(condition, yes, no)
    if isinstance(yes, float) or isinstance(no, float):
        yes, no = (
            torch.tensor(x, dtype=torch.float64) if isinstance(x, (int, float)) else x.double() for x in (yes, no)
        )
    kind, started = next(((type(x), x._started) for x in (yes, no) if isinstance(x, Number)), (Number, None))
    selected: Any = torch.where(condition, yes, no)
    return kind.of(selected, started)
