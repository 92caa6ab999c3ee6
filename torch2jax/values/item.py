"""The result of ``.item()`` on a traced tensor: a number that code may compute with and compare."""

import dis
import math
import operator
import os
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ..rules import registry
from ..rules.features import Changed, handles
from ..rules.rule import MetadataRule
from ..runtime.errors import TracedValueError
from ..runtime.errors.locations import is_library, is_users
from ..runtime.errors.unwinding import Restart
from ..runtime.patches import replaces
from ..runtime.translation import this_call
from ..tensors.tensor import Torchish
from ..tensors.trees import map_arguments
from ..tracing.value_ranges import range_of
from .traced_numbers import Computed, Number


class Item(Number):
    """A number that PyTorch would have taken out of a tensor: among tensors it counts as Python's numbers do.

    What has to know it, as a text, is an error; a comparison is a condition like any other.
    """

    bounds: tuple[int, int] | None = None
    """The least and the most of an integer that a loop carries, or that is computed from such."""
    is_of_float32 = False
    """True for a number that PyTorch takes out of a float32 tensor: no float64 that the graph would have rounded."""

    @property
    def __class__(self):  # for code that asks whether it is a number
        return self.python_type

    @property
    def python_type(self) -> type:
        return bool if self.dtype == torch.bool else float if self.dtype.is_floating_point else int

    @classmethod
    def out_of(cls, tensor: Torchish) -> "Item":
        """The number in a tensor of one element, real and no bool."""
        wide: Any = tensor.detach().reshape(())
        number = cls.of(wide.double() if tensor.dtype.is_floating_point else wide.long())
        number.is_of_float32 = tensor.dtype == torch.float32 and number.read().dtype == np.float32
        return number

    def tensor(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The result of ``torch.tensor`` of the number."""
        if dtype is None:
            dtype = torch.get_default_dtype() if self.dtype.is_floating_point else self.dtype
        return Number.of(self).to(dtype)

    def __str__(self) -> str:
        raise _of_text()

    def __repr__(self) -> str:  # as of a list that it is in
        if is_asked_by_user():
            raise _of_text()
        return Torchish.__repr__(self)

    def __format__(self, spec: str) -> str:
        raise _of_text()

    def _compared(self, name: str, other: Any, compare: Callable[[Any, Any], Any]):
        if not _is_number(other):
            return getattr(Torchish, name)(self, other)
        if self._started and type(other) in (int, float) and other == 0:  # a hyperparameter
            return compare(self._started, 0)
        if not this_call().execution.tracks_lengths and _is_called_by_function():
            raise Restart  # as by min and max, of which there are some that take such numbers
        if self.dtype == torch.bool:
            return compare(_as_integer(self), other)
        if type(other) is float and math.isfinite(other) and not self.is_floating_point():
            name, other = _beside_integer(name, other)
            compare = getattr(operator, name.strip("_"))
        decision = _seen(name, self, other)
        if decision is not None:
            return decision
        if self.is_of_float32 and type(other) in (float, int):
            compare, other = _in_float32(name, other, compare)
        return compare(*_as_floats(Number.of(self), _plain(other)))


@replaces(torch, "is_tensor")
def _is_tensor(obj: object) -> bool:
    return isinstance(obj, torch.Tensor) and type(obj) is not Item


HOW_TO_PRINT = (
    "print the value when it is there, j2t(jax.debug.print)('{:.3f}', tensor); or print the tensor itself, for its "
    "shape and dtype"
)


def _of_text() -> TracedValueError:
    return TracedValueError("the text of a traced number", instead=HOW_TO_PRINT)


def is_asked_by_user() -> bool:
    """Returns True if code of the user's asks, be it converted: not a debugger, and no message of the package's own."""
    frame = sys._getframe(2)
    while frame is not None and _CONVERTED in frame.f_code.co_filename:
        frame = frame.f_back
    return frame is not None and is_users(frame.f_code.co_filename)


_CONVERTED = os.path.join("torch2jax", "control", "")


def formats_text() -> bool:
    """Returns True if the user's line formats text with Python's ``%``, which asks for a number to print it alone."""
    frame = sys._getframe(1)
    while frame is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return False
    instruction = next((x for x in dis.get_instructions(frame.f_code) if x.offset == frame.f_lasti), None)
    return instruction is not None and instruction.argrepr in ("%", "%=")


def _is_called_by_function() -> bool:
    """Returns True if a function of Python compares, not an operator in the code."""
    frame = sys._getframe(3)
    return dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith("CALL")


def _seen(name: str, one: "Item", other: Any) -> bool | None:
    """The result of a comparison of integers, if their bounds decide it; else None."""
    if one.is_floating_point() or (type(other) is Item and other.is_floating_point()) or type(other) is float:
        return None
    (low, high), (least, most) = range_of(one.read()), (other, other)
    if type(other) is Item:
        least, most = range_of(other.read())
    always, never = {
        "__lt__": (high < least, low >= most),
        "__le__": (high <= least, low > most),
        "__gt__": (low > most, high <= least),
        "__ge__": (low >= most, high < least),
        "__eq__": (low == high == least == most, high < least or low > most),
        "__ne__": (high < least or low > most, low == high == least == most),
    }[name]
    return True if always else False if never else None


def _beside_integer(name: str, number: float) -> tuple[str, float]:
    """A comparison of an integer with a float, as one with an integer; of no integer, as one that none fulfils."""
    if name in ("__eq__", "__ne__"):
        return name, int(number) if number.is_integer() else math.nan
    return name, math.ceil(number) if name in ("__lt__", "__ge__") else math.floor(number)


def _in_float32(
    name: str, number: float, compare: Callable[[object, object], object]
) -> tuple[Callable[[object, object], object], float]:
    """A comparison of float32 with a float64, as one with the float32 next to that."""
    with np.errstate(over="ignore"):
        near = float(np.float32(number))
    if near == number or number != number:
        return compare, number
    if name in ("__eq__", "__ne__"):
        return compare, float("nan")  # to which none is equal
    is_less = name in ("__lt__", "__le__")
    return getattr(operator, ("lt" if near > number else "le") if is_less else "ge" if near > number else "gt"), near


def _is_number(value: object) -> bool:
    return type(value) in (int, float, bool, Item)


def _plain(value: object):
    return Number.of(value) if type(value) is Item else value


def _as_floats(one: object, other: object) -> tuple[object, object]:
    """Two numbers as Python computes with them: an integer beside a float is a float64, not of the default dtype."""
    if _is_float(one) == _is_float(other):
        return one, other
    return _as_float(one), _as_float(other)


def _is_float(number: object) -> bool:
    return number.is_floating_point() if isinstance(number, Number) else type(number) is float


def _as_float(number: object) -> object:
    if not isinstance(number, Number) or number.is_floating_point():
        return number
    real: Any = number.double()
    found = Number.of(real)
    found.computed = Computed(frozenset(), is_exact=True)  # it is no float of a tensor's
    return found


def _binary(name: str) -> Callable:
    def compute(self: Torchish, other: object):
        if not _is_number(other):
            return getattr(Torchish, name)(self, other)
        one, two = _as_floats(_as_integer(self), _as_integer(other))
        if "truediv" in name:
            one, two = _as_float(one), _as_float(two)
        return Item.of(getattr(Number, name)(one, two))

    return compute


def _unary(name: str) -> Callable:
    return lambda self: Item.of(getattr(Number, name)(_as_integer(self)))


def _as_integer(value: object) -> object:
    """A number with which Python computes: a bool that is traced is an integer there."""
    if type(value) is Item:
        number = Number.of(value)
        integer: Any = number.long() if value.dtype == torch.bool else number
        return Number.of(integer)
    return int(value) if type(value) is bool else value


def _of_bools(name: str) -> Callable:
    def compute(self: Torchish, other: object):
        if not _is_number(other):
            return getattr(Torchish, name)(self, other)
        both = all(type(x) is bool or (type(x) is Item and x.dtype == torch.bool) for x in (self, other))
        one, two = (self, other) if both else (_as_integer(self), _as_integer(other))
        return Item.of(getattr(Torchish, name)(*(Number.of(x) if type(x) is Item else x for x in (one, two))))

    return compute


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    setattr(Item, f"__{_name}__", _binary(f"__{_name}__"))
    setattr(Item, f"__r{_name}__", _binary(f"__r{_name}__"))
    setattr(Item, f"__i{_name}__", getattr(Item, f"__{_name}__"))
for _name in ("and", "or", "xor"):
    setattr(Item, f"__{_name}__", _of_bools(f"__{_name}__"))
    setattr(Item, f"__r{_name}__", _of_bools(f"__{_name}__"))
    setattr(Item, f"__i{_name}__", _of_bools(f"__{_name}__"))
for _name in ("neg", "pos", "abs"):
    setattr(Item, f"__{_name}__", _unary(f"__{_name}__"))


# Functions that are no elementwise ones: those that write it, and those that ask for it, or make a tensor of it.
_WRITE = frozenset(
    (torch.full_like, torch.Tensor.new_full, torch.Tensor.fill_, torch.Tensor.__setitem__, torch.masked_fill)
    + (torch.Tensor.__getitem__, torch.narrow, torch.Tensor.narrow)
    + (torch.Tensor.masked_fill, torch.Tensor.masked_fill_, torch.dropout, torch.dropout_, torch.native_dropout)
    + (torch.feature_dropout, torch.feature_dropout_, torch.alpha_dropout, torch.alpha_dropout_)
    + (torch.feature_alpha_dropout, torch.feature_alpha_dropout_)
)
_TAKE = frozenset(
    (torch.Tensor.item, torch.Tensor.__bool__, torch.Tensor.__int__, torch.Tensor.__float__, torch.Tensor.__complex__)
    + (torch.Tensor.__index__, torch.Tensor.__repr__, torch.is_nonzero, torch.where, torch.Tensor.where, torch.full)
    + (torch.tensor, torch.as_tensor)
)
_OF_LISTS = frozenset(getattr(torch, name) for name in dir(torch) if name.startswith(("_foreach_", "_fused_")))


def _stays(number: "Item", *options: object) -> bool:
    """Returns True if ``number.to(...)`` changes nothing: code takes the number for a tensor."""
    return all(isinstance(x, (torch.device, str)) or x is number.dtype for x in options)


def has_item(index: list) -> bool:
    """True if a list has nothing but numbers, and a traced one among them: of tensors, PyTorch would make indices."""
    leaves, nested = [x for x in index if type(x) is not list], [x for x in index if type(x) is list]
    are_numbers = all(type(x) in (bool, int) or (type(x) is Item and not x.is_floating_point()) for x in leaves)
    return are_numbers and (any(type(x) is Item for x in leaves) or any(map(has_item, nested)))


@handles(Item, 1)
def _taken(call: object, func: Callable, args: tuple, kwargs: dict) -> Changed:
    """The arguments of a function in the form that its rule takes `Item`s.

    Raises:
        TracedValueError: the function has to know one, or takes tensors only.
    """
    del call
    rule = registry.lookup(func)
    if func in _WRITE:
        return Changed(*map_arguments(_plain, (args, kwargs)))
    if func is torch.Tensor.to and type(args[0]) is Item and _stays(*args, *kwargs.values()):
        return Changed(args, kwargs)
    is_own_body = rule is None and isinstance(func, types.FunctionType)
    if func in _TAKE or func in _OF_LISTS or isinstance(rule, MetadataRule) or is_own_body:
        return Changed(args, kwargs)
    if rule is not None and rule.elementwise:
        placed, named = rule.names.placed(func, args, kwargs)
        count = len(rule.names.positional)
        options = (*placed[count:], *(x for name, x in named.items() if name not in rule.names.positional))
        is_among_tensors = any(isinstance(x, torch.Tensor) and type(x) is not Item for x in placed[:count])
        if is_among_tensors and not any(type(x) is Item for x in options):
            return Changed(args, kwargs)
    raise TracedValueError(f"torch.{getattr(func, '__name__', func)} of what Tensor.item() gave")
