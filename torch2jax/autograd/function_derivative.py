"""The derivative that an autograd function defines, as JAX's of what the function gave."""

import contextlib
import functools
import inspect
import warnings
import weakref
from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import torch
from jax.custom_derivatives import SymbolicZero
from torch.autograd.function import FunctionCtx, once_differentiable

from ..hints import advised
from ..internals.guards import DisableTorchFunctionSubclass
from ..internals.jax_traces import varying_axes
from ..tensors.dtypes import canonical, is_integral
from ..tensors.history import Node
from ..tensors.interop import is_dense
from ..tensors.tensor import Torchish, wrap
from ..tensors.traced import is_traced
from ..tensors.trees import map_arguments
from ..tracing.closures import closed_over
from ..tracing.linear_call import linear_call
from ..tracing.manual_axes import axes_in_types, varying
from ..tracing.markers import once
from ..tracing.tensor_spec import conjugate
from ..translation import is_in_progress
from .call import this_call
from .forward_start import Start, run_forward
from .manual_axes import matched, own_axes, reduced_axes
from .runs import Attempt, Runs

__all__ = ["Context", "Derivative", "base_of"]

_Function = torch.autograd.Function
_ONCE = once_differentiable(lambda ctx: None).__code__
_OWN = frozenset(vars(FunctionCtx)) | {
    *("_function", "_needed", "to_save", "saved_for_forward"),
    *("dirty_tensors", "non_differentiable", "materialize_grads"),
}
"""What a context has before a function adds attributes to it."""


class Context(FunctionCtx):
    """The ``ctx`` of a function.

    Args:
        function: whose it is.
        needed: gives which of its arguments gradients are wanted for.
    """

    saved_tensors: tuple = ()

    def __init__(self, function, needed: Callable[[], tuple[bool, ...]]):
        self._function, self._needed = function, needed
        self.materialize_grads = self._materialize_non_diff_grads = True
        self.to_save: tuple = ()
        self.saved_for_forward: tuple = ()
        self.dirty_tensors: tuple = ()
        self.non_differentiable: tuple = ()

    def name(self) -> str:
        return self._function.__name__ + "Backward"

    @property
    def needs_input_grad(self) -> tuple[bool, ...]:
        return self._needed()

    @needs_input_grad.setter
    def needs_input_grad(self, needed: tuple[bool, ...]) -> None:
        self._needed = lambda: needed  # as PyTorch's own derivatives of operators say for a while

    @property
    def saved_variables(self) -> tuple:
        warnings.warn("'saved_variables' is deprecated; use 'saved_tensors'", DeprecationWarning, stacklevel=2)
        return self.saved_tensors

    def __getattr__(self, name: str):
        value = getattr(self._function, name)  # as PyTorch's contexts find the attributes of their class
        return functools.partial(value, self) if inspect.isfunction(value) else value


def base_of(tensor: Torchish) -> torch.Tensor:
    return tensor if tensor._viewed is None else tensor._viewed


def _alias_of(result: Torchish, inputs: dict[int, Torchish]) -> tuple[int, str] | None:
    """The input that a result is itself, or is a view of, or of whose base it is another view; None if it is new."""
    for place, x in inputs.items():
        if result is x:
            return place, "itself"
        if result._viewed is not None and result._viewed is base_of(x):
            is_view = x._viewed is not None and "_pair" not in vars(x)  # the dual of a tensor counts for it
            return place, "view of its base" if is_view else "view"
    return None


class _ContextSlot:
    """Where a tensor was in a context."""

    def __init__(self, index: int):
        self.index = index


@jax.tree_util.register_static
class _WantedDerivatives(NamedTuple):
    """The inputs that a derivative is taken with respect to."""

    places: tuple[bool, ...]


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
        self._call, self._context = weakref.ref(call), weakref.ref(ctx)
        call.contexts.append(ctx)
        self._count, self._places = len(start.args), tuple(inputs)
        self._results = [(x.dtype, x.shape) if isinstance(x, Torchish) else None for x in results]
        self._outputs = outputs
        attributes = {key: value for key, value in vars(ctx).items() if key not in _OWN}
        around = closed_over(start.args, attributes) if ctx._function.jvp is _Function.jvp else []
        given = {id(x) for x in inputs.values()}
        self._around = [x for x in around if id(x) not in given and _may_be_differentiated(x)]
        """Tensors that are no arguments: weights of a module, say, which a pass within the backward comes by."""
        self._inputs = [(x.dtype, x.shape) for x in (*inputs.values(), *self._around)]
        self._own_axes = own_axes((*inputs.values(), *self._around))
        self._aliases = {place: alias for place in outputs if (alias := _alias_of(results[place], inputs))}
        self._materialize, self._materialize_others = ctx.materialize_grads, ctx._materialize_non_diff_grads
        self._runs = Runs(call.attempt.path.policy)
        origins = {id(x): ("input", i) for i, x in enumerate((*inputs.values(), *self._around))}
        origins |= {id(results[place]): ("output", i) for i, place in enumerate(outputs)}
        for dirty in ctx.dirty_tensors:  # what they held before is gone
            origins = {key: origin for key, origin in origins.items() if key != id(dirty) or origin[0] == "output"}
        self._residuals: list[Torchish] = []
        self._origins: list[tuple[str, int] | None] = []
        self._originals: dict[int, weakref.ref[Torchish]] = {}
        """Inputs that were saved, by their places in `_residuals`: a backward may come by them elsewhere too."""
        self._known: list[torch.Tensor | None] = []
        self._taken: dict[int, _ContextSlot] = {}
        trees = (tuple(ctx.to_save), tuple(ctx.saved_for_forward), attributes)
        self._saved, self._saved_for_forward, self._attributes = self._take_out(trees, origins)
        self._recorded = {i: weakref.ref(x) for i, x in enumerate(self._residuals) if start.has_recorded(x)}
        """What the forward has recorded, for the backward to differentiate."""
        self._args: Any = self._take_out(start.args, origins) if self._recorded else ()
        self._take_out([x for x in around if id(x) in origins], origins)
        self._leaves = self._inputs_among(around)
        """The numbers of inputs that a pass within the backward leaves gradients at, by where they are there."""
        self._stream = start.stream._replace(key=None)
        self._key = start.stream.key if self._recorded else None

    def _take_out(self, tree, origins: dict) -> Any:
        """A tree with the places of its tensors among `_residuals` instead of these."""
        places = self._taken

        def take_out(value):
            if not isinstance(value, torch.Tensor):
                return value
            if id(value) not in places:
                places[id(value)] = _ContextSlot(len(self._residuals))
                self._residuals.append(this_call().lift(value))
                origin = origins.get(id(value))
                self._origins.append(origin)
                if origin is not None and origin[0] == "input" and is_dense(value):
                    self._originals[len(self._residuals) - 1] = weakref.ref(self._residuals[-1])
                known = self._residuals[-1].known
                self._known.append(self._residuals[-1].real_values if isinstance(known, torch.Tensor) else None)
            return places[id(value)]

        return map_arguments(take_out, tree)

    def _inputs_among(self, around: list[Torchish]) -> dict[int, int]:
        ids = {id(x) for x in around}
        return {
            place: origin[1]
            for place, (x, origin) in enumerate(zip(self._residuals, self._origins, strict=True))
            if origin is not None and origin[0] == "input" and (id(x) in ids or isinstance(x, torch.nn.Parameter))
        }

    def attach(self, inputs: list, results: list) -> list:
        """The results, with derivatives with respect to the inputs."""
        inputs = [*inputs, *(x.read() for x in self._around)]
        self._dtypes = [tensor.dtype for tensor in self._residuals]
        # Arrays are handed on as arguments, since they may be traced; Python may look at known values there too. What
        # the forward recorded itself does not lead from the inputs to the results.
        tape = this_call().tape
        lowered = (lambda array: array) if tape is None else tape.primal
        residuals = [
            lowered(tensor.read()) if origin is None and known is None else None
            for tensor, origin, known in zip(self._residuals, self._origins, self._known, strict=True)
        ]
        self._residuals, self._around, self._taken = [], [], {}
        key, self._key = self._key, None
        residuals.extend(() if key is None else (key,))
        if self._function.jvp is not _Function.jvp:
            return self._with_tangents(inputs, results, residuals)
        axes = axes_in_types()
        if axes:
            results = self._as_backward_takes(inputs, results, residuals, axes)
            types = [varying_axes(x) for x in inputs]

        @jax.custom_vjp
        def attached(inputs, results, residuals):
            del inputs, residuals
            return results

        def forward(inputs, results, residuals):
            wanted = _WantedDerivatives(tuple(x.perturbed for x in inputs))
            inputs, results, residuals = jax.tree.map(
                lambda x: x.value, (inputs, results, residuals), is_leaf=_is_primal
            )
            results = attached(inputs, results, residuals)
            return results, (self._fill(inputs, results, residuals), wanted)

        def backward(residuals, cotangents):
            residuals, wanted = residuals
            found = self._pull(residuals, wanted.places, cotangents)
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
            found = self._pull(self._fill(inputs, results, residuals), (True,) * len(inputs), cotangents)
            return [x for x in found if x is not None]

        summed = reduced_axes(pull) & axes
        return [varying(x, summed) for x in results]

    def _with_tangents(self, inputs: list, results: list, residuals: list) -> list:
        """As `attach`, with a derivative in forward mode too."""

        @jax.custom_jvp
        def attached(inputs, results, residuals):
            del inputs, residuals
            return results

        @attached.defjvp
        def _(primals, tangents):
            results = attached(*primals)
            residuals = self._fill(primals[0], results, primals[2])
            wanted = (True,) * len(primals[0])
            pull = lambda residuals, cotangents: self._pull(residuals, wanted, cotangents)
            return results, linear_call(self._push, pull, residuals, tangents[0], results)

        return attached(inputs, results, residuals)

    def _fill(self, inputs: list, results: list, residuals: list) -> list:
        sources = {"input": inputs, "output": results}
        count = len(self._origins)
        found = [
            array if origin is None or known is not None else _as_array(sources[origin[0]][origin[1]])
            for array, origin, known in zip(residuals[:count], self._origins, self._known, strict=True)
        ]
        return [*found, *residuals[count:]]

    @contextlib.contextmanager
    def _context_with(self, residuals: list, wanted: tuple[bool, ...], saved) -> Iterator[tuple[Context, dict]]:
        """The context of the function, in which the inputs that were saved are again what they were.

        So a backward may go through what they are part of, as the parameters of a module. With it come the inputs that
        gradients may be left at, by their numbers.
        """
        count = len(self._origins)
        with DisableTorchFunctionSubclass():  # classes of code's own have a say in what it does alone
            tensors = self._tensors(residuals[:count], wanted)
            leaves = {number: tensors[place] for place, number in self._leaves.items() if wanted[number]}
            ctx, args, pairs = self._context_and_originals(tensors, wanted, saved)
        with _standing_for(pairs):
            if args is not None:
                call = this_call()
                call.stream.state = self._stream._replace(key=residuals[count] if len(residuals) > count else None)
                run_forward(self._function, ctx, args)
                ctx.saved_tensors = tuple(ctx.to_save)
            yield ctx, leaves

    def _tensors(self, residuals: list, wanted: tuple[bool, ...]) -> list[Torchish]:
        """The tensors that were held, of the arrays that are there now."""
        is_at_home = self._is_at_home()
        originals = self._living()
        tensors = [
            wrap(array, dtype, strides=originals[place].stride() if place in originals else None)
            if known is None
            else this_call().lift(known)
            for place, (array, dtype, known) in enumerate(zip(residuals, self._dtypes, self._known, strict=True))
        ]
        for place, (tensor, origin, known) in enumerate(zip(tensors, self._origins, self._known, strict=True)):
            if known is not None or origin is None:
                continue
            if place in self._leaves and wanted[origin[1]] and not is_at_home:
                tensor.start_history()
            elif origin[0] == "output" or wanted[origin[1]] or self._recorded:
                tensor.descend_from_saved()
        return tensors

    def _living(self) -> dict[int, Torchish]:
        return {place: x for place, original in self._originals.items() if (x := original()) is not None}

    def _context_and_originals(self, tensors: list, wanted: tuple[bool, ...], saved) -> tuple[Context, Any, list]:
        """The context; what the forward has to run with again, if so; and inputs with what stands for each."""
        is_at_home, originals = self._is_at_home(), self._living()
        pairs = [
            (x, tensors[place])
            for place, x in originals.items()
            if self._known[place] is None and not (is_at_home and self._is_around(place))
        ]
        tensors = list(tensors)
        for place, original in originals.items():
            if self._known[place] is None or is_at_home:
                tensors[place] = original
        if is_at_home:
            living = {place: x for place, recorded in self._recorded.items() if (x := recorded()) is not None}
            tensors = [living.get(place, x) for place, x in enumerate(tensors)]

        def put_back(tree):
            return map_arguments(lambda x: tensors[x.index] if isinstance(x, _ContextSlot) else x, tree)

        needed = tuple(i in self._places and wanted[self._places.index(i)] for i in range(self._count))
        if self._recorded and not is_at_home:
            return Context(self._function, lambda: needed), put_back(self._args), pairs
        if is_at_home:
            ctx: Any = self._context()
            ctx._needed = lambda: needed
        else:
            ctx = Context(self._function, lambda: needed)
            vars(ctx).update(put_back(self._attributes))
        ctx.saved_tensors = put_back(saved)
        return ctx, None, pairs

    def _is_around(self, place: int) -> bool:
        """Whether what is held at a place was no argument."""
        origin = self._origins[place]
        return origin is not None and origin[0] == "input" and origin[1] >= len(self._places)

    def _is_at_home(self) -> bool:
        """Whether this is part of the call that has run the function, whose tensors live."""
        call = self._call()
        return call is not None and is_in_progress(call)

    def _running(self, body: Callable[[Any], list]) -> list:
        def run(attempt: Attempt, _given: Any):
            new_call: Any = self._call_type
            with new_call(attempt=attempt) as call, torch.enable_grad():
                call.is_backward = True
                return body(call)

        return self._runs.run(run)

    def _pull(self, residuals: list, wanted: tuple[bool, ...], cotangents) -> list:
        """JAX's cotangents of the inputs."""

        def run(call):
            gradients = tuple(self._gradients_of_results(cotangents))
            for hook in list(self._prehooks.values()):
                gradients = _replaced(hook(gradients), gradients)
            backward = self._function_of_gradients()
            with self._context_with(residuals, wanted, self._saved) as (ctx, leaves):
                with advised():
                    found = backward(ctx, *gradients)
                found = self._checked(found if isinstance(found, tuple) else (found,))
                node = self._node()
                if node is not None:
                    node.undefined = {i for i, place in enumerate(self._places) if found[place] is None}
                for hook in list(self._posthooks.values()):
                    found = _replaced(hook(found, gradients), found)
                given = [found[place] for place in self._places]
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
            origins = [*residuals[: len(self._origins)], *cotangents]
            origins = [x for x in origins if x is not None and not isinstance(x, SymbolicZero)]
            return [None if x is None else once(x, origins, message) for x in arrays]

        return self._running(run)

    def _error_of_second(self, backward: Callable) -> str | None:
        """The error that a derivative of the backward is; None if it has one."""
        name = self._function.__name__
        if _is_once(backward):
            return f"trying to differentiate twice a function that was marked with @once_differentiable: {name}"
        if self._recorded:
            return (
                f"got a second derivative of {name}, whose backward differentiates what its forward has recorded of "
                "detached tensors, which does not lead to its inputs; wanted a backward that computes with the inputs"
            )
        return None

    def _push(self, residuals: list, tangents: list) -> list:
        """JAX's tangents of the results."""

        def run(call):
            given: list = [None] * self._count
            for place, (dtype, _), tangent in zip(self._places, self._inputs, tangents, strict=True):
                given[place] = wrap(tangent, dtype)
            with self._context_with(residuals, (True,) * len(self._inputs), self._saved_for_forward) as (ctx, _):
                found = self._function.jvp(ctx, *given)
                found = found if isinstance(found, tuple) else (found,)
                self._check_tangents(found, given)
                arrays = []
                for place in self._outputs:
                    dtype, shape = self._result(place)
                    tangent = torch.zeros(shape, dtype=dtype) if found[place] is None else found[place]
                    arrays.append(call.array_of(call.lift(tangent.to(dtype))))
            return arrays

        return self._running(run)

    def _check_tangents(self, found: tuple, given: list) -> None:
        """Expects of tangents that they are written to, and viewed, as the function does with its arguments."""
        for place, tangent in enumerate(found):
            if tangent is not None and place not in self._outputs:
                raise RuntimeError(
                    f"{self._function.__name__}.jvp returned a tangent at position {place}, but the corresponding "
                    "forward output is not a differentiable Tensor. You should return None at that position instead."
                )
        for place, (origin, kind) in self._aliases.items():
            tangent, argument = found[place], given[origin]
            if kind == "itself" and (tangent is not argument or tangent._writes[0] == 0):
                raise RuntimeError(
                    "An inplace custom Function is not modifying the forward mode gradients inplace. If the forward is "
                    "modifying an input inplace, then the jvp function must modify the corresponding gradient inplace."
                )
            if kind != "itself" and (tangent is None or tangent._viewed is None):
                raise RuntimeError(
                    "A custom Function's forward is returning a view (or an input as-is) but the jvp is not returning "
                    "a view."
                )
            if kind != "itself" and tangent._viewed is not argument:
                what = "the given grad input" if kind == "view" else "the same base as the given grad input"
                raise RuntimeError(
                    f"A custom Function is returning a view but the jvp is not returning a view of {what}."
                )

    def _gradients_of_results(self, cotangents):
        given = dict(zip(self._outputs, cotangents, strict=True))
        for place, result in enumerate(self._results):
            cotangent = given.get(place)
            if result is None:
                yield None
            elif cotangent is not None and not isinstance(cotangent, SymbolicZero):
                yield wrap(conjugate(cotangent), result[0])
            else:
                dtype, shape = result
                fills = self._materialize and (place in given or self._materialize_others)
                yield wrap(jnp.zeros(shape, canonical(dtype)), dtype) if fills else None

    def _result(self, place: int) -> tuple[torch.dtype, torch.Size]:
        return self._results[place]  # pyright: ignore[reportReturnType]

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

    def _cotangent(self, call, gradient, number: int, dtype: torch.dtype, shape):
        """JAX's cotangent of an input for PyTorch's gradient, summed and cast to what the input is."""
        if gradient is None:
            return None  # to JAX, zeros
        gradient = call.lift(gradient)
        if gradient.shape != shape:
            if not _sums_to(gradient.shape, shape):
                raise RuntimeError(
                    f"Function {self._name} returned an invalid gradient at index {self._places[number]} - got "
                    f"{list(gradient.shape)} but expected shape compatible with {list(shape)}"
                )
            gradient = gradient.sum_to_size(shape)
        return conjugate(call.array_of(call.lift(gradient.to(dtype))))


def _added(gradient: torch.Tensor | None, leaf: Torchish | None) -> torch.Tensor | None:
    """A gradient that a backward gave for an input, with what a pass within it has left there."""
    left = None if leaf is None else leaf._gradient
    return gradient if left is None else left if gradient is None else gradient + left


def _may_be_differentiated(tensor: Torchish) -> bool:
    return not is_integral(tensor.dtype) and tensor.known is None and is_traced(tensor.read())


@contextlib.contextmanager
def _standing_for(pairs: list[tuple[Torchish, Torchish]]) -> Iterator[None]:
    """Lets the first of each pair be the second meanwhile."""
    before = [(tensor, vars(tensor)) for tensor, _ in pairs]
    try:
        for tensor, other in pairs:
            tensor.__dict__ = {**vars(other), **tensor.attributes}  # pyright: ignore[reportAttributeAccessIssue]
        yield
    finally:
        for tensor, own in before:
            own.update(tensor.attributes)  # that the backward has set
            tensor.__dict__ = own  # pyright: ignore[reportAttributeAccessIssue]


def _sums_to(shape, smaller) -> bool:
    ends = zip(reversed(shape), reversed(smaller), strict=False)
    return len(smaller) <= len(shape) and all(small in (size, 1) for size, small in ends)


def _replaced(given, before: tuple) -> tuple:
    """What a hook gave in place of gradients, if it gave anything."""
    if given is None:
        return before
    return given if isinstance(given, tuple) else (given,)


def _as_array(value) -> jax.Array:
    """An array, also of a Python number, which JAX hands to rules as it is."""
    return value if isinstance(value, jax.Array) else jnp.asarray(value)


def _is_primal(value) -> bool:
    return isinstance(value, jax.custom_derivatives.CustomVJPPrimal)


def _is_once(backward: Callable) -> bool:
    """Whether a backward is marked as `torch.autograd.function.once_differentiable`."""
    return getattr(backward, "__code__", None) is _ONCE
