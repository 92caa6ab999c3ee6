"""The values that an autograd function keeps between its forward and its backward.

The context has it in trees of Python: saved tensors, attributes, arguments. JAX's derivative takes arrays. So the trees
are kept with slots in the places of their tensors, and these become arguments of the derivative, in the order of the
slots. For each slot at most one of three things is known: an *origin* (the tensor is an input or a result, and JAX has
its array), a *known* value (a real tensor, which Python may look at), or neither (the array is a residual).

Also here: the context ``ctx``, and the start of a forward pass, with what it has recorded since.

A forward may compute with gradients on, on tensors that it has detached, and keep the results for its backward to
differentiate. That history ends with the call. A backward that runs later lets the forward record it again.
"""

import contextlib
import functools
import inspect
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import torch
from torch.autograd.function import FunctionCtx

from ..internals.dispatch import DisableTorchFunction, DisableTorchFunctionSubclass
from ..internals.transforms import set_fwd_grad_enabled
from ..runtime.translation import Call, is_in_progress, lift, this_call
from ..tensors.dtypes import is_integral
from ..tensors.ended import Ended
from ..tensors.history import UNRECORDED, next_node
from ..tensors.interop import is_dense
from ..tensors.journal import next_number
from ..tensors.tensor import Torchish, wrap
from ..tensors.traced import is_traced
from ..tensors.trees import TensorSlot, map_arguments
from ..tensors.wrapped import NestedTensor, Wrapped, is_wrapper, tensor_of, wrapped
from ..tracing.execution import StreamState
from ..tracing.scope import closed_over
from ..tracing.shadows import give_shadow, shadow_of, uncut
from ..tracing.user_code import note_made, of_user
from .vmap import Batch, run_rule


class Start(NamedTuple):
    """The state in which a run of an autograd function began."""

    args: tuple
    """Its arguments."""
    stream: StreamState
    """The state of the random stream."""
    memory: int
    node: int
    """Lower bounds of the numbers of memories and nodes that the run has made."""

    @classmethod
    def of(cls, call: Call, args: tuple) -> "Start":
        return cls(args, call.stream.state, next_number(), next_node())

    def has_recorded(self, tensor: Torchish) -> bool:
        """Returns True if the run itself has computed a tensor with gradients on."""
        history, memory = tensor.history, tensor._node.storage.memory
        if history is UNRECORDED:
            return memory.number > self.memory
        return history is not None and history._sequence_nr() > self.node


def run_forward(
    function: type[torch.autograd.Function], ctx: FunctionCtx, args: tuple, batch: Batch | None = None
) -> object:
    """Runs the forward of an autograd function, or its batching rule, with a context for the values that it saves."""
    note_made(ctx)
    with torch.no_grad(), set_fwd_grad_enabled(False):
        if function.setup_context is torch.autograd.Function.setup_context:
            return of_user(function.forward)(ctx, *args)
        output = of_user(function.forward)(*args) if batch is None else run_rule(function.vmap, args, batch)
        of_user(function.setup_context)(ctx, args, output)
        return output


_OWN = frozenset(vars(FunctionCtx)) | {
    *("_function", "_needed", "to_save", "saved_for_forward"),
    *("dirty_tensors", "non_differentiable", "materialize_grads"),
}
"""The attributes of a context before a function adds its own."""


class Context(FunctionCtx):
    """The ``ctx`` of a function.

    Args:
        function: whose it is.
        needed: gives which of its arguments gradients are wanted for.
    """

    saved_tensors: tuple = ()

    def __init__(self, function: type[torch.autograd.Function], needed: Callable[[], tuple[bool, ...]]):
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


def attributes_of(ctx: Context) -> dict[str, object]:
    """The attributes that a function has set on its context."""
    return {key: value for key, value in vars(ctx).items() if key not in _OWN}


class Residuals:
    """The tensors that one run of a function keeps for its derivative, and the trees that they were in.

    Args:
        start: where the run began.
        inputs: the tensors among its arguments that may have a derivative, by their places.
        ctx: its context after that run.
        outputs: those of its results that have a derivative.
    """

    def __init__(self, start: Start, inputs: dict[int, Torchish], ctx: Context, outputs: list[Torchish]):
        self._function, self._call, self._context = ctx._function, weakref.ref(this_call()), weakref.ref(ctx)
        self._count, self._inputs = len(start.args), tuple(inputs)
        attributes = attributes_of(ctx)
        has_jvp = self._function.jvp is not torch.autograd.Function.jvp
        around = [] if has_jvp else closed_over(start.args, attributes)
        given = {id(x) for x in inputs.values()}
        self.around = [x for x in around if id(x) not in given and _may_be_differentiated(x)]
        """Tensors from around, such as a module's weights, through which a backward pass within the backward leads."""
        origins = {id(x): ("input", i) for i, x in enumerate((*inputs.values(), *self.around))}
        origins |= {id(x): ("output", i) for i, x in enumerate(outputs)}
        for dirty in ctx.dirty_tensors:  # what they held before is gone
            origins = {key: origin for key, origin in origins.items() if key != id(dirty) or origin[0] == "output"}
        self._tensors: list[Torchish] = []
        self._origins: list[tuple[str, int] | None] = []
        self._originals: dict[int, weakref.ref[Torchish]] = {}
        """Inputs that were saved, by their places in `_tensors`: a backward may come by them elsewhere too."""
        self._known: list[torch.Tensor | None] = []
        self._taken: dict[int, TensorSlot] = {}
        trees = (tuple(ctx.to_save), tuple(ctx.saved_for_forward), attributes)
        self._saved, self._saved_for_forward, self._attributes = self._take_out(trees, origins)
        self._recorded = {i: weakref.ref(x) for i, x in enumerate(self._tensors) if start.has_recorded(x)}
        """The residuals that the forward has recorded, for the backward to differentiate."""
        self._args: object = self._take_out(start.args, origins) if self._recorded else ()
        self._take_out([x for x in around if id(x) in origins], origins)
        self._leaves = self._inputs_among(around)
        """The numbers of inputs that a pass within the backward leaves gradients at, by where they are there."""
        self._dtypes = [tensor.dtype for tensor in self._tensors]
        self._stream = start.stream._replace(key=None)
        self._key = start.stream.key if self._recorded else None

    @property
    def are_recorded(self) -> bool:
        """True if the forward has computed some of them with gradients on."""
        return bool(self._recorded)

    def _take_out(self, tree: object, origins: dict) -> Any:
        """A tree with the places of its tensors among `_tensors` instead of these."""
        positions = self._taken

        def take_out(value: object):
            if not isinstance(value, torch.Tensor):
                return value
            if is_wrapper(value):
                shadow = None if type(value) is NestedTensor else shadow_of(this_call(), value)
                return _WrapperSlot(wrapped(uncut(value), take_out), None if shadow is None else take_out(shadow))
            if id(value) not in positions:
                positions[id(value)] = TensorSlot(len(self._tensors))
                self._tensors.append(lift(value))
                origin = origins.get(id(value))
                self._origins.append(origin)
                if origin is not None and origin[0] == "input" and is_dense(value):
                    self._originals[len(self._tensors) - 1] = weakref.ref(self._tensors[-1])
                known = self._tensors[-1].known
                self._known.append(self._tensors[-1].real_values if isinstance(known, torch.Tensor) else None)
            return positions[id(value)]

        return map_arguments(take_out, tree)

    def _inputs_among(self, around: list[Torchish]) -> dict[int, int]:
        ids = {id(x) for x in around}
        return {
            position: origin[1]
            for position, (x, origin) in enumerate(zip(self._tensors, self._origins, strict=True))
            if origin is not None and origin[0] == "input" and (id(x) in ids or isinstance(x, torch.nn.Parameter))
        }

    def hand_over(self) -> list:
        """The arrays that neither an input nor a result has, None for the others; the tensors are given up.

        They are arguments of JAX's derivative, since they may be traced; Python may look at known values there too.
        What the forward recorded itself does not lead from the inputs to the results.
        """
        tape = this_call().tape
        primal = (lambda array: array) if tape is None else tape.primal
        residuals = [
            primal(tensor.read()) if origin is None and known is None else None
            for tensor, origin, known in zip(self._tensors, self._origins, self._known, strict=True)
        ]
        self._tensors, self.around, self._taken = [], [], {}
        key, self._key = self._key, None
        return [*residuals, *(() if key is None else (key,))]

    def filled(self, inputs: list, results: list, residuals: list) -> list:
        """The residuals from `hand_over`, completed by those that are arrays of inputs and results."""
        sources = {"input": inputs, "output": results}
        count = len(self._origins)
        found = [
            array if origin is None or known is not None else _as_array(sources[origin[0]][origin[1]])
            for array, origin, known in zip(residuals[:count], self._origins, self._known, strict=True)
        ]
        return [*found, *residuals[count:]]

    def without_key(self, residuals: list) -> list:
        """Only the arrays of tensors."""
        return residuals[: len(self._origins)]

    @contextlib.contextmanager
    def context_with(
        self, residuals: list, wanted: tuple[bool, ...], *, forwards: bool = False
    ) -> Iterator[tuple[Context, dict[int, Torchish]]]:
        """The context of the function, in which saved inputs are the input tensors again.

        So a backward may go through what they are part of, as the parameters of a module. With it come the inputs that
        gradients may be left at, by their numbers.

        Args:
            residuals: what `filled` gave.
            wanted: the inputs that a derivative is taken with respect to.
            forwards: whether that is a derivative in forward mode, for which a function may save other tensors.
        """
        count = len(self._origins)
        with DisableTorchFunctionSubclass():  # classes of code's own have a say in what it does alone
            tensors = self._restored(residuals[:count], wanted)
            leaves = {number: tensors[position] for position, number in self._leaves.items() if wanted[number]}
            saved = self._saved_for_forward if forwards else self._saved
            ctx, args, pairs = self._context_and_originals(tensors, wanted, saved)
        with _standing_for(pairs):
            if args is not None:
                call = this_call()
                call.stream.state = self._stream._replace(key=residuals[count] if len(residuals) > count else None)
                run_forward(self._function, ctx, args)
                ctx.saved_tensors = tuple(ctx.to_save)
            yield ctx, leaves

    def _restored(self, residuals: list, wanted: tuple[bool, ...]) -> list[Torchish]:
        """The tensors that were held, of the arrays that are there now."""
        is_in_its_call = self._is_in_its_call()
        with DisableTorchFunction():
            strides = {position: original.stride() for position, original in self._living().items()}
        tensors = [
            wrap(array, dtype, strides=strides.get(position)) if known is None else lift(known)
            for position, (array, dtype, known) in enumerate(zip(residuals, self._dtypes, self._known, strict=True))
        ]
        for position, (tensor, origin, known) in enumerate(zip(tensors, self._origins, self._known, strict=True)):
            if known is not None or origin is None:
                continue
            if position in self._leaves and wanted[origin[1]] and not is_in_its_call:
                tensor.start_history()
            elif origin[0] == "output" or wanted[origin[1]] or self._recorded:
                tensor.descend_from_saved()
        return tensors

    def _living(self) -> dict[int, Torchish]:
        """The inputs that are still there, also of a call that has ended."""
        found = {position: original() for position, original in self._originals.items()}
        return {position: x for position, x in found.items() if isinstance(x, (Torchish, Ended))}  # pyright: ignore

    def _context_and_originals(
        self, tensors: list, wanted: tuple[bool, ...], saved: tuple
    ) -> tuple[Context, Any, list]:
        """The context; arguments to run the forward with again, or None; and the inputs, each with its tensor here."""
        is_in_its_call, originals = self._is_in_its_call(), self._living()
        pairs = [
            (x, tensors[position])
            for position, x in originals.items()
            if self._known[position] is None and not (is_in_its_call and self._is_around(position))
        ]
        tensors = list(tensors)
        for position, original in originals.items():
            if self._known[position] is None or is_in_its_call:
                tensors[position] = original
        if is_in_its_call:
            living = {position: x for position, recorded in self._recorded.items() if (x := recorded()) is not None}
            tensors = [living.get(position, x) for position, x in enumerate(tensors)]

        def put_back(tree: object):
            return map_arguments(lambda x: _filled_in(x, tensors), tree)

        needed = tuple(i in self._inputs and wanted[self._inputs.index(i)] for i in range(self._count))
        if self._recorded and not is_in_its_call:
            return Context(self._function, lambda: needed), put_back(self._args), pairs
        if is_in_its_call:
            ctx: Any = self._context()
            ctx._needed = lambda: needed
        else:
            ctx = Context(self._function, lambda: needed)
            vars(ctx).update(put_back(self._attributes))
        ctx.saved_tensors = put_back(saved)
        return ctx, None, pairs

    def _is_around(self, position: int) -> bool:
        """Returns True if the residual at an index is a tensor from around the function, not an argument."""
        origin = self._origins[position]
        return origin is not None and origin[0] == "input" and origin[1] >= len(self._inputs)

    def _is_in_its_call(self) -> bool:
        """Returns True if the call that ran the function is still in progress: its tensors live."""
        call = self._call()
        return call is not None and is_in_progress(call)


class _WrapperSlot:
    """The slot of a wrapper: the slots of its inner tensors, and that of its shadow."""

    def __init__(self, inner: Wrapped, shadow: TensorSlot | None):
        self.inner, self.shadow = inner, shadow


def _filled_in(value: object, tensors: list) -> object:
    """The tensor of a slot, from the tensors of this run; any other value unchanged."""
    if isinstance(value, TensorSlot):
        return tensors[value.index]
    if not isinstance(value, _WrapperSlot):
        return value
    wrapper = tensor_of(value.inner, lambda slot: tensors[slot.index])
    if value.shadow is not None:
        give_shadow(this_call(), wrapper, tensors[value.shadow.index])
    return wrapper


def _may_be_differentiated(tensor: Torchish) -> bool:
    return not is_integral(tensor.dtype) and tensor.known is None and is_traced(tensor.read())


@contextlib.contextmanager
def _standing_for(pairs: list[tuple[Torchish, Torchish]]) -> Iterator[None]:
    """Makes the first tensor of each pair the second one, within the context."""
    before = [(tensor, type(tensor), vars(tensor)) for tensor, _ in pairs]
    try:
        for tensor, other in pairs:
            attributes = tensor.attributes  # those of an ended tensor are no more than that
            if isinstance(tensor, Ended):
                tensor.__class__ = type(other)  # pyright: ignore[reportAttributeAccessIssue]
            tensor.__dict__ = {**vars(other), **attributes}  # pyright: ignore[reportAttributeAccessIssue]
        yield
    finally:
        for tensor, kind, own in before:
            own.update(tensor.attributes)  # that the backward has set
            tensor.__class__ = kind
            tensor.__dict__ = own  # pyright: ignore[reportAttributeAccessIssue]


def _as_array(value: object) -> jax.Array:
    """The array of a value, which may be a Python number: JAX passes these to rules unchanged."""
    return value if isinstance(value, jax.Array) else jnp.asarray(value)
