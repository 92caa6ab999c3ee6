"""Data-dependent lengths as Python numbers, which ``len``, ``min`` and ``max`` would need to know.

While a call uses such lengths, these three functions of Python's do as ever, but for what stands for such a number or
has one for a length. All threads see that.

Also here: loops over data-dependent lengths: ``for row in x[mask]``, ``for i in range(len(x[mask]))``.

Whether there is one iteration more is a condition of Python's, as ``while i < n`` asks it, so that the iterations
become one loop of the graph where there are many. Python's ``range`` would want to know its ends. While a call runs
that asks one for a number that data decide, a function stands in for it, which does as ever for all other numbers. All
threads see that.
"""

import builtins
import functools
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch

from ..rules import registry
from ..rules.features import NEXT, Feature
from ..runtime.errors import TracedValueError
from ..runtime.errors.locations import caller_line, is_library, user_line
from ..runtime.layers import SELECTIONS
from ..runtime.translation import Call, this_call
from ..tensors.dtypes import is_integral
from ..tensors.tensor import Torchish, wrap
from ..tensors.trees import map_arguments
from ..tracing.value_ranges import cancel_out, distance as distance_of_arrays, range_of, terms_of
from .item import Item
from .traced_numbers import Number, is_unknown, larger, number_of, smaller


class Lengths(Feature):
    """The feature that accepts data-dependent lengths wherever functions take numbers."""

    rank, is_shared = 20, True

    def run_first(self, call: Call, function: Callable, types: Collection[type], args: tuple, kwargs: dict) -> object:
        if any(getattr(kind, "len_depends_on_values", False) for kind in types):
            return NEXT
        found = _by_length(function, args, kwargs)
        if found is None:
            return NEXT
        rule, args, kwargs = found
        with call.inside():
            return rule(*args, **kwargs)


_LENGTHS = Lengths()

_lock = threading.Lock()
_calls: Counter[str] = Counter()
_len, _min, _max, _range = builtins.len, builtins.min, builtins.max, builtins.range


def track_lengths() -> None:
    """Makes the call in progress accept data-dependent lengths wherever functions take numbers, until it ends."""
    call = this_call()
    if _LENGTHS not in call.features:
        if not SELECTIONS.is_loaded:  # which has the rules
            SELECTIONS.load()
        call.features.push(_LENGTHS)
        _replace_builtins(len=length, min=smallest, max=largest)


def track_extremes() -> None:
    """Makes ``min`` and ``max`` accept data-dependent numbers, until the call in progress ends."""
    _replace_builtins(min=smallest, max=largest)


def track_ranges() -> None:
    """Makes ``range`` accept data-dependent numbers, until the call in progress ends."""
    _replace_builtins(range=_Range)


def _replace_builtins(**functions: object) -> None:
    """Replaces builtins of Python, until the call in progress and all others that do the same have ended."""
    originals = {"len": _len, "min": _min, "max": _max, "range": _range}

    def put(calls: int) -> None:
        with _lock:
            for name, function in functions.items():
                _calls[name] += calls
                setattr(builtins, name, function if _calls[name] else originals[name])

    put(1)
    this_call().ends.append(lambda: put(-1))


def is_traced_number(value: object) -> bool:
    """Returns True if a value is an `Item`: a Python number that data decide."""
    return type(value) is Item


@functools.wraps(_len)
def length(obj: Any, /):
    if not getattr(type(obj), "len_depends_on_values", False):
        return _len(obj)
    number = obj.number
    if type(number) is not int and not is_library(sys._getframe(1).f_code.co_filename):  # whose code may ask its kind
        this_call().paths[-1].convert()
    return number


def _extreme(builtin: Callable[..., Any], function: Callable[..., object], which: int, of_numbers: Callable[..., Any]):
    @functools.wraps(builtin)
    def extreme(*args: Any, **kwargs: object):
        values = args[0] if _len(args) == 1 and type(args[0]) in (list, tuple) else args
        if not kwargs and _len(values) > 1 and any(map(is_unknown, values)) and any(map(_is_of_state, values)):
            return of_numbers(*values)
        if kwargs or not any(map(is_traced_number, values)) or not all(map(_is_number, values)):
            return builtin(*args, **kwargs)
        return functools.reduce(lambda one, other: _of_two(function, which, one, other), values)

    return extreme


def _is_of_state(value: object) -> bool:
    return type(value) is not Item and isinstance(value, Number)


def _is_number(value: object) -> bool:
    return is_traced_number(value) or type(value) in (int, float)


def _of_two(function: Callable[..., Any], which: int, one: Any, other: Any):
    """The smaller or the larger of two numbers: one of them, where their bounds tell."""
    if not (is_traced_number(one) or is_traced_number(other)):
        return function(torch.tensor(one), torch.tensor(other)).item()
    if all(_is_integer(x) for x in (one, other)):
        (low, high), (other_low, other_high) = range_of_number(one), range_of_number(other)
        if high <= other_low:
            return (one, other)[which]
        if other_high <= low:
            return (other, one)[which]
    found = [number_of(x) for x in (one, other)]
    if not all(_is_integer(x) for x in (one, other)):
        found = [x.double() for x in found]
    return Item.of(function(*found))


smallest = _extreme(_min, torch.minimum, 0, smaller)
largest = _extreme(_max, torch.maximum, 1, larger)


def _is_integer(value: Any) -> bool:
    return type(value) is int or (is_traced_number(value) and not value.is_floating_point())


def steps_between(start: Any, stop: Any, step: int) -> object:
    """The number of steps in ``range(start, stop, step)``; negative where a range is empty."""
    distance, size = (stop - start, step) if step > 0 else (start - stop, -step)
    return distance if size == 1 else (distance + (size - 1)) // size


def range_of_number(value: Any) -> tuple[int, int]:
    """The least and the greatest that a whole number can be."""
    return range_of(value.read()) if is_traced_number(value) else (value, value)


def is_same_number(one: object, other: object) -> bool:
    """Returns True if two integer scalars are equal, as the sums that compute them prove."""
    return distance(one, other) == 0


def distance(one: Any, other: Any) -> int | None:
    """The difference of two integer scalars; None where the sums that compute them do not show it."""
    return distance_of_arrays(one.read(), other.read())


def bound_of(value: object) -> int | None:
    """The greatest that a number can be, no less than zero; None where nothing tells."""
    high = range_of_number(value)[1]
    return None if high >= 2**31 - 1 else _max(high, 0)


def expect_capacity(length: Any, bound: int) -> Any:
    """A length that is said to be no greater than a bound, as an int64 tensor that is not.

    Where it is greater, results of the call tell; see `_expected_to_fit` in `modules/translated.py`.
    """
    expect_to_fit(
        length <= bound, "a bound that is said", f"got more than the {bound} rows that bounds= says there are"
    )
    return length.clamp(max=bound)


def expect_to_fit(fits: Any, what: str, text: str) -> None:
    """Makes results of the call report where a bool tensor is false; see `_expected_to_fit` in `modules/translated.py`.

    Args:
        what: names in an error what has to fit.
        text: what is said where it does not and somebody checks that.
    """
    call = this_call()
    if call.transformations:
        raise TracedValueError(f"{what}, within a transformation that the code has begun,")
    call.execution.expect_to_fit(fits.read(), text)


def hinted_bound() -> int | None:
    """The bound that the user gave for the user's line."""
    policy = this_call().execution.path.policy
    return policy.bound(user_line(), caller_line()) if policy.bounds else None


def constant_of(value: Any) -> int | None:
    """The number that a number is, if the sums that compute it show that it is always the same."""
    constant, terms = terms_of(value.read())
    return constant if cancel_out(terms) else None


def is_multiple(number: Any, size: int, times: int = 1) -> bool:
    """Returns True if `times` the integer scalar is a multiple of `size`, as the sums that compute it prove."""
    constant, terms = terms_of(number.read())
    return all(count * times % size == 0 for count in (constant, *(count for _, count in terms)))


def tensor_of(value: Any) -> Any:
    """A number as an int64 tensor like any other."""
    if not is_traced_number(value):
        return torch.tensor(value)
    return wrap(value.read(), torch.int64, value.known)


def _by_length(func: Callable[..., object], args: tuple, kwargs: dict) -> tuple[Callable, tuple, dict] | None:
    """A function's rule for data-dependent numbers, and its arguments; None if there is no such rule or number."""
    found = registry.lookup_by_length(func)
    if found is None:
        return None
    if found.takes_tensors:
        args, kwargs = map_arguments(number_in, (args, kwargs))
    sizes, named = args, kwargs
    if found.value is not None:
        sizes = (*args[: found.value], *args[found.value + 1 :])
        named = {name: x for name, x in kwargs.items() if name != "fill_value"}
    return (found.rule, args, kwargs) if any(map(_holds_number, (*sizes, *named.values()))) else None


def number_in(value: object) -> object:
    """The number of a traced integer scalar, as a Python number; other values unchanged."""
    if not isinstance(value, Torchish) or is_traced_number(value) or value.known is not None or value.ndim:
        return value
    return Item.out_of(value) if is_integral(value.dtype) and value.dtype != torch.bool else value


def _holds_number(value: object) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_holds_number, value))
    if type(value) is slice:
        return _holds_number((value.start, value.stop, value.step))
    return is_traced_number(value)


def known_or_hinted_bound(number: object) -> int | None:
    """The greatest that a number can be, or is said to be: then results of the call tell where it is greater."""
    found = bound_of(number)
    if found is None:
        found = hinted_bound()
        if found is not None:
            expect_capacity(tensor_of(number), found)
    return found


class Counted(Iterator):
    """An iteration for each number below a length.

    Args:
        number: which data decide; what it is at most is seen.
        give: what an iteration gets, of its place, which is a number that data decide where the iteration stands for
        all.
    """

    def __init__(self, number: Item, give: Callable[[Any], Any]):
        self.give, self._at = give, 0
        self.bound: Any = bound_of(number)
        if self.bound is None:
            self.bound = hinted_bound()
            if self.bound is None:
                raise TracedValueError(
                    "a loop of as many iterations as a number says, of which no bound is seen, or said (t2j(bounds=)),",
                    instead="give the number a bound, as n.clamp(max=100) does; for a range, write `i = 0`, "
                    "`while i < n:` and `i += 1` at its end",
                )
            number = Item.of(expect_capacity(tensor_of(number), self.bound))
        self.number = number

    def __next__(self) -> object:
        if self._at >= self.bound:
            raise StopIteration
        position = self._at
        self._at += 1
        if not position < self.number:
            self._at = self.bound
            raise StopIteration
        return self.give(position)


class TracedRange:
    """A ``range`` with one or two data-dependent ends."""

    def __init__(self, start: object, stop: object, step: object):
        if type(step) is not int:
            raise TracedValueError("range() by a data-dependent step,")
        if step == 0:
            raise ValueError("range() arg 3 must not be zero")
        self.start, self.stop, self.step = start, stop, step

    len_depends_on_values = True

    @property
    def number(self) -> Any:
        """The number of items."""
        return steps_between(self.start, self.stop, self.step)

    def __iter__(self) -> Counted:
        return Counted(self.number, lambda position: self.start + position * self.step)

    def __reversed__(self) -> Counted:
        number = self.number
        return Counted(number, lambda position: self.start + (number - 1 - position) * self.step)


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
