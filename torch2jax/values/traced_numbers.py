"""Python numbers that data decide, as a training step's: a scheduler's counters, the learning rates that it sets.

Also here: Python floats that a loop carries while 64-bit types are off. The graph rounds them, and Python does not:
``while t < 1.0: t += 0.1`` runs eleven times in Python, where ten steps make a little less than one, and ten times in
float32. Such a number may be used, but a comparison of it is an error. It is none where float32 holds each step, as
0.5, nor of what ``.item()`` gives: that is as exact as its tensor.
"""

import functools
import operator
import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Self

import jax
import numpy as np
import torch
from jax import lax

from ..runtime.errors import BranchError, TracedValueError
from ..runtime.errors.locations import SourceLine, is_translator
from ..runtime.errors.unwinding import Restart
from ..runtime.translation import lift, this_call
from ..tensors.dtypes import has_doubles
from ..tensors.tensor import Torchish, wrap

_HELD = 2**24  # whole numbers up to it are exact in float32


class CarriedFloat:
    """A Python float that a loop carries.

    Args:
        path: where the code keeps it.
        loop: the line of the loop.
    """

    def __init__(self, path: str, loop: SourceLine):
        self.path, self.loop = path, loop
        self.is_rounded = False
        """True if iterations change it by steps that float32 does not hold."""


class Computed(NamedTuple):
    """The computation of a Python float from nothing but numbers that loops carry, integers and known numbers."""

    carried: frozenset[CarriedFloat]
    is_exact: bool
    """True if float32 holds the known numbers."""


def start_of(carried: CarriedFloat, first: Any) -> Computed | None:
    """The number at the beginning of an iteration; `first` is that of the first one, if there is one."""
    if has_doubles():
        return None
    before: Computed | None = getattr(first, "computed", None)
    if before is not None:
        return Computed(before.carried | {carried}, before.is_exact)
    return Computed(frozenset((carried,)), type(first) not in (int, float) or _is_held(first))


def computed(operands: Iterable[Any], keeps_exact: bool = True) -> Computed | None:
    """The result of an operator on numbers; None if one of them is a tensor's.

    Args:
        keeps_exact: whether it gives what float32 holds of what float32 holds.
    """
    found, is_exact = set[CarriedFloat](), keeps_exact
    for x in operands:
        if (one := getattr(x, "computed", None)) is not None:
            found |= one.carried
            is_exact = is_exact and one.is_exact
        elif isinstance(x, torch.Tensor):
            if x.is_floating_point():
                return None
        else:
            is_exact = is_exact and _is_held(x)
    return Computed(frozenset(found), is_exact) if found else None


def expect_exact(*operands: object) -> None:
    """Expects of the operands of a comparison that Python's float and the graph's compare alike.

    Raises:
        BranchError: one of them is rounded.
    """
    for x in operands:
        one: Computed | None = getattr(x, "computed", None)
        rounded = None if one is None else next((x for x in one.carried if x.is_rounded), None)
        if rounded is not None:
            raise BranchError(
                f"the comparison got {rounded.path}, a Python float that the loop at {rounded.loop} changes in steps. "
                "As jax_enable_x64 is off, the graph has it in float32, which rounds the steps, and the loop might end "
                "one iteration early or late; wanted an integer that counts the iterations, steps that float32 holds, "
                "as 0.5, or a tensor, torch.tensor(0.0), which PyTorch rounds as well; or turn 64-bit types on"
            )


def _is_held(number: int | float) -> bool:
    if isinstance(number, int):
        return abs(number) <= _HELD
    with np.errstate(over="ignore"):
        return number != number or float(np.float32(number)) == number


def is_unknown(value: object) -> bool:
    """Returns True if `value` is a tensor whose values depend on a traced input."""
    return isinstance(value, Torchish) and value.known is None


class Number(Torchish):
    """A tensor that code takes for a Python number: no operator changes it, and with others it gives numbers.

    It is an int64 or a float64, as Python computes. A real hyperparameter that is traced is taken to be none of the
    special values (``momentum != 0``) that code distinguishes, if it is none at first.
    """

    _started: Any = None  # the Python number that it was at first, where it is a hyperparameter
    computed: Computed | None = None
    """The computation of a float that loops carry, or that is computed from such, while 64-bit types are off."""

    @classmethod
    def of(cls, tensor: Torchish, started: object = None) -> Self:
        """The number in a tensor, which is not changed."""
        array, tape = tensor.read(), this_call().tape
        if tape is not None:
            array = tape.primal(array)
        if tensor._node.storage.differentiable:  # no derivatives are taken with respect to numbers
            array = lax.stop_gradient(array)
        result: Any = wrap(array, tensor.dtype, tensor.known, device=tensor._label)
        result._node.storage.differentiable = False
        result.__class__ = cls
        result._started = started
        if isinstance(tensor, Number) and tensor.computed is not None:
            result.computed = tensor.computed
        return result

    @classmethod
    def holding(cls, array: jax.Array, started: object) -> "Number":
        """The number in an array, in place of `started`."""
        dtype = torch.float64 if isinstance(started, float) else torch.int64
        tensor = wrap(array, torch.bool if isinstance(started, bool) and array.dtype == bool else dtype)
        tensor._node.storage.differentiable = False
        return cls.of(tensor, started)

    def clone(self, **_: object) -> "Number":
        """The same number: as code that takes it for a tensor copies it."""
        return type(self).of(self, self._started)

    def __hash__(self):
        raise TracedValueError("a number looked up in a dictionary or set")

    def __eq__(self, other: object):
        return self._compared("__eq__", other, operator.eq)

    def __ne__(self, other: object):
        return self._compared("__ne__", other, operator.ne)

    def __lt__(self, other: object):
        return self._compared("__lt__", other, operator.lt)

    def __le__(self, other: object):
        return self._compared("__le__", other, operator.le)

    def __gt__(self, other: object):
        return self._compared("__gt__", other, operator.gt)

    def __ge__(self, other: object):
        return self._compared("__ge__", other, operator.ge)

    def __divmod__(self, other: Any):
        return self // other, self % other

    def __rdivmod__(self, other: Any):
        return other // self, other % self

    def __round__(self, ndigits: int | None = None):
        number: Any = wrap(self.read(), self.dtype, self.known)
        if ndigits is None:
            return type(self).of(number.round().long())
        if type(ndigits) is not int or (ndigits < 0 and not number.is_floating_point()):
            raise TracedValueError("round(number, digits)")
        if not number.is_floating_point():
            return self
        rounded: Any = torch.round(number, decimals=ndigits)
        return type(self).of(rounded.where(rounded.isfinite(), number))  # a large one has no such digits

    def __float__(self) -> float:
        return self._converted(Torchish.__float__)

    def __int__(self) -> int:
        return self._converted(Torchish.__int__)

    def _converted(self, convert: Callable[[Any], Any]):
        """The result of ``float`` or ``int``; notes the module that asks for a traced number.

        Raises:
            Restart: Python's own function asks, which needs to know.
        """
        try:
            return convert(self)
        except TracedValueError:
            asked, module = this_call().execution.number_modules, sys._getframe(2).f_globals
            takes_types = self.python_type is None
            if any(known is module and types >= takes_types for known, types in asked):
                raise
        asked.append((module, takes_types))
        raise Restart

    def _compared(self, name: str, other: object, compare: Callable[[Any, Any], Any]):
        if self._started and isinstance(self._started, float) and type(other) in (int, float) and other == 0:
            return compare(self._started, 0)
        expect_exact(self, other)
        return getattr(Torchish, name)(self, other)


class Count(Number):
    """The number of a scheduler's steps, where PyTorch only asks in order to warn before the second one."""

    def _compared(self, name: str, other: object, compare: Callable[[object, object], object]):
        return False if name == "__eq__" and other == 1 else super()._compared(name, other, compare)


def _real(number: Number):
    return number if _is_real(number) else Number.of(lift(number.double()))


_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
_UNARY = ("neg", "pos", "abs")


def _is_number(value: object) -> bool:
    return isinstance(value, Number) or type(value) in (int, float)


_DIVISIONS = ("truediv", "floordiv", "mod")


def expect_divisor(value: object) -> None:
    """Raises Python's error for a division by zero, where the code catches it.

    Elsewhere it gives what it gives in tensors: it may stand on the side of a condition that is never taken.

    Raises:
        ZeroDivisionError: it is zero.
    """
    if (is_unknown(value) or value == 0) and is_caught("ZeroDivisionError", "ArithmeticError") and value == 0:
        raise ZeroDivisionError("division by zero")


def is_caught(*names: str) -> bool:
    """Returns True if the function that computes names one of these exceptions: it handles it."""
    frame, function = sys._getframe(2), None
    while frame is not None:
        code = frame.f_code
        if not is_translator(code.co_filename):
            if function is not None and function != (code.co_filename, code.co_name):
                return False
            if any(name in code.co_names for name in names):
                return True
            function = code.co_filename, code.co_name  # a side of a condition has its function's name
        frame = frame.f_back
    return False


def _is_real(value: object) -> bool:
    return value.is_floating_point() if isinstance(value, torch.Tensor) else isinstance(value, float)


def _binary(name: str, method: str):
    @functools.wraps(getattr(Torchish, method))
    def compute(self: Any, other: object):
        if not _is_number(other):
            return getattr(Torchish, method)(self, other)
        if name in _DIVISIONS:
            expect_divisor(self if method.startswith("__r") else other)
        how = _computed(name, self, other)
        if name == "truediv" or _is_real(other):
            self = _real(self)
        if isinstance(other, Number) and _is_real(self):
            other = _real(other)
        return _with(how, Number.of(getattr(Torchish, method)(self, other)))

    return compute


def _unary(method: str):
    def compute(self: Number):
        return _with(self.computed, Number.of(getattr(Torchish, method)(self)))

    return functools.wraps(getattr(Torchish, method))(compute)


def _computed(name: str, *operands: object) -> Computed | None:
    if all(getattr(x, "computed", None) is None for x in operands):
        return None
    return computed(operands, keeps_exact=name not in ("truediv", "pow"))


def _with(how: Computed | None, result: Number) -> Number:
    if how is not None:
        result.computed = how
    return result


for _name in _BINARY:
    setattr(Number, f"__{_name}__", _binary(_name, f"__{_name}__"))
    setattr(Number, f"__r{_name}__", _binary(_name, f"__r{_name}__"))
    setattr(Number, f"__i{_name}__", getattr(Number, f"__{_name}__"))  # a number is not written in place
for _name in _UNARY:
    setattr(Number, f"__{_name}__", _unary(f"__{_name}__"))


def number_of(value: object) -> "Number":
    """A Python number as a tensor, at Python's precision."""
    if isinstance(value, torch.Tensor):
        return Number.of(value if isinstance(value, Torchish) else lift(value))
    return Number.of(lift(torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)))


def plain(tensor: Torchish) -> Any:
    """A tensor without a derivative, which stands for no Python number."""
    return Number.of(tensor) if isinstance(tensor, Number) else tensor.detach()


def larger(*values: object, **options: object):
    """``max``, also of tensors."""
    return _extreme(max, torch.maximum, values, options)


def smaller(*values: object, **options: object):
    """``min``, also of tensors."""
    return _extreme(min, torch.minimum, values, options)


def _extreme(builtin: Callable[..., object], function: Callable[..., Any], values: tuple, options: dict):
    if len(values) < 2 or options or not any(map(is_unknown, values)):
        return builtin(*values, **options)
    expect_exact(*values)
    numbers = [number_of(value) for value in values]
    if any(map(_is_real, numbers)):
        numbers = [_real(x) for x in numbers]
    return _with(_computed(builtin.__name__, *values), Number.of(functools.reduce(function, numbers)))


class _Float(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, float)

    def __getattr__(cls, name: str) -> Any:
        return getattr(float, name)


class as_float(metaclass=_Float):
    """``float``, also of a traced tensor."""

    def __new__(cls, value: Any = 0.0) -> Number | float:
        return Number.of(plain(value).reshape(()).double()) if is_unknown(value) else float(value)
