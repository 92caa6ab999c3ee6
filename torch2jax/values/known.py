"""Operations on known values while JAX traces: PyTorch's function on real tensors, beside the rule or instead.

What is small PyTorch computes at once, which takes less time than a note of how. The rule runs only if the graph asks
for the array: a number becomes a constant there, and any other value what the rule makes of its operands. Of what is
large, the rule's result is in the graph, and PyTorch computes it once somebody asks for the values.
"""

import functools
import operator
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
import torch
from jax import lax

from ..internals.dispatch import DisableAutocast, DisableTorchFunction, OpOverload
from ..internals.transforms import is_any_autocast_enabled
from ..rules import registry
from ..rules.array_rule import ArrayRule
from ..rules.features import NEXT, Feature, in_every_call
from ..rules.inplace import InPlace
from ..rules.options import Tag, run_named
from ..runtime.errors import REFUSALS
from ..runtime.translation import Call, lift, this_call
from ..tensors.array_buffer import ArrayBuffer, LazyArray
from ..tensors.dtypes import canonical
from ..tensors.interop import dense_strides
from ..tensors.journal import next_number
from ..tensors.known import (
    Deferred,
    LazyConstant,
    are_for_all_sizes,
    defer,
    defer_body,
    evaluate,
    in_pytorch,
    is_small,
    map_values,
    real,
)
from ..tensors.storage import Storage
from ..tensors.tensor import CPU, Torchish, are_constant, note_constants, wrap, wrap_buffer
from ..tensors.traced import evaluating, is_traced

_MOST_WORK = 2**18
_PLACEMENT = ("device", "pin_memory", "non_blocking")


class _DependsOnTraced(Exception):
    """An operand depends on a traced input."""


class _Operands:
    """The tensors among the arguments of a call, all of them known."""

    def __init__(self, args: tuple, kwargs: dict):
        self.tensors: list[Torchish] = []
        self.knowns: list[Any] = []
        self.args = tuple([self._take(x) for x in args])
        self.kwargs = {key: self._take(x) for key, x in kwargs.items() if key not in _PLACEMENT} if kwargs else {}

    def _take(self, value: Any) -> Any:
        kind = type(value)
        if kind is tuple or kind is list:
            return kind([self._take(item) for item in value])
        if kind is not Torchish:
            if not isinstance(value, (torch.Tensor, jax.Array, np.ndarray)):
                return value
            value = lift(value)
        known = value.known
        if known is None:
            raise _DependsOnTraced
        self.tensors.append(value)
        self.knowns.append(known)
        return known

    @property
    def want_grad(self) -> bool:
        """True if the result must require grad."""
        return any(x._node.storage.history is not None for x in self.tensors)

    def is_small(self, elementwise: bool) -> bool:
        """Returns True if PyTorch computes the result at once, not deferred."""
        work, shape = 1, None
        for known in self.knowns:
            if type(known) is not torch.Tensor:
                return False
            size = known.numel()
            if size > 1 and not (elementwise and known.shape == shape):
                work, shape = work * size, known.shape
            if not is_small(size):
                return False
        return is_small(work) if elementwise else work <= _MOST_WORK and not _has_large(self.args, self.kwargs)


def _has_large(*values: object) -> bool:
    """Returns True if a number among the values may be a large size."""
    for value in values:
        if isinstance(value, (list, tuple)):
            if _has_large(*value):
                return True
        elif isinstance(value, dict):
            if _has_large(*value.values()):
                return True
        elif isinstance(value, int) and not is_small(abs(value)):
            return True
    return False


@in_every_call
class _Known(Feature):
    """The standing feature by which results of known values are known, and those of constants are constants."""

    rank = 90

    def run_rule(self, call: Any, function: Any, rule: Any, args: tuple, kwargs: dict) -> Any:
        stages = call.stages
        if rule.is_pure:
            if stages or (call.tape is not None and rule.concrete):
                if not kwargs:
                    for value in args:
                        if type(value) is Torchish and value._node.known is None:
                            return NEXT
                return _run_known(call, function, rule, args, kwargs)
        elif stages and _writes(function, rule) and _write_known(call, function, args, kwargs):
            return None if function is torch.Tensor.__setitem__ else args[0]
        if stages or not are_constant(args) or (kwargs and not are_constant(kwargs.values())):
            return NEXT
        number = next_number()
        result = run_named(function, rule, args, kwargs)
        if Tag.RANDOM not in rule.tags and Tag.RANDOM not in registry.tags_of(function):
            note_constants((result,), number)
            note_constants((args, *kwargs.values()))
        return result


_WRITERS = frozenset((torch.Tensor.__setitem__, torch.Tensor.copy_, torch.Tensor.fill_, torch.Tensor.zero_))


@functools.cache
def _writes(function: Callable, rule: Any) -> bool:
    """Returns True if a function only writes to its first argument what it computes of all, as PyTorch does."""
    if isinstance(rule, InPlace):
        return not isinstance(function, OpOverload) and rule.rule.is_pure and not rule.rule.has_own_values
    return function in _WRITERS and registry.is_provided(rule)


def _run_known(call: Call, function: Callable, rule: Any, args: tuple, kwargs: dict) -> Any:
    """The result of ``rule(args, kwargs)``, with known values if all tensors among the arguments have them.

    Args:
        function: PyTorch's, which `rule` stands for: it gives new tensors, and changes nothing.
    """
    if kwargs.get("out") is not None:
        rest = {key: value for key, value in kwargs.items() if key != "out"}
        return rule.write_out(_run_known(call, function, rule, args, rest), kwargs["out"], args, rest)
    for value in args:
        if type(value) is Torchish and value._node.known is None:
            return run_named(function, rule, args, kwargs)
    try:
        operands = _Operands(args, kwargs)
    except _DependsOnTraced:
        return run_named(function, rule, args, kwargs)
    if not operands.tensors:
        if rule.elementwise and args:  # of numbers alone, which PyTorch lets a few functions take
            return _run_known(call, function, rule, (in_pytorch(torch.tensor, args[0]), *args[1:]), kwargs)
        return run_named(function, rule, args, kwargs)
    error = None
    by_rule = rule.has_own_values or call.settings.default_dtype is not None
    may_wait = not by_rule and call.is_lazy and not is_any_autocast_enabled()
    may_wait = may_wait and not (operands.want_grad and torch.is_grad_enabled())
    if may_wait and operands.is_small(rule.elementwise):
        try:
            made = in_pytorch(function, *operands.args, **operands.kwargs)
        except REFUSALS as refused:
            error = refused
        else:
            return results_of(made, function, rule, operands.tensors, operands.knowns, args, kwargs)
    by_rule = by_rule or not call.stages
    if error is not None:
        try:
            result = run_named(function, rule, args, kwargs)
        except REFUSALS:
            raise error from None
        return _with_known(result, defer_body(_by_rule, function, rule, operands.args, operands.kwargs))
    if rule.concrete:
        return _concrete(function, rule, operands, kwargs, by_rule)
    known = defer_body(_by_rule if by_rule else _by_either, function, rule, operands.args, operands.kwargs)
    return _with_known(run_named(function, rule, args, kwargs), known)


def _write_known(call: Call, function: Callable, args: tuple, kwargs: dict) -> bool:
    """Writes to a known number: PyTorch computes on a copy, which replaces it. Returns False if that is not possible.

    Args:
        function: PyTorch's, which writes to its first argument and to nothing else.
    """
    target = args[0] if args else None
    if type(target) is not Torchish or not is_free_number(target) or call.settings.default_dtype is not None:
        return False
    if not call.is_lazy or is_any_autocast_enabled():
        return False
    try:
        operands = _Operands(args, kwargs)
        if not operands.is_small(True) or (operands.want_grad and torch.is_grad_enabled()):
            return False
        made = in_pytorch(operands.args[0].clone)
        in_pytorch(function, made, *operands.args[1:], **operands.kwargs)
    except (_DependsOnTraced, *REFUSALS):  # the latter with the words of the rule
        return False
    target.write(LazyConstant(made), made)
    return True


def _is_free(target: Torchish) -> bool:
    """Returns True if a tensor may be written to, and no gradients, modes or tensors from outside are involved."""
    node, memory = target._node.storage, target._node.storage.memory
    if target._restriction is not None or node.is_outgrown or node.differentiable or node.history is not None:
        return False
    return not (memory.foreign or memory.is_inference or memory.is_shared)


def is_free_number(target: Torchish) -> bool:
    """Returns True if a tensor is a known scalar in memory of its own that may be written to."""
    node = target._node
    if type(node) is not Storage or not _is_free(target):
        return False
    return type(node.known) is torch.Tensor and node.known.ndim == 0 and node.memory.size == 1


def _by_either(function: Callable, rule: Any, args: tuple, kwargs: dict) -> object:
    """PyTorch's result; or that of the rule, for dtypes that PyTorch does not compute on the CPU."""
    try:
        with DisableAutocast():
            return in_pytorch(function, *args, **kwargs)
    except REFUSALS:
        return _by_rule(function, rule, args, kwargs)


def _by_rule(function: Callable, rule: Any, args: tuple, kwargs: dict) -> Any:
    """The result for real tensors, computed by JAX, of a user's rule or one that chooses unlike PyTorch."""
    call = this_call()
    with call.inside(), call.outside(), evaluating(), call.at(None):
        result = run_named(function, rule, map_values(_tensor, args), map_values(_tensor, kwargs))
        if isinstance(result, (list, tuple)):
            return [_value(part) for part in result]
        return _value(result)


def _value(tensor: Torchish) -> Any:
    return in_pytorch(real(tensor.read()).to, tensor.dtype) if isinstance(tensor, Torchish) else tensor


def _tensor(value: Any) -> Any:
    return wrap(evaluate(value), value.dtype) if isinstance(value, torch.Tensor) else value


def _with_known(result: Torchish, known: Deferred) -> Torchish:
    if isinstance(result, Torchish):
        _note(result, known)
    elif isinstance(result, (list, tuple)):
        for index, part in enumerate(result):
            if isinstance(part, Torchish):
                _note(part, defer(operator.getitem, known, index))
    return result


def _note(tensor: Torchish, known: Deferred) -> None:
    storage = tensor._node.storage
    if storage is tensor._node and storage._known is None and is_traced(storage.buffer.array):
        storage.note_known(known)


def _concrete(function: Callable, rule: ArrayRule, operands: _Operands, kwargs: dict, by_rule: bool) -> object:
    """The result of a function whose shape depends on values, as a constant."""
    reals, options = map_values(_real, operands.args), map_values(_real, operands.kwargs)
    made = _by_rule(function, rule, reals, options) if by_rule else in_pytorch(function, *reals, **options)
    device = _device(operands.tensors, kwargs)
    if isinstance(made, torch.Tensor):
        return constant(made, device=device)
    return (rule.result_type or type(made))([constant(part, device=device) for part in made])


def _real(value: object) -> Any:
    return real(value) if isinstance(value, (torch.Tensor, Deferred, jax.Array)) else value


def _device(tensors: list[Torchish], kwargs: dict) -> torch.device:
    device = kwargs.get("device")
    if device is not None:
        return torch.device(device)
    found = CPU
    for tensor in tensors:
        if tensor._label is not CPU and found.type == "cpu":
            found = tensor._label
    return found


def constant(made: torch.Tensor, *, strides: tuple[int, ...] | None = None, device: torch.device = CPU) -> Torchish:
    """The call's tensor for one that PyTorch has just made, and that nothing else will write to.

    JAX gets the array at once, but where it is traced: there, once the graph asks for it.
    """
    call = this_call()
    with DisableTorchFunction():
        strides = strides or dense_strides(made)
        if call.is_lazy:
            return _waiting(made, strides, device)
        tensor = wrap(evaluate(made), made.dtype, made if call.stages else None, strides=strides, device=device)
    tensor._node.storage.memory.is_constant = True
    return tensor


def _waiting(made: torch.Tensor, strides: tuple[int, ...] | None, device: torch.device) -> Torchish:
    return wrap_buffer(LazyConstant(made), made.dtype, made, strides, device)


# Results that the graph may ask for.


def lazily(operand: Torchish, made: torch.Tensor, change: Callable[[ArrayBuffer], ArrayBuffer]) -> LazyArray:
    """The lazy array of `made`, PyTorch's result for the known values of `operand`; `change` gives the array."""

    def changed(args: tuple, kwargs: dict) -> list[ArrayBuffer]:
        return [change(args[0].buffer)]

    known = operand.known
    operation = _LazyOperation(changed, [operand.lazy if made.ndim else None], [known], (operand,), {})
    lazy = _LazyResult(made, operation, 0)
    return LazyConstant(made) if lazy.is_long else lazy


class _LazyResult(LazyConstant):
    """The lazy array of one result of an operation, which the rule computes when the graph needs it."""

    __slots__ = ("depth", "source")
    source: tuple["_LazyOperation", int]

    def __init__(self, made: torch.Tensor, operation: "_LazyOperation", index: int):
        self._made, self._buffer, self.source, self.depth = made, None, (operation, index), operation.depth

    def _emitted(self) -> ArrayBuffer:
        operation, index = self.source
        return operation.result(index, self._made) if self._made.ndim else super()._emitted()


class _OperandSnapshot(NamedTuple):
    """An operand as it was."""

    lazy: ArrayBuffer | LazyArray | None
    """None for a number."""
    known: torch.Tensor

    @property
    def is_narrowed(self) -> bool:
        return _is_narrowed(self.known)

    @property
    def source(self) -> tuple["_LazyOperation", int] | None:
        """The operation that gives the array, and its index there, if the array's values are not the known ones."""
        return self.lazy.source if isinstance(self.lazy, LazyArray) and self.is_narrowed else None

    def tensor(self) -> Torchish:
        """A tensor of the operand's values, or, if they do not fit into the array, of those that the rules compute."""
        if self.lazy is None:
            return constant(self.known)
        buffer = self.lazy if self.source is None else self.source[0].emitted(self.source[1])
        return wrap_buffer(buffer, self.known.dtype, self.known, dense_strides(self.known))

    def evaluated(self) -> Torchish:
        """A tensor with the values of that."""
        if self.source is None:
            return wrap(evaluate(self.known), self.known.dtype, strides=dense_strides(self.known))
        return wrap_buffer(self.source[0].evaluated(self.source[1]), self.known.dtype, None, dense_strides(self.known))


def _is_narrowed(known: torch.Tensor) -> bool:
    """Returns True if the 64-bit values do not fit into the 32 bits of the array."""
    if known.dtype is not torch.int64 or canonical(known.dtype).itemsize == 8 or known.numel() == 0:
        return False
    return in_pytorch(lambda: bool(known.min() < -(2**31)) or bool(known.max() >= 2**31))


class _LazyOperation:
    """A rule with a snapshot of its operands, for when the graph needs the results.

    Args:
        buffer: what holds each of the operands, None for a number.
        known: their values.
    """

    def __init__(
        self,
        rule: Callable[[tuple, dict], Any],
        buffer: list[ArrayBuffer | LazyArray | None],
        known: list,
        args: tuple,
        kwargs: dict,
    ):
        self._rule, self._buffer, self._known, self._args, self._kwargs = rule, buffer, known, args, kwargs
        self.depth = 1 + max([x.depth if isinstance(x, LazyArray) else 0 for x in buffer])
        self._emitted: list[ArrayBuffer] | None = None
        self._evaluated: list[ArrayBuffer] | None = None

    @property
    def _operands(self) -> list[_OperandSnapshot]:
        return [*map(_OperandSnapshot, self._buffer, self._known)]

    def result(self, index: int, known: torch.Tensor) -> ArrayBuffer:
        """One of its results, in the graph."""
        if any(kept.is_narrowed for kept in self._operands) and not self._gives(index, known):
            return ArrayBuffer(evaluate(known), None)
        dtype = canonical(known.dtype)
        try:
            buffer = self.emitted(index)
        except OverflowError:  # a number that 32 bits do not hold: PyTorch has computed with it, in 64
            return ArrayBuffer(evaluate(known), None)
        return (
            buffer
            if buffer.dtype == dtype
            else ArrayBuffer(lax.convert_element_type(buffer.array, dtype), buffer.layout)
        )

    def emitted(self, index: int) -> ArrayBuffer:
        """The result of the rule, in the graph."""
        if self._emitted is None:
            self._emitted = self._run(_OperandSnapshot.tensor)
        return self._emitted[index]

    def evaluated(self, index: int) -> ArrayBuffer:
        """Its values."""
        if self._evaluated is None:
            call = this_call()
            with call.inside(), call.outside(), evaluating(), call.at(None):
                self._evaluated = self._run(_OperandSnapshot.evaluated)
        return self._evaluated[index]

    def _gives(self, index: int, known: torch.Tensor) -> bool:
        """Returns True if the rules give the known values, although some on the way overflow: those were not chosen."""
        if not are_for_all_sizes() or _is_narrowed(known):
            return False
        try:
            found = self.evaluated(index).arranged(None)
        except OverflowError:
            return False
        with evaluating():
            return bool(np.array_equal(found, evaluate(known)))

    def _run(self, operand_of: Callable[[_OperandSnapshot], Torchish]) -> list[ArrayBuffer]:
        operands = iter(self._operands)
        with torch.no_grad():
            replaced = functools.partial(_replaced, operands, operand_of)
            results = self._rule(map_values(replaced, self._args), map_values(replaced, self._kwargs))
        return [x.buffer for x in (results if isinstance(results, (list, tuple)) else [results])]


def _replaced(
    operands: Iterator[_OperandSnapshot], operand_of: Callable[[_OperandSnapshot], Torchish], value: object
) -> object:
    return operand_of(next(operands)) if isinstance(value, (torch.Tensor, jax.Array, np.ndarray)) else value


def results_of(
    made: torch.Tensor, function: Callable, rule: Any, tensors: list, knowns: list, args: tuple, kwargs: dict
) -> object:
    """The call's tensors for PyTorch's results from known values."""
    device, operation, results = _device(tensors, kwargs), None, []
    is_one = not isinstance(made, (list, tuple))
    for index, part in enumerate((made,) if is_one else made):
        if type(part) is not torch.Tensor:
            results.append(part)
            continue
        buffer = None
        if part.ndim and not rule.concrete:
            if operation is None:
                kept = [x.lazy if known.ndim else None for x, known in zip(tensors, knowns, strict=True)]
                operation = _LazyOperation(functools.partial(run_named, function, rule), kept, knowns, args, kwargs)
            buffer = _LazyResult(part, operation, index)
        buffer = LazyConstant(part) if buffer is None or buffer.is_long else buffer
        results.append(wrap_buffer(buffer, part.dtype, part, dense_strides(part), device))
    return results[0] if is_one else (rule.result_type or type(made))(results)
