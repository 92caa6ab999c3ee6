"""The user's code as a run has it: plain Python, or converted by a layer above (`control/`).

The package calls functions of the user's, makes objects that their code writes to, and writes to tensors of theirs. A
plain run does that as it stands. In a converted run the function has to be converted, and the write has to be in the
journal of the side of a condition that the code is on. So whoever does one of these says so here. The rooms below the
layer don't know it: it provides the runs in which code is converted, the first time that one is needed.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from ..runtime.translation import current
from .conditions import BranchPolicy, Path


class UserCode:
    """The user's code in a plain run."""

    is_converted = False
    """True in a converted run: to ask it is no call, where a plain run calls what the user gave."""

    def function(self, function: Callable) -> Callable:
        """A function of the user's as the package calls it."""
        return function

    def result(self, function: Callable, args: tuple, kwargs: dict) -> Any:
        """The result of the function that the run begins with."""
        return function(*args, **kwargs)

    def is_on_side(self) -> bool:
        """Returns True if the code is on a side of a condition, or in a loop of the graph."""
        return False

    def path(self, policy: BranchPolicy, trace: object) -> Path:
        """A path for code in a trace of its own that may run several times."""
        return Path(policy, trace)

    def asking_within(self) -> contextlib.AbstractContextManager[None]:
        """A context of code in a trace of its own that runs once: its conditions are a part of that."""
        return contextlib.nullcontext()

    def note_made(self, value: object) -> None:
        """Called with an object that the package has just made, before code of the user's writes to it."""

    def set_gradient(self, tensor: Any, value: object) -> None:
        """Sets `Tensor.grad` to another tensor, or None."""
        tensor.change("_gradient", value)

    def expect_settled(
        self, objects: Callable[[], Mapping[int, str]], tensors: Mapping[str, object], others: Iterable[object]
    ) -> None:
        """Refuses to keep two objects, or tensors, of which data decide whether they are one.

        Args:
            objects: gives all that are kept, by their ids, and where they are.
            tensors: all that are kept.
            others: all else that is kept, which is the same on both sides of each condition.

        Raises:
            BaseException: to who runs the code.
        """


PLAIN = UserCode()


class LaterRun(Protocol):
    """A run of code in which it is converted."""

    def __call__(
        self,
        execute: Callable[[Path, UserCode], object],
        policy: BranchPolicy,
        restored: Callable[[object], bool],
        ended_at_condition: bool | None,
    ) -> Any:
        """The result of the run.

        Args:
            execute: runs the code on a path; gives a tree.
            restored: tells of an object whether it is as it was before the first run.
            ended_at_condition: whether the run before has ended at a condition; None if there was none.

        Raises:
            BaseException: to `Runs`, a journaled run asks for a traced value.
            BranchError: the code cannot be followed, or writes to an object of which nobody knows what an earlier run
                has left there.
        """


def of_user(function: Callable) -> Callable:
    """A function of the user's as the run in progress calls it."""
    call = current()
    return function if call is None else call.execution.code.function(function)


def note_made(value: object) -> None:
    """Called with an object that the package has just made, before code of the user's writes to it."""
    call = current()
    if call is not None:
        call.execution.code.note_made(value)


def note_copies(memo: Mapping[int, object]) -> None:
    """Called with a memo of copies, by the ids of what they are of: no object from outside has them."""
    for key, value in memo.items():
        if key != id(value):  # else it is shared with the user's
            note_made(value)


def set_gradient(tensor: object, value: object) -> None:
    """Sets `Tensor.grad` to another tensor, or None."""
    call = current()
    (PLAIN if call is None else call.execution.code).set_gradient(tensor, value)
