"""The operators of statements in converted code: loops, assertions, contexts. What is known stays Python's."""

import contextlib
import dis
import gc
import itertools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..runtime.errors import TracedValueError
from ..runtime.errors.locations import SourceLine, user_line
from ..runtime.translation import lift, this_call
from ..tracing.conditions import deciding_array
from ..values import lengths
from ..values.item import Item
from .asking import ASKING, in_order
from .calls import RANGE, SPECIAL
from .ends import attributes_of, is_plain_object
from .exits import RESULT
from .expressions import Expressions, variables_of
from .items import is_among, item_at, method_of_data, set_item_at
from .loops import loop
from .merge import expect_there, has_no_identity
from .overflow import fitting
from .purity import is_iterator
from .sides import condition
from .state import Refused, asking_way, current_run, retried, splitting, trying
from .writes import UNDEFINED, Variable, forget

_MANY = 2**10  # conditions in a loop that no condition ends
_REFERENCES_OF_ITEMS = 2  # to what a loop alone goes through
_FIRST = (1, 2)  # iterations after which a loop that is no loop of the graph may be one
_IN_A_ROW, _LONG = 4, 24  # so many iterations in a row that ask, of so many that are left, become one loop of the graph
_SHORT = 16  # iterations that are conditions one within another, where they cannot be one loop


class Operators(Expressions):
    """The operators; converted code has their one object as a constant."""

    def item_at(self, owner: object, key: object) -> Any:
        return item_at(self, owner, key)

    def set_item_at(self, value: object, owner: object, key: object) -> None:
        set_item_at(self, value, owner, key)

    def call_predicate(self, name: str, owner: object, args: tuple, kwargs: dict) -> Any:
        if name == "sort" and type(owner) is list and not args:
            ordered = in_order(self, list(owner), **kwargs)
            if ordered is not NotImplemented:
                self.setitem(ordered, owner, slice(None))
                return None
        found = NotImplemented if kwargs else method_of_data(self, owner, name, args)
        return super().call_predicate(name, owner, args, kwargs) if found is NotImplemented else found

    def _contains(self, container: Any, value: object) -> Any:
        if type(value) is Item and type(container) in (set, frozenset, dict):
            return is_among(self, container, value)
        return super()._contains(container, value)

    # Conditions and loops.

    def if_(self, test: Any, then: Callable, orelse: Callable, names: tuple[str, ...]) -> None:
        flag = self.truth(test)
        if isinstance(flag, bool):
            then() if flag else orelse()
        else:
            condition(deciding_array(flag), then, orelse, variables_of(names, then, orelse))

    def _goes_on(self, test: Callable, flags: "_WaysOut") -> Any:
        """True if there is another iteration: no flag is set, and the test holds."""
        none = self.none_of(*flags.read())
        if none is False:
            return False
        if none is True:
            return self.truth(test())
        return self.truth(self.and_(Item.of(none), test))

    def _while_all_fits(self, before: object, goes_on: object) -> Any:
        """Whether there is another iteration: none after an integer has left its bits, by which the loop may end."""
        fits = fitting()
        return goes_on if fits is None or fits.read() is before else self.and_(goes_on, lambda: Item.of(fits))

    def while_(self, test: Callable, body: Callable, names: tuple[str, ...], flags: tuple[str, ...]) -> None:
        variables, location = variables_of(names, test, body), _loop_location(body)
        ending = _WaysOut(variables, flags)
        run, most = current_run(), this_call().execution.path.policy.max_steps
        count = run.conditions + run.assumed

        def step() -> Any:
            ending.begin()
            fits = fitting()
            before = None if fits is None else fits.read()
            body()
            return self._while_all_fits(before, self._goes_on(test, ending))

        for number in itertools.count():
            goes_on = self._goes_on(test, ending)
            if not isinstance(goes_on, bool):
                if _is_over(goes_on):
                    return
                way = splitting(location)
                if way is None or number in _FIRST:  # what the first one sets may be the same from then on
                    with retried() if way else contextlib.nullcontext():
                        loop(step, deciding_array(goes_on), variables, location, most)
                        return
                goes_on = way.ask(deciding_array(goes_on), location)
            if not goes_on:
                return
            ending.begin()
            body()
            if run.conditions + run.assumed - count > _MANY:
                raise Refused(
                    f"the loop at {location} goes on whatever the data are, with {_MANY} conditions on them: "
                    "no condition ends it that is not assumed to have one answer, by `branches=` or as the other side "
                    "raises an exception"
                )

    def for_(self, items: object, body: Callable, names: tuple[str, ...], flags: tuple[str, ...]) -> None:
        items = self.iterated(items)
        self._go_through_items(items, body, names, flags)
        if is_iterator(items):
            forget(items)

    def _go_through_items(self, items: Any, body: Callable, names: tuple[str, ...], flags: tuple[str, ...]) -> None:
        variables, location = variables_of(names, body), _loop_location(body)
        ending = _WaysOut(variables, flags)
        if type(items) is lengths.TracedRange:
            items = CountedRange(items.start, items.stop, items.step, lengths.known_or_hinted_bound(items.number))
            self._count(items, items.goes_on(self), body, variables, ending, location)
            return
        is_range, is_alone = isinstance(items, RANGE), sys.getrefcount(items) <= _REFERENCES_OF_ITEMS
        following, run, traced_conditions = iter(items), current_run(), 0
        if type(following) is lengths.Counted:  # the rows of a tensor whose length data decide
            rows = CountedRange(0, following.number, 1, following.bound)
            give = lambda at: body(following.give(at))
            self._count(rows, rows.goes_on(self), give, variables, ending, location)
            return
        for number, item in enumerate(following):
            before = run.conditions
            body(item)
            traced_conditions = traced_conditions + 1 if run.conditions > before else 0
            goes_on = self.none_of(*ending.read())
            if goes_on is False:
                return
            way = splitting(location)
            if way is not None:
                if goes_on is not True and not way.ask(deciding_array(goes_on), location):
                    return
                ending.begin()
                continue
            is_long = traced_conditions == _IN_A_ROW and len(items) - number > _LONG if is_range else False
            if goes_on is True and not is_long:
                continue
            if is_range:
                left = items[number + 1 :]
                rest = CountedRange(left.start, left.stop, left.step, len(left))
                with retried(TracedValueError) as tries:
                    if left:
                        self._count(rest, goes_on, body, variables, ending, location)
                if tries.error is None:
                    return
                if goes_on is True:
                    continue
            elif _ends_by_code(following):
                why = "a loop ends on data, and leaves a generator, whose `finally` or `with` then ends"
                raise Refused(why, other_paths=True, location=location)
            elif following is items and not is_alone:
                raise Refused("a loop ends on data, and moves on an iterator that others have", other_paths=True)
            self._rest_of(following, goes_on, body, variables, ending, _SHORT)
            return

    def _rest_of(
        self, following: Iterator, goes_on: Any, body: Callable, variables: list, ending: "_WaysOut", left: int
    ) -> None:
        """The rest of a loop that ends on data and is no loop of the graph: each iteration within the one before."""
        if not left:
            raise Refused(f"a loop has more than {_SHORT} iterations that are no loop of the graph", other_paths=True)

        def rest() -> None:
            ending.begin()
            for item in following:
                body(item)
                goes_on = self.none_of(*ending.read())
                if goes_on is False:
                    return
                if goes_on is not True:
                    self._rest_of(following, goes_on, body, variables, ending, left - 1)
                    return

        condition(deciding_array(goes_on), rest, _nothing, variables)

    def _count(
        self,
        left: "CountedRange",
        first: Any,
        body: Callable,
        variables: list,
        ending: "_WaysOut",
        location: SourceLine,
    ) -> None:
        """A loop over a range that ends on data, as one loop of the graph."""
        way = splitting(location)
        if way is not None:
            self._go_through(left, first, body, ending, way, location)
            return
        if isinstance(first, bool):
            if not first:
                return
            first = lift(torch.tensor(True))
        counter = types.CellType(left.start)
        number = Variable(counter, "the number of the iteration")

        def step() -> Any:
            ending.begin()
            at = counter.cell_contents
            if type(at) is Item:
                at.bounds = left.bounds
            body(at)
            counter.cell_contents = following = at + left.step
            return self._goes_on(lambda: left.has(self, following), ending)

        most = this_call().execution.path.policy.max_steps if ending.flags or left.most is None else None
        bounds = [x for x in (left.most, most) if x is not None]
        loop(step, deciding_array(first), [*variables, number], location, min(bounds, default=None))

    def _go_through(
        self, left: "CountedRange", goes_on: Any, body: Callable, ending: "_WaysOut", way: Any, location: SourceLine
    ) -> None:
        """The same, iteration by iteration: whether there is another is split."""
        at = left.start
        while goes_on if isinstance(goes_on, bool) else way.ask(deciding_array(goes_on), location):
            ending.begin()
            body(at)
            at = at + left.step
            goes_on = self._goes_on(lambda at=at: left.has(self, at), ending)

    @staticmethod
    def matched(subject: object, by_value: bool, by_identity: bool, *kinds: Callable[[], Any]) -> Any:
        parts = _parts(subject)
        expect_there(*parts)
        if by_value and any(map(has_no_identity, parts)):
            raise Refused("data decide which of two objects a pattern is compared with", other_paths=True)
        if any(type(x) is Item for x in parts):
            if any(issubclass(torch.Tensor, kind()) for kind in kinds):
                raise TracedValueError("a number matched by the class of tensors", instead="ask isinstance")
            if by_identity and any(type(x) is Item and x.dtype == torch.bool for x in parts):
                raise Refused("a pattern compares what data decide with True, False or None", other_paths=True)
        return subject

    @staticmethod
    def unreadable(name: str) -> Any:
        """Is in the place of a function that would see a side's variables in place of its function's."""
        raise Refused(f"{name}() reads the variables of the function that calls it, within a condition or a loop")

    # Errors and contexts.

    def assert_(self, test: Any, message: Callable) -> None:
        flag = self.truth(test)

        def error() -> AssertionError:
            text = message()
            return AssertionError() if text is None else AssertionError(text)

        def fails() -> None:
            raise self.raised(error)

        if flag is False:
            fails()
        elif flag is not True:
            condition(deciding_array(~flag), fails, _nothing, [])

    def raised(self, make: Callable[[], Any]) -> Any:
        """The exception that a statement raises; one of its values is traced if its text cannot be made."""
        run = current_run()
        try:
            error = make()
        except TracedValueError as refused:
            run.raised = refused
            raise
        expect_there(error)
        run.raised = error = self.call(error) if isinstance(error, type) else error
        return error

    trying = trying

    def managed(self, manager: object) -> Any:
        expect_there(manager)
        enter, leave = getattr(type(manager), "__enter__", None), getattr(type(manager), "__exit__", None)
        if any(type(x) is types.FunctionType and self.converts(x) for x in (enter, leave)):
            return _Manager(self, manager, enter, leave)
        return manager


class _WaysOut:
    """The variables by which code leaves a loop."""

    def __init__(self, variables: list[Variable], flags: tuple[str, ...]):
        self.flags = [x for x in variables if x.name in flags]
        self._results = [x for x in variables if x.name == RESULT]

    def begin(self) -> None:
        """Is called before an iteration: there is none once code has left, so nothing is returned yet."""
        for x in self.flags:
            x.write(False)
        for x in self._results:
            x.write(UNDEFINED)

    def read(self) -> list[object]:
        return [x.read() for x in self.flags]


class CountedRange:
    """A range whose bounds data decide, as a loop goes through it.

    Args:
        most: how many numbers it has at most, if that is known.
    """

    def __init__(self, start: Any, stop: object, step: int, most: int | None = None):
        self.start, self.stop, self.step, self.most = start, stop, step, most

    @property
    def bounds(self) -> tuple[int, int] | None:
        """The least and the greatest of its numbers, if that is known."""
        if type(self.start) is not int or not self.most:
            return None
        ends = self.start, self.start + (self.most - 1) * self.step
        return min(ends), max(ends)

    def has(self, operators: Expressions, number: object) -> object:
        return operators.compare("Lt" if self.step > 0 else "Gt", number, self.stop)

    def goes_on(self, operators: Expressions) -> object:
        return operators.truth(self.has(operators, self.start))


def _is_over(flag: Any) -> bool:
    """True if a traced bool has been answered on the way that the code goes, by no."""
    way = asking_way()
    return way is not None and way.answer(deciding_array(flag)) is False


def _ends_by_code(items: object) -> bool:
    """True of a generator that runs code when it is left, and of an iterator of C's that reads one."""
    if isinstance(items, types.GeneratorType):
        steps = dis.get_instructions(items.gi_code)
        return any(x.opname == "PUSH_EXC_INFO" for x in steps) or _ends_by_code(items.gi_yieldfrom)
    return is_iterator(items) and any(map(_ends_by_code, filter(is_iterator, gc.get_referents(items))))


def _parts(subject: object, depth: int = 3) -> list[object]:
    """What a pattern may compare: a value, and what is in it."""
    if isinstance(subject, (list, tuple)):
        inner = subject
    elif isinstance(subject, dict):
        inner = subject.values()
    else:
        inner = attributes_of(subject).values() if is_plain_object(type(subject)) else ()
    return [subject, *(x for part in inner if depth for x in _parts(part, depth - 1))]


def _loop_location(body: types.FunctionType) -> SourceLine:
    return SourceLine(body.__code__.co_filename, body.__code__.co_firstlineno, user_line().function, is_loop=True)


def _nothing() -> None:
    """The side that does nothing."""


class _Manager:
    """A context manager of the user's, whose methods run converted."""

    def __init__(self, operators: Expressions, manager: object, enter: object, leave: object):
        self._operators, self._manager, self._enter, self._leave = operators, manager, enter, leave

    def __enter__(self) -> object:
        found = self._operators.call(self._enter, self._manager)
        current_run().trying += 1  # it may end an exception
        return found

    def __exit__(self, *exc_info: object) -> object:
        current_run().trying -= 1
        return self._operators.call(self._leave, self._manager, *exc_info)


SPECIAL.update(ASKING)
OPERATORS = Operators()
