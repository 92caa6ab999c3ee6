"""The derivative that an autograd function defines, as a JAX derivative of its result."""

import weakref
from collections.abc import Callable
from itertools import zip_longest
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import torch
from jax.custom_derivatives import SymbolicZero
from torch.autograd.function import once_differentiable

from ..internals.jax import varying_axes
from ..runtime.errors.hints import advised
from ..runtime.translation import Call, this_call
from ..tensors.dtypes import canonical
from ..tensors.history import Node
from ..tensors.tensor import Torchish, wrap
from ..tracing.execution import Execution
from ..tracing.primitives import linear_call, once
from ..tracing.tensor_spec import conjugate
from ..tracing.traces import axes_in_types, varying
from ..tracing.user_code import note_made, of_user
from .function_residuals import Context, Residuals, Start
from .linearization import matched, own_axes, reduced_axes
from .runs import Runs

_Function = torch.autograd.Function
_ONCE = once_differentiable(lambda ctx: None).__code__


def base_of(tensor: Torchish) -> torch.Tensor:
    return tensor if tensor._viewed is None else tensor._viewed


@jax.tree_util.register_static
class _WantedDerivatives(NamedTuple):
    """The inputs that a derivative is taken with respect to."""

    positions: tuple[bool, ...]


class Derivative:
    """The derivative of one run of a function, as a function of arrays.

    Args:
        start: where the run began.
        inputs: the tensors among its arguments that may have a derivative, by their places.
        ctx: its context after that run.
        results: what it gave.
        outputs: the places of those that have a derivative.
        node: the `grad_fn` of these.
    """

    def __init__(
        self,
        start: Start,
        inputs: dict[int, Torchish],
        ctx: Context,
        results: tuple,
        outputs: tuple[int, ...],
        node: Node,
    ):
        call = this_call()
        self._function, self._call_type = ctx._function, type(call)
        self._name = node.name()
        self._node, self._prehooks, self._posthooks = weakref.ref(node), node.prehooks, node.posthooks
        call.contexts.append(ctx)
        self._count, self._positions = len(start.args), tuple(inputs)
        self._results = [(x.dtype, x.shape) if isinstance(x, Torchish) else None for x in results]
        self._outputs = outputs
        self._residuals = Residuals(start, inputs, ctx, [results[position] for position in outputs])
        around = self._residuals.around
        self._inputs = [(x.dtype, x.shape) for x in (*inputs.values(), *around)]
        self._own_axes = own_axes((*inputs.values(), *around))
        self._materialize, self._materialize_others = ctx.materialize_grads, ctx._materialize_non_diff_grads
        self._runs = Runs(call.execution.path.policy)

    def attach(self, inputs: list, results: list) -> list:
        """The results, with derivatives with respect to the inputs."""
        inputs = [*inputs, *(x.read() for x in self._residuals.around)]
        residuals = self._residuals.hand_over()
        if self._function.jvp is not _Function.jvp:
            return self._with_tangents(inputs, results, residuals)
        axes = axes_in_types()
        if axes:
            results = self._as_backward_takes(inputs, results, residuals, axes)
            types = [varying_axes(x) for x in inputs]

        @jax.custom_vjp
        def attached(inputs: list, results: list, residuals: list):
            del inputs, residuals
            return results

        def forward(inputs: list, results: list, residuals: list):
            wanted = _WantedDerivatives(tuple(x.perturbed for x in inputs))
            inputs, results, residuals = jax.tree.map(
                lambda x: x.value, (inputs, results, residuals), is_leaf=_is_primal
            )
            results = attached(inputs, results, residuals)
            return results, (self._residuals.filled(inputs, results, residuals), wanted)

        def backward(residuals: list, cotangents: list):
            residuals, wanted = residuals
            found = self._pull(residuals, wanted.positions, cotangents)
            if axes:
                found = [matched(x, kind) for x, kind in zip(found, types, strict=True)]
            return found, None, None

        attached.defvjp(forward, backward, symbolic_zeros=True)
        return attached(inputs, results, residuals)

    def _as_backward_takes(self, inputs: list, results: list, residuals: list, axes: frozenset[str]) -> list:
        """The results, typed as differing over the axes over which the backward sums their cotangents."""
        if self._own_axes:
            return [varying(x, axes) for x in results]
        if not any(axes - varying_axes(x) for x in results):
            return results

        def pull() -> list:
            cotangents = [varying(jnp.zeros(x.shape, x.dtype), axes) for x in results]
            found = self._pull(self._residuals.filled(inputs, results, residuals), (True,) * len(inputs), cotangents)
            return [x for x in found if x is not None]

        summed = reduced_axes(pull) & axes
        return [varying(x, summed) for x in results]

    def _with_tangents(self, inputs: list, results: list, residuals: list) -> list:
        """As `attach`, with a derivative in forward mode too."""

        @jax.custom_jvp
        def attached(inputs: list, results: list, residuals: list):
            del inputs, residuals
            return results

        @attached.defjvp
        def _(primals: tuple[list, list, list], tangents: tuple[list, list, list]):
            results = attached(*primals)
            residuals = self._residuals.filled(primals[0], results, primals[2])
            wanted = (True,) * len(primals[0])
            pull = lambda residuals, cotangents: self._pull(residuals, wanted, cotangents)
            return results, linear_call(self._push, pull, residuals, tangents[0], results)

        return attached(inputs, results, residuals)

    def _running(self, body: Callable[[Any], list]) -> list:
        def run(execution: Execution, _given: object):
            new_call: object = self._call_type
            with new_call(execution=execution) as call, torch.enable_grad():
                call.is_backward = True
                return body(call)

        return self._runs.run(run, code=(self._function,))

    def _pull(self, residuals: list, wanted: tuple[bool, ...], cotangents: list) -> list:
        """JAX's cotangents of the inputs."""

        def run(call: Call):
            gradients = tuple(self._gradients_of_results(cotangents))
            for hook in list(self._prehooks.values()):
                gradients = _replaced(of_user(hook)(gradients), gradients)
            backward = self._function_of_gradients()
            with self._residuals.context_with(residuals, wanted) as (ctx, leaves):
                note_made(ctx)
                with advised():
                    found = of_user(backward)(ctx, *gradients)
                found = self._checked(found if isinstance(found, tuple) else (found,))
                node = self._node()
                if node is not None:
                    node.undefined = {i for i, position in enumerate(self._positions) if found[position] is None}
                for hook in list(self._posthooks.values()):
                    found = _replaced(of_user(hook)(found, gradients), found)
                given = [found[position] for position in self._positions]
                arrays = [
                    self._cotangent(call, _added(gradient, leaves.get(number)), number, dtype, shape)
                    for number, (gradient, (dtype, shape)) in enumerate(zip_longest(given, self._inputs))
                ]
            if call.paths[-1].is_one_of_several:  # others may have a gradient there
                arrays = [
                    jnp.zeros(shape, canonical(dtype)) if x is None else x
                    for x, (dtype, shape) in zip(arrays, self._inputs, strict=True)
                ]
            message = self._error_of_second(backward)
            if message is None:
                return arrays
            origins = [*self._residuals.without_key(residuals), *cotangents]
            origins = [x for x in origins if x is not None and not isinstance(x, SymbolicZero)]
            return [None if x is None else once(x, origins, message) for x in arrays]

        return self._running(run)

    def _error_of_second(self, backward: Callable) -> str | None:
        """The error that a derivative of the backward is; None if it has one."""
        name = self._function.__name__
        if _is_once(backward):
            return f"trying to differentiate twice a function that was marked with @once_differentiable: {name}"
        if self._residuals.are_recorded:
            return (
                f"got a second derivative of {name}, whose backward differentiates what its forward has recorded of "
                "detached tensors, which does not lead to its inputs; wanted a backward that computes with the inputs"
            )
        return None

    def _push(self, residuals: list, tangents: list) -> list:
        """JAX's tangents of the results."""

        def run(call: Call):
            given: list = [None] * self._count
            for position, (dtype, _), tangent in zip(self._positions, self._inputs, tangents, strict=True):
                given[position] = wrap(tangent, dtype)
            with self._residuals.context_with(residuals, (True,) * len(self._inputs), forwards=True) as (ctx, _):
                note_made(ctx)
                found = of_user(self._function.jvp)(ctx, *given)
                found = found if isinstance(found, tuple) else (found,)
                self._check_tangents(found)
                arrays = []
                for position in self._outputs:
                    dtype, shape = self._result(position)
                    tangent = torch.zeros(shape, dtype=dtype) if found[position] is None else found[position]
                    arrays.append(call.array_of(call.constants.lift(tangent.to(dtype))))
            return arrays

        return self._running(run)

    def _check_tangents(self, found: tuple) -> None:
        """Expects that results without a derivative have no tangent."""
        for position, tangent in enumerate(found):
            if tangent is not None and position not in self._outputs:
                raise RuntimeError(
                    f"{self._function.__name__}.jvp returned a tangent at position {position}, but the corresponding "
                    "forward output is not a differentiable Tensor. You should return None at that position instead."
                )

    def _gradients_of_results(self, cotangents: list):
        given = dict(zip(self._outputs, cotangents, strict=True))
        for position, result in enumerate(self._results):
            cotangent = given.get(position)
            if result is None:
                yield None
            elif cotangent is not None and not isinstance(cotangent, SymbolicZero):
                yield wrap(conjugate(cotangent), result[0])
            else:
                dtype, shape = result
                fills = self._materialize and (position in given or self._materialize_others)
                yield wrap(jnp.zeros(shape, canonical(dtype)), dtype) if fills else None

    def _result(self, position: int) -> tuple[torch.dtype, torch.Size]:
        return self._results[position]  # pyright: ignore[reportReturnType]

    def _function_of_gradients(self) -> Callable:
        function = self._function
        if function.backward is not _Function.backward and function.vjp is not _Function.vjp:
            raise RuntimeError(
                "Implementing both 'backward' and 'vjp' for a custom Function is not allowed. You should only "
                "implement one of them."
            )
        return function.vjp if function.backward is _Function.backward else function.backward

    def _checked(self, gradients: tuple) -> tuple:
        extra = gradients[self._count :]
        if len(gradients) < self._count or any(x is not None for x in extra):
            raise RuntimeError(
                f"function {self._name} returned an incorrect number of gradients (expected {self._count}, "
                f"got {len(gradients)})"
            )
        return gradients[: self._count]

    def _cotangent(self, call: Call, gradient: torch.Tensor | None, number: int, dtype: torch.dtype, shape: torch.Size):
        """JAX's cotangent for PyTorch's gradient of an input, summed to its shape and cast to its dtype."""
        if gradient is None:
            return None  # to JAX, zeros
        gradient = call.constants.lift(gradient)
        if gradient.shape != shape:
            if not _sums_to(gradient.shape, shape):
                raise RuntimeError(
                    f"Function {self._name} returned an invalid gradient at index {self._positions[number]} - got "
                    f"{list(gradient.shape)} but expected shape compatible with {list(shape)}"
                )
            gradient = gradient.sum_to_size(shape)
        return conjugate(call.array_of(call.constants.lift(gradient.to(dtype))))


def _added(gradient: torch.Tensor | None, leaf: Torchish | None) -> torch.Tensor | None:
    """The gradient of an input from a backward, plus what a backward pass within it has accumulated there."""
    left = None if leaf is None else leaf._gradient
    return gradient if left is None else left if gradient is None else gradient + left


def _sums_to(shape: torch.Size, smaller: torch.Size) -> bool:
    ends = zip(reversed(shape), reversed(smaller), strict=False)
    return len(smaller) <= len(shape) and all(small in (size, 1) for size, small in ends)


def _replaced(given: object, before: tuple) -> tuple:
    """The gradients after a hook: those that it returned, if any."""
    if given is None:
        return before
    return given if isinstance(given, tuple) else (given,)


def _is_primal(value: object) -> bool:
    return isinstance(value, jax.custom_derivatives.CustomVJPPrimal)


def _is_once(backward: Callable) -> bool:
    """Returns True if a backward is marked as `torch.autograd.function.once_differentiable`."""
    return getattr(backward, "__code__", None) is _ONCE
