"""Numbers that data decide, in converted code: what operators and functions of Python's give of them.

They are Python's numbers there: their types, attributes and errors are those of `int`, `float` and `bool`. What cannot
be followed is refused by name.
"""

import functools
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..runtime.errors import TracedValueError
from ..runtime.errors.locations import user_line
from ..runtime.translation import this_call
from ..tensors.dtypes import has_doubles
from ..values import lengths
from ..values.item import HOW_TO_PRINT, Item
from ..values.python_functions import MATH
from ..values.traced_numbers import Number, expect_divisor
from .overflow import expect_finite, expect_integer
from .state import Refused

if TYPE_CHECKING:
    from .calls import Calls

NUMBERS = frozenset((bool, int, float, complex, Item))


def is_integer(value: object) -> bool:
    return type(value) in (int, bool) or (type(value) is Item and not value.is_floating_point())


def beside_floats(a: object, b: object) -> tuple[Any, Any]:
    """Two numbers as they are computed with: an integer that the graph does not hold is a float beside a float."""
    if is_integer(a) == is_integer(b):
        return a, b
    one, other = (float(x) if type(x) is int and abs(x) >= 2**31 else x for x in (a, b))
    return one, other


# Operators.


def computed(kind: str, function: Callable[[Any, Any], Any], a: object, b: object) -> Any:
    """The result of an operator of two numbers, one of which data decide."""
    if complex in (type(a), type(b)):
        raise TracedValueError("a complex number of a traced one", instead="compute with tensors: torch.complex(a, b)")
    if is_integer(a) and is_integer(b):
        a, b = _held(kind, a, b), _held(kind, b, a)
    if kind == "Pow":
        return _power(a, b)
    if kind in ("LShift", "RShift") and is_integer(a) and is_integer(b):
        return _shifted(kind, a, b)
    if kind in ("Div", "FloorDiv", "Mod"):
        _check_divisor(b)
    result = function(*beside_floats(a, b))
    return expect_integer(kind, a, b, result) if kind in ("Add", "Sub", "Mult") and is_integer(result) else result


def _held(kind: str, value: object, other: Any) -> Any:
    """An integer beside one that the graph has, in as many bits.

    Raises:
        OverflowError: these do not hold it, nor the result.
    """
    if type(value) is not int or type(other) is not Item or kind in ("Pow", "LShift", "RShift"):
        return value
    info = np.iinfo(np.int32 if other.dtype == torch.bool else other.read().dtype)
    if info.min <= value <= info.max:
        return value
    if kind == "BitAnd" and lengths.range_of_number(other)[0] >= 0:
        return value & int(info.max)
    raise OverflowError(
        f"got the integer {value}, at {user_line()}, beside a number that data decide, which has {info.bits} bits in "
        "the graph" + ("" if has_doubles() else "; with jax.config.update('jax_enable_x64', True) it has 64")
    )


def _check_divisor(value: object) -> None:
    check = this_call().execution.path.policy.checking
    if check is not None and type(value) is Item and value.dtype != torch.bool:
        low, high = lengths.range_of_number(value) if is_integer(value) else (0, 0)
        if low <= 0 <= high:
            is_right: Any = Number.of(value) != 0
            check(is_right.read(), f"ZeroDivisionError: division by zero, at {user_line()}")


def _power(a: Any, b: object) -> Any:
    if is_integer(a) and is_integer(b):
        if lengths.range_of_number(b)[0] >= 0:
            return expect_integer("Pow", a, b, a**b)
        if type(b) is Item:
            raise Refused(
                "data decide whether an exponent is negative, and so whether Python gives an integer", other_paths=True
            )
        expect_divisor(a)
        a = as_real(a)
    a, b = beside_floats(a, b)
    return a**b


def _shifted(kind: str, a: object, b: Any) -> Any:
    if type(b) is Item and (kind == "RShift" or lengths.range_of_number(b)[0] < 0):
        raise TracedValueError(f"the count of a shift, {kind}", instead="write n * 2**k, or n // 2**k")
    if type(b) is not Item and b < 0:
        raise ValueError("negative shift count")
    if kind == "LShift":
        return computed("Mult", operator.mul, a, _power(2, b) if type(b) is Item else 2**b)
    number: Any = a if type(a) is Item else Item.of(lengths.tensor_of(a))
    shifted: Any = Number.of(number) >> min(b, np.iinfo(number.read().dtype).bits - 1)
    return Item.of(shifted)


def raised_to(operators: "Calls", a: object, b: object, modulus: object = None) -> Any:
    power = operators.binary("Pow", a, b)
    return power if modulus is None else operators.binary("Mod", power, modulus)


def divided(operators: "Calls", a: object, b: object) -> tuple[Any, Any]:
    return operators.binary("FloorDiv", a, b), operators.binary("Mod", a, b)


def is_extreme_of_tensors(first: object, second: object) -> bool:
    """Whether the larger of two numbers is that of two tensors. Of nan and a number, Python's functions give the first
    one, as those of tensors do only where that is nan.
    """
    if Item not in (type(first), type(second)) or bool in (type(first), type(second)):
        return False
    is_number = type(second) in (int, float) and second == second
    return is_number or (is_integer(first) and is_integer(second))


# Conversions.


def as_real(number: Item) -> Item:
    real: Any = Number.of(number).double()
    return Item.of(real)


def as_integer(number: Item, function: Callable[[Any], Any]) -> Any:
    """An integer that a function makes of a number."""
    if number.dtype == torch.bool:
        return +number
    return expect_finite(number, function(number)) if number.is_floating_point() else number


def rounded(operators: "Calls", number: Any, digits: Any = None) -> Any:
    del operators
    return as_integer(number, round) if digits is None else round(number, digits)


def text(*args: object, **options: object) -> Any:
    raise TracedValueError("the text of a traced number", instead=HOW_TO_PRINT)


def refused(what: str, *args: object, **options: object) -> Any:
    raise TracedValueError(f"{what} of a traced number")


# Attributes.

_OPERATORS = frozenset(name for name in vars(int) if name in vars(Item))


def attribute(number: Item, name: str) -> Any:
    """An attribute of a number, as those of Python's have it."""
    kind = number.python_type
    if not hasattr(kind, name):
        raise AttributeError(f"'{kind.__name__}' object has no attribute '{name}'")
    if name == "__class__":
        return kind
    if name in ("real", "numerator"):
        return +number
    if name in ("imag", "denominator"):
        return int(name == "denominator") if kind is not float else 0.0
    if name == "conjugate":
        return lambda: +number
    if name == "is_integer":
        return lambda: number == number // 1
    if name in _OPERATORS:
        return getattr(number, name)
    return functools.partial(refused, f"{kind.__name__}.{name}()")


# The module `math`.


def of_math(operators: "Calls", name: str, args: Sequence, options: dict) -> Any:
    """The result of a function of `math` of numbers that data decide."""
    function = MATH[name][1]
    if name in ("floor", "ceil", "trunc") and function is not None:
        return as_integer(args[0], function)
    if name == "isclose":
        return _is_close(*args, **options)
    if name == "gcd" and all(map(is_integer, args)):
        return functools.reduce(_common_divisor, args)
    if name == "prod":
        return functools.reduce(functools.partial(operators.binary, "Mult"), args[0], options.get("start", 1))
    if function is None:
        raise TracedValueError(f"math.{name}() of a traced number")
    return function(*args)


def _is_close(a: Any, b: Any, *, rel_tol: float = 1e-09, abs_tol: float = 0.0) -> Any:
    tolerance = lengths.largest(rel_tol * lengths.largest(abs(a), abs(b)), abs_tol)
    return Item.of(Number.of(abs(a - b)) <= tolerance)


def _common_divisor(a: object, b: object) -> Any:
    return Item.of(torch.gcd(*map(lengths.tensor_of, (a, b))))  # pyright: ignore[reportArgumentType]
