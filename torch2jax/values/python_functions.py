"""Functions of Python's that take floats (`math`, `float`, `int`, `min`, `max`), also of numbers that data decide.

C code asks for a float and can only be told one. So a call that asks for one is run again, in which functions stand in
for those of Python's, to its end. They do as ever for all other numbers. All threads see that: in the module `math`, in
`min` and `max`, and, as to ``float``, ``int`` and names such as ``from math import cos`` binds, in the modules of the
code that has asked.
"""

import functools
import math
import sys
import threading
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch

from ..rules.features import Feature, in_every_call
from ..runtime.translation import Call, this_call
from .item import Item
from .lengths import track_extremes, track_lengths, track_ranges
from .traced_numbers import Number, as_float, is_caught, is_unknown, number_of, plain

_ABSENT: object = object()
_REAL = (
    *("cos", "sin", "tan", "acos", "asin", "atan", "cosh", "sinh", "tanh", "acosh", "asinh", "atanh", "atan2", "hypot"),
    *("exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "sqrt", "pow", "fmod", "copysign", "erf", "erfc"),
    *("lgamma", "isnan", "isinf", "isfinite"),
)
_ROUNDING = ("floor", "ceil", "trunc")
_BY_NAME = {"fabs": "abs", "degrees": "rad2deg", "radians": "deg2rad"}


_DOMAINS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("log", "log2", "log10"), lambda x: x <= 0),
    **dict.fromkeys(("acos", "asin"), lambda x: abs(x) > 1),
    "sqrt": lambda x: x < 0,
    "log1p": lambda x: x <= -1,
    "acosh": lambda x: x < 1,
    "atanh": lambda x: abs(x) >= 1,
}
"""The values for which Python's functions raise a ValueError."""
_OVERFLOWS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("exp", "expm1"), lambda x: x > math.log(sys.float_info.max)),
    **dict.fromkeys(("sinh", "cosh"), lambda x: abs(x) > math.asinh(sys.float_info.max)),
}
"""Those for which they raise an OverflowError."""


def _result(value: Any, of: tuple) -> Any:
    """A number that data decide, as those are that it is computed of."""
    return (Item if any(type(x) is Item for x in of) else Number).of(value)


def _real(value: Item) -> Any:
    """A number, as Python takes it for a float: a tensor of double precision."""
    return as_float(value) if isinstance(value, torch.Tensor) else number_of(float(value))


def _function(name: str) -> Callable[..., Any]:
    function, of_tensors = getattr(math, name), getattr(torch, _BY_NAME.get(name, name))

    @functools.wraps(function)
    def compute(*args: Any):
        if not any(map(is_unknown, args)):
            return function(*args)
        numbers = list(map(_real, args))
        if name in _DOMAINS and is_caught("ValueError") and _DOMAINS[name](numbers[0]):
            raise ValueError("math domain error")
        if name in _OVERFLOWS and is_caught("OverflowError") and _OVERFLOWS[name](numbers[0]):
            raise OverflowError("math range error")
        if name == "hypot" and numbers:
            return _result(functools.reduce(torch.hypot, numbers[1:], numbers[0].abs()), args)
        if name == "log" and len(numbers) == 2:
            return _result(numbers[0].log() / numbers[1].log(), args)
        result = of_tensors(*numbers)
        if result.dtype == torch.bool:
            return result
        return _result(result.long() if name in _ROUNDING else result, args)

    return compute


_math: dict[str, Callable[..., object]] = {
    name: _function(name) for name in (*_REAL, *_ROUNDING, *_BY_NAME) if hasattr(math, name)
}
_originals = {name: getattr(math, name) for name in _math}
MATH: dict[str, tuple[Callable[..., object], Callable[..., object] | None]] = {
    name: (function, _math.get(name)) for name, function in vars(math).items() if callable(function)
}
"""The functions of `math`, with their replacements for data-dependent numbers."""


class TensorMath:
    """The module ``math``, also of tensors."""

    def __getattr__(self, name: str) -> Any:
        return _math[name] if name in _math else getattr(math, name)


class _Int(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, int)

    def __getattr__(cls, name: str) -> Any:
        return getattr(int, name)


class as_int(metaclass=_Int):
    """``int``, also of a traced tensor."""

    def __new__(cls, value: Any = 0, *base: object) -> Any:
        number = value
        if not is_unknown(number):
            return int(number, *base)
        number = plain(number).reshape(())
        return _result((number.trunc() if number.is_floating_point() else number).long(), (value,))


_TYPES = {"float": as_float, "int": as_int}


@in_every_call
class _Numbers(Feature):
    """The standing feature that lets functions of Python's take numbers and lengths that data decide, in later runs."""

    def begin_later(self, call: Call) -> None:
        track_lengths()
        track_ranges()
        if call.execution.number_modules:
            _track_numbers(call.execution.number_modules)


def _track_numbers(modules: Iterable[tuple[dict[str, Any], bool]]) -> None:
    """Makes functions of Python's `math` accept data-dependent numbers, until the call in progress ends.

    Args:
        modules: the modules whose code has asked for floats, by their dictionaries, and whether ``float`` and ``int``
            are to take such numbers there.
    """
    own: dict[str, object] = math.__dict__
    _lend(own, _math)
    for module, takes_types in modules:
        imported = {name: _math[x.__name__] for name, x in list(module.items()) if _is_of_math(x)}
        if module is not own:
            _lend(module, {**imported, **(_TYPES if takes_types else {})})
    track_extremes()


def _is_of_math(value: object) -> bool:
    return type(value) is types.BuiltinFunctionType and _originals.get(value.__name__) is value


_lock = threading.Lock()
_lent: dict[tuple[int, str], list] = {}  # how often something stands in for a name of a module, and for what


def _lend(module: dict[str, object], placeholders: Mapping[str, object]) -> None:
    """Replaces names of a module, until the call in progress and all others that do the same have ended."""

    def put_back() -> None:
        with _lock:
            for name, value in placeholders.items():
                entry = _lent[id(module), name]
                entry[0] -= 1
                if entry[0]:
                    continue
                del _lent[id(module), name]
                if module.get(name) is value:  # else the code itself has put something there
                    if entry[1] is _ABSENT:
                        del module[name]
                    else:
                        module[name] = entry[1]

    with _lock:
        for name, value in placeholders.items():
            entry = _lent.setdefault((id(module), name), [0, module.get(name, _ABSENT)])
            entry[0] += 1
            if entry[1] is _ABSENT or name not in _TYPES:  # a module may have its own ``float``
                module[name] = value
    this_call().ends.append(put_back)


# NumPy, which asks a number of its arguments' own what a function gives.

_OF_NUMPY = {
    **{f"arc{name}": f"a{name}" for name in ("cos", "sin", "tan", "cosh", "sinh", "tanh")},
    "absolute": "abs",
    "arctan2": "atan2",
    "conjugate": "conj",
    "power": "pow",
    "float_power": "pow",
    "rint": "round",
    "equal": "eq",
    "not_equal": "ne",
    "less": "lt",
    "less_equal": "le",
    "greater": "gt",
    "greater_equal": "ge",
}
_OF_INTEGERS = frozenset(
    ("add", "subtract", "multiply", "floor_divide", "remainder", "negative", "absolute", "power", "sign")
)
_OF_INTEGERS |= {"minimum", "maximum", "square", "positive"}


def _ufunc(self: object, ufunc: Any, method: Any, *inputs: Any, **options: object) -> object:
    """The result of a NumPy function of such numbers and others; beside arrays they must be known."""
    name: str = ufunc.__name__
    of_tensors = getattr(torch, _OF_NUMPY.get(name, name), None)
    if method != "__call__" or options or of_tensors is None or not all(map(_is_scalar, inputs)):
        known = [np.asarray(x) if isinstance(x, Number) else x for x in inputs]
        return getattr(ufunc, method)(*known, **options)
    values = [x.item() if isinstance(x, np.generic) else x for x in inputs]
    is_integer = name in _OF_INTEGERS and all(_is_integer(x) for x in values)
    result = of_tensors(*[number_of(x) if is_integer else _real(x) for x in values])
    return result if result.dtype == torch.bool else _result(result, inputs)


def _is_scalar(value: object) -> bool:
    return isinstance(value, (Number, np.generic)) or type(value) in (int, float)


def _is_integer(value: object) -> bool:
    return type(value) is int or (isinstance(value, Number) and not value.is_floating_point())


def _clip(self: Any, min: Any = None, max: Any = None, out: None = None) -> object:
    """The method that ``numpy.clip`` calls."""
    del out
    larger = self if min is None else np.maximum(self, min)
    return larger if max is None else np.minimum(larger, max)


Number.__array_ufunc__ = _ufunc  # pyright: ignore[reportAttributeAccessIssue]
Number.clip = _clip  # pyright: ignore[reportAttributeAccessIssue]
