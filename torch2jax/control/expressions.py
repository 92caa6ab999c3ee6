"""The operators of expressions in converted code: conditions, comparisons, arithmetic, and assignments like `+=`."""

import operator
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from ..runtime.errors import TracedValueError
from ..runtime.errors.locations import caller_line, user_line
from ..runtime.translation import this_call
from ..tensors.tensor import Torchish
from ..tracing.conditions import deciding_array, idle_decision
from ..values import lengths
from ..values.item import HOW_TO_PRINT, Item
from ..values.traced_numbers import Number
from .calls import RANGE, Calls, expect_fresh, is_data, of_flag
from .merge import expect_there, has_no_identity, is_one_of_two
from .numbers import NUMBERS, beside_floats, computed
from .sides import condition, short_circuit
from .state import Refused, asking_way, current_run
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


def _references() -> int:
    """The number of references to a tensor of one variable, where `Expressions._added_to` counts them.

    They are the variable and those of the two calls in between, which Python passes on or copies: it copies them once
    one of PyTorch's compilers has its own evaluation of frames.
    """

    def added_to(value: object) -> int:
        return sys.getrefcount(value)

    def aug(value: object) -> int:
        return added_to(value)

    variable = object()
    return aug(variable)


class Expressions(Calls):
    """The operators of expressions, and of assignments with an operator."""

    undefined = staticmethod(lambda: UNDEFINED)

    # Conditions.

    def truth(self, value: object) -> Any:
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

    def _condition(self, value: object) -> object:
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

    def known(self, value: object) -> bool:
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

    def choose(self, test: object, then: Callable, orelse: Callable) -> Any:
        flag = self.truth(test)
        if isinstance(flag, bool):
            return then() if flag else orelse()
        return condition(deciding_array(flag), then, orelse, [])

    def and_(self, value: object, rest: Callable) -> object:
        flag = self.truth(value)
        if isinstance(flag, bool):
            return rest() if flag else value
        return short_circuit(deciding_array(flag), rest, lambda: value, is_and=True, is_tensor=type(value) is not Item)

    def or_(self, value: object, rest: Callable) -> object:
        flag = self.truth(value)
        if isinstance(flag, bool):
            return value if flag else rest()
        return short_circuit(deciding_array(flag), rest, lambda: value, is_and=False, is_tensor=type(value) is not Item)

    def not_(self, value: object) -> object:
        flag = self.truth(value)
        return not flag if isinstance(flag, bool) else Item.of(~flag)

    @staticmethod
    def none_of(*flags: object) -> Any:
        """True if no exit has been taken."""
        out = True
        for flag in flags:
            if flag is True:
                return False
            if flag is not False and flag is not UNDEFINED:
                out = ~_flag(flag) if out is True else out & ~_flag(flag)
        return out

    @staticmethod
    def returned(value: object) -> object:
        return None if value is UNDEFINED else value

    # Variables.

    @staticmethod
    def note_cell(reader: types.FunctionType) -> None:
        """Is called before a variable of a function around this one is set."""
        closure: Any = reader.__closure__
        cell = closure[0]
        note(Variable(cell, reader.__code__.co_freevars[0]))

    def aug(self, old: object, kind: str, value: object) -> object:
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
        expect_fresh((value,))
        note_contents(old)
        return _IN_PLACE[kind](old, value)

    def _added_to(self, old: Any, kind: str, value: object) -> object:
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

    def aug_attr(self, owner: object, name: str, kind: str, value: Callable) -> None:
        self.setattr(self.aug(self.getattr(owner, name), kind, value()), owner, name)

    def aug_item(self, owner: object, key: object, kind: str, value: Callable) -> None:
        self.setitem(self.aug(self.getitem(owner, key), kind, value()), owner, key)

    # Operators of expressions.

    def binary(self, kind: str, a: Any, b: Any) -> object:
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

    def unary(self, kind: str, value: object) -> object:
        if kind == "Not":
            return self.not_(value)
        expect_there(value)
        if type(value) is Item and kind == "Invert":
            return computed("Sub", operator.sub, -1, value)
        found = getattr(type(value), f"__{_UNARY[kind]}__", None)
        if type(found) is types.FunctionType and self.converts(found):
            return self.call(found, value)
        return getattr(operator, _UNARY[kind])(value)

    def compare(self, kind: str, a: object, b: object) -> Any:
        expect_there(a, b)
        if kind in ("Is", "IsNot"):
            for flag, constant in ((a, b), (b, a)):
                if type(constant) is bool and type(flag) is Item and flag.dtype == torch.bool:
                    return flag if constant == (kind == "Is") else self.not_(flag)
            if a is not b and a is not None and b is not None:
                if type(a) is type(b) or isinstance(a, torch.Tensor):  # data choose among objects of one class
                    _expect_identity(a, b, is_one_of_two)
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

    def _contains(self, container: Any, value: object) -> object:
        found = getattr(type(container), "__contains__", None)
        if type(found) is types.FunctionType and self.converts(found):
            return self.call(found, container, value)
        _expect_identity(value)
        if type(container) in (list, tuple) and (is_data(value) or any(map(is_data, container))):
            out = False
            for x in container:
                same = True if x is value else self.compare("Eq", x, value)
                out = self.or_(out, lambda same=same: same)
            return out
        expect_fresh((container,))
        if id(container) in current_run().partial:
            raise Refused("data decide which attributes an object has, which `in` asks", other_paths=True)
        return value in container

    def chain(self, kinds: tuple[str, ...], left: object, *rest: Callable) -> object:
        right = rest[0]()
        found = self.compare(kinds[0], left, right)
        if len(rest) == 1:
            return found
        return self.and_(found, lambda: self.chain(kinds[1:], right, *rest[1:]))

    def call_predicate(self, name: str, owner: object, args: tuple, kwargs: dict) -> object:
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
        expect_fresh((items,))
        return items


def _flag(value: Any) -> Any:
    if type(value) is Item:
        value = Number.of(value)
    value = value.detach().reshape(())
    return value if value.dtype == torch.bool else value != 0


def variables_of(names: tuple[str, ...], *functions: Any) -> list[Variable]:
    """The variables of a function, by the cells of those inside of it."""
    cells: dict[str, types.CellType] = {}
    for x in functions:
        cells.update(zip(x.__code__.co_freevars, x.__closure__ or (), strict=True))
    return [Variable(cells[name], name) for name in names if name in cells]


_PLAIN = frozenset((bool, int, float, complex, str, bytes, types.NoneType, Torchish, Item))
_REFLECTED = {"eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


def _expect_identity(one: object, other: object = None, has_none: Callable[[object], bool] = has_no_identity) -> None:
    """Refuses to tell which object a value is, where data decide that."""
    for x in (one, other):
        if has_none(x):
            raise Refused("data decide which of two objects something is, which is asked here", other_paths=True)


def _equal(operators: Expressions, one: Any, other: Any) -> object:
    are_equal = (one == other).all() if one.shape == other.shape else None
    return False if are_equal is None else Item.of(are_equal)


def _allclose(operators: Expressions, *args: Any, **kwargs: object) -> object:
    are_close: Any = torch.isclose(*args, **kwargs).all()
    return Item.of(are_close)


def _item(operators: Expressions, value: Any) -> object:
    return _as_bool(operators, value) if value.dtype == torch.bool and value.numel() == 1 else NotImplemented


def _as_bool(operators: Expressions, value: object) -> object:
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

    def __init__(self, operators: Expressions, following: object, items: object):
        self._operators, self._following, self._items = operators, following, items

    def __iter__(self) -> "_Iterator":
        return self

    def __next__(self) -> object:
        return self._operators.call(self._following, self._items)
