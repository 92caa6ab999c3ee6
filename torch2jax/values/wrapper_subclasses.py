"""Tensors that wrap others, within a call: the classes themselves say what becomes of a function, as in PyTorch.

PyTorch asks in this order, and so does a call: modes; the ``__torch_function__`` of the classes, each before those that
it is derived from; autograd's kernels, which take apart what is composed of other operators; modes of operators; and
the ``__torch_dispatch__`` of the classes. Their code finds tensors of the call inside, whose functions come back to it.
"""

import contextlib
import functools
import types as python_types
from collections.abc import Callable
from typing import Any

import jax
import torch
from jax import lax
from jax.custom_derivatives import SymbolicZero

from ..errors import WrapsOthersError
from ..internals.guards import (
    DisableTorchFunction,
    ForceDispatchKeyGuard,
    dispatch_tls_local_include_set,
    is_torch_function_enabled,
)
from ..internals.jagged import NestedTensor
from ..internals.operators import DispatchKey, OpOverload, find_torch_dispatch_rule
from ..internals.pytree import tree_leaves
from ..rules.features import NEXT, Feature
from ..rules.keywords import run_named
from ..rules.kinds import serves, serves_without_values
from ..rules.rule import as_result
from ..tensors.tensor import Torchish, make_view
from ..tensors.traced import is_traced
from ..tensors.wrapped import Wrapped, Wrapper, is_of_call, is_wrapper, tensor_of, wrapped
from .call import ValuesCall
from .jagged import lifted_offsets
from .wrapper_gradients import with_derivative

__all__ = ["bound", "entering", "implements_of_class", "leaving"]

_of_classes: dict[tuple[type, Any], Callable[..., Any]] = {}


def implements_of_class(kind: type, *functions: Any) -> Callable[[Callable], Callable]:
    """Declares the decorated function to be asked first for functions of tensors of a class that wraps others.

    It gets tensors, and may give NotImplemented.
    """

    def register(rule: Callable) -> Callable:
        _of_classes.update(((kind, function), rule) for function in functions)
        return rule

    return register


def entering(call: Any, given: Any, is_own: bool = False) -> Any:
    """The tensor of a call that stands for one from outside that wraps others, or for its arrays.

    Args:
        is_own: whether the call may write to it, as nobody outside waits for that.
    """
    if is_wrapper(given):
        if is_of_call(given):
            return given
        with DisableTorchFunction():
            arrays = wrapped(given, lambda inner: inner)
        lift = call.lift_own if is_own else call.lift
        return _like(given, tensor_of(arrays, lift))
    if given.kind is NestedTensor:
        offsets = lifted_offsets(call, given)
        return tensor_of(given, lambda array: offsets[id(array)] if id(array) in offsets else call.lift(array))
    return tensor_of(given, call.lift)


def bound(call: Any, tensor: torch.Tensor, value: Any) -> Any:
    """What stands for a parameter or buffer whose arrays are given, where it or what is given wraps others."""
    if not isinstance(value, Wrapped):  # as code sees it that has put a plain tensor in place of the module's
        return call.lift(value)
    return _like(tensor, tensor_of(value, call.lift))


def _like(given: torch.Tensor, made: Any) -> Any:
    """A new tensor that is a parameter, and requires grad, if the one that it stands for does."""
    with DisableTorchFunction():
        if given.requires_grad and made.is_leaf and (made.is_floating_point() or made.is_complex()):
            made.requires_grad_()
    if isinstance(given, torch.nn.Parameter):
        made._is_param = True
    return made


def leaving(call: Any, tensor: Any) -> Wrapped:
    """The arrays of a tensor that wraps others, as it leaves a call."""
    return wrapped(tensor, lambda inner: call.array_of(call.lift(inner)))


_DETACHING = frozenset((torch.Tensor.detach, torch.detach, torch.ops.aten.detach.default))


_CASTS = frozenset(("to", "_to_copy", "type", "type_as", "byte", "char", "short", "int", "long", "bool"))
_ROUNDING = frozenset(("round", "floor", "ceil", "trunc", "fix", "sign", "sgn", *_CASTS))


class _BelowAutograd(Feature):
    """The code of a ``__torch_dispatch__``, to which ``detach`` gives another tensor and ends no derivative.

    PyTorch differentiates above it: what the code detaches there is no cut, unless it is run for a ``detach``; and the
    derivative of an operator for which it rounds is not zero. JAX differentiates the code, so that is refused.
    """

    def run_rule(self, call: Any, function: Any, rule: Any, args: tuple, kwargs: dict) -> Any:
        name = getattr(function, "__name__", "").partition(".")[0]
        if name.rstrip("_") not in _ROUNDING or not args or not _has_derivative(args[0]):
            return NEXT
        array = args[0].read()
        if name.rstrip("_") in _CASTS:
            result = run_named(function, rule, args, kwargs)
            if result.dtype.is_complex or (result.dtype.is_floating_point and result.dtype.itemsize > 1):
                return result
        held = as_result(_without_derivative(array), args[0].dtype, [args[0]], name=name)
        if name.endswith("_"):
            args[0].copy_(held)
            return NEXT
        return run_named(function, rule, (held, *args[1:]), kwargs)

    def run_instead(self, call: Any, function: Any, args: tuple, kwargs: dict) -> Any:
        return self.run_operator(call, function, args, kwargs)

    def run_operator(self, call: Any, function: Any, args: tuple, kwargs: dict) -> Any:
        del kwargs
        if function not in _DETACHING or not args or is_wrapper(args[0]):
            return NEXT
        tensor = call.lift(args[0])
        return make_view(tensor, tensor._node, tensor)

    def concerns(self, function: Any) -> bool:
        return function in _DETACHING


def _has_derivative(operand: Any) -> bool:
    return isinstance(operand, Torchish) and operand.is_floating_point() and is_traced(operand.read())


@jax.custom_jvp
def _without_derivative(x: jax.Array) -> jax.Array:
    """The array, of which no derivative may be taken."""
    return x


@functools.partial(_without_derivative.defjvp, symbolic_zeros=True)
def _(primals: tuple[Any, ...], tangents: tuple[Any, ...]):
    if not isinstance(tangents[0], SymbolicZero):
        raise NotImplementedError(
            "a __torch_dispatch__ rounds a tensor whose derivative is taken: PyTorch's is that of the operator, "
            "whatever the code computes, and JAX's would be zero. Wanted a derivative that the class says itself: a "
            "torch.autograd.Function in its __torch_function__"
        )
    return primals[0], lax.full_like(primals[0], 0)


_BELOW_AUTOGRAD = _BelowAutograd()


@contextlib.contextmanager
def _below_autograd(call: ValuesCall, operator: OpOverload):
    """A context for the code of a ``__torch_dispatch__`` that runs for an operator."""
    if operator in _DETACHING or _BELOW_AUTOGRAD in call.features:
        yield
        return
    call.features.push(_BELOW_AUTOGRAD)
    try:
        yield
    finally:
        call.features.pop(_BELOW_AUTOGRAD)


@serves(Wrapper, rank=30)
def _run_by_classes(call: ValuesCall, function: Any, args: tuple, kwargs: dict) -> Any:
    if is_torch_function_enabled():
        rule = _of_classes.get((type(args[0]), function)) if args else None
        if rule is not None:
            with call.inside():
                result = rule(*args, **kwargs)
            if result is not NotImplemented:
                return result
        return NotImplemented  # PyTorch asks the classes next
    return _run_below_classes(call, function, args, kwargs)


def _run_below_classes(call: ValuesCall, function: Any, args: tuple, kwargs: dict) -> Any:
    """Runs a function of which the classes have said all that they say in their ``__torch_function__``."""
    if isinstance(function, python_types.FunctionType) and not call.is_own_body(function, args):
        return call.run_body(function, args, kwargs, asks_classes=False)
    with DisableTorchFunction(), call.aten_mode, _at_autograd(call):
        return function(*args, **kwargs)


def _at_autograd(call: ValuesCall) -> contextlib.AbstractContextManager:
    """A context in which operators begin with autograd's kernels, as around the call; no views are noted."""
    return ForceDispatchKeyGuard(dispatch_tls_local_include_set(), call.keys.add(DispatchKey.ADInplaceOrView))


@serves_without_values(WrapsOthersError)
def _run(error: WrapsOthersError, call: ValuesCall, function: Any, args: tuple, kwargs: dict) -> Any:
    """What a function gives of tensors that wrap others: PyTorch's C++ runs it, and its operators are for these."""
    del error
    if not isinstance(function, OpOverload):
        return _run_below_classes(call, function, args, kwargs)
    with call.inside(), _below_autograd(call, function):
        result = _run_by_wrappers(function, args, kwargs)
    return result if function in _DETACHING else with_derivative(call, function, args, kwargs, result)


def _run_by_wrappers(operator: OpOverload, args: tuple, kwargs: dict) -> Any:
    """Runs an operator as the first class of its arguments does that knows how to.

    Raises:
        TypeError: none does.
    """
    kinds = dict.fromkeys(type(x) for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor))
    plain = (torch.Tensor, torch.nn.Parameter)
    types: list[type] = []
    for kind in kinds:
        if kind not in plain and not issubclass(kind, Torchish):
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
