"""Gradients of tensor subclasses within a call, by PyTorch's own formulas, and the code that runs below autograd.

PyTorch differentiates above a ``__torch_dispatch__``, by the derivative of the operator that it is asked for. So a
tensor that requires grad has a *shadow*: zeros of its shape, which stand for what would be added to it. A view of the
tensor has that view of the shadow. Of an operator that is linear in the tensor, the result has the tangent that the
same operator gives for the shadow; what the class computes stays as it is. After a backward pass the gradient of the
shadow is the tensor's.

What is not linear in the tensor has the derivative of PyTorch's formula, which the class computes.

PyTorch's autograd runs above a ``__torch_dispatch__``: the derivative of an operator is that of its formula, on the
operator's own operands, whatever a class computes for it. So PyTorch is asked for the formula. Its C++ differentiates
the operator on *stand-ins*, which have shapes and no values. The operator itself is answered with what the class gave
for it; those of the formula run on what the stand-ins stand for, and the class computes these too.

That happens in the backward of a `torch.autograd.Function`, so that it serves the call's own passes and JAX's
transformations alike. What a backward keeps are arrays: a tensor that wraps others is taken apart, and put together.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import torch
from jax import lax
from jax.custom_derivatives import SymbolicZero

from ..internals.dispatch import (
    DisableTorchFunction,
    DispatchKey,
    ForceDispatchKeyGuard,
    OpOverload,
    disabled_torch_function_impl,
    dispatch_tls_local_include_set,
)
from ..internals.tensors import make_wrapper_subclass, tree_leaves, tree_map
from ..internals.transforms import run_backward
from ..rules.array_rule import InnerRule
from ..rules.features import NEXT, Feature
from ..rules.operands import as_result
from ..rules.options import Tag, run_named
from ..rules.registry import lookup_aten
from ..runtime.errors.unwinding import Unwind
from ..runtime.translation import Call, lift, this_call
from ..tensors.tensor import Torchish, make_view
from ..tensors.traced import is_traced
from ..tensors.wrapped import NestedTensor, Wrapped, is_wrapper, tensor_of, wrapped
from ..tracing.shadows import give_shadow, shadow_of, without_derivative, zeros_of

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
        held = as_result(_outside_of_derivatives(array), args[0].dtype, [args[0]], name=name)
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
def _outside_of_derivatives(x: jax.Array) -> jax.Array:
    """The array; a derivative of it is an error."""
    return x


@functools.partial(_outside_of_derivatives.defjvp, symbolic_zeros=True)
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


def differentiable(args: tuple, kwargs: dict) -> list[Torchish]:
    """The call's differentiable tensors among an operator's arguments."""
    found = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Torchish)]
    return list({id(x): x for x in found if has_derivatives(x) and is_traced(x.read())}.values())


def has_formula(operator: OpOverload, args: tuple, kwargs: dict) -> bool:
    """True if a formula's arguments can be kept: none is written to, and all classes have the protocol."""
    tensors = (x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor))
    return not operator._schema.is_mutable and all(isinstance(x, Torchish) or can_be_kept(x) for x in tensors)


def can_be_kept(x: Any) -> bool:
    """Returns True if a tensor can be kept as arrays: it is a plain one, or its class has the protocol."""
    if not is_wrapper(x):
        return type(x) in (torch.Tensor, torch.nn.Parameter)
    try:
        return bool(x.__tensor_flatten__())
    except AttributeError:  # it is derived from a class that has the protocol, and is made of other attributes
        return False


def has_derivatives(x: object) -> bool:
    """Returns True if a value is a tensor of a differentiable dtype, whatever its class says."""
    if not isinstance(x, torch.Tensor):
        return False
    with DisableTorchFunction():
        return x.is_floating_point() or x.is_complex()


def with_formula(
    operator: OpOverload,
    args: tuple,
    kwargs: dict,
    results: tuple,
    carriers: tuple,
    operands: Sequence[tuple[object, torch.Tensor]],
) -> tuple:
    """The carriers of the derivatives of an operator's results, with PyTorch's formula added to their own derivatives.

    Args:
        results: what a class gave for the operator.
        carriers: the tensors of a call that carry the derivatives of these: themselves, or shadows.
        operands: those among the arguments that the formula is with respect to, each with what carries its derivative.
    """
    positions = [i for i, x in enumerate(results) if has_derivatives(x)]
    if not positions or not operands:
        return carriers
    formula = _Formula(operator, args, kwargs, results, [x for x, _ in operands], positions)
    found = _ByFormula.apply(formula, *(carriers[i] for i in positions), *(x for _, x in operands), *formula.kept)
    at = dict(zip(positions, found, strict=True))
    return tuple(at.get(i, x) for i, x in enumerate(carriers))


class _KeptIndex:
    """The index of a tensor among those that a backward keeps."""

    def __init__(self, index: int):
        self.index = index


class _Formula:
    """An operator and its arguments, without the tensors: only arrays outlive the call."""

    def __init__(
        self, operator: OpOverload, args: tuple, kwargs: dict, results: tuple, operands: list, positions: list[int]
    ):
        self.operator, self.positions, self.count = operator, positions, len(operands)
        self.kept: list[torch.Tensor] = []
        self._taken: dict[int, Any] = {}
        self._arguments = tree_map(self._taken_out, (args, kwargs))
        self._operands = [self._taken[id(x)] for x in operands]
        self._results = tree_map(self._taken_out, results)
        self._taken = {}

    def _taken_out(self, x: object) -> object:
        if not isinstance(x, torch.Tensor):
            return x
        if id(x) not in self._taken:
            with DisableTorchFunction():
                self._taken[id(x)] = wrapped(x, self._keep) if is_wrapper(x) else self._keep(x)
        return self._taken[id(x)]

    def _keep(self, x: torch.Tensor) -> _KeptIndex:
        self.kept.append(lift(x))
        return _KeptIndex(len(self.kept) - 1)

    def gradients(self, kept: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> list[object]:
        """The gradients of the operands by the formula; None where there is none."""
        made: dict[int, object] = {}

        def put_back(x: object) -> Any:
            if not isinstance(x, (Wrapped, _KeptIndex)):
                return x
            if id(x) not in made:
                made[id(x)] = (
                    tensor_of(x, lambda kept_index: kept[kept_index.index]) if isinstance(x, Wrapped) else kept[x.index]
                )
            return made[id(x)]

        args, kwargs = tree_map(put_back, self._arguments)
        operands = [put_back(x) for x in self._operands]
        return _pulled(
            self.operator, args, kwargs, tree_map(put_back, self._results), operands, self.positions, gradients
        )


class _ByFormula(torch.autograd.Function):
    """An operator's results, as a class gave them, with the derivative of a formula."""

    generate_vmap_rule = True

    @staticmethod
    def forward(formula: _Formula, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tensors[: len(formula.positions)]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        del output
        ctx.formula, *tensors = inputs
        ctx.save_for_backward(*tensors[len(ctx.formula.positions) + ctx.formula.count :])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple:
        formula = ctx.formula
        found = formula.gradients(ctx.saved_tensors, gradients)
        return (None, *gradients, *found, *(None for _ in ctx.saved_tensors))


def _pulled(
    operator: OpOverload,
    args: tuple,
    kwargs: dict,
    results: tuple,
    operands: list[torch.Tensor],
    positions: list[int],
    gradients: Sequence[torch.Tensor],
) -> list[object]:
    """The gradients of operands, by PyTorch's autograd, from those of results."""
    call = this_call()
    answering = _Answering(call, results)
    wanted = {id(x): answering.placeholder(x, requires_grad=True) for x in operands}

    def replacement(x: object) -> object:
        if not isinstance(x, torch.Tensor):
            return x
        return wanted[id(x)] if id(x) in wanted else answering.placeholder(x)

    with DisableTorchFunction(), at_autograd(call), torch.enable_grad():
        made = operator(*tree_map(replacement, args), **tree_map(replacement, kwargs))
        made = made if isinstance(made, (tuple, list)) else (made,)
        pairs = [
            (made[position], answering.placeholder(gradient))
            for position, gradient in zip(positions, gradients, strict=True)
            if made[position].requires_grad
        ]
        found = run_backward([x for x, _ in pairs], [x for _, x in pairs], list(wanted.values()))
    return [None if x is None else _plain(x) for x in found]


def _plain(gradient: torch.Tensor) -> torch.Tensor:
    if isinstance(gradient, _Placeholder):
        gradient = gradient.original
    if is_wrapper(gradient):
        raise NotImplementedError(
            f"got a {type(gradient).__name__} as the gradient of an operand, which its __torch_dispatch__ gave for "
            "PyTorch's formula; wanted a plain tensor, as JAX's gradients are arrays of the shape of the operand"
        )
    return gradient


class _Answering:
    """A mode that runs the operators that PyTorch's C++ calls on stand-ins.

    Args:
        call: what a formula's operators run in.
        results: what the first operator is answered with.
    """

    def __init__(self, call: Call, results: tuple):
        self._call, self._results = call, results
        self._is_first = True

    def placeholder(self, tensor: torch.Tensor, requires_grad: bool = False) -> "_Placeholder":
        with DisableTorchFunction():
            size, strides, dtype = tensor.size(), tensor.stride(), tensor.dtype
        made = make_wrapper_subclass(_Placeholder, size, strides=strides, dtype=dtype, requires_grad=requires_grad)
        made.original, made.answering = tensor, self
        return made

    def run(self, operator: OpOverload, args: tuple, kwargs: dict) -> Any:
        if self._is_first:
            self._is_first = False
            results = self._results if len(self._results) != 1 else self._results[0]
        else:
            args, kwargs = tree_map(lambda x: x.original if isinstance(x, _Placeholder) else x, (args, kwargs))
            with self._call.inside():
                results = operator(*args, **kwargs)
        return tree_map(lambda x: self.placeholder(x) if isinstance(x, torch.Tensor) else x, results)


class _Placeholder(torch.Tensor):
    """A tensor of a shape and a dtype, in place of one whose operators PyTorch differentiates."""

    original: torch.Tensor
    answering: _Answering
    __torch_function__ = disabled_torch_function_impl  # pyright: ignore[reportAssignmentType]

    @classmethod
    def __torch_dispatch__(
        cls, operator: OpOverload, types: object, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        del types
        kwargs = kwargs or {}
        first = next(x for x in tree_leaves((args, kwargs)) if isinstance(x, cls))
        return first.answering.run(operator, args, kwargs)


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
