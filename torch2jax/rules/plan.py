"""Plans of rules on arrays: everything that the metadata of the operands decides, decided once.

A plan is made by what a rule does around its body (`array_rule.ArrayRule`), for operands of some metadata, and holds
for all others of the same. What it cannot hold for is said by `Bypass`.

Also here: plans of functions that fill a new tensor with one value, as ``torch.zeros``, where nothing is traced.
"""

import functools
import math
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import torch
from jax import lax

from ..internals.dispatch import DisableTorchFunction, len_torch_function_stack
from ..internals.jax import ArrayImpl
from ..internals.tensors import make_wrapper_subclass
from ..runtime.translation import calls_of_thread
from ..tensors.array_buffer import ArrayBuffer
from ..tensors.dtypes import canonical, number_in_dtype
from ..tensors.rebinding import alias_of
from ..tensors.storage import Storage
from ..tensors.tensor import CPU, Torchish, memory_order, note_constants, wrap_new
from .array_rule import ArrayRule
from .inline import Inlined, NeedsValues, run_inlined, template
from .inplace import InPlace, WithFlag
from .operands import of_dtype
from .options import is_in_old_order
from .pointwise import PromotionPlan, in_layout
from .rule import OverloadedRule, Reflected, is_of_metadata

NOT_PLANNED: object = object()
"""The result of a call that has no plan: the general path runs."""

_SEVERAL = (tuple, list, np.ndarray)
_ANY_ARRAY = np.float32(0)  # nothing is read while a plan is made
_make = make_wrapper_subclass  # pyright: ignore[reportAttributeAccessIssue]


class Bypass(Exception):
    """No plan can be made: the message is the reason."""


class ArrayPlan:
    """The plan of an operator for operands of some metadata.

    Args:
        rule: whose body gives the arrays.
        pointwise: what it does around its body, if it is pointwise.
        inlined: the body with all its constants.
        order: which of the call's tensors, counted in the order of its arguments, is at each place of `inlined`.
        dtype: PyTorch's, of the result or of each; None where those of the operands decide.
        strides: those of the result, or what gives them from its shape; None if it is contiguous.
        check: refuses values of the call's arguments, as they are given.
        requires_grad: whether an operand does.
        is_constant: whether no input of the call decides the operands.
    """

    __slots__ = (
        *("_aval", "_check", "_dtype", "_inlined", "_layout", "_logical", "_order", "_outcome", "_pointwise"),
        *("_ready", "_shape", "_strides", "is_constant", "requires_grad", "rule"),
    )

    def __init__(
        self,
        rule: ArrayRule,
        pointwise: PromotionPlan | None,
        inlined: Inlined,
        order: tuple[int, ...],
        dtype: object,
        strides: object,
        check: Callable[[tuple, dict], None] | None,
        requires_grad: bool,
        is_constant: bool,
    ):
        self.rule, self._pointwise, self._inlined, self._dtype, self._strides = rule, pointwise, inlined, dtype, strides
        self._layout = None if pointwise is None else pointwise.layout
        self._shape = None if pointwise is None else pointwise.shape
        self._order = None if order == tuple(range(len(order))) else order
        self._check, self.requires_grad, self.is_constant = check, requires_grad, is_constant
        self._ready: Callable | None = None  # the compiled body
        self._logical: tuple | None = None  # the dtype of the last result that has PyTorch's, and that one
        self._aval: object = None  # what JAX says of the last result
        self._outcome: tuple | None = None  # and what PyTorch says of it: shape, size, dtype, strides, order in memory

    def run(self, call: object, args: tuple, kwargs: dict | None, tensors: list, arrays: list, is_eager: bool) -> Any:
        """The result of the rule.

        Args:
            tensors: all in the arguments.
            arrays: their values, None for one that may be wanted in another way.
            is_eager: whether nothing is traced.
        """
        del call
        result = self._computed(args, kwargs, tensors, arrays, is_eager)
        if type(result) is not ArrayImpl or result.aval is not self._aval:
            wrapped = self._wrapped(result, tensors, is_eager)
            if self.is_constant:
                note_constants((wrapped,))
            return wrapped
        shape, size, dtype, strides, order = self._outcome  # pyright: ignore[reportGeneralTypeIssues]
        tensor = _make(Torchish, shape, strides=strides, dtype=dtype)
        tensor._node = Storage.evaluated(result, self._layout, size, order)
        tensor._label = CPU
        tensor._writes = [0]
        calls_of_thread.made[id(tensor)] = weakref.ref(tensor)
        if self.is_constant:
            tensor._node.memory.is_constant = True
        if self.requires_grad and torch.is_grad_enabled():
            self._descend(tensor, dtype, tensors)
        return tensor

    def _descend(self, tensor: Torchish, dtype: torch.dtype, tensors: list[Torchish]) -> None:
        if dtype.is_floating_point or dtype.is_complex:
            tensor.descend(tensors, self.rule.name)

    def buffer(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None,
        tensors: list,
        arrays: list,
        is_eager: bool,
        dtype: torch.dtype,
    ) -> ArrayBuffer | None:
        """The result of the rule as a physical array; None if it is not one tensor of that dtype."""
        result = self._computed(args, kwargs, tensors, arrays, is_eager)
        if type(result) is not ArrayImpl or result.aval is not self._aval:
            if result is None or isinstance(result, (tuple, list, np.ndarray)):
                return None
            aval = result.aval
            result, found = of_dtype(result, self._dtype, tensors)
            if found is not dtype:
                return None
            self._aval = aval if type(result) is ArrayImpl and result.aval is aval else None
        return ArrayBuffer(result, self._layout)

    def _computed(self, args: tuple, kwargs: dict | None, tensors: list, arrays: list, is_eager: bool) -> Any:
        if self._check is not None:
            self._check(args, kwargs or {})
        if self._layout is not None or None in arrays:
            arrays = self._arrays(tensors)
        if self._order is not None:
            arrays = [arrays[i] for i in self._order]
        if not is_eager:
            return run_inlined(self._inlined, arrays, self.rule.name)
        if self._ready is not None:
            try:
                return self._ready(*arrays)
            except NeedsValues:
                self._ready = None
        result = self._inlined.eager(*arrays)
        self._ready = self._inlined.ready
        return result

    def _arrays(self, tensors: list[Torchish]) -> list:
        if self._shape is None:
            return [tensor.read() for tensor in tensors]
        return [in_layout(tensor, self._shape, self._layout) for tensor in tensors]

    def _wrapped(self, result: Any, tensors: list[Torchish], is_eager: bool) -> object:
        strides: Any
        rule, dtype, strides = self.rule, self._dtype, self._strides
        if isinstance(strides, functools.partial):  # of the first operands, which nobody is to keep
            shapes = {_shape_of(x, self._layout) for x in jax.tree.leaves(result)}
            strides = self._strides = _StridesByShape({shape: strides(shape) for shape in shapes})
        has_gradients = torch.is_grad_enabled()
        if not (is_eager or has_gradients) or isinstance(result, _SEVERAL) or result is None:
            if type(result) is tuple and self._shape is None and (is_eager or has_gradients):
                return self._wrapped_all(result, tensors)
            return rule.wrap_all(result, dtype, None, tensors, layout=self._layout, strides=strides)
        aval = result.aval
        found, dtype = self._in_dtype(result, dtype, tensors)
        shape = found.shape if self._shape is None else self._shape
        if callable(strides):
            strides = strides(shape)
        size = math.prod(shape)
        if type(result) is ArrayImpl and found is result:
            self._outcome = shape, size, dtype, strides, None if strides is None else memory_order(strides)
            self._aval = aval  # the last, for other threads
        tensor = wrap_new(ArrayBuffer(found, self._layout), shape, size, dtype, strides)
        if self.requires_grad and has_gradients:
            self._descend(tensor, dtype, tensors)
        return tensor

    def _wrapped_all(self, results: tuple, tensors: list[Torchish]) -> object:
        """As `_wrapped`, for several results, none of a pointwise operator."""
        dtypes, parts = self._dtype if isinstance(self._dtype, tuple) else (self._dtype,) * len(results), []
        for array, dtype in zip(results, dtypes, strict=True):
            if array is None:
                parts.append(None)
                continue
            array = jax.numpy.asarray(array) if isinstance(array, np.ndarray) else array
            array, dtype = of_dtype(array, dtype, tensors)
            shape = array.shape
            strides: Any = self._strides(shape) if callable(self._strides) else self._strides
            tensor = wrap_new(ArrayBuffer(array, None), shape, math.prod(shape), dtype, strides)
            if self.requires_grad and torch.is_grad_enabled():
                self._descend(tensor, dtype, tensors)
            parts.append(tensor)
        return self.rule.result_type(parts) if self.rule.result_type else tuple(parts)

    def _in_dtype(self, array: jax.Array, dtype: object, tensors: list[Torchish]) -> tuple[Any, torch.dtype]:
        """As `of_dtype`, with the conversion that was found for the plan's metadata."""
        known = self._logical
        if known is not None and known[0] == array.dtype:
            return array, known[1]
        found, dtype = of_dtype(array, dtype, tensors)
        if found is array:
            self._logical = array.dtype, dtype
        return found, dtype


class _StridesByShape(dict):
    """The strides of results, by their shapes."""

    def __call__(self, shape: Sequence[int]) -> Any:
        return self[tuple(shape)]


def _shape_of(array: jax.Array, layout: tuple[int, ...] | None) -> tuple[int, ...]:
    return tuple(ArrayBuffer(array, layout if layout is not None and len(layout) == array.ndim else None).shape)


class Meant(NamedTuple):
    """A call to make a plan for, with its resolved rule and arguments."""

    rule: Any
    """The rule of the overload that the arguments choose."""
    args: tuple
    kwargs: dict
    given: list[Torchish]
    """Its distinct tensors in order; one that occurs twice is replaced by another one of its metadata."""
    check: Callable[[tuple, dict], None]
    """Raises an error for wrong values of the original arguments."""

    @classmethod
    def of(cls, function: Callable, rule: object, args: tuple, kwargs: dict) -> "Meant":
        """Resolves the call of a function.

        Raises:
            Bypass: it can have no plan.
        """
        seen: set[int] = set()
        args, kwargs = _distinct(args, seen), {name: _distinct(value, seen) for name, value in kwargs.items()}
        given = _tensors_in((*args, *kwargs.values()))
        check = functools.partial(_check, function, rule)
        return cls(*resolved(function, rule, args, kwargs)[1:], given, check)


def plan_of(meant: Meant) -> ArrayPlan:
    """The plan of a rule for such arguments, and for all of their metadata.

    Raises:
        Bypass: there can be none.
        Exception: what the rule refuses its operands with.
    """
    rule, args, kwargs, given, check = meant
    reason = unplanned(rule)
    if reason is not None:
        raise Bypass(reason)
    kwargs, out, device = rule.without_placement(kwargs)
    if out is not None or device is not None:
        raise Bypass("a result in a place of its own")
    if rule.takes_numbers(args, kwargs):
        raise Bypass("a tensor in place of a number")
    if rule.prepare is not None:
        args, kwargs = rule.prepare(*args, **kwargs)
    arrays: list = []
    if rule.promote is not None:
        plan, run, operands, options, factors = rule.planned(args, kwargs)
        if factors:
            raise Bypass("a tensor in place of a factor")
        found = _tensors_in(operands)
        body = rule.body if plan.leaves(operands) and not options else run
        body = functools.partial(body, **options) if options else body
        call = template(body, [_ANY_ARRAY if isinstance(x, torch.Tensor) else x for x in operands], {}, arrays)
        made, dtype, strides, layout = plan, run.result, plan.strides, plan.layout
    else:
        rule.expect_examined(args, kwargs)
        layout, found = rule.layout(args), []
        if layout is not None:
            raise Bypass("channels that are last")  # before anything is read in that order
        taken, options = rule.arrays(args, kwargs, layout, found)
        call = template(rule.body, taken, options, arrays)
        is_of_arguments = callable(rule.dtype) and not isinstance(rule.dtype, torch.dtype)
        dtype = rule.dtype(*args, **kwargs) if is_of_arguments else rule.dtype  # pyright: ignore
        made, strides = None, rule.strides_for(args, kwargs)
    positions = {id(tensor): i for i, tensor in enumerate(given)}
    if not all(id(tensor) in positions for tensor in found):
        raise Bypass("arguments that are made anew")
    taken = {id(tensor) for tensor in found}
    if not all(id(tensor) in taken for tensor in given):  # of a number, say, whose value is in the body
        raise Bypass("a tensor that is no operand")
    order = tuple([positions[id(x)] for x in found])
    requires_grad = any(tensor._node.storage.history is not None for tensor in given)
    is_constant = all(tensor._node.storage.memory.is_constant for tensor in given)
    check = None if rule.check is None else check
    return ArrayPlan(rule, made, Inlined.of(call), order, dtype, strides, check, requires_grad, is_constant)


def unplanned(rule: Any) -> str | None:
    """The reason why no call of a rule has a plan; None where one may have."""
    while type(rule) in _FORMS:
        rule = rule.rule
    if type(rule) is not ArrayRule:
        return "no rule" if rule is None else f"a rule that is a {type(rule).__name__}"
    if rule.concrete:
        return "a shape that depends on values"
    if rule.random:
        return "random numbers"
    if rule.prepare is not None and not is_of_metadata(rule.prepare):
        return "arguments that are prepared by their values"
    return None


_FORMS = frozenset((InPlace, WithFlag, Reflected))


def _check(function: Callable, rule: Any, args: tuple, kwargs: dict) -> None:
    """Refuses the values of a call's arguments."""
    _, rule, args, kwargs = resolved(function, rule, args, kwargs)
    rule = rule.rule if type(rule) is InPlace else rule
    rule.expect_values(args, rule.without_placement(kwargs)[0])


def _distinct(value: object, seen: set[int]) -> Any:
    """The argument, with another tensor of the same metadata in place of one that has been seen before."""
    if type(value) is Torchish:
        if id(value) in seen:
            return alias_of(value)
        seen.add(id(value))
    elif type(value) is tuple or type(value) is list:
        return type(value)([_distinct(item, seen) for item in value])
    return value


def _tensors_in(values: Iterable[object]) -> list[Torchish]:
    found: list[Torchish] = []
    for value in values:
        if type(value) is Torchish:
            found.append(value)
        elif type(value) is tuple or type(value) is list:
            found += _tensors_in(value)
    return found


def resolved(function: Callable, rule: Any, args: tuple, kwargs: dict) -> tuple[Callable, Any, tuple, dict]:
    """The rule that serves these arguments of a function, and the arguments by its names, by place as far as can be."""
    while rule is not None:
        if is_in_old_order(function, args):
            raise Bypass("an old order of arguments")
        if kwargs:
            args, kwargs = rule.names.placed(function, args, kwargs)
        if type(rule) is OverloadedRule:
            function = rule.choose(*args, **kwargs)
            rule = rule.find(function)
        elif type(rule) is WithFlag:
            rule, args, kwargs = rule.form(args, kwargs)
        elif type(rule) is Reflected and len(args) == 2 and not kwargs:
            return function, rule.rule, args[::-1], kwargs
        else:
            break
    return function, rule, args, kwargs


FILLED: dict[Callable, Callable[..., object]] = {}
"""Functions that fill a tensor, each with the function from its arguments to the value."""

full_at_once = jax.jit(lax.broadcast, static_argnums=1)
"""A new array filled with a scalar. Each call gives one of its own, since users may donate it."""


class FilledPlan:
    """The plan of a tensor that is filled with one value.

    Args:
        value: a scalar of the array's dtype.
        like: one that has come about so.
    """

    rule = None
    __slots__ = ("_dtype", "_shape", "_size", "_value")

    def __init__(self, value: np.ndarray, like: Torchish):
        self._value, self._shape, self._dtype = value, tuple(like.shape), like.dtype
        self._size = math.prod(self._shape)

    def run(self, call: object, args: tuple, kwargs: dict | None, tensors: list, arrays: list, is_eager: bool) -> Any:
        """Another such tensor."""
        del call, args, kwargs, tensors, arrays, is_eager
        if len_torch_function_stack():  # one may say on which device
            return NOT_PLANNED
        tensor = make_wrapper_subclass(Torchish, self._shape, dtype=self._dtype)
        tensor._node = Storage.evaluated(full_at_once(self._value, self._shape), None, self._size, None)
        tensor._label = CPU
        tensor._writes = [0]
        tensor._node.memory.is_constant = True
        calls_of_thread.made[id(tensor)] = weakref.ref(tensor)
        return tensor


def filled_plan_of(function: Callable, args: tuple, kwargs: dict, made: torch.Tensor) -> FilledPlan:
    """The plan of a call that has made a tensor.

    Raises:
        Bypass: there is none.
    """
    with DisableTorchFunction():
        if type(made) is not Torchish or type(made._node) is not Storage or made._label != CPU:
            raise Bypass("no new tensor, or one on another device")
        buffer = made._node._buffer
        if type(buffer) is not ArrayBuffer or type(buffer.array) is not ArrayImpl or made._node.history is not None:
            raise Bypass("a new tensor that is known, or requires grad")
        if not made.is_contiguous():
            raise Bypass("a new tensor with strides of its own")
        return FilledPlan(number_in_dtype(FILLED[function](*args, **kwargs), canonical(made.dtype)), made)
