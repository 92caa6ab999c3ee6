"""Loops of as many iterations as data decide: ``for row in x[mask]``, ``for i in range(len(x[mask]))``.

Whether there is one iteration more is a condition of Python's, as ``while i < n`` asks it, so that the iterations
become one loop of the graph where there are many. Python's ``range`` would want to know its ends. While a call runs
that asks one for a number that data decide, a function stands in for it, which does as ever for all other numbers. All
threads see that.
"""

import builtins
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from ..errors import TracedValueError
from .call import this_call
from .item import Item
from .lengths import bound_of, expect_room, is_traced_number, number_in, said_bound, steps_between, tensor_of

__all__ = ["Counted", "TracedRange", "heed_ranges"]


class Counted(Iterator):
    """As many iterations as a number says.

    Args:
        number: which data decide; what it is at most is seen.
        give: what an iteration gets, of its place, which is a number that data decide where the iteration stands for
        all.
    """

    def __init__(self, number: Any, give: Callable[[Any], Any]):
        self._give, self._at = give, 0
        self._bound: Any = bound_of(number)
        if self._bound is None:
            self._bound = said_bound()
            if self._bound is None:
                raise TracedValueError(
                    "a loop of as many iterations as a number says, of which no bound is seen, or said (t2j(bounds=)),",
                    instead="give the number a bound, as n.clamp(max=100) does; for a range, write `i = 0`, "
                    "`while i < n:` and `i += 1` at its end",
                )
            number = Item.of(expect_room(tensor_of(number), self._bound))
        self._number = number

    def __next__(self) -> Any:
        if self._at >= self._bound:
            raise StopIteration
        watch = this_call().paths[-1].watch
        count = None if watch is None else watch.count(sys._getframe(1))
        lifted: Any = None if count is None else this_call().lift(count)
        place: Any = self._at if lifted is None else Item.of(lifted.long())
        self._at += 1
        if not place < self._number:
            if watch is not None:
                watch.note_cut(sys._getframe(1))
            self._at = self._bound
            raise StopIteration
        found = self._give(place)
        if watch is not None:
            watch.note_given(found)
        return found


class TracedRange:
    """A ``range`` of which data decide an end, or both."""

    def __init__(self, start: Any, stop: Any, step: Any):
        if type(step) is not int:
            raise TracedValueError("range() by a data-dependent step,")
        if step == 0:
            raise ValueError("range() arg 3 must not be zero")
        self.start, self.stop, self.step = start, stop, step

    len_depends_on_values = True

    @property
    def number(self) -> Any:
        """How many there are."""
        return steps_between(self.start, self.stop, self.step)

    def __iter__(self) -> Counted:
        return Counted(self.number, lambda place: self.start + place * self.step)

    def __reversed__(self) -> Counted:
        number = self.number
        return Counted(number, lambda place: self.start + (number - 1 - place) * self.step)


class _Kind(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, (_range, TracedRange))

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, (_range, TracedRange))


class _Range(metaclass=_Kind):
    """``range``, also to numbers that data decide."""

    def __new__(cls, *args: Any) -> Any:
        args = tuple([number_in(x) for x in args])
        if not any(map(is_traced_number, args)):
            return _range(*args)
        return TracedRange(*((0, *args, 1) if len(args) == 1 else (*args, 1) if len(args) == 2 else args))


_lock = threading.Lock()
_calls = 0
_range = builtins.range


def heed_ranges() -> None:
    """Lets the call in progress take numbers that data decide for the ends of ranges, to its end."""
    _put(1)
    this_call().ends.append(lambda: _put(-1))


def _put(calls: int) -> None:
    global _calls
    with _lock:
        _calls += calls
        builtins.range = _Range if _calls else _range  # pyright: ignore
