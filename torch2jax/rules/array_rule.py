"""The code around the body of a rule on arrays: tensors to arrays, promotion, dtypes of the results.

The body of an `ArrayRule` takes jax arrays where PyTorch takes tensors and gives jax arrays.
"""

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, Unpack

import jax
import numpy as np
import torch
from jax import lax

from ..internals.dispatch import DisableTorchFunction
from ..runtime.errors import TracedValueError
from ..runtime.layers import SELECTIONS
from ..runtime.translation import lift, this_call
from ..tensors.dtypes import expect, expect_fits
from ..tensors.known import defer, defer_body, value_of_body
from ..tensors.tensor import Torchish
from ..tensors.traced import is_traced
from .inline import call_inlined
from .inplace import write_out
from .operands import UNKNOWN, arrays_of, as_result, knowns_of, lifted, number_of
from .options import BodyParameters, RuleKeywords, RuleOptions, Tag
from .pointwise import Pointwise, PromotionPlan, in_layout, planned
from .promotion import Promotion
from .rule import dtype_of_first

# Keywords of every factory function that mean nothing to JAX.
_PLACEMENT = ("device", "layout", "pin_memory", "requires_grad", "memory_format", "names", "non_blocking")

# Parameters that PyTorch takes as integers or lists of integers, also from tensors of one element.
_INTEGERS = frozenset(
    ("correction", "diagonal", "dilation", "dim", "dims", "end_dim", "k", "kernel_size", "n", "normalized_shape")
    + ("num_classes", "num_groups", "output_padding", "output_size", "pad", "padding", "padding_idx", "shifts", "size")
    + ("start_dim", "stride")
)

# Functions of one operand that keep its dtype: PyTorch casts what they give for no ``out=``.
_KEEPING = (Promotion.DEFAULT, Promotion.DEFAULT_ONCE, Promotion.NO_OPMATH)


class ArrayRule:
    """A rule on arrays.

    Args:
        body: has the parameters of the PyTorch function by its documented names; arrays stand for tensors.
        name: the function's name.
        options: what is told of it.
    """

    function: Callable | None = None
    """The function of PyTorch's that the rule computes as PyTorch does; None if it may do otherwise."""
    of_unknown: Callable | None = None
    """Computes the result for traced values where `concrete` is set, or where `prepare` refuses them."""

    expect_results: Callable[[object], None] | None = None
    """Raises an error if the results of a user's body are not those that the operator returns."""

    def __init__(self, body: Callable, name: str, options: RuleOptions):
        self.body, self.name, self.options = body, name, options
        # Each call asks for some of these.
        self.promote, self.unpromoted, self.dtype = options.promote, options.unpromoted, options.dtype
        self.takes, self.fits, self.strides = options.takes, options.fits, options.strides
        self.prepare, self.check, self.channels_last = options.prepare, options.check, options.channels_last
        self.concrete, self.random, self.has_own_values = options.concrete, options.random, options.has_own_values
        self.elementwise, self.is_pure = options.promote is not None, not options.random
        self.tags = frozenset((Tag.FRESH, *([Tag.RANDOM] if self.random else []), *options.tags))
        self.names = BodyParameters.of(body, known=("out", *_PLACEMENT), skipped=1 if self.random else 0)
        parameters = (*self.names.positional, *filter(None, [self.names.spread]), *self.names.options)
        self.parameters = set(parameters)
        operands = self.names.positional if self.elementwise else ()
        keeps = len(operands) == 1 and self.promote in _KEEPING and self.dtype is None
        self.exact_out = options.exact_out or keeps
        self._integers = tuple(
            (i, name) for i, name in enumerate(parameters) if name in _INTEGERS and name not in operands
        )
        self.result_type = getattr(torch.return_types, name, None)

    def __call__(self, args: tuple, kwargs: dict):
        with DisableTorchFunction():
            kwargs, out, device = self.without_placement(kwargs)
            for position, name in self._integers:
                if position < len(args):
                    if _has_tensor(args[position]):
                        args = (*args[:position], _numbers(args[position]), *args[position + 1 :])
                elif name in kwargs and _has_tensor(kwargs[name]):
                    kwargs = {**kwargs, name: _numbers(kwargs[name])}
            if self.check is not None:
                self.expect_values(lifted(args), lifted(kwargs))
            if self.prepare is not None:
                try:
                    args, kwargs = self.prepare(*lifted(args), **lifted(kwargs))
                except TracedValueError:
                    SELECTIONS.load()  # which has it
                    if self.of_unknown is None:
                        raise
                    return self.of_unknown(*args, **kwargs)
            if self.promote is None:
                result = self._apply(args, kwargs, device, out is None)
            else:
                result = self._apply_elementwise(args, kwargs)
            return result if out is None else self.write_out(result, out, args, kwargs)

    def expect_values(self, args: tuple, kwargs: dict) -> None:
        """Refuses tensors whose values are known to be wrong."""
        try:
            self.check(*args, **kwargs)  # pyright: ignore[reportOptionalCall]
        except Exception as error:
            vars(error)["is_of_values"] = True
            raise

    def write_out(self, result: object, out: object, args: tuple, kwargs: dict):
        """Writes the result of a call with these arguments into its ``out`` argument."""
        with DisableTorchFunction():
            self._expect_no_gradients(result, out)
            by_index = Tag.READS_BY_INDEX in self.tags
            return write_out(result, out, (*args, *kwargs.values()), exact=self.exact_out, by_index=by_index)

    def _expect_no_gradients(self, result: object, out: object) -> None:
        """Refuses ``out=`` if the results or the target require grad, as PyTorch does."""
        tensors = [x for each in (result, out) for x in (each if isinstance(each, (tuple, list)) else (each,))]
        is_recorded = torch.is_grad_enabled() and not this_call().is_backward
        if is_recorded and any(lift(x).history is not None for x in tensors):
            raise RuntimeError(
                f"{self.name}(): functions with out=... arguments don't support automatic differentiation, but one of "
                "the arguments requires grad."
            )
        dual = this_call().dual
        if dual is not None and any(dual.has_tangent(lift(x)) for x in tensors):
            raise NotImplementedError(
                f"Trying to use forward AD with {self.name}_out that does not support it because it is an out= function"
            )

    def without_placement(self, kwargs: dict) -> tuple[dict, object, torch.device | None]:
        """The keywords that the body accepts, the target of the result, and its device."""
        if not kwargs:
            return kwargs, None, None
        kwargs = dict(kwargs)
        out, device = kwargs.pop("out", None), kwargs.get("device")
        for key in _PLACEMENT:
            if key not in self.parameters:
                kwargs.pop(key, None)
        return kwargs, out, None if device is None else torch.device(device)

    def expect(self, dtype: torch.dtype, args: Sequence[object], kwargs: dict[str, object]) -> None:
        """Refuses a dtype, and numbers, that the function is not defined for."""
        takes = self.takes(*args, **kwargs) if callable(self.takes) else self.takes
        if takes is not None:
            expect(self.name, dtype, takes)
        if self.fits:
            for name, value in (*zip(self.names.positional, args, strict=False), *kwargs.items()):
                if name in self.fits and not isinstance(value, jax.Array):
                    expect_fits(value, dtype)

    def expect_examined(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """As `expect`, for the dtype that the arguments of a function that is not pointwise have, or ask for."""
        if self.takes is not None or self.fits:
            self.expect(self._examined(args, kwargs), args, kwargs)

    def takes_numbers(self, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
        """Returns True if a tensor is passed where PyTorch takes a number, which is that of the tensor."""
        found = [args[position] if position < len(args) else kwargs.get(name) for position, name in self._integers]
        return any(map(_has_tensor, found))

    def _examined(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.dtype:
        if "dtype" in self.parameters:
            at = self.names.positional.index("dtype") if "dtype" in self.names.positional else len(args)
            dtype = args[at] if at < len(args) else kwargs.get("dtype")
            if dtype is not None:
                return dtype
        return dtype_of_first(self.names.positional, args, kwargs)

    def _apply(
        self,
        args: tuple[object, ...],
        kwargs: dict[str, Any],
        device: torch.device | None,
        is_result: bool = True,
    ):
        self.expect_examined(args, kwargs)
        tensors: list[Torchish] = []
        layout = self.layout(args)
        arrays, array_kwargs = self.arrays(args, kwargs, layout, tensors)
        if self.random:
            key = this_call().stream.next_key(kwargs.get("generator"))
            array_kwargs.pop("generator", None)
            arrays, args = (key, *arrays), (key, *args)
        if self.concrete and any(is_traced(tensor.buffer.array) for tensor in tensors):
            SELECTIONS.load()
            if self.of_unknown is not None and is_result:
                return self.of_unknown(*args, **kwargs)
            raise TracedValueError(f"torch.{self.name}")
        result = call_inlined(self.body, arrays, array_kwargs, self.name)
        dtype = self.dtype
        if callable(dtype) and not isinstance(dtype, torch.dtype):
            dtype = dtype(*(args[1:] if self.random else args), **kwargs)
        is_drawn = self.random and not is_traced(arrays[0]) and this_call().stages
        known = self._drawn(args, kwargs) if is_drawn else None
        strides = self.strides_for(args[1:] if self.random else args, kwargs)
        return self.wrap_all(result, dtype, known, tensors, device, layout, strides)

    def arrays(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], layout: tuple[int, ...] | None, tensors: list[Torchish]
    ) -> tuple[tuple, dict]:
        """The arguments of the body of a rule that is not pointwise, for which tensors are gathered.

        Args:
            layout: the order in which the first operand is to be held, if the body is to take it so.
        """
        if layout is None:
            return arrays_of(args, tensors), arrays_of(kwargs, tensors)
        first = _each(args[0], lambda x: tensors.append(lift(x)) or tensors[-1].buffer.arranged(layout))
        arrays = (first, *arrays_of(args[1:], tensors))
        return arrays, {**arrays_of(kwargs, tensors), "channels_last": True}

    def strides_for(
        self, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Callable[..., tuple[int, ...] | None] | None:
        """Gives the strides of a result from its shape; None where they are contiguous."""
        return self.strides and functools.partial(self._strides_of, args, kwargs)

    def _strides_of(
        self, args: tuple[object, ...], kwargs: dict[str, object], shape: Sequence[int]
    ) -> tuple[int, ...] | None:
        return self.strides(shape, *args, **kwargs)  # pyright: ignore[reportOptionalCall]

    def layout(self, args: tuple[object, ...]) -> tuple[int, ...] | None:
        """The channels-last order for the first operand, or all in that list, if the body is to take it so."""
        if not self.channels_last:
            return None
        when, rank = self.channels_last  # pyright: ignore[reportGeneralTypeIssues]
        first = args[0] if args and isinstance(args[0], (list, tuple)) else args[:1]
        if not first or not all(isinstance(x, torch.Tensor) and x.ndim == rank for x in first):
            return None
        layout = (0, *range(2, rank), 1)
        return layout if when == "prefer" or any(lift(x)._node.layout == layout for x in first) else None

    def _drawn(self, args: tuple[object, ...], kwargs: dict[str, object]):
        """The known value of numbers drawn with a known key; None if an argument is not known."""
        knowns = knowns_of(args[1:]), knowns_of(kwargs)
        if UNKNOWN in jax.tree.leaves(knowns, is_leaf=lambda x: x is UNKNOWN):
            return None
        return defer_body(value_of_body, self.body, args[0], *knowns[0], **knowns[1])

    def _apply_elementwise(self, args: tuple[object, ...], kwargs: dict[str, object]):
        plan, run, operands, kwargs, factors = self.planned(args, kwargs)
        tensors = [x for x in operands if isinstance(x, Torchish)] + factors
        body = functools.partial(run, **kwargs) if kwargs else run
        result = call_inlined(body, [in_layout(x, plan.shape, plan.layout) for x in operands], {}, self.name)
        return self.wrap_all(result, run.result, None, tensors, layout=plan.layout, strides=plan.strides)

    def planned(
        self, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[PromotionPlan, Pointwise, list, dict, list[Torchish]]:
        """The promotion plan of a pointwise rule, its declaration, the body's operands and options, and tensors among
        the options.

        Raises:
            RuntimeError, TypeError: the function is not defined for these arguments.
        """
        count = len(self.names.positional)
        operands, options = list(args[:count]), args[count:]
        factors: list[Torchish] = []
        if kwargs or options:
            kwargs = kwargs | dict(zip(self.names.options, options, strict=False))
            for name in self.names.options:  # what PyTorch takes as a number
                if isinstance(kwargs.get(name), torch.Tensor):
                    kwargs[name] = self._number(name, lift(kwargs[name]), factors)
            named = [i for i, name in enumerate(self.names.positional) if name in kwargs]
            for name in self.names.positional[len(operands) : max(named, default=-1) + 1]:
                operands.append(kwargs.pop(name, None))  # one that is left out between others: clamp(x, max=1)
        for i, operand in enumerate(operands):
            if isinstance(operand, (torch.Tensor, jax.Array, np.ndarray)):
                operands[i] = lift(operand)
            elif isinstance(operand, np.generic):
                operands[i] = number_of(operand)
        if not any(isinstance(x, Torchish) for x in operands):  # PyTorch lets only add, sub, mul and div come this far
            operands[0] = lift(torch.tensor(operands[0]))
        return *self._pointwise(operands, kwargs), operands, kwargs, factors

    def _pointwise(self, operands: Sequence[object], kwargs: dict[str, object]) -> tuple[PromotionPlan, Pointwise]:
        """The promotion plan for operands, and the body that computes with them as planned."""
        kind = self.promote if isinstance(self.promote, Promotion) else self.promote(kwargs)  # pyright: ignore
        plan = planned(kind, self.unpromoted, operands)
        if self.strides is not None:
            plan = plan._replace(strides=self.strides(plan.shape, *operands, **kwargs))
        self.expect(plan.compute, operands, kwargs)
        dtype: Any = plan.result
        if self.dtype is not None:
            dtype = self.dtype(*operands, **kwargs) if callable(self.dtype) else self.dtype
        shape = plan.shape if plan.layout is None else tuple(plan.shape[dim] for dim in plan.layout)
        return plan, Pointwise(self.body, shape, self.unpromoted, plan.compute, dtype)

    def _number(self, name: str, tensor: Torchish, factors: list):
        """The number that a tensor holds, or its array where that is a factor, which may be traced."""
        if name not in self.fits or tensor.known is not None or not is_traced(tensor.read()):
            return tensor.item()
        factors.append(tensor)
        return lax.reshape(tensor.read(), ())

    def wrap_all(
        self,
        result: object,
        dtype: object,
        known: object,
        tensors: list[Torchish],
        device: torch.device | None = None,
        layout: tuple[int, ...] | None = None,
        strides: object = None,
    ) -> object:
        """The tensors of the arrays that the body has given; see `as_result`."""
        if self.expect_results is not None:
            self.expect_results(result)
        if isinstance(result, (tuple, list)):
            dtypes = dtype if isinstance(dtype, tuple) else (dtype,) * len(result)
            parts = [
                as_result(
                    part, each, tensors, known and defer(operator.getitem, known, i), device, layout, strides, self.name
                )
                for i, (part, each) in enumerate(zip(result, dtypes, strict=True))
            ]
            if isinstance(result, list):
                return parts
            return self.result_type(parts) if self.result_type else tuple(parts)
        return as_result(result, dtype, tensors, known, device, layout, strides, self.name)


class InnerRule:
    """A rule on arrays that rules on tensors call: PyTorch has no such function, so it computes known values too.

    Args:
        options: those of `RuleOptions`.
    """

    def __init__(self, body: Callable, name: str, **options: Unpack[RuleKeywords]):
        options["has_own_values"] = True
        self._rule = ArrayRule(body, name, RuleOptions(**options))

    def __call__(self, args: tuple, kwargs: dict):
        return this_call().run_rule(self._rule.body, self._rule, args, kwargs)


def _has_tensor(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return any(isinstance(item, torch.Tensor) for item in value)
    return isinstance(value, torch.Tensor)


def _numbers(value: object):
    """Numbers in place of the tensors that hold them."""
    if isinstance(value, (list, tuple)):
        return [_numbers(item) for item in value]
    if not isinstance(value, torch.Tensor):
        return value
    return value.item() if value.numel() == 1 else this_call().dispatch(torch.Tensor.tolist, (value,), {})


def _each(operand: object, function: Callable):
    """`function` of an operand, or of each in a list of them."""
    return [function(x) for x in operand] if isinstance(operand, (list, tuple)) else function(operand)
