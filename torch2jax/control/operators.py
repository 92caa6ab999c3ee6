"""The operators of converted code: a known condition is Python's, a traced one becomes a part of the graph."""

import builtins
import contextlib
import itertools
import operator
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..errors import TracedValueError
from ..errors.locations import SourceLine, caller_line, user_line
from ..runtime.translation import lift, this_call
from ..tensors.tensor import Torchish
from ..tracing.conditions import deciding_array, idle_decision
from ..values import lengths
from ..values.item import HOW_TO_PRINT, Item
from ..values.traced_numbers import Number
from .calls import RANGE, Calls, _expect_fresh, is_data, of_flag
from .exits import RESULT
from .loops import loop
from .merge import expect_there, has_no_identity
from .numbers import NUMBERS, beside_floats, computed, is_extreme_of_tensors
from .overflow import fitting
from .sides import condition, short_circuit
from .state import Refused, asking_way, current_run, retried, splitting, trying
from .ties import is_tied
from .writes import UNDEFINED, Variable, expect_restored, note, note_contents, references_of_sides

_BINARY = {
    "Add": "add", "Sub": "sub", "Mult": "mul", "Div": "truediv", "FloorDiv": "floordiv", "Mod": "mod", "Pow": "pow",
    "LShift": "lshift", "RShift": "rshift", "BitOr": "or", "BitXor": "xor", "BitAnd": "and", "MatMult": "matmul",
}  # fmt: skip
_FUNCTIONS = {kind: getattr(operator, name + "_" * (name in ("or", "and"))) for kind, name in _BINARY.items()}
_IN_PLACE = {kind: getattr(operator, "i" + name) for kind, name in _BINARY.items()}
_UNARY = {"USub": "neg", "UAdd": "pos", "Invert": "invert"}
_COMPARE = {"Eq": "eq", "NotEq": "ne", "Lt": "lt", "LtE": "le", "Gt": "gt", "GtE": "ge"}
_MANY = 2**10  # conditions in a loop that no condition ends
_REFERENCES_OF_ITEMS = 2  # to what a loop alone goes through
_FIRST = (1, 2)  # iterations after which a loop that is no loop of the graph may be one
_IN_A_ROW, _LONG = 4, 24  # so many iterations in a row that ask, of so many that are left, become one loop of the graph
_SHORT = 16  # iterations that are conditions one within another, where they cannot be one loop


def _references() -> int:
    """The number of references to a tensor of one variable, where `Operators._added_to` counts them.

    They are the variable and those of the two calls in between, which Python passes on or copies: it copies them once
    one of PyTorch's compilers has its own evaluation of frames.
    """

    def added_to(value: object) -> int:
        return sys.getrefcount(value)

    def aug(value: object) -> int:
        return added_to(value)

    variable = object()
    return aug(variable)


class Operators(Calls):
    """The operators; converted code has their one object as a constant."""

    undefined = staticmethod(lambda: UNDEFINED)

    # Conditions.

    def truth(self, value: Any) -> Any:
        """A bool, or a traced one as a tensor."""
        if type(value) is bool:
            return value
        if isinstance(value, torch.Tensor):
            return self._condition(value) if is_data(value) and value.numel() == 1 else bool(value)
        expect_there(value)
        for method in ("__bool__", "__len__"):
            found = getattr(type(value), method, None)
            if found is not None:
                return self.truth(self.call(found, value)) if type(found) is types.FunctionType else bool(value)
        return True

    def _condition(self, value: Any) -> Any:
        asking, policy = caller_line(), this_call().execution.path.policy
        found = idle_decision(asking)
        if found is None and policy.branches:
            found = policy.decision(user_line(), asking)
            if found is not None and policy.checks != "assume":
                flag = _flag(value)
                policy.check(
                    flag.read() if found else (~flag).read(),
                    f"t2j was told that the answer is {found}, at {user_line()}",
                )
            elif found is not None:
                current_run().assumed += 1
                this_call().paths[-1].expect(value, found, user_line())
        return _flag(value) if found is None else found

    def known(self, value: Any) -> bool:
        """The answer to a condition that decides about what stays Python's."""
        found, way, location = self.truth(value), asking_way(), user_line()
        if isinstance(found, bool):
            return found
        if way is not None:
            expect_restored()
            return way.ask(deciding_array(found), location)
        raise Refused(
            f"a condition on data at {location} decides about a yield, an item of a comprehension, or a case",
            other_paths=True,
        )

    def if_(self, test: Any, then: Callable, orelse: Callable, names: tuple[str, ...]) -> None:
        flag = self.truth(test)
        if isinstance(flag, bool):
            then() if flag else orelse()
        else:
            condition(deciding_array(flag), then, orelse, _variables(names, then, orelse))

    def choose(self, test: Any, then: Callable, orelse: Callable) -> Any:
        flag = self.truth(test)
        if isinstance(flag, bool):
            return then() if flag else orelse()
        return condition(deciding_array(flag), then, orelse, [])

    def and_(self, value: Any, rest: Callable) -> Any:
        flag = self.truth(value)
        if isinstance(flag, bool):
            return rest() if flag else value
        return short_circuit(deciding_array(flag), rest, lambda: value, is_and=True, is_tensor=type(value) is not Item)

    def or_(self, value: Any, rest: Callable) -> Any:
        flag = self.truth(value)
        if isinstance(flag, bool):
            return value if flag else rest()
        return short_circuit(deciding_array(flag), rest, lambda: value, is_and=False, is_tensor=type(value) is not Item)

    def not_(self, value: Any) -> Any:
        flag = self.truth(value)
        return not flag if isinstance(flag, bool) else Item.of(~flag)

    @staticmethod
    def none_of(*flags: Any) -> Any:
        """True if no exit has been taken."""
        out: Any = True
        for flag in flags:
            if flag is True:
                return False
            if flag is not False and flag is not UNDEFINED:
                out = ~_flag(flag) if out is True else out & ~_flag(flag)
        return out

    @staticmethod
    def returned(value: Any) -> Any:
        return None if value is UNDEFINED else value

    # Loops.

    def _goes_on(self, test: Callable, flags: "_WaysOut") -> Any:
        """True if there is another iteration: no flag is set, and the test holds."""
        none = self.none_of(*flags.read())
        if none is False:
            return False
        if none is True:
            return self.truth(test())
        return self.truth(self.and_(Item.of(none), test))

    def _while_all_fits(self, before: Any, goes_on: Any) -> Any:
        """Whether there is another iteration: none after an integer has left its bits, by which the loop may end."""
        fits = fitting()
        return goes_on if fits is None or fits.read() is before else self.and_(goes_on, lambda: Item.of(fits))

    def while_(self, test: Callable, body: Callable, names: tuple[str, ...], flags: tuple[str, ...]) -> None:
        variables, location = _variables(names, test, body), _loop_location(body)
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

    def for_(self, items: Any, body: Callable, names: tuple[str, ...], flags: tuple[str, ...]) -> None:
        variables, location = _variables(names, body), _loop_location(body)
        ending = _WaysOut(variables, flags)
        items = self.iterated(items)
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

    def iterated(self, items: Any) -> Any:
        """The items that a loop or an unpacking goes through."""
        expect_there(items)
        kind = type(items)
        if kind is Item:
            raise TypeError(f"'{items.python_type.__name__}' object is not iterable")
        if kind in (list, tuple, RANGE, dict, str, lengths.TracedRange):
            return items
        begin, following = getattr(kind, "__iter__", None), getattr(kind, "__next__", None)
        if type(following) is types.FunctionType and self.converts(following):
            return _Iterator(self, following, items)
        if type(begin) is types.FunctionType and self.converts(begin):
            return self.iterated(self.call(begin, items))
        _expect_fresh((items,))
        return items

    @staticmethod
    def matched(subject: Any, *kinds: Callable[[], Any]) -> Any:
        parts = subject if isinstance(subject, (list, tuple)) else subject.values() if isinstance(subject, dict) else ()
        expect_there(subject, *parts)
        if any(type(x) is Item for x in (subject, *parts)) and any(issubclass(torch.Tensor, kind()) for kind in kinds):
            raise TracedValueError("a number matched by the class of tensors", instead="ask isinstance")
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

    def managed(self, manager: Any) -> Any:
        expect_there(manager)
        enter, leave = getattr(type(manager), "__enter__", None), getattr(type(manager), "__exit__", None)
        if any(type(x) is types.FunctionType and self.converts(x) for x in (enter, leave)):
            return _Manager(self, manager, enter, leave)
        return manager

    # Variables.

    @staticmethod
    def note_cell(reader: types.FunctionType) -> None:
        """Is called before a variable of a function around this one is set."""
        closure: Any = reader.__closure__
        cell = closure[0]
        note(Variable(cell, reader.__code__.co_freevars[0]))

    def aug(self, old: Any, kind: str, value: Any) -> Any:
        expect_there(old, value)
        if type(old) in (int, float, bool, Item):
            return self.binary(kind, old, value)
        if isinstance(old, torch.Tensor):
            return self._added_to(old, kind, value)
        found = getattr(type(old), f"__i{_BINARY[kind]}__", None)
        if type(found) is types.FunctionType:
            result = self.call(found, old, value)
            return self.binary(kind, old, value) if result is NotImplemented else result
        if found is None:
            return self.binary(kind, old, value)
        _expect_fresh((value,))
        note_contents(old)
        return _IN_PLACE[kind](old, value)

    def _added_to(self, old: Any, kind: str, value: Any) -> Any:
        """The result of an in-place operator of a tensor.

        One that is a number on one side is not written to if something else has it, too: the number there stays.
        """
        if id(old) not in current_run().unsure:
            return _IN_PLACE[kind](old, value)
        new, storage = _FUNCTIONS[kind](old, value), old._node.storage
        if sys.getrefcount(old) - references_of_sides(old) <= _references():
            if not storage.is_older and not is_tied(storage.memory):
                return new
            if new.shape == old.shape and new.dtype == old.dtype:
                return _IN_PLACE[kind](old, value)
        raise Refused(
            "what is added to in place is a tensor on one side of a condition and a number on the other",
            other_paths=True,
        )

    def aug_attr(self, owner: Any, name: str, kind: str, value: Callable) -> None:
        self.setattr(self.aug(self.getattr(owner, name), kind, value()), owner, name)

    def aug_item(self, owner: Any, key: Any, kind: str, value: Callable) -> None:
        self.setitem(self.aug(self.getitem(owner, key), kind, value()), owner, key)

    # Operators of expressions.

    def binary(self, kind: str, a: Any, b: Any) -> Any:
        expect_there(a, b)
        name, first, second = _BINARY[kind], type(a), type(b)
        if (first is Item and second in NUMBERS) or (second is Item and first in NUMBERS):
            return computed(kind, _FUNCTIONS[kind], a, b)
        if kind == "Mod" and first is str and any(map(is_data, b if second is tuple else (b,))):
            raise TracedValueError("the text of a traced number", instead=HOW_TO_PRINT)
        if first in _PLAIN and second in _PLAIN:
            return _FUNCTIONS[kind](a, b)
        found, reflected = getattr(first, f"__{name}__", None), getattr(second, f"__r{name}__", None)
        is_found, is_reflected = (type(x) is types.FunctionType and self.converts(x) for x in (found, reflected))
        if not is_found and not is_reflected:
            result = _FUNCTIONS[kind](a, b)
            return self.new(result) if type(result) in (list, dict, set) else result
        if is_reflected and second is not first and issubclass(second, first):
            result = self.call(reflected, b, a)
            if result is not NotImplemented:
                return result
        result = self.call(found, a, b) if is_found else NotImplemented if found is None else found(a, b)
        if result is NotImplemented and second is not first and reflected is not None:
            result = self.call(reflected, b, a)
        if result is NotImplemented:
            raise TypeError(f"unsupported operand type(s) for {kind}: {first.__name__!r} and {second.__name__!r}")
        return result

    def unary(self, kind: str, value: Any) -> Any:
        if kind == "Not":
            return self.not_(value)
        expect_there(value)
        if type(value) is Item and kind == "Invert":
            return computed("Sub", operator.sub, -1, value)
        found = getattr(type(value), f"__{_UNARY[kind]}__", None)
        if type(found) is types.FunctionType and self.converts(found):
            return self.call(found, value)
        return getattr(operator, _UNARY[kind])(value)

    def compare(self, kind: str, a: Any, b: Any) -> Any:
        expect_there(a, b)
        if kind in ("Is", "IsNot"):
            for flag, constant in ((a, b), (b, a)):
                if type(constant) is bool and type(flag) is Item and flag.dtype == torch.bool:
                    return flag if constant == (kind == "Is") else self.not_(flag)
            if a is not b and a is not None and b is not None:
                _expect_identity(a, b)
                if Item in (type(a), type(b)) and all(type(x) in (int, float, bool, Item) for x in (a, b)):
                    raise Refused("data decide a number, and `is` asks which object it is", other_paths=True)
            return (a is b) == (kind == "Is")
        if kind in ("In", "NotIn"):
            found = self._contains(b, a)
            return found if kind == "In" else self.not_(found)
        name = _COMPARE[kind]
        if type(a) in _PLAIN and type(b) in _PLAIN:
            found = getattr(operator, name)(*(beside_floats(a, b) if Item in (type(a), type(b)) else (a, b)))
            is_of_tensors = type(a) is Torchish or type(b) is Torchish or not isinstance(found, Torchish)
            return found if is_of_tensors else Item.of(found)
        if name in ("eq", "ne"):
            _expect_identity(a, b)
        for x, y, method in ((a, b, f"__{name}__"), (b, a, f"__{_REFLECTED[name]}__")):
            found = getattr(type(x), method, None)
            if type(found) is types.FunctionType and self.converts(found):
                result = self.call(found, x, y)
                if result is not NotImplemented:
                    return result
        return getattr(operator, name)(a, b)

    def _contains(self, container: Any, value: Any) -> Any:
        found = getattr(type(container), "__contains__", None)
        if type(found) is types.FunctionType and self.converts(found):
            return self.call(found, container, value)
        _expect_identity(value)
        if type(container) in (list, tuple) and (is_data(value) or any(map(is_data, container))):
            out: Any = False
            for x in container:
                same = True if x is value else self.compare("Eq", x, value)
                out = self.or_(out, lambda same=same: same)
            return out
        _expect_fresh((container,))
        if id(container) in current_run().partial:
            raise Refused("data decide which attributes an object has, which `in` asks", other_paths=True)
        return value in container

    def chain(self, kinds: tuple[str, ...], left: Any, *rest: Callable) -> Any:
        right = rest[0]()
        found = self.compare(kinds[0], left, right)
        if len(rest) == 1:
            return found
        return self.and_(found, lambda: self.chain(kinds[1:], right, *rest[1:]))

    def call_predicate(self, name: str, owner: Any, args: tuple, kwargs: dict) -> Any:
        """The results of functions that ask tensors for a bool."""
        if name not in _ASKING:
            return NotImplemented
        if isinstance(owner, torch.Tensor):
            args = args if args and args[0] is owner else (owner, *args)
        elif owner is not None and not isinstance(owner, types.ModuleType) and owner is not torch.add.__self__:
            return NotImplemented
        if not any(map(is_data, args)):
            return NotImplemented
        return _ASKING[name](self, *args, **kwargs)


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

    def read(self) -> list[Any]:
        return [x.read() for x in self.flags]


class CountedRange:
    """A range whose bounds data decide, as a loop goes through it.

    Args:
        most: how many numbers it has at most, if that is known.
    """

    def __init__(self, start: Any, stop: Any, step: int, most: int | None = None):
        self.start, self.stop, self.step, self.most = start, stop, step, most

    @property
    def bounds(self) -> tuple[int, int] | None:
        """The least and the greatest of its numbers, if that is known."""
        if type(self.start) is not int or not self.most:
            return None
        ends = self.start, self.start + (self.most - 1) * self.step
        return min(ends), max(ends)

    def has(self, operators: Operators, number: Any) -> Any:
        return operators.compare("Lt" if self.step > 0 else "Gt", number, self.stop)

    def goes_on(self, operators: Operators) -> Any:
        return operators.truth(self.has(operators, self.start))


def _range(operators: Operators, *bounds: Any) -> Any:
    if not any(type(x) is Item for x in bounds):
        return NotImplemented
    start, stop, *step = bounds if len(bounds) > 1 else (0, *bounds)
    if type(step[0] if step else 1) is not int or step == [0]:
        raise TracedValueError("the step of a range")
    return lengths.TracedRange(start, stop, step[0] if step else 1)


def _flag(value: Any) -> Any:
    if type(value) is Item:
        value = Number.of(value)
    value = value.detach().reshape(())
    return value if value.dtype == torch.bool else value != 0


def _variables(names: tuple[str, ...], *functions: Any) -> list[Variable]:
    """The variables of a function, by the cells of those inside of it."""
    cells: dict[str, types.CellType] = {}
    for x in functions:
        cells.update(zip(x.__code__.co_freevars, x.__closure__ or (), strict=True))
    return [Variable(cells[name], name) for name in names if name in cells]


def _loop_location(body: types.FunctionType) -> SourceLine:
    return SourceLine(body.__code__.co_filename, body.__code__.co_firstlineno, user_line().function, is_loop=True)


def _nothing() -> None:
    """The side that does nothing."""


_PLAIN = frozenset((bool, int, float, complex, str, bytes, types.NoneType, Torchish, Item))
_REFLECTED = {"eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


def _expect_identity(*values: Any) -> None:
    """Refuses to tell which object a value is, where data decide that."""
    for x in values:
        if has_no_identity(x):
            raise Refused("data decide which of two objects something is, which is asked here", other_paths=True)


def _isinstance(operators: Operators, value: Any, kinds: Any) -> Any:
    if type(value) is Item:
        return isinstance(value.python_type(), kinds)
    if id(value) in current_run().unsure:
        raise Refused("data decide whether something is a tensor or a number, which is asked here", other_paths=True)
    return NotImplemented


def _equal(operators: Operators, one: Any, other: Any) -> Any:
    are_equal: Any = (one == other).all() if one.shape == other.shape else None
    return False if are_equal is None else Item.of(are_equal)


def _allclose(operators: Operators, *args: Any, **kwargs: Any) -> Any:
    are_close: Any = torch.isclose(*args, **kwargs).all()
    return Item.of(are_close)


def _item(operators: Operators, value: Any) -> Any:
    return _as_bool(operators, value) if value.dtype == torch.bool and value.numel() == 1 else NotImplemented


def _as_bool(operators: Operators, value: Any) -> Any:
    """The result of ``bool``: one that is traced is a number of Python's."""
    return of_flag(operators.truth(value))


_ASKING: dict[str, Callable] = {
    "equal": _equal,
    "allclose": _allclose,
    "item": _item,
    "is_nonzero": lambda operators, value: _as_bool(operators, value) if value.numel() == 1 else NotImplemented,
    "__bool__": lambda operators, value: _as_bool(operators, value) if value.numel() == 1 else NotImplemented,
}


class _Iterator:
    """An iterator of the user's, whose `__next__` runs converted."""

    def __init__(self, operators: Operators, following: Any, items: Any):
        self._operators, self._following, self._items = operators, following, items

    def __iter__(self) -> "_Iterator":
        return self

    def __next__(self) -> Any:
        return self._operators.call(self._following, self._items)


class _Manager:
    """A context manager of the user's, whose methods run converted."""

    def __init__(self, operators: Operators, manager: Any, enter: Any, leave: Any):
        self._operators, self._manager, self._enter, self._leave = operators, manager, enter, leave

    def __enter__(self) -> Any:
        found = self._operators.call(self._enter, self._manager)
        current_run().trying += 1  # it may end an exception
        return found

    def __exit__(self, *exc_info: object) -> Any:
        current_run().trying -= 1
        return self._operators.call(self._leave, self._manager, *exc_info)


# Functions of Python's that ask.


def _any(operators: Operators, items: Any) -> Any:
    return _first(operators, items, stops_at=True)


def _all(operators: Operators, items: Any) -> Any:
    return _first(operators, items, stops_at=False)


def _first(operators: Operators, items: Any, stops_at: bool) -> Any:
    if isinstance(items, torch.Tensor):
        return NotImplemented
    is_pure, following = type(items) in (list, tuple), iter(operators.iterated(items))

    def rest(out: Any) -> Any:
        """Whether one of those that follow stops it, as if all were looked at."""
        for x in following:
            flag = operators.truth(x)
            if flag is stops_at:
                return stops_at
            if not isinstance(flag, bool):
                out = flag if isinstance(out, bool) else (out | flag if stops_at else out & flag)
        return out if isinstance(out, bool) else Item.of(out)

    if is_pure:
        return rest(not stops_at)
    for x in following:
        flag = operators.truth(x)
        if flag is stops_at:
            return stops_at
        if not isinstance(flag, bool):
            return _stops_early(flag, rest, stops_at)
    return not stops_at


def _stops_early(flag: Any, rest: Callable[[Any], Any], stops_at: bool) -> Any:
    own = Item.of(flag)
    return short_circuit(
        deciding_array(flag), lambda: rest(not stops_at), lambda: own, not stops_at, False, is_pure=True
    )


def _extreme(kind: str) -> Callable:
    def choose(operators: Operators, *values: Any, key: Any = None, **options: Any) -> Any:
        if len(values) == 1 and type(values[0]) in (list, tuple):
            values = tuple(values[0])
        if len(values) < 2 or options:
            return NotImplemented
        keys = values if key is None else [operators.call(key, x) for x in values]
        if not any(map(is_data, keys)):
            return NotImplemented
        best, best_key = values[0], keys[0]
        for x, its_key in zip(values[1:], keys[1:], strict=True):
            if key is None and is_extreme_of_tensors(best, x):
                best = best_key = (lengths.largest if kind == "Gt" else lengths.smallest)(best, x)
                continue
            flag = operators.truth(operators.compare(kind, its_key, best_key))
            if isinstance(flag, bool):
                best, best_key = (x, its_key) if flag else (best, best_key)
            else:
                new, old = (x, its_key), (best, best_key)
                best, best_key = condition(deciding_array(flag), lambda new=new: new, lambda old=old: old, [])
        return best

    return choose


from .calls import _SPECIAL  # noqa: E402 - which the operators add to

_SPECIAL.update(
    {
        builtins.any: _any,
        builtins.all: _all,
        builtins.isinstance: _isinstance,
        builtins.max: _extreme("Gt"),
        builtins.min: _extreme("Lt"),
        RANGE: _range,
    }
)

OPERATORS = Operators()
