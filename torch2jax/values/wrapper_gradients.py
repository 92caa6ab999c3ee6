"""Gradients of tensor subclasses within a call: of the whole tensor, as in PyTorch's autograd.

PyTorch differentiates above a ``__torch_dispatch__``, by the derivative of the operator that it is asked for. So a
tensor that requires grad has a *shadow*: zeros of its shape, which stand for what would be added to it. A view of the
tensor has that view of the shadow. Of an operator that is linear in the tensor, the result has the tangent that the
same operator gives for the shadow; what the class computes stays as it is. After a backward pass the gradient of the
shadow is the tensor's.

What is not linear in the tensor has the derivative of PyTorch's formula, which the class computes
(`wrapper_formulas`).
"""

from typing import Any

import jax
import torch
from jax import lax
from jax.custom_derivatives import SymbolicZero

from ..internals.operators import OpOverload
from ..internals.pytree import tree_leaves, tree_map
from ..rules.array_rule import InnerRule
from ..rules.registry import lookup_aten
from ..rules.tags import Tag
from ..tensors.jagged import NestedTensor
from ..tensors.wrapped import is_of_call, is_wrapper
from .call import ValuesCall
from .wrapper_formulas import has_derivatives, has_formula, with_formula

__all__ = ["with_derivative"]

aten = torch.ops.aten

_LINEAR = frozenset((Tag.LINEAR, Tag.PRODUCT))
_COPIES = frozenset((aten.clone.default, aten._to_copy.default, aten._unsafe_view.default))
_SHADOW = "_torch2jax_shadow"


def with_derivative(call: ValuesCall, operator: OpOverload, args: tuple, kwargs: dict, result: Any) -> Any:
    """What a class gave for an operator, with the derivatives for the tensors among its arguments that require grad."""
    if not torch.is_grad_enabled():
        return result
    wholes: list[Any] = [x for x in tree_leaves((args, kwargs)) if _is_whole(x)]
    shadows = {id(whole): _shadow_of(call, whole) for whole in wholes}
    known = [shadow for shadow in shadows.values() if shadow is not None]
    if not known:
        return result
    if len(wholes) > 1 or not _is_linear(operator) or not isinstance(result, torch.Tensor):
        if has_formula(operator, args, kwargs):
            operands = [(x, shadow) for x in wholes if (shadow := shadows.pop(id(x), None)) is not None]
            return _by_formula(call, operator, args, kwargs, result, operands)
        return tree_map(lambda x: _without_derivative(call, x, known) if has_derivatives(x) else x, result)

    def stand_in(x: Any) -> Any:
        return shadows[id(x)] if id(x) in shadows else x.detach() if isinstance(x, torch.Tensor) else x

    with call.inside():
        added = operator(*tree_map(stand_in, args), **tree_map(stand_in, kwargs))
    if is_wrapper(result):
        setattr(result, _SHADOW, (call.attempt, added))
        return result
    return _ADDED((result, added), {})


def _is_whole(x: Any) -> bool:
    """Whether a value is a tensor that wraps others; a jagged one has the history of its values."""
    return isinstance(x, torch.Tensor) and is_wrapper(x) and type(x) is not NestedTensor


def _by_formula(
    call: ValuesCall, operator: OpOverload, args: tuple, kwargs: dict, result: Any, operands: list[tuple[Any, Any]]
) -> Any:
    """What a class gave for an operator, with the derivative of PyTorch's formula for shadows of its operands."""
    results = result if isinstance(result, tuple) else (result,)
    wraps = [isinstance(x, torch.Tensor) and is_wrapper(x) for x in results]
    carriers = tuple(_zeros(call, x) if is_whole else x for x, is_whole in zip(results, wraps, strict=True))
    with call.inside():
        carriers = with_formula(operator, args, kwargs, results, carriers, operands)
    for each, carrier, is_whole in zip(results, carriers, wraps, strict=True):
        if is_whole:
            setattr(each, _SHADOW, (call.attempt, carrier))
    found = tuple(x if is_whole else y for x, y, is_whole in zip(results, carriers, wraps, strict=True))
    return found if isinstance(result, tuple) else found[0]


def _without_derivative(call: ValuesCall, result: Any, shadows: list) -> Any:
    """A result of which no derivative for the shadows may be taken."""
    if not is_wrapper(result):
        return _NONE((result, *shadows), {})
    setattr(result, _SHADOW, (call.attempt, _NONE((_zeros(call, result), *shadows), {})))
    return result


def _zeros(call: ValuesCall, whole: Any, **options: Any) -> Any:
    with call.inside():
        return torch.zeros(tuple(whole.shape), dtype=whole.dtype, **options)


def _is_linear(operator: OpOverload) -> bool:
    """Whether an operator is linear in each tensor that it takes, while the others stay as they are."""
    rule = lookup_aten(operator)
    return operator.is_view or operator in _COPIES or (rule is not None and not _LINEAR.isdisjoint(rule.tags))


def _shadow_of(call: ValuesCall, whole: Any) -> Any:
    """The shadow of a tensor that wraps others, of this run of the code; None if it requires no grad."""
    attempt, shadow = vars(whole).get(_SHADOW, (None, None))
    shadow = shadow if attempt is call.attempt else None
    if shadow is None and whole.is_leaf and whole.requires_grad:
        shadow = _zeros(call, whole, requires_grad=True)
        if not is_of_call(whole):  # the user's object, which is only read
            return _NONE((_zeros(call, whole), shadow), {})
        with call.inside():
            shadow.register_post_accumulate_grad_hook(lambda shadow: _give(whole, shadow))
        setattr(whole, _SHADOW, (call.attempt, shadow))
    return shadow


def _give(whole: Any, shadow: torch.Tensor) -> None:
    """Lets the gradient of a shadow be that of the tensor, or a part of it."""
    gradient, shadow.grad = shadow.grad, None
    whole.grad = gradient if whole.grad is None else whole.grad + gradient


@jax.custom_jvp
def _added(value: jax.Array, shadow: jax.Array) -> jax.Array:
    """The value, with the tangent of the shadow added to its own."""
    del shadow
    return value


@_added.defjvp
def _(primals: tuple[Any, ...], tangents: tuple[Any, ...]):
    return primals[0], lax.add(tangents[0], lax.convert_element_type(tangents[1], primals[0].dtype))


@jax.custom_jvp
def _without(value: jax.Array, *shadows: jax.Array) -> jax.Array:
    """The value, of which no derivative for the shadows may be taken."""
    del shadows
    return value


def _without_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]):
    if not all(isinstance(tangent, SymbolicZero) for tangent in tangents[1:]):
        raise NotImplementedError(
            "got a tensor that wraps others and requires grad, from outside of the call, or in an operator that writes "
            "or whose class lacks __tensor_flatten__; its derivative is taken. Wanted a module that is given to t2j, "
            "or a tensor that does not require grad"
        )
    value, tangent = primals[0], tangents[0]
    return value, lax.full_like(value, 0) if isinstance(tangent, SymbolicZero) else tangent


_without.defjvp(_without_jvp, symbolic_zeros=True)
_ADDED, _NONE = InnerRule(_added, "with_derivative"), InnerRule(_without, "without_derivative")
