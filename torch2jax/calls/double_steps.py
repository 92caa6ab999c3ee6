"""Steps of optimizers with traced counters while 64-bit types are on, with the numbers that Python computes in PyTorch.

PyTorch takes counters out of tensors and computes with Python's numbers. Here such a number is an `Item`, in double
precision, and PyTorch's own formulas run. Two of them ask what a counter has reached: RAdam's and ASGD's. These follow
PyTorch's formulas for counters that are tensors, in double precision as well.
"""

import importlib
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.optim import Optimizer

from ..rules.features import NEXT, Feature
from ..runtime.patches import exchange, replaces
from ..runtime.translation import Call, this_call
from ..tensors.dtypes import has_doubles
from ..values.item import Item
from ..values.traced_numbers import Number, is_unknown

_POWERS = frozenset((torch.pow, torch.Tensor.pow, torch.Tensor.__pow__, torch.Tensor.__rpow__))


_QUOTIENTS = frozenset((torch.Tensor.__truediv__, torch.Tensor.__rtruediv__, torch.Tensor.__rdiv__))
_REFLECTED = frozenset((torch.Tensor.__rpow__, torch.Tensor.__rtruediv__, torch.Tensor.__rdiv__))


class _Rounded(Feature):
    """The feature that rounds float32 scalars as PyTorch rounds them.

    Powers are rounded once, of double precision; a number is divided by a tensor as a product with the reciprocal.
    """

    def run_operator(self, call: Call, function: object, args: tuple, kwargs: dict) -> object:
        if (function not in _POWERS and function not in _QUOTIENTS) or len(args) != 2:
            return NEXT
        first, second = reversed(args) if function in _REFLECTED else args
        if not any(map(is_unknown, args)) or not _are_singles(first, second):
            return NEXT
        if function in _QUOTIENTS:
            return NEXT if _is_tensor(first) else second.reciprocal() * first
        power = torch.pow(_wide(first), _wide(second)).float()
        return torch.where(second == 3, first * first * first, power) if type(second) is Item else power


def _are_singles(*values: Any) -> bool:
    """Returns True if values are float32 scalars, perhaps with numbers, which PyTorch makes float32 beside them."""
    tensors = [x for x in values if _is_tensor(x)]
    return bool(tensors) and all(
        x.ndim == 0 and x.dtype == torch.float32 if _is_tensor(x) else type(x) in (int, float, Item) for x in values
    )


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor) and type(value) is not Item


def _wide(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) else float(np.float32(value))


@contextmanager
def exactly(optimizer: Optimizer):
    """A context in which the traced numbers of an optimizer's groups are taken for Python's, and computed with so."""
    call, rounded = this_call(), _Rounded()
    before = list(_exchanged(optimizer))
    for group, key, _, number in before:
        group[key] = number
    call.features.push(rounded)
    try:
        yield
    finally:
        call.features.pop(rounded)
        for group, key, value, number in before:
            if group[key] is number:
                group[key] = value


def _exchanged(optimizer: Optimizer) -> Iterator[tuple[dict, str, object, object]]:
    for group in optimizer.param_groups:
        for key, value in group.items():
            if isinstance(value, Number):
                yield group, key, value, _python(value)
            elif type(value) is tuple and any(isinstance(x, Number) for x in value):
                yield group, key, value, tuple(map(_python, value))


def _python(value: object) -> object:
    return Item.of(value, value._started) if isinstance(value, Number) else value


class _OfTensors(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return _is_tensor(instance)


class _NoNumber(metaclass=_OfTensors):
    """A ``Tensor`` class for `isinstance` in optimizers: a tensor that stands for a Python number is no instance."""


for _name in ("adam", "adagrad", "sgd"):
    exchange(importlib.import_module(f"torch.optim.{_name}"), "Tensor", _NoNumber)


def _with_tensors(name: str, *lists: str, narrow: str = "") -> None:
    """Makes a function of `torch.optim` compute with tensors in place of the numbers in `lists`, where these are
    traced.

    The tensors are of double precision, and the function's formulas those for counters that are tensors.

    Args:
        narrow: those of `lists` that stay as they are where the learning rate is a tensor, which decides the precision.
    """
    module = importlib.import_module(f"torch.optim.{name}")
    original = getattr(module, name)
    positions = {each: list(inspect.signature(original).parameters).index(each) for each in lists}

    @replaces(module, name)
    def step(*args: Any, **kwargs: object):
        call = this_call()
        traced = any(is_unknown(x) for position in positions.values() for x in args[position])
        if kwargs.get("foreach") or not (traced and call.steps_abstractly and has_doubles()):
            return original(*args, **kwargs)
        kept = narrow if _is_tensor(kwargs["lr"]) else ""
        wide = {position: [x.double() for x in args[position]] for each, position in positions.items() if each != kept}
        given = [wide.get(position, value) for position, value in enumerate(args)]
        before, call.compiles = call.compiles, True
        try:
            original(*given, **{**kwargs, "capturable": True})
        finally:
            call.compiles = before
        with torch.no_grad():
            for position, tensors in wide.items():
                for x, value in zip(args[position], tensors, strict=True):
                    x.copy_(value)


_with_tensors("radam", "state_steps")
_with_tensors("asgd", "mus", "etas", "state_steps", narrow="state_steps")
