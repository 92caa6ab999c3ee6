"""The code of a ``__torch_dispatch__``: it runs below autograd, so PyTorch does not differentiate it."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import torch
from jax import lax
from jax.custom_derivatives import SymbolicZero

from ..internals.dispatch import DispatchKey, ForceDispatchKeyGuard, OpOverload, dispatch_tls_local_include_set
from ..rules.features import NEXT, Feature
from ..rules.keywords import run_named
from ..rules.operands import as_result
from ..runtime.errors.unwinding import Unwind
from ..runtime.translation import Call
from ..tensors.tensor import Torchish, make_view
from ..tensors.traced import is_traced
from ..tensors.wrapped import is_wrapper

_DETACHING = frozenset((torch.Tensor.detach, torch.detach, torch.ops.aten.detach.default))
_CASTS = frozenset(("to", "_to_copy", "type", "type_as", "byte", "char", "short", "int", "long", "bool"))
_ROUNDING = frozenset(("round", "floor", "ceil", "trunc", "fix", "sign", "sgn", *_CASTS))
_STEPS = frozenset(
    ("argmax", "argmin", "bucketize", "searchsorted", "heaviside", "floor_divide", "clamp", "clip", "clamp_min")
    + ("clamp_max", "gt", "lt", "ge", "le", "eq", "ne", "__gt__", "__lt__", "__ge__", "__le__", "__eq__", "__ne__")
)
"""Functions other than rounding with a zero derivative somewhere, where the operator around may have another one."""


class Rounds(Unwind):
    """The code rounds a differentiable value: its derivative is not the operator's, and it runs again without one."""

    ends_call = False


def at_autograd(call: Call) -> contextlib.AbstractContextManager:
    """A context in which operators begin with autograd's kernels, as around the call; no views are noted."""
    return ForceDispatchKeyGuard(dispatch_tls_local_include_set(), call.keys.add(DispatchKey.ADInplaceOrView))


class _BelowAutograd(Feature):
    """A feature under which ``detach`` returns another tensor, but ends no derivative.

    What the code detaches there is no cut, unless it is run for a ``detach``; and the derivative of an operator for
    which it rounds is not zero. Where JAX differentiates the code, rounding is refused.

    Args:
        is_discarded: whether the code is over once it rounds.
    """

    def __init__(self, is_discarded: bool):
        self._is_discarded = is_discarded

    def run_rule(self, call: object, function: Callable, rule: Any, args: tuple, kwargs: dict) -> Any:
        name = getattr(function, "__name__", "").partition(".")[0]
        plain_name = name.rstrip("_") if not name.startswith("__") else name
        if not args or not (plain_name in _ROUNDING or (self._is_discarded and plain_name in _STEPS)):
            return NEXT
        if not _has_derivative(args[0]):
            return NEXT
        if plain_name in _STEPS:
            raise Rounds
        array = args[0].read()
        if plain_name in _CASTS:
            result = run_named(function, rule, args, kwargs)
            if result.dtype.is_complex or (result.dtype.is_floating_point and result.dtype.itemsize > 1):
                return result
        if self._is_discarded:
            raise Rounds
        held = as_result(_without_derivative(array), args[0].dtype, [args[0]], name=name)
        if name.endswith("_"):
            args[0].copy_(held)
            return NEXT
        return run_named(function, rule, (held, *args[1:]), kwargs)

    def run_instead(
        self, call: Call, function: Callable[..., object], rule: object, args: tuple, kwargs: dict
    ) -> object:
        del rule
        return self.run_operator(call, function, args, kwargs)

    def run_operator(self, call: Call, function: Callable[..., object], args: tuple, kwargs: dict) -> object:
        del kwargs
        if function not in _DETACHING or not args or is_wrapper(args[0]):
            return NEXT
        tensor = call.constants.lift(args[0])
        return make_view(tensor, tensor._node, tensor)

    def concerns(self, function: object) -> bool:
        return function in _DETACHING


def _has_derivative(operand: Torchish) -> bool:
    return isinstance(operand, Torchish) and operand.is_floating_point() and is_traced(operand.read())


@jax.custom_jvp
def _without_derivative(x: jax.Array) -> jax.Array:
    """The array; a derivative of it is an error."""
    return x


@functools.partial(_without_derivative.defjvp, symbolic_zeros=True)
def _(primals: tuple[Any, ...], tangents: tuple[object, ...]):
    if not isinstance(tangents[0], SymbolicZero):
        raise NotImplementedError(
            "a __torch_dispatch__ rounds what a tensor wraps, and the derivative for that is taken: PyTorch's is that "
            "of the operator for the whole tensor, and JAX's would be zero. Wanted a derivative that the class says "
            "itself: a torch.autograd.Function in its __torch_function__"
        )
    return primals[0], lax.full_like(primals[0], 0)


def is_below_autograd(call: Call, operator: OpOverload) -> bool:
    """True if an operator's code is not differentiated by itself: not at all, or with the code around it."""
    return operator in _DETACHING or any(type(feature) is _BelowAutograd for feature in call.features)


@contextlib.contextmanager
def below_autograd(call: Call, is_discarded: bool = False) -> Iterator[None]:
    """A context for the code of a ``__torch_dispatch__``.

    Args:
        is_discarded: whether the code is over once it rounds, by `Rounds`.
    """
    feature = _BelowAutograd(is_discarded)
    call.features.push(feature)
    try:
        yield
    finally:
        call.features.pop(feature)
