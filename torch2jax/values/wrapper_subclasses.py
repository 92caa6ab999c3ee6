"""Tensor subclasses within a call: their own code decides what a function does, as in PyTorch.

PyTorch asks in this order, and so does a call: modes; the ``__torch_function__`` of the classes, each before those that
it is derived from; autograd's kernels, which take apart what is composed of other operators; modes of operators; and
the ``__torch_dispatch__`` of the classes. Their code finds tensors of the call inside, whose functions come back to it.

Also here: jagged tensors that enter a call. Those with equal lengths share one ragged size, as outside.

To PyTorch two jagged tensors go together if they have the same offsets, as an object. Arrays of two arguments are two
objects. So the offsets of one stand for those of another: where both are known, if they are equal; where one is traced,
if both have as many rows and elements in all. That they are equal then is assumed, as for all checks of traced values.

Also here: PyTorch's constructors of tensor subclasses, which check no override and are replaced.

To exchange an attribute of `torch.Tensor` costs all that is asked of it some time. So nothing stands in before code
has made such a tensor for the first time in a process, and that run of it starts anew.
"""

import functools
import importlib
import sys
import threading
import types as python_types
import weakref
from collections.abc import Callable, Collection
from typing import Any

import jax
import numpy as np
import torch

from ..internals.dispatch import (
    DisableTorchFunction,
    DisableTorchFunctionSubclass,
    OpOverload,
    find_torch_dispatch_rule,
    is_torch_function_enabled,
)
from ..internals.tensors import tree_leaves, tree_map, tree_map_only
from ..rules.features import NEXT, Feature, Incoming, comes_in, handles, handles_without_values, in_every_call
from ..runtime.errors import WrapsOthersError
from ..runtime.errors.unwinding import Restart
from ..runtime.layers import JAGGED
from ..runtime.patches import exchange
from ..runtime.translation import Call, current, lift, lift_own
from ..tensors.tensor import OF_NO_SUBCLASS, Torchish, wraps_others
from ..tensors.traced import is_traced
from ..tensors.wrapped import (
    NestedTensor,
    Wrapped,
    Wrapper,
    as_class,
    have_a_say,
    in_call,
    is_of_call,
    is_wrapper,
    tensor_of,
    values_of,
    wrapped,
)
from ..tracing.shadows import cut, shadow_of, uncut
from .wrapper_gradients import (
    Rounds,
    at_autograd,
    below_autograd,
    by_formula,
    can_be_kept,
    differentiable,
    has_formula,
    is_below_autograd,
    with_derivative,
)

# What the makers call of the tensor that they are given.
_MAKERS = frozenset((torch.ops.aten.alias.default, torch.ops.aten.detach.default))
_HERE = __package__.partition(".")[0] if __package__ else ""
_lock = threading.Lock()
_stand_in = False


@in_every_call
class _Classes(Feature):
    """The standing feature by which the classes of arguments have their say, and new classes are noticed."""

    def run_mixed(
        self, call: Call, function: Callable[..., object], types: Collection[type], args: tuple, kwargs: dict
    ) -> object:
        if call in _past_classes:
            return NEXT
        if not is_torch_function_enabled():
            return _run_past_classes(call, function, args, kwargs)
        return _run_by_their_classes(call, function, args, kwargs) if types and have_a_say(types) else NEXT

    def run_past_overrides(self, call: Call, function: OpOverload, args: tuple) -> None:
        del call, args
        if function in _MAKERS:
            _expect_classes()


def _expect_classes() -> None:
    """Replaces the functions of PyTorch that make tensors of a user's classes.

    Raises:
        Restart: that was not so before; unless it is this package that asks for another tensor on some memory.
    """
    global _stand_in
    if _stand_in or sys._getframe(4).f_globals.get("__name__", "").partition(".")[0] == _HERE:
        return
    with _lock:
        if not _stand_in:
            # It notes PyTorch's own makers when it is first imported.
            importlib.import_module("..internals.dynamo", __package__)
            _stand_in = True
            exchange(torch.Tensor, "as_subclass", _as_subclass, may_lack=True)
            exchange(torch.Tensor, "_make_subclass", staticmethod(_make_subclass), may_lack=True)
            exchange(torch.Tensor, "__new__", staticmethod(_new), may_lack=True)
    raise Restart


_originals = {name: getattr(torch.Tensor, name) for name in ("as_subclass", "_make_subclass", "__new__")}


def _run_by_their_classes(call: Call, function: Callable, args: tuple, kwargs: dict) -> object:
    """Leaves a function to the classes of its arguments; tensors from outside are of theirs too."""
    given = tree_map_only(torch.Tensor, functools.partial(in_call, call), (args, kwargs))
    if all(x is y for x, y in zip(tree_leaves((args, kwargs)), tree_leaves(given), strict=True)):
        return NotImplemented  # PyTorch asks them next
    with call.inside():
        return function(*given[0], **given[1])


_past_classes: weakref.WeakSet[object] = weakref.WeakSet()
"""The calls whose code runs while the `__torch_function__` of classes is switched off."""


def _run_past_classes(call: Call, function: Callable, args: tuple, kwargs: dict) -> object:
    _past_classes.add(call)
    try:
        return call.dispatch(function, args, kwargs)
    finally:
        _past_classes.discard(call)


def _as_subclass(self: torch.Tensor, cls: type[object]):
    if current() is None or not isinstance(self, Torchish):
        return _originals["as_subclass"](self, cls)
    return as_class(self, cls)


def _make_subclass(cls: type[Any], data: torch.Tensor, require_grad: bool = False, *args: Any, **kwargs: Any):
    if current() is None or not isinstance(data, Torchish):
        return _originals["_make_subclass"](cls, data, require_grad, *args, **kwargs)
    with DisableTorchFunctionSubclass():
        leaf: Any = lift(data.detach()).requires_grad_(require_grad)
        result = as_class(leaf, cls)  # whose properties may need what its __init__ will set
    if require_grad:
        leaf.history.variable = result
    return result


def _new(cls: type[object], *args: object, **kwargs: object):
    if current() is None or cls is torch.Tensor or not (args and isinstance(args[0], Torchish)):
        return _originals["__new__"](cls, *args, **kwargs)
    return as_class(args[0], cls)


@comes_in
class _Wrappers(Incoming):
    """Tensors that wrap others, which have no values of their own."""

    def takes(self, kind: type) -> bool:
        return wraps_others(kind)

    def lift(self, call: object, tensor: Any) -> Any:
        raise WrapsOthersError(type(tensor))


_of_calls: weakref.WeakKeyDictionary[Any, list[tuple[Any, int, torch.Tensor]]] = weakref.WeakKeyDictionary()


def lifted_offsets(call: Any, given: Wrapped) -> dict[int, torch.Tensor]:
    """The call's tensor for the offsets of a jagged tensor, by the id of their array."""
    offsets, ragged = given._offsets, given._static.context["ragged_idx"] - 1
    total = given._values.shape[ragged]
    seen = _of_calls.setdefault(call, [])
    for other, others_total, tensor in seen:
        if total == others_total and _are_equal(offsets, other):
            return {id(offsets): tensor}
    tensor = lift(offsets)
    seen.append((offsets, total, tensor))
    return {id(offsets): tensor}


def _are_equal(offsets: jax.Array, other: jax.Array) -> bool:
    if offsets is other:
        return True
    if offsets.shape != other.shape or offsets.dtype != other.dtype:
        return False
    return is_traced(offsets) or is_traced(other) or np.array_equal(offsets, other)


_of_classes: dict[tuple[type | None, object], Callable[..., object]] = {}
_below_classes: set[tuple[type | None, object]] = set()


def implements_of_class(kind: type, *functions: object, handles_below: bool = False) -> Callable[[Callable], Callable]:
    """Declares the decorated function as the first handler of functions of tensors of a wrapper class.

    It gets tensors, and may give NotImplemented.

    Args:
        handles_below: whether it is asked where the class has had its say, too.
    """

    def register(rule: Callable) -> Callable:
        _of_classes.update(((kind, function), rule) for function in functions)
        _below_classes.update((kind, function) for function in functions if handles_below)
        return rule

    return register


def entering(call: Call, given: Any, is_own: bool = False) -> object:
    """The call's tensor for a wrapper from outside, or for its arrays.

    Args:
        is_own: whether the call may write to it, as nobody outside waits for that.
    """
    if is_wrapper(given):
        if is_of_call(given):
            return given
        with DisableTorchFunction():
            arrays = wrapped(given, lambda inner: inner)
        return _like(given, tensor_of(arrays, lift_own if is_own else lift))
    if given.kind is NestedTensor:
        offsets = lifted_offsets(call, given)
        return tensor_of(given, lambda array: offsets[id(array)] if id(array) in offsets else lift(array))
    return tensor_of(given, lift)


def bound(call: Any, tensor: torch.Tensor, value: Any) -> Any:
    """The call's tensor for a parameter or buffer whose arrays are given, where it or the value is a wrapper."""
    if not isinstance(value, Wrapped):  # as code sees it that has put a plain tensor in place of the module's
        return lift(value)
    return _like(tensor, tensor_of(value, call.constants.lift))


def _like(given: torch.Tensor, made: Any) -> object:
    """Returns `made`, as a parameter and with `requires_grad` as `given` has it."""
    with DisableTorchFunction():
        if given.requires_grad and type(made) is NestedTensor:
            values_of(made).start_history()
        elif given.requires_grad and made.is_leaf and (made.is_floating_point() or made.is_complex()):
            made.requires_grad_()
    if isinstance(given, torch.nn.Parameter):
        made._is_param = True
    return made


_constants: weakref.WeakKeyDictionary[object, dict[int, tuple[object, object]]] = weakref.WeakKeyDictionary()


def _with_jagged_constants(call: Call, value: Any) -> Any:
    """The arguments with the call's tensors for jagged ones from outside that require grad, and hold the gradients."""
    if type(value) in (tuple, list):
        return type(value)([_with_jagged_constants(call, each) for each in value])
    if type(value) is dict:
        return {key: _with_jagged_constants(call, each) for key, each in value.items()}
    if type(value) is not NestedTensor or is_of_call(value):
        return value
    with DisableTorchFunction():
        if not value.requires_grad:
            return value
    made = _constants.setdefault(call.constants, {})
    if id(value) not in made:
        with call.outside():
            made[id(value)] = value, entering(call, value)
            with DisableTorchFunction():
                gradient = value.grad if value.is_leaf else None
            if gradient is not None:
                values_of(made[id(value)][1])._gradient = lift_own(values_of(gradient))
    return made[id(value)][1]


def leaving(call: Call, tensor: object) -> Wrapped:
    """The arrays of a tensor that wraps others, as it leaves a call."""
    return wrapped(tensor, lambda inner: call.array_of(lift(inner)))


@handles(Wrapper, rank=30)
def _run_by_classes(call: Call, function: Callable[..., object], args: tuple, kwargs: dict) -> object:
    args, kwargs = _with_jagged_constants(call, args), _with_jagged_constants(call, kwargs)
    is_enabled, key = is_torch_function_enabled(), (next((type(x) for x in args if is_wrapper(x)), None), function)
    if key[0] is NestedTensor:
        JAGGED.load()
    rule = _of_classes.get(key) if is_enabled or key in _below_classes else None
    if rule is not None:
        with call.inside():
            result = rule(*args, **kwargs)
        if result is not NotImplemented:
            return result
    if is_enabled:
        return NotImplemented  # PyTorch asks the classes next
    return _run_below_classes(call, function, args, kwargs)


def _run_below_classes(call: Call, function: Callable[..., object], args: tuple, kwargs: dict) -> object:
    """Runs a function after the classes' ``__torch_function__``."""
    if isinstance(function, python_types.FunctionType) and not call.is_own_body(function, args):
        return call.run_body(function, args, kwargs, checks_classes=False)
    with DisableTorchFunction(), call.aten_mode, at_autograd(call):
        return function(*args, **kwargs)


@handles_without_values(WrapsOthersError)
def _run(error: WrapsOthersError, call: Call, function: Any, args: tuple, kwargs: dict) -> Any:
    """The result of a function of wrappers: PyTorch's C++ runs it, and its operators are dispatched to the classes."""
    del error
    if not isinstance(function, OpOverload):
        return _run_below_classes(call, function, args, kwargs)
    is_cut = False
    if not function._schema.is_mutable:
        given = tree_leaves((args, kwargs))
        args, kwargs = tree_map(uncut, (args, kwargs))
        is_cut = any(x is not y for x, y in zip(given, tree_leaves((args, kwargs)), strict=True))
    if is_below_autograd(call, function):
        with call.inside():
            return _run_by_wrappers(function, args, kwargs)
    result, rounds = _differentiated(call, function, args, kwargs)
    result = with_derivative(call, function, args, kwargs, result)
    return tree_map(lambda x: _cut(call, x), result) if is_cut or rounds else result


def _cut(call: Call, result: object) -> object:
    """A result with the derivative of its shadow alone, if it has one."""
    shadow = shadow_of(call, result) if isinstance(result, torch.Tensor) and is_wrapper(result) else None
    return result if shadow is None else cut(call, result, shadow)


def _differentiated(call: Call, operator: OpOverload, args: tuple, kwargs: dict) -> tuple[object, bool]:
    """The result of an operator, with JAX's derivative of the classes' code, or PyTorch's formula where they round.

    The second result is whether they do so for what wraps others in turn.
    """
    operands = differentiable(args, kwargs) if torch.is_grad_enabled() and has_formula(operator, args, kwargs) else []
    state = call.stream.state
    if operands:
        try:
            with call.inside(), below_autograd(call, is_discarded=True):
                return _run_by_wrappers(operator, args, kwargs), False
        except Rounds:
            call.stream.state = state
        with call.inside():
            cut_off = {id(x): x.detach() for x in operands}
            fixed_args, fixed_kwargs = tree_map(lambda x: cut_off.get(id(x), x), (args, kwargs))
            with below_autograd(call):
                result = _run_by_wrappers(operator, fixed_args, fixed_kwargs)
            wrappers = [x for x in tree_leaves(result) if is_wrapper(x)]
            if all(map(can_be_kept, wrappers)):
                pairs = [(x, x) for x in operands]
                return by_formula(call, operator, args, kwargs, result, pairs), bool(wrappers)
        call.stream.state = state
    with call.inside(), below_autograd(call):
        return _run_by_wrappers(operator, args, kwargs), False


def _run_by_wrappers(operator: OpOverload, args: tuple, kwargs: dict) -> object:
    """Runs an operator as the first class of its arguments does that knows how to.

    Raises:
        TypeError: none does.
    """
    kinds = dict.fromkeys(type(x) for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor))
    types: list[type] = []
    for kind in kinds:
        if kind not in OF_NO_SUBCLASS and not issubclass(kind, Torchish):
            before = (i for i, other in enumerate(types) if issubclass(kind, other))
            types.insert(next(before, len(types)), kind)
    for kind in types:
        rule = find_torch_dispatch_rule(operator, kind)
        if rule is not None:
            return rule(kind, operator, types, args, kwargs)
        result = kind.__torch_dispatch__(operator, types, args, kwargs)  # pyright: ignore[reportAttributeAccessIssue]
        if result is not NotImplemented:
            return result
    names = ", ".join(kind.__name__ for kind in types)
    raise TypeError(f"no class of the arguments of {operator.name()} implements it in its __torch_dispatch__: {names}")
