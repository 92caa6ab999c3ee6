"""The cache of plans: an operator's work, decided once for the metadata of its arguments.

A program calls the same functions on the same shapes again and again. The key of a plan has

- the function, and how often rules have been declared, which may be at any time;
- PyTorch's default dtype, and whether gradients are on: results depend on both;
- whether JAX holds 64 bits, by which it depends what array stands for a tensor;
- whether JAX traces: what is computed at once is a compiled call, what is traced is not;
- the names of the keywords, and how many arguments are given by place;
- of each tensor whether it requires grad (then the result does), whether an input of the call decides it (then one
  decides the result), its dtype, its shape, its strides where the shape does not tell them (they decide those of a
  result), whether it is conjugate or negative (which decides what is a copy), and the order in which its array is held
  (which decides that of a result);
- of anything else its type and its value: 1 is not True, and 0.0 is not -0.0.

It has no values of tensors: what depends on these has no plan. What has none is counted by reason in `bypassed`; a
reason that holds for a key is remembered in the place of its plan.

Two calls of one key have results of equal metadata, from the same body with the same constants: whatever else may
decide these has to be in the key, or is a reason for no plan. A plan that refuses its operands is dropped, before
anything is written, and PyTorch's error is raised.

All that a feature does around operators (a tape, casts, an observer, ...) is `Call.features`: where any is in use, the
long way by `dispatch` serves.
"""

import collections
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import jax
import torch

from ..internals.dispatch import DisableTorchFunction, len_torch_dispatch_stack
from ..internals.jax import eval_trace, trace_ctx
from ..internals.transforms import is_any_autocast_enabled
from ..rules.inplace import InPlace
from ..rules.options import DROPPED
from ..rules.plan import FILLED, NOT_PLANNED as NOT_PLANNED, Bypass, Meant, filled_plan_of, plan_of, resolved, unplanned
from ..rules.rule import MetadataRule, OverloadedRule
from ..rules.tables import PROVIDED, entered_rules
from ..runtime.caches import Cache
from ..runtime.errors import REFUSALS
from ..tensors.array_buffer import ArrayBuffer
from ..tensors.storage import Storage
from ..tensors.tensor import CPU, Torchish
from .memory_plans import is_view, part_write_of, traced_part_write_of, view_plan_of, write_plan_of

if TYPE_CHECKING:
    from .dispatch import Call

bypassed: collections.Counter[str] = collections.Counter()
"""The number of calls without a plan, by reason."""

PLAIN = (Torchish,)
"""The classes of arguments that override PyTorch, where these are plain tensors of a call alone."""
_READ, _WRITE = torch.Tensor.__getitem__, torch.Tensor.__setitem__
_SUBSCRIPTS = frozenset((_READ, _WRITE))
_BASIC = frozenset((int, slice, type(None), type(Ellipsis)))
_WITH_HISTORY, _CONSTANT = "requires grad", "decided by no input"
_CONSTANTS = frozenset((int, bool, str, type(None), torch.dtype, torch.memory_format, type(Ellipsis)))
_NUMBERS_WITH_SIGNS = frozenset((float, complex))
_default_dtype = torch.get_default_dtype  # PyTorch's own, while something stands in for it
_has_gradients = torch.is_grad_enabled
_is_cast, _has_modes = is_any_autocast_enabled, len_torch_dispatch_stack
_plans: Cache[tuple, Any] = Cache("plans", 4096)
_may_have: Cache[object, None] = Cache("rules that may have plans", 4096)
_never: Cache[tuple, str] = Cache("functions without plans", 4096)  # with the reason


def run_planned(call: "Call", function: Callable, types: Iterable[type], args: tuple, kwargs: dict | None) -> object:
    """The result of a function by its plan; `NOT_PLANNED` where it has none.

    Args:
        types: those of arguments that override PyTorch.
    """
    if _is_cast() or _has_modes() or entered_rules():
        return _passed("casts, modes or rules that are entered")
    if function in DROPPED:
        return _passed("arguments that PyTorch leaves out")
    rule = PROVIDED.functions.get(function)
    if type(rule) is MetadataRule and types == PLAIN:
        return rule(args, kwargs or {})
    declared = PROVIDED.declared
    is_eager = trace_ctx.trace is eval_trace
    if (function, declared) in _never and not (is_eager and function in FILLED):
        return _passed(_never[function, declared])
    default = call.settings.default_dtype or _default_dtype()
    key: list = [function, declared, default, _has_gradients(), jax.config.jax_enable_x64, is_eager]  # pyright: ignore[reportAttributeAccessIssue]
    tensors: list[Torchish] = []
    arrays: list = []
    values: Iterable = args
    if kwargs:
        key += len(args), tuple(kwargs)
        values = (*args, *kwargs.values())
    is_read = not (function is _WRITE or is_view(function))
    if is_read and (rule not in _may_have or type(rule) is OverloadedRule):
        reason = None if is_eager and function in FILLED else _unplanned(function, rule, args, kwargs or {})
        if reason is not None:
            return _passed(reason)
    with DisableTorchFunction():
        reason = _describe(values, key, tensors, arrays, is_eager, is_read)
        if reason is None and not tensors and function not in FILLED:
            reason = "no tensors"
        if reason is None and not is_eager and (is_read or function in _SUBSCRIPTS) and _are_known(call, tensors):
            reason = "known values"
        if reason is not None:
            return _passed(reason)
        if not is_eager and is_read:
            for i, node in enumerate(arrays):
                if node is not None:
                    key += i, node.buffer.layout
                    arrays[i] = None
        found = _plans.get(tuple(key))
        if type(found) is str:
            return _passed(found)
        refused: object = None
        if found is not None:
            try:
                result = found.run(call, args, kwargs, tensors, arrays, is_eager)
                return result if result is not NOT_PLANNED else _passed("memory that others see")
            except REFUSALS as error:
                refused = error
                _plans.pop(tuple(key), None)  # perhaps it has never run, and still has its first operands
    if refused is None:
        return _first(tuple(key), call, function, rule, types, args, kwargs or {}, tensors, is_eager)
    call.features.explain(call, function, rule, args, kwargs or {}, refused)
    raise refused


def _unplanned(function: Callable, rule: object, args: tuple, kwargs: dict) -> str | None:
    """The reason why calls of a function never have a plan, whatever the metadata; None where they may have one."""
    if type(rule) is OverloadedRule:
        try:
            return unplanned(resolved(function, rule, args, kwargs)[1])
        except Bypass as bypass:
            return str(bypass)
        except TypeError:
            return "operands that the rule refuses"
    reason = unplanned(rule)
    if reason is None:
        _may_have[rule] = None
    else:
        _never[function, PROVIDED.declared] = reason
    return reason


def _are_known(call: "Call", tensors: list[Torchish]) -> bool:
    """Returns True if PyTorch computes with tensors: their values depend on no traced input."""
    for tensor in tensors:  # no generator, which is a call of its own
        if tensor._node.known is None:
            return False
    return call.stages


def _passed(reason: str) -> object:
    bypassed[reason] += 1
    return NOT_PLANNED


def _describe(
    values: Iterable, key: list, tensors: list[Torchish], arrays: list, is_eager: bool, is_read: bool
) -> str | None:
    """Adds the metadata of arguments to a key, and collects tensors and arrays; returns a reason if there is no plan.

    The arrays are those of the shape that tensors have, None for others. Where JAX traces, these are nodes that
    nothing is read from before it is known that the graph is to have it, or None.

    Args:
        is_read: whether their values are used.
    """
    for value in values:
        kind = type(value)
        if kind is Torchish:
            node = value._node
            is_storage = type(node) is Storage
            storage = node if is_storage else node.storage
            if storage.history is not None:
                key.append(_WITH_HISTORY)
            if storage.memory.is_constant:
                key.append(_CONSTANT)
            label = value._label
            if (label is not CPU and label.type != "cpu") or value.python_type is not None:
                return "another device, or a number"
            shape = value.shape
            key.append(value.dtype)
            key.append(shape)
            key.append(value.stride() if not value.is_contiguous() or 1 in shape else None)
            if node.bits:
                key.append(node.bits)
            array = layout = None
            if (
                is_storage
                and node._version == node.memory.version
                and type(node._buffer) is ArrayBuffer
                and not node._larger
            ):
                array, layout = node._buffer
            elif is_eager and is_read:
                array, layout = node.buffer
            tensors.append(value)
            if layout is not None and is_read:
                key.append(layout)
            if is_eager:
                arrays.append(array if layout is None else None)
            else:
                arrays.append(node if array is None and shape else None)
        elif kind in _CONSTANTS:
            key.append(kind)
            key.append(value)
        elif kind is slice:
            parts = value.start, value.stop, value.step
            if any(type(part) is not int and part is not None for part in parts):
                return "a slice of other than numbers"
            key.append(kind)
            key.append(parts)
        elif kind in _NUMBERS_WITH_SIGNS:
            key.append(kind)
            key.append(repr(value))
        elif kind is tuple or kind is list or kind is torch.Size:
            key.append(kind)
            key.append(len(value))
            reason = _describe(value, key, tensors, arrays, is_eager, is_read)
            if reason is not None:
                return reason
        else:
            return f"an argument that is a {kind.__name__}"
    return None


def _first(
    key: tuple,
    call: "Call",
    function: Callable,
    rule: object,
    types: Any,
    args: tuple,
    kwargs: dict,
    tensors: list[Torchish],
    is_eager: bool,
) -> object:
    """The result of a function without a plan; afterwards there is its plan, or the reason why it has none."""
    if function is _WRITE or is_view(function):
        if args and tensors[0] is args[0] and len(tensors) == 1 + (function is _WRITE and args[2] is tensors[-1]):
            return _first_with_memory(key, call, function, args, kwargs, is_eager)
        _plans[key] = "a subscript with tensors, or a view of what has a keyword"
        return _passed(_plans[key])
    if function in FILLED:
        return _first_filled(key, call, function, args, kwargs, not (tensors or kwargs.get("requires_grad")))
    try:
        with DisableTorchFunction():
            meant = Meant.of(function, rule, args, kwargs)
            _plans[key] = write_plan_of(meant) if type(meant.rule) is InPlace else plan_of(meant)
    except Bypass as bypass:
        _plans[key] = str(bypass)
        return _passed(str(bypass))
    except REFUSALS:
        return _passed("operands that the rule refuses")  # in its words
    return run_planned(call, function, types, args, kwargs)


def _is_basic(subscript: object) -> bool:
    """Returns True if a subscript gives a view of any tensor."""
    items = subscript if type(subscript) is tuple else (subscript,)
    return all(type(item) in _BASIC for item in items)


def _first_filled(key: tuple, call: "Call", function: Callable, args: tuple, kwargs: dict, may_have: bool) -> object:
    if not may_have:
        _plans[key] = "a new tensor that requires grad, or of the value of another"
        return _passed(_plans[key])
    result = call.dispatch(function, args, kwargs)
    try:
        _plans[key] = filled_plan_of(function, args, kwargs, result)
    except Bypass as bypass:
        _plans[key] = str(bypass)
    return result


def _first_with_memory(
    key: tuple, call: "Call", function: Callable, args: tuple, kwargs: dict, is_eager: bool
) -> object:
    """The result of a function by the general path, from which a plan is made."""
    result = call.dispatch(function, args, kwargs)
    try:
        if function is not _WRITE:
            _plans[key] = view_plan_of(args[0], result)
        elif is_eager:
            _plans[key] = part_write_of(args[0], call.dispatch(_READ, args[:2], {}), args[2])
        elif _is_basic(args[1]):  # else to read the part leaves steps in the graph
            _plans[key] = traced_part_write_of(args[0], call.dispatch(_READ, args[:2], {}), args[2])
        else:
            _plans[key] = "a traced write to what is perhaps no view"
    except Bypass as bypass:
        _plans[key] = str(bypass)
    return result
