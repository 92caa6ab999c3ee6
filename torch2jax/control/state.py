"""The state of a converted run: the journal of the side that it is on, and what it must not write to any more."""

import re
import sys
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

import jax

from ..runtime.errors import BranchError, TracedValueError
from ..runtime.errors.locations import SourceLine, is_library
from ..runtime.errors.unwinding import Unwind
from ..runtime.translation import this_call
from ..tracing.conditions import BranchPolicy, Path

if TYPE_CHECKING:
    from .rest import Way
    from .writes import JournaledSlot, ObjectJournal


class Refused(Unwind):
    """Code cannot be followed; it ends the run, whatever the code catches.

    There may be many in a run, since loops are tried in more than one way (`retried`).

    Args:
        reason: in words.
        other_paths: whether it may be followed where the rest of the code goes into both sides of a condition. Not
            where a write is unseen.
        location: where that condition is, if it is over.
    """

    most = 2**12

    def __init__(self, reason: str, *, other_paths: bool = False, location: SourceLine | None = None):
        super().__init__(reason)
        run = current_run()
        self.reason, self.other_paths = reason, other_paths
        self.location = location or (run.open[0] if run.open else None)
        """Where the condition or loop is that has to be split for it to be followed; None if nobody knows."""


def is_of_translation(error: BaseException) -> bool:
    """True if an error says that a value is traced, or C code has got a number that data decide.

    PyTorch itself raises those that are batched.
    """
    if type(error) is TypeError and error is not current_run().raised:
        return _NUMBERS.search(str(error)) is not None
    return type(error) in (TracedValueError, BranchError)


_NUMBERS = re.compile(r"\b(Item|Torchish|Unmergeable)\b|(not|type|'|=) ?Number\b")
"""What CPython and PyTorch's parser call an argument that is no number to them."""


def text_of(error: BaseException) -> str:
    """The text of an exception that code raises itself."""
    try:
        if not isinstance(error, TracedValueError):
            return f"{type(error).__name__}: {error}"
    except (TracedValueError, Refused):
        pass
    return "an exception with traced values in its message"


def name_of(value: object) -> str:
    """The name that the user's code has for an object, if a variable has it; else its kind."""
    frame = sys._getframe(1)
    while frame is not None:
        if not is_library(frame.f_code.co_filename):
            for names in (frame.f_locals, frame.f_globals):
                found = next((x for x in names if names[x] is value and not x.startswith("_")), None)
                if found is not None:
                    return found
        frame = frame.f_back
    return f"a {type(value).__name__}"


class Run:
    """The state of one run of converted code, of which a thread has one (`current_run`)."""

    def __init__(self):
        self.way: Way | None = None
        """The answers to conditions that are split."""
        self.open: list[SourceLine] = []
        """The conditions and loops that the code is in, the outermost first."""
        self.journal: ObjectJournal | None = None
        """That of the side that the code is on; None outside of sides."""
        self.outside: ObjectJournal | None = None
        """What the code has written to outside of sides."""
        self.left: dict[tuple, tuple[JournaledSlot, object]] = {}
        """The places outside of sides that the code has written to, and what it has left there."""
        self.was_restored: Callable[[object], bool] | None = None
        """Tells of an owner of places whether earlier runs have left no trace there; None where those did not come."""
        self.doubted: dict[int, object] | None = None
        """What the run before has written to, by ids, of which nobody knew whether it had made it; None before that."""
        self.ended_at_condition = False
        """Whether the run before has ended at the first condition on a traced value."""
        self.is_journaled = False
        """Whether it is to meet none."""
        self.consumed: list[object] = []
        """What was written to meanwhile that has no places: iterators from outside, files."""
        self.trying = 0
        """How many `try` statements with handlers the code is in."""
        self.raised: BaseException | None = None
        """The last exception that the code itself has raised."""
        self.takes_leaves = False
        """Whether sides take in leaves from before them, as code differentiates there with respect to these."""
        self.owners: dict[int, object] = {}
        """What has been written to on sides, by ids, apart from variables."""
        self.tables: dict[int, object] = {}
        """PyTorch's own dictionaries of modules, of parts and hooks, by their ids. A call puts them back."""
        self.dicts: dict[int, tuple[object, object]] = {}
        """The attributes of objects that code has asked for as dictionaries, and the objects."""
        self.unsure: weakref.WeakValueDictionary[int, object] = weakref.WeakValueDictionary()
        """Tensors that are numbers on one side, by their ids: not to be written to in place."""
        self.started: list[dict[tuple, object]] = []
        """What variables held where sides began, of those that the code is on."""
        self.unsure_grad: dict[int, object] = {}
        """Tensors that require grad on one side alone, by their ids."""
        self.other_leaves: weakref.WeakValueDictionary[int, object] = weakref.WeakValueDictionary()
        """Leaves, by their ids, that are another tensor in each iteration of a loop: nobody knows their `.grad`."""
        self.caches: dict[int, object] = {}
        """Caches of functions, by their ids, that were left out on a side: nobody may look into them."""
        self.partial: dict[int, object] = {}
        """The attributes of objects, by the ids of their dictionaries, of which data decide what they are."""
        self.pairs: dict[int, tuple[object, str]] = {}
        """Containers and objects, by their ids, of which data decide what else they are: none may be written to."""
        self.tuples: set[int] = set()
        """Ids of tuples of which data decide what else they are. A later tuple may have such an id: `is` is refused."""
        self.half_read: weakref.WeakKeyDictionary[object, SourceLine] = weakref.WeakKeyDictionary()
        """Generators of which data decide how far they are read, and where: all that they give is not looked at."""
        self.chosen: list[tuple[object, object, str]] = []
        """Objects that were made where data decide which older one is meant, each with one of those, and why."""
        self.conditions = 0
        """How many became a part of the graph."""
        self.checks: list[jax.Array] | None = None
        """The bools that are assumed to hold in the iteration that the code is in; None on a side of a condition."""
        self.sums_grow = False
        """Whether the code is in a loop that carries an integer which may leave its bits."""
        self.assumed = 0
        """How many have one answer, as the other side raises, or as the user has said."""

    @property
    def kept(self) -> "ObjectJournal | None":
        """The journal that writes are noted in: of the side that the code is on, else of the run, if that has one."""
        return self.outside if self.journal is None else self.journal


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


class within:
    """A context of the sides of a condition, or of a loop."""

    def __init__(self, location: SourceLine):
        self._location = location

    def __enter__(self) -> None:
        current_run().open.append(self._location)

    def __exit__(self, *exc_info: object) -> None:
        current_run().open.pop()


def asking_way() -> "Way | None":
    """Who may answer a condition for the rest of the code to go into both of its sides: nobody on a side of another."""
    run, call = current_run(), this_call()
    path = call.paths[-1]
    is_there = run.way is not None and run.journal is None and path.trace is run.way.trace
    return run.way if is_there and path.is_above(call) else None


def splitting(location: SourceLine) -> "Way | None":
    """Who answers a condition that is split; None for one that is not."""
    way = current_run().way
    return asking_way() if way is not None and way.splits(location) else None


class trying:
    """A context of code whose exceptions are caught: one that is raised on a side within decides what follows.

    An error that a value is traced ends the run: PyTorch, where there are values, would not have raised it, and the
    handler would go on as PyTorch does not.
    """

    def __enter__(self) -> None:
        self._before = current_run().trying
        current_run().trying += 1

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: object) -> None:
        current_run().trying = self._before
        if error is not None and is_of_translation(error):
            raise Refused(str(error), other_paths=True) from error


class summing:
    """A context of an iteration of a loop.

    Args:
        grows: whether the loop carries an integer that may leave its bits.
    """

    def __init__(self, grows: bool):
        self._grows = grows

    def __enter__(self) -> None:
        run = current_run()
        self._before = run.sums_grow
        run.sums_grow = self._before or self._grows

    def __exit__(self, *exc_info: object) -> None:
        current_run().sums_grow = self._before


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
        self._before = this_call().execution.ended_by
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: object) -> bool:
        if isinstance(error, self._kinds) or (isinstance(error, Refused) and error.other_paths):
            self.error, this_call().execution.ended_by = error, self._before
        return self.error is not None


_UNCONVERTED = (
    "tests a traced value in code that is not converted, since it has no source or is C's, or before an error that the "
    "code catches"
)


class PathOfSource(Path):
    """The path of converted code, on which operators ask. What code asks that is not converted is split.

    Args:
        is_one_of_several: whether the code runs once for each way through conditions that are split.
    """

    def __init__(self, policy: BranchPolicy, trace: object, is_one_of_several: bool = False):
        super().__init__(policy, trace)
        self.is_one_of_several = is_one_of_several

    def _ask(self, flag: object, location: SourceLine) -> bool:
        way, why = asking_way(), _UNCONVERTED
        if way is not None:
            return way.ask(flag, location, why)
        raise Refused(f"bool(tensor) at {location} {why}", other_paths=True)

    def convert(self) -> None:
        """Its code is converted."""
