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

from ..internals.dispatch import OpOverload
from ..internals.tensors import tree_leaves, tree_map
from ..rules.array_rule import InnerRule
from ..rules.options import Tag
from ..rules.registry import lookup_aten
from ..runtime.translation import Call
from ..tensors.wrapped import NestedTensor, is_wrapper
from ..tracing.shadows import give_shadow, shadow_of, without_derivative, zeros_of
from .wrapper_formulas import has_derivatives, has_formula, with_formula

aten = torch.ops.aten

_LINEAR = frozenset((Tag.LINEAR, Tag.PRODUCT))
_COPIES = frozenset((aten.clone.default, aten._to_copy.default, aten._unsafe_view.default))


def with_derivative(call: Call, operator: OpOverload, args: tuple, kwargs: dict, result: object) -> object:
    """The result of an operator that a class ran, with derivatives for the arguments that require grad."""
    if not torch.is_grad_enabled():
        return result
    wrappers: list[Any] = [x for x in tree_leaves((args, kwargs)) if _is_wrapper(x)]
    shadows = {id(wrapper): shadow_of(call, wrapper) for wrapper in wrappers}
    known = [shadow for shadow in shadows.values() if shadow is not None]
    if not known:
        return result
    if len(wrappers) > 1 or not _is_linear(operator) or not isinstance(result, torch.Tensor):
        if has_formula(operator, args, kwargs):
            operands = [(x, shadow) for x in wrappers if (shadow := shadows.pop(id(x), None)) is not None]
            return by_formula(call, operator, args, kwargs, result, operands)
        return tree_map(lambda x: _without_derivative(call, x, known) if has_derivatives(x) else x, result)

    def replacement(x: object) -> object:
        return shadows[id(x)] if id(x) in shadows else x.detach() if isinstance(x, torch.Tensor) else x

    with call.inside():
        added = operator(*tree_map(replacement, args), **tree_map(replacement, kwargs))
    if is_wrapper(result):
        before = shadow_of(call, result)
        give_shadow(call, result, added if before is None else _ADDED((before, added), {}))
        return result
    return _ADDED((result, added), {})


def _is_wrapper(x: object) -> bool:
    """True if a value is a wrapper with a shadow; a jagged tensor has none, but the history of its values."""
    return isinstance(x, torch.Tensor) and is_wrapper(x) and type(x) is not NestedTensor


def by_formula(
    call: Call, operator: OpOverload, args: tuple, kwargs: dict, result: object, operands: list[tuple[Any, Any]]
) -> object:
    """The result of an operator that a class ran, with the derivative of PyTorch's formula for its operands.

    Args:
        operands: each with what carries its derivative, itself or its shadow.
    """
    results = result if isinstance(result, tuple) else (result,)
    wraps = [isinstance(x, torch.Tensor) and is_wrapper(x) for x in results]
    carriers = tuple(
        _carrier_of(call, x) if wraps_others else x for x, wraps_others in zip(results, wraps, strict=True)
    )
    with call.inside():
        carriers = with_formula(operator, args, kwargs, results, carriers, operands)
    for each, carrier, wraps_others in zip(results, carriers, wraps, strict=True):
        if wraps_others:
            give_shadow(call, each, carrier)
    found = tuple(x if wraps_others else y for x, y, wraps_others in zip(results, carriers, wraps, strict=True))
    return found if isinstance(result, tuple) else found[0]


def _carrier_of(call: Call, wrapper: object) -> object:
    """The carrier of a result's derivatives: its shadow, or a new one of zeros."""
    shadow = shadow_of(call, wrapper)
    return zeros_of(call, wrapper) if shadow is None else shadow


def _without_derivative(call: Call, result: Any, shadows: list) -> object:
    """A result that raises an error if a derivative for the shadows is taken."""
    if not is_wrapper(result):
        return without_derivative(result, *shadows)
    give_shadow(call, result, without_derivative(zeros_of(call, result), *shadows))
    return result


def _is_linear(operator: OpOverload) -> bool:
    """Returns True if an operator is linear in each of its tensors while the others are fixed."""
    rule = lookup_aten(operator)
    return operator.is_view or operator in _COPIES or (rule is not None and not _LINEAR.isdisjoint(rule.tags))


@jax.custom_jvp
def _added(value: jax.Array, shadow: jax.Array) -> jax.Array:
    """The value, with the tangent of the shadow added to its own."""
    del shadow
    return value


@_added.defjvp
def _(primals: tuple[Any, ...], tangents: tuple[Any, ...]):
    return primals[0], lax.add(tangents[0], lax.convert_element_type(tangents[1], primals[0].dtype))


_ADDED = InnerRule(_added, "with_derivative")
