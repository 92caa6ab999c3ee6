"""Derivatives of operators on tensor subclasses: PyTorch's own formulas.

PyTorch's autograd runs above a ``__torch_dispatch__``: the derivative of an operator is that of its formula, on the
operator's own operands, whatever a class computes for it. So PyTorch is asked for the formula. Its C++ differentiates
the operator on *stand-ins*, which have shapes and no values. The operator itself is answered with what the class gave
for it; those of the formula run on what the stand-ins stand for, and the class computes these too.

That happens in the backward of a `torch.autograd.Function`, so that it serves the call's own passes and JAX's
transformations alike. What a backward keeps are arrays: a tensor that wraps others is taken apart, and put together.
"""

from collections.abc import Sequence
from typing import Any

import torch

from ..internals.dispatch import DisableTorchFunction, OpOverload, disabled_torch_function_impl
from ..internals.tensors import make_wrapper_subclass, tree_leaves, tree_map
from ..internals.transforms import run_backward
from ..runtime.translation import Call, lift, this_call
from ..tensors.tensor import Torchish
from ..tensors.traced import is_traced
from ..tensors.wrapped import Wrapped, is_wrapper, tensor_of, wrapped
from .below_autograd import at_autograd


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
