"""The short way of operators that recur: what the metadata of their operands decides is decided once.

A program calls the same operators on the same shapes again and again. What such a call may be besides is asked in one
go; where any of it is so, or the operator refuses its operands, the long way by `rule` serves.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from ..tensors.dtypes import default_dtype
from ..tensors.held import Held
from ..tensors.tensor import CPU, Torchish, wrap_new
from .inline import Inlined, prepared, run_inlined
from .old_orders import is_in_old_order
from .operands import arrays_of
from .pointwise import Plan, in_layout, strides_besides
from .rule import ArrayRule, OverloadedRule, of_dtype

__all__ = ["run_recurring"]

_CONSTANTS = frozenset((int, float, bool, str, type(None), torch.dtype))
_MOST = 4096


class _Way(NamedTuple):
    """What is done with operands of some metadata."""

    plan: Plan | None
    """That of a pointwise operator."""
    inlined: Inlined
    dtype: Any
    """PyTorch's, of the result or of each; None where those of the operands decide."""


class _Refused(Exception):
    """The long way serves, or says what is wrong."""


_NEW: Any = object()
_ways: dict[tuple, _Way | None] = {}


def run_recurring(call: Any, function: Callable, rule: Any, args: tuple) -> Any:
    """What an operator gives for tensors and constants; None where the long way is to be taken."""
    if type(rule) is OverloadedRule:
        rule = rule.find(rule.choose(*args))
    if type(rule) is not ArrayRule or not rule.recurs or is_in_old_order(function, args):
        return None
    if not call.is_plain or call.tape is not None or call.dual is not None or call.scalars is not None:
        return None
    tensors: list[Torchish] = []
    for value in args:
        if not _gather(value, tensors):
            return None
    if not tensors:
        return None
    if call.stages and all(tensor._node.known is not None for tensor in tensors):
        return None
    with torch._C.DisableTorchFunction():
        key = (rule, default_dtype(), *map(_described, args))
        try:
            if rule.check is not None:
                rule.check(*args)
            way = _way(key, rule, args)
            if way is None:
                return None
            if way.plan is None:
                arrays = [tensor.read() for tensor in tensors]
            else:
                arrays = [in_layout(tensor, way.plan.shape, way.plan.layout) for tensor in tensors]
            result = run_inlined(way.inlined, arrays, rule.name)
        except Exception:  # with the words of the rule
            return None
        return _wrapped(result, rule, way, tensors, args)


def _gather(value, tensors: list[Torchish]) -> bool:
    """Gathers the tensors of an argument; false if it is to take the long way."""
    kind = type(value)
    if kind is Torchish:
        tensors.append(value)
        label = value._label
        if label is not CPU and label.type != "cpu":
            return False
        return value._node.storage.history is None and value.stands_for is None
    if kind is tuple or kind is list or kind is torch.Size:
        return all(_gather(item, tensors) for item in value)
    return kind in _CONSTANTS


def _described(value) -> tuple:
    """What of an argument decides what is done with it."""
    kind = type(value)
    if kind is Torchish:
        layout = value._node.held.layout if value.ndim else None
        return value.dtype, value.shape, strides_besides(value), layout
    if kind is tuple or kind is list or kind is torch.Size:
        return kind, *map(_described, value)
    return kind, repr(value) if kind is float else value  # by which 0.0 is not -0.0


def _way(key: tuple, rule: ArrayRule, args: tuple) -> _Way | None:
    """The way of a rule for these arguments, and for all of their metadata; None if that is the long one."""
    way = _ways.get(key, _NEW)
    if way is not _NEW:
        return way
    if len(_ways) >= _MOST:
        _ways.clear()
    try:
        way = _find_pointwise(rule, list(args)) if rule.elementwise else _find(rule, args)
    except Exception:
        way = None
    _ways[key] = way
    return way


def _find_pointwise(rule: ArrayRule, operands: list) -> _Way:
    if len(operands) > len(rule.names.places) or any(type(x) not in (Torchish, int, float, bool) for x in operands):
        raise _Refused
    plan, run = rule.pointwise(operands, {})
    arrays = [in_layout(x, plan.shape, plan.layout) for x in operands]
    return _Way(plan, prepared(rule.body if plan.leaves(operands) else run, arrays), run.result)


def _find(rule: ArrayRule, args: tuple) -> _Way:
    if rule.layout(args) is not None or rule.takes_numbers(args):
        raise _Refused
    rule.expect_examined(args, {})
    inlined = prepared(rule.body, arrays_of(args, []))
    is_of_arguments = callable(rule.dtype) and not isinstance(rule.dtype, torch.dtype)
    return _Way(None, inlined, rule.dtype(*args) if is_of_arguments else rule.dtype)  # pyright: ignore


def _wrapped(result, rule: ArrayRule, way: _Way, tensors: list[Torchish], args: tuple) -> Any:
    plan, dtype = way.plan, way.dtype
    layout, strides = (None, rule.strides_for(args, {})) if plan is None else (plan.layout, plan.strides)
    if result is None or isinstance(result, (tuple, list, np.ndarray)) or not torch.is_grad_enabled():
        return rule.wrap_all(result, dtype, None, tensors, layout=layout, strides=strides)
    result, dtype = of_dtype(result, dtype, tensors)
    shape = result.shape if plan is None else plan.shape
    if callable(strides):
        strides = strides(shape)
    return wrap_new(Held(result, layout), shape, math.prod(shape), dtype, strides)
