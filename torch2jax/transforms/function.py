"""`torch.autograd.Function`: the derivatives that it defines are JAX's too.

The forward runs as it is, with gradients off. Then its results are `attached` to its inputs: an identity of the results
whose derivative is the function's own. That serves the tape and JAX's transformations alike.

`apply` is intercepted also if it was bound earlier: ``f = MyFunction.apply``. Up to PyTorch 2.13 it is a Python method,
whose code is exchanged. From 2.14 on it is a C++ method, and one that was bound before cannot be reached. But it looks
up three attributes of the function's class, in this order: `_backward_cls` (then it turns gradients off), `forward`,
which it calls, and `setup_context` if the class has its own, which it calls too. The class of these classes answers
such a series with `_BoundForward` and `_mark`. What C++ does with the results is harmless: they are marked as not
differentiable to it, so that it returns them as they are.
"""

import functools
import inspect
import itertools
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import torch
from torch.autograd.function import FunctionCtx, FunctionMeta
from torch.utils.hooks import RemovableHandle

from ..internals.dispatch import DisableTorchFunctionSubclass, EnableTorchFunction
from ..internals.transforms import is_fwd_grad_enabled, set_fwd_grad_enabled
from ..runtime.errors.locations import user_level
from ..runtime.patches import exchange, runs_instead_of
from ..runtime.translation import Call, current, this_call
from ..tensors.array_buffer import ArrayBuffer
from ..tensors.dtypes import is_integral
from ..tensors.history import Node, added
from ..tensors.interop import is_dense
from ..tensors.tensor import Restriction, Torchish, make_view, wrap
from ..tensors.traced import is_traced
from ..tensors.wrapped import NestedTensor, is_wrapper
from ..tracing.scope import closed_over
from ..tracing.shadows import apart_from_inner, cut, inner_arrays, sealed, shadow_of, uncut, zeros_of
from .function_derivative import Derivative, base_of
from .function_residuals import Context, Start, run_forward
from .inputs import ask
from .vmap import batch_of_operands, run_rule

_ORIGINAL = vars(torch.autograd.Function)["apply"]

TAKES_KEYWORDS = not isinstance(_ORIGINAL, classmethod)
"""True if `apply` passes keyword arguments on to a forward that takes the context as well."""


def run_instead_of_apply(apply: Callable) -> None:
    """Declares ``apply(cls, *args, **kwargs)`` to run in place of ``cls.apply(*args, **kwargs)``."""
    if isinstance(_ORIGINAL, classmethod):
        runs_instead_of(_ORIGINAL.__func__)(apply)
        return

    def of_class(cls: type[torch.autograd.Function], *args: object, **kwargs: object):
        chosen = _ORIGINAL.__get__(None, cls) if current() is None else apply.__get__(cls)
        return chosen(*args, **kwargs)

    exchange(torch.autograd.Function, "apply", classmethod(of_class))
    exchange(FunctionMeta, "__getattribute__", _attributes(apply), may_lack=True)


class _Series(threading.local):
    """The attributes that PyTorch's C++ has looked up on this thread in a row."""

    cls: Any = None
    modes: tuple[bool, bool] = (True, True)
    """The modes, reverse and forward, in which gradients were recorded when `_backward_cls` was looked up."""
    has_run: bool = False


_series = _Series()


def _attributes(apply: Callable) -> Callable[[Any, str], Any]:
    """Returns the `__getattribute__` of the classes of functions."""

    def __getattribute__(cls: type[torch.autograd.Function], name: str):
        value = type.__getattribute__(cls, name)
        if name == "_backward_cls" and current() is not None:
            _series.cls, _series.has_run = cls, False
            _series.modes = torch.is_grad_enabled(), is_fwd_grad_enabled()
        elif name == "forward" and _series.cls is cls and not _series.has_run:
            _series.cls = None
            return _BoundForward(cls, apply, value, _series.modes)
        elif name == "setup_context" and _series.cls is cls and _series.has_run:
            _series.cls = None
            return _mark
        return value

    return __getattribute__


class _BoundForward:
    """A function's forward as C calls it: all of `apply`."""

    def __init__(
        self, cls: type[torch.autograd.Function], apply: Callable, forward: Callable, modes: tuple[bool, bool]
    ):
        self._cls, self._apply, self._forward, self._modes = cls, apply, forward, modes

    def __call__(self, *args: Any, **kwargs: object):
        cls = self._cls
        has_context_of_its_own = cls.setup_context is not torch.autograd.Function.setup_context
        if not has_context_of_its_own:
            if not args or type(args[0]) is not vars(cls)["_backward_cls"]:  # somebody else looked it up
                return self._forward(*args, **kwargs)
            context, args = args[0], args[1:]
        backward, forward = self._modes
        with torch.set_grad_enabled(backward), set_fwd_grad_enabled(forward):
            output = self._apply(cls, *args, **kwargs)
        if has_context_of_its_own:
            _series.cls, _series.has_run = cls, True
        else:
            _mark(context, args, output)
        return output


def _mark(context: FunctionCtx, inputs: Sequence[object], output: object) -> None:
    """The `setup_context` that makes C++ return the result of `apply` unchanged."""
    results = [x for x in (output if isinstance(output, tuple) else (output,)) if isinstance(x, torch.Tensor)]
    context.mark_non_differentiable(*results)
    context.mark_dirty(*(x for x in results if any(x is given for given in inputs)))


_Function = torch.autograd.Function


def apply(cls: Any, *args: object, **kwargs: object):
    """Runs ``Function.apply``."""
    if _has_context_of_its_own(cls):
        bound = inspect.signature(cls.forward).bind(*args, **kwargs)
        bound.apply_defaults()
        args = bound.args
    elif kwargs and TAKES_KEYWORDS:
        args = inspect.signature(cls.forward).bind(None, *args, **kwargs).args[1:]
    elif kwargs:
        raise TypeError(f"{cls.__name__}.apply() takes no keyword arguments")
    call = this_call()
    if any(level.is_functorchs for level in call.transformations) and not (
        _has_context_of_its_own(cls) or _is_operators(cls)
    ):
        raise RuntimeError(
            "In order to use an autograd.Function with functorch transforms (vmap, grad, jvp, jacrev, ...), it must "
            "override the setup_context staticmethod."
        )
    args = tuple(_of_call(call, x) if isinstance(x, torch.Tensor) else x for x in args)
    return _Application(cls, args).run(call)


run_instead_of_apply(apply)


def _of_call(call: Call, tensor: torch.Tensor) -> object:
    return uncut(tensor) if is_wrapper(tensor) else call.constants.lift(tensor)


def _has_context_of_its_own(cls: type[torch.autograd.Function]) -> bool:
    return cls.setup_context is not _Function.setup_context


def _is_operators(cls: type[torch.autograd.Function]) -> bool:
    """True if a function is the derivative of a custom operator, which JAX transforms in any way."""
    return cls.forward.__module__ == "torch._library.autograd"


class _FunctionNode(Node):
    """The ``grad_fn`` of a function's result."""

    __slots__ = ("ends",)

    def __init__(self, operation: str, inputs: Iterable[Node | None]):
        super().__init__(operation, inputs)
        self.ends: dict[int, Any] = {}  # of its results, by their numbers

    def number_of(self, end: Any) -> int:
        return next((number for number, other in self.ends.items() if other.variables == end.variables), 0)

    def end_of(self, number: int) -> Any:
        return self.ends.get(number)

    def name(self) -> str:
        return self._operation + "Backward"

    def register_hook(self, hook: Callable) -> RemovableHandle:
        """Calls ``hook(grad_inputs, grad_outputs)`` after the backward of the function."""
        this_call().execution.expect_hook(hook)
        return added(self.posthooks, hook)

    def _show(self) -> None:
        pass  # the function's derivative calls the hooks itself


class _Application:
    """One run of a function."""

    def __init__(self, function: type[torch.autograd.Function], args: tuple):
        self.function, self.args = function, args
        carriers = ((i, _carrier_of(x)) for i, x in enumerate(args) if isinstance(x, torch.Tensor))
        self.inputs = {i: x for i, x in carriers if x is not None and not is_integral(x.dtype)}
        """The tensors among the arguments that may have a derivative; shadows of those that wrap others."""
        self.required = tuple(i in self.inputs and self.inputs[i].history is not None for i in range(len(args)))
        self.is_recorded = any(self.required)

    def run(self, call: Call):
        batch = None if _is_operators(self.function) else batch_of_operands(self.function, self.args)
        if batch is not None and batch is call.transformations[-1]:
            return run_rule(self.function.vmap, self.args, batch)
        if self.function.jvp is _Function.jvp and any(map(_has_tangent, self.inputs.values())):
            raise NotImplementedError(
                "You must implement the jvp function for custom autograd.Function to use it with forward mode AD."
            )
        arrays = [x.read() for x in self.inputs.values()]  # before they may be written to
        start = Start.of(call, self.args)
        ctx = Context(self.function, functools.partial(self._needed, call))
        output = run_forward(self.function, ctx, self.args, batch)
        with DisableTorchFunctionSubclass():  # classes of code's own have a say in what it does alone
            return self._recorded(call, ctx, start, arrays, output)

    def _needed(self, call: Call) -> tuple[bool, ...]:
        """The arguments that require grad."""
        if not self.is_recorded and (call.transformations or call.dual is not None or call.execution.inputs is None):
            return tuple(i in self.inputs for i in range(len(self.args)))  # whose derivatives JAX may ask for later
        for i, x in self.inputs.items():
            if not self.required[i]:
                ask(x)
        return self.required

    def _recorded(self, call: Call, ctx: Context, start: Start, arrays: list, output: object):
        results = output if isinstance(output, tuple) else (output,)
        self._check_written(ctx, results)
        wrappers = [x for x in self.args if isinstance(x, torch.Tensor) and is_wrapper(x)]
        if not torch.is_grad_enabled() or not (self.inputs or wrappers):
            return output
        fixed = {id(x) for x in ctx.non_differentiable}
        is_fixed = [id(x) in fixed for x in results]
        if any(type(x) is NestedTensor for x in results):
            sources, name = [*arrays, *inner_arrays(wrappers)], self.function.__name__
            results = tuple(sealed(call, x, sources, name) if type(x) is NestedTensor else x for x in results)
        of_wrappers = {i: x for i, x in enumerate(results) if _is_wrapper(x)}
        results = tuple(zeros_of(call, x) if i in of_wrappers else x for i, x in enumerate(results))
        results = tuple(
            self._own(call.constants.lift(x), ctx) if isinstance(x, torch.Tensor) and type(x) is not NestedTensor else x
            for x in results
        )
        differentiable = {
            i: x
            for i, x in enumerate(results)
            if isinstance(x, Torchish) and not is_integral(x.dtype) and not is_fixed[i]
        }
        node = _FunctionNode(self.function.__name__, [x.history for x in self.inputs.values()])
        if call.tape is not None:
            node.operands = [None if x.history is None else call.tape.end_of(x) for x in self.inputs.values()]
        arrays_around = (x.read() for x in closed_over(self.args))
        if differentiable and any(map(is_traced, itertools.chain(arrays, arrays_around, inner_arrays(wrappers)))):
            derivative = Derivative(start, self.inputs, ctx, results, tuple(differentiable), node)
            values = derivative.attach(arrays, [x.read() for x in differentiable.values()])
            values = [apart_from_inner(x, wrappers, self.function.__name__) for x in values] if wrappers else values
        else:
            values = [x.read() for x in differentiable.values()]
        for (number, result), array in zip(differentiable.items(), values, strict=True):
            is_view = result._viewed is not None and any(result._viewed is base_of(x) for x in self.inputs.values())
            self._bind_result(result, number, array, node, ctx)
            if not any(result is x for x in ctx.dirty_tensors):
                made = Restriction("custom", self.function.__name__, number, result._writes[0])
                result._restriction = made if is_view else None
        results = tuple(
            self._wrapper_with(call, of_wrappers[i], x) if i in of_wrappers else x for i, x in enumerate(results)
        )
        return results if isinstance(output, tuple) else results[0]

    def _wrapper_with(self, call: Call, wrapper: object, shadow: Any) -> Any:
        """A result that is a wrapper, whose derivative is that of its shadow."""
        return cut(call, wrapper, shadow) if is_traced(shadow.read()) else wrapper

    def _check_written(self, ctx: Context, results: tuple) -> None:
        """Expects of the tensors that are marked as written to that they are arguments, and are given back."""
        for dirty in ctx.dirty_tensors:
            if not any(dirty is x for x in self.args):
                warnings.warn(
                    "ctx.mark_dirty() received a tensor that was not an input. Only input Tensors that have been "
                    "mutated should be passed to ctx.mark_dirty().",
                    stacklevel=user_level(),
                )
            elif not any(dirty is x for x in results):
                raise RuntimeError(
                    "Some elements marked as dirty during the forward method were not returned as output. The inputs "
                    "that are modified inplace must all be outputs of the Function."
                )
            elif len(results) > 1 and self.is_recorded and isinstance(dirty, Torchish) and dirty._viewed is not None:
                raise RuntimeError(
                    "If your Function modifies inplace an input that is a view of another Tensor, your Function cannot "
                    "return more than one Tensor. This is not supported by the current autograd engine. You should "
                    "either make sure the input is not a view (using .clone() for example) or make your Function only "
                    "return one Tensor (potentially splitting it into two Functions: one doing the inplace that "
                    "returns a single Tensor and a second one that does the other operations)."
                )

    def _own(self, result: Torchish, ctx: Context) -> Torchish:
        """A result as a tensor distinct from the inputs: for an input that was not written to, a view.

        A class of code's own says what its views are.
        """
        if not any(result is x for x in self.args) or any(result is x for x in ctx.dirty_tensors):
            return result
        mine: object = None
        with torch.no_grad():
            if type(result) is not Torchish:
                with EnableTorchFunction():
                    mine = result.view_as(result)
            if not isinstance(mine, Torchish):
                mine = make_view(result, result._node, result)
        mine._viewed = base_of(result)
        return mine

    def _bind_result(self, result: Torchish, number: int, array: jax.Array, node: _FunctionNode, ctx: Context) -> None:
        if any(result is x for x in ctx.dirty_tensors):
            result.write(ArrayBuffer(array, None))
        elif any(result._node.storage.memory is x._node.storage.memory for x in self.inputs.values()):
            result._node = result._node.rebased(ArrayBuffer(array, None))
            if is_traced(array):
                result._node.storage.note_known(None)
        else:
            strides = result.stride() if is_dense(result) else None
            result._node = wrap(array, result.dtype, strides=strides)._node
        if self.is_recorded:
            result._node.storage.history = node
            tape = this_call().tape
            if tape is not None:
                node.ends[number] = tape.end_of(result)
                node.end = node.end or node.ends[number]


def _carrier_of(tensor: torch.Tensor) -> Torchish | None:
    """The carrier of an argument's derivatives: the tensor itself, or the shadow of a wrapper."""
    if _is_wrapper(tensor):
        return shadow_of(this_call(), tensor)
    return tensor if isinstance(tensor, Torchish) else None


def _is_wrapper(x: object) -> bool:
    """Returns True if a value is a wrapper that has a shadow; a jagged tensor has the derivatives of its values."""
    return isinstance(x, torch.Tensor) and is_wrapper(x) and type(x) is not NestedTensor


def _has_tangent(tensor: Torchish) -> bool:
    dual = this_call().dual
    return dual is not None and dual.has_tangent(tensor)
