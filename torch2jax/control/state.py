"""What a converted run of code knows: the journal of the side that it is on, and what it must not write to any more."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..abandoning import Abandoned

if TYPE_CHECKING:
    from .writes import ObjectJournal


class Refused(Abandoned):
    """Code cannot be followed; it ends the run, whatever the code catches.

    There may be many in a run, since loops are tried in more than one way (`retried`).

    Args:
        reason: in words.
        other_paths: whether it may be followed by running it once for each path. Not where a write is unseen.
    """

    most = 2**12

    def __init__(self, reason: str, *, other_paths: bool = False):
        super().__init__(reason)
        self.reason, self.other_paths = reason, other_paths
        run = current_run()
        run.refusal = run.refusal or self


class Run:
    """One run of converted code."""

    def __init__(self):
        self.journal: ObjectJournal | None = None
        """That of the side that the code is on; None outside of sides."""
        self.outside: ObjectJournal | None = None
        """What the code has written to outside of sides."""
        self.was_restored: Callable[[Any], bool] | None = None
        """Tells of an owner of places whether the run before this one has left no trace there."""
        self.moved: list[Any] = []
        """Iterators from outside that were read before the first condition."""
        self.trying = 0
        """How many `try` statements with handlers the code is in."""
        self.raised: BaseException | None = None
        """The last exception that the code itself has raised."""
        self.refusal: Refused | None = None
        """Why it has ended, even if the code has caught that."""
        self.owners: dict[int, Any] = {}
        """What has been written to on sides, by ids, apart from variables."""
        self.of_modules: dict[int, Any] = {}
        """The dictionaries of modules, which a call puts back as it does modules, by their ids."""
        self.dicts: dict[int, tuple[Any, Any]] = {}
        """The attributes of objects that code has asked for as dictionaries, and the objects."""
        self.unsure: dict[int, Any] = {}
        """Tensors that are numbers on one side, by their ids: not to be written to in place."""
        self.unsure_grad: dict[int, Any] = {}
        """Tensors that require grad on one side alone, by their ids."""
        self.writes = 0
        """How often something was written to."""
        self.caches: dict[int, Any] = {}
        """Caches of functions, by their ids, that were left out on a side: nobody may look into them."""
        self.partial: dict[int, Any] = {}
        """The attributes of objects, by the ids of their dictionaries, of which data decide what they are."""
        self.pairs: dict[int, tuple[Any, str]] = {}
        """Containers and objects, by their ids, of which data decide what else they are: none may be written to."""
        self.conditions = 0
        """How many became a part of the graph."""
        self.assumed = 0
        """How many have one answer, as the other side raises, or as the user has said."""


class _Thread(threading.local):
    def __init__(self):
        self.run = Run()


_thread = _Thread()


def current_run() -> Run:
    return _thread.run


class running:
    """A context of a converted run."""

    def __init__(self, run: Run):
        self._run = run

    def __enter__(self) -> Run:
        self._around, _thread.run = _thread.run, self._run
        return self._run

    def __exit__(self, *exc_info: object) -> None:
        _thread.run = self._around


class trying:
    """A context of code whose exceptions are caught: one that is raised on a side within decides what follows."""

    def __enter__(self) -> None:
        self._before = current_run().trying
        current_run().trying += 1

    def __exit__(self, *exc_info: object) -> None:
        current_run().trying = self._before


class retried:
    """A context of a way to follow code, in whose place there is another one if it is refused.

    Args:
        kinds: errors of the package's that count as a refusal.
    """

    def __init__(self, *kinds: type[Exception]):
        self._kinds = kinds
        self.error: BaseException | None = None
        """Why it is refused."""

    def __enter__(self) -> "retried":
        self._before = current_run().refusal
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: object) -> bool:
        if isinstance(error, self._kinds) or (isinstance(error, Refused) and error.other_paths):
            self.error, current_run().refusal = error, self._before
        return self.error is not None
