"""The fast path for small known values: PyTorch's function on real tensors, and nothing else.

A loop over the numbers of a schedule is thousands of these, each of which PyTorch computes in a microsecond or two. So
what a call may be besides, it is asked in one go; where any of it is so, the long way by `dispatch` and `known` serves.

Also here: elements of known values at known positions, as most subscripts in a loop over a schedule are.
"""

from collections.abc import Callable
from typing import Any

import torch

from ..internals.dispatch import DisableTorchFunction, len_torch_function_stack
from ..rules import registry
from ..rules.features import NEXT, Feature, in_every_call
from ..rules.inplace import InPlace
from ..rules.options import is_in_old_order
from ..rules.rule import MetadataRule, OverloadedRule, TensorRule
from ..runtime.errors import REFUSALS
from ..runtime.translation import Call, lift
from ..tensors.known import LazyConstant
from ..tensors.storage import Storage, View
from ..tensors.tensor import CPU, Torchish, make_tensor, make_view_of_shape
from ..tensors.view_kind import element
from .known import is_free_number, results_of


def known_element(self: Torchish, index: object) -> Torchish | None:
    """The view of one element of known values, at known places; None if it is none, or not so plain."""
    with DisableTorchFunction():
        position = _known_position(self, index)
        if position is None:
            return None
        node = View(self._node, element(self.shape, position))
        offset = int(self.storage_offset()) + sum(
            [i * stride for i, stride in zip(position, self.stride(), strict=True)]
        )
        return make_view_of_shape(self, node, (), self.dtype, (), offset)


def _known_position(self: Torchish, index: object) -> tuple[int, ...] | None:
    """The index of one element of known values along each dimension; None if `index` is anything else."""
    items = index if type(index) is tuple else (index,)
    if type(self) is not Torchish or type(self.known) is not torch.Tensor or self._node.overlaps:
        return None
    shape, position = self.shape, []
    if len(items) != len(shape):
        return None
    for item, size in zip(items, shape, strict=True):
        number = item if type(item) is int else _known_integer(item)
        if number is None or not -size <= number < size:
            return None
        position.append(number if number >= 0 else number + size)
    return tuple(position)


def _known_integer(item: object) -> int | None:
    if not isinstance(item, torch.Tensor) or item.ndim or item.dtype not in (torch.int64, torch.int32):
        return None
    known = lift(item).known
    return int(known.item()) if type(known) is torch.Tensor else None


_Tensor = torch.Tensor
_NUMBERS = frozenset((int, float, bool))
_SMALL = 256
_READERS = frozenset((torch.Tensor.item, torch.Tensor.__bool__, torch.Tensor.__int__, torch.Tensor.__float__))
_TO = torch.Tensor.to
_LOOK = _READERS | {_TO}


@in_every_call
class _AtOnce(Feature):
    """The standing feature that computes functions of small known tensors and Python numbers."""

    rank = 90

    def run_instead(self, call: Call, function: Callable[..., object], rule: Any, args: tuple, kwargs: dict) -> object:
        if kwargs or rule is None or type(rule) is MetadataRule:
            return NEXT
        if type(rule) is TensorRule and function not in _LOOK:
            if function is torch.Tensor.__getitem__:
                return _element(call, rule, args)
            return _tensor(call, rule, args) if function is torch.tensor else NEXT
        tensors: list[Torchish] = []
        knowns: list[torch.Tensor] = []
        reals = []
        for value in args:
            kind = type(value)
            if kind is Torchish:
                node = value._node
                known = node.known
                if type(known) is not _Tensor or node.storage.history is not None:
                    return NEXT
                if (value._label is not CPU and value._label.type != "cpu") or (known.ndim and known.numel() > _SMALL):
                    return NEXT
                tensors.append(value)
                knowns.append(known)
                value = known
            elif kind not in _NUMBERS and not (kind is torch.dtype and function is _TO):
                return NEXT
            reals.append(value)
        if not tensors or not _is_plain(call) or is_in_old_order(function, args):
            return NEXT
        if function in _LOOK:
            return _looked_at(function, tensors[0], reals) if registry.is_provided(rule) else NEXT
        if type(rule) is OverloadedRule:
            rule = rule.find(rule.choose(*args))
        writes = type(rule) is InPlace
        if not _is_pytorchs(rule.rule if writes else rule) or not (rule.elementwise or _are_small(args)):
            return NEXT
        try:
            with DisableTorchFunction():
                if writes:
                    return _written(function, tensors[0], reals) if tensors[0] is args[0] else NEXT
                made = function(*reals)
        except REFUSALS:  # with the words of the rule
            return NEXT
        if type(made) is not _Tensor:
            return NEXT
        if made.ndim == 0:
            return _number(made)
        return results_of(made, function, rule, tensors, knowns, args, {})


def _tensor(call: Call, rule: object, args: tuple) -> object:
    """``torch.tensor`` of a Python number."""
    if len(args) != 1 or type(args[0]) not in _NUMBERS or not registry.is_provided(rule) or not _is_plain(call):
        return NEXT
    if len_torch_function_stack():  # one may say on which device
        return NEXT
    with DisableTorchFunction():
        return _number(torch.tensor(args[0]))


def _element(call: Call, rule: TensorRule, args: tuple) -> object:
    if not _is_plain(call) or not registry.is_provided(rule):
        return NEXT
    found = known_element(*args)
    return NEXT if found is None else found


def _looked_at(function: Callable, tensor: Torchish, reals: list) -> object:
    """The result of a function that only looks at a number or casts it; `NEXT` where the general path must run."""
    with DisableTorchFunction():
        real = reals[0]
        if real.ndim or real.dtype != tensor.dtype or len(reals) > 2:
            return NEXT
        if function is not _TO:
            return function(*reals)
        if type(reals[-1]) is not torch.dtype:
            return NEXT
        made = function(*reals)
        return tensor if made is real else _number(made)


def _are_small(args: tuple) -> bool:
    """Returns True if no number among the arguments may be a large size."""
    return all(type(value) is not int or abs(value) <= _SMALL for value in args)


def _written(function: Callable, target: Torchish, reals: list) -> object | Torchish:
    """The target after a write, if it is a number in memory of its own; else NEXT."""
    if not is_free_number(target):
        return NEXT
    made = reals[0].clone()
    function(made, *reals[1:])
    target.write(LazyConstant(made), made)
    return target


def _number(made: torch.Tensor) -> Torchish:
    """The tensor of this call with a number that PyTorch has just made."""
    return make_tensor(Storage.waiting(LazyConstant(made), made), (), made.dtype, None, None, CPU)


def _is_pytorchs(rule: Any) -> bool:
    """Returns True if a rule's result is PyTorch's, and the rule changes nothing."""
    return rule.is_pure and not rule.has_own_values and not rule.concrete


def _is_plain(call: Call) -> bool:
    """Returns True if PyTorch's result equals that of the rules, and no feature observes the call."""
    return call.is_lazy and call.is_plain and call.settings.default_dtype is None
