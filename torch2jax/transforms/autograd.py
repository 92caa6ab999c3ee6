"""`torch.autograd.Function`: the backward that it defines becomes a `jax.custom_vjp`.

PyTorch's C++ runs such a function with gradients off, and offers it to no override. But if an input requires grad, it
leaves a note on each result: the function, the inputs and the context that made it. So inputs do for that time, and
what is made while gradients are off, although the code has not turned them off, is looked at once they are on again.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import torch
from jax import lax
from torch._functorch import utils as functorch_utils
from torch.autograd.function import BackwardCFunction

from ..seams import stands_in
from ..tensors.dtypes import is_integral
from ..tensors.history import Node
from ..tensors.storage import Held, Storage, is_traced
from ..tensors.tensor import Torchish, wrap
from ..tensors.trees import map_arguments
from ..translation import Call, current

__all__ = ["CustomFunctions"]

_grad_fn: Any = torch._C.TensorBase.grad_fn


class CustomFunctions:
    """The custom autograd functions that a call has run."""

    def __init__(self):
        self._wanted = True  # whether the code wants gradients
        self._reopened = False  # whether a function has turned them on within its forward
        self._left_alone = False
        self._pending = False  # whether a function has begun, and its results were not looked at
        self._inputs: list[Torchish] = []
        self._made: list[Torchish] = []
        self._results: dict[tuple[int, int], Torchish] = {}
        self._nodes: list[Any] = []  # keeps their numbers, the keys of `_results`, their own

    def begin(self, args: tuple, call: Call) -> None:
        """Lets the arguments of a function that is about to run require grad, to PyTorch's C++."""
        self.settle(call)
        if not torch.is_grad_enabled():
            return
        self._pending = True
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            for tensor in args:
                if isinstance(tensor, Torchish) and not is_integral(tensor.dtype) and tensor.is_leaf:
                    tensor.requires_grad_()
                    self._inputs.append(tensor)

    def set_grad_enabled(self, mode: bool) -> None:
        """Follows the code's own ``torch.no_grad()`` and ``torch.enable_grad()``."""
        if self._reopened or self._in_forward:
            self._reopened = mode
        else:
            self._wanted = mode

    @property
    def _in_forward(self) -> bool:
        return self._wanted and not torch.is_grad_enabled()

    def note(self, tensor: Torchish) -> None:
        """Keeps a tensor that was made with gradients off, if it may be the result of a function."""
        if self._pending and (self._reopened or self._in_forward):
            self._made.append(tensor)

    def left_alone(self):
        """A context without `settle`."""
        return _LeftAlone(self) if self._pending else _NOTHING

    def settle(self, call: Call) -> None:
        """Gives the results of the functions that have returned their derivatives."""
        if not self._pending or self._left_alone or self._reopened or not torch.is_grad_enabled():
            return
        made, inputs = self._made, self._inputs
        self._pending, self._made, self._inputs = False, [], []
        functions: dict[int, tuple[Any, dict[int, Torchish]]] = {}
        with torch._C.DisableTorchFunction():
            for tensor in made:
                node = _grad_fn.__get__(tensor)
                if isinstance(node, BackwardCFunction):
                    functions.setdefault(id(node), (node, {}))[1][tensor.output_nr] = tensor
            for node, results in functions.values():
                self._nodes.append(node)
                self._results.update({(id(node), number): result for number, result in results.items()})
                self._attach(node, results, call)
            with torch._C._DisableTorchDispatch():
                for tensor in inputs:
                    tensor.requires_grad_(False)

    def _attach(self, node, results: dict[int, Torchish], call: Call) -> None:
        inputs = [self._source(edge, number, call) for edge, number in node.next_functions if edge is not None]
        arrays = [tensor.read() for tensor in inputs]
        if not any(is_traced(array) for array in arrays):
            return
        backward = _Backward(node, inputs, results, type(call))
        values = [result.read() for result in results.values()]
        for result, array in zip(results.values(), backward.attach(arrays, values), strict=True):
            result._node = Storage(Held(array, None))
            result._node.storage.history = Node(node.name(), [x.history for x in inputs])

    def _source(self, node, number: int, call: Call) -> Torchish:
        """The tensor at an edge of PyTorch's graph: the result of another function, or a leaf."""
        result = self._results.get((id(node), number))
        return call.lift(node.variable) if result is None else result


_NOTHING = contextlib.nullcontext()


class _LeftAlone:
    def __init__(self, functions: CustomFunctions):
        self._functions, self._before = functions, functions._left_alone

    def __enter__(self):
        self._functions._left_alone = True

    def __exit__(self, *exc_info):
        self._functions._left_alone = self._before


class _Backward:
    """The backward of one run of a function, as a function of arrays."""

    def __init__(self, node, inputs: list[Torchish], results: dict[int, Torchish], call_type: Callable[[], Any]):
        self._function, self._call_type = node._forward_cls, call_type
        self._needed = node.needs_input_grad
        self._inputs = [(tensor.dtype, tensor.shape) for tensor in inputs]
        self._results = {number: result.dtype for number, result in results.items()}
        self._count = max(len(node._input_metadata), 1 + max(results))
        known = {id(tensor): tensor for tensor in inputs}
        saved = [results[x.output_nr] if _grad_fn.__get__(x) is node else x for x in _saved(node)]
        self._held: list[Torchish] = []
        self._saved, self._attributes = self._take_out((saved, vars(node)), known)

    def _take_out(self, tree, known: dict) -> Any:
        """A tree with the places of its tensors among `_held` instead of these."""
        places: dict[int, _Place] = {}

        def take_out(value):
            if not isinstance(value, Torchish):
                return value
            if id(value) not in places:
                places[id(value)] = _Place(len(self._held))
                self._held.append(known.get(id(value), value))
            return places[id(value)]

        return map_arguments(take_out, tree)

    def attach(self, inputs: list, results: list) -> list:
        """The results, with derivatives with respect to the inputs."""
        held_dtypes = [tensor.dtype for tensor in self._held]
        held = [tensor.read() for tensor in self._held]
        self._held = []  # arrays are handed on as arguments, since they may be traced

        @jax.custom_vjp
        def attached(inputs, results, held):
            del inputs, held
            return results

        def forward(inputs, results, held):
            del inputs
            return results, held

        def backward(held, cotangents):
            with self._call_type() as call, torch.enable_grad():
                tensors = [wrap(array, dtype) for array, dtype in zip(held, held_dtypes, strict=True)]
                return self._pull(call, tensors, cotangents), None, None

        attached.defvjp(forward, backward)
        return attached(inputs, results, held)

    def _pull(self, call, held: list[Torchish], cotangents: list) -> list:
        def put_back(value):
            return held[value.index] if isinstance(value, _Place) else value

        saved, attributes = map_arguments(put_back, (self._saved, self._attributes))
        given: list[Torchish | None] = [None] * self._count
        for (number, dtype), cotangent in zip(self._results.items(), cotangents, strict=True):
            given[number] = wrap(_conjugate(cotangent), dtype)
        gradients = self._function_of_gradients()(_Context(attributes, tuple(saved), self._needed), *given)
        gradients = gradients if isinstance(gradients, tuple) else (gradients,)
        wanted = [gradient for gradient, needed in zip(gradients, self._needed, strict=False) if needed]
        return [
            _gradient(call, gradient, dtype, shape)
            for gradient, (dtype, shape) in zip(wanted, self._inputs, strict=True)
        ]

    def _function_of_gradients(self) -> Callable:
        function = self._function
        return function.vjp if function.backward is torch.autograd.Function.backward else function.backward


class _Place:
    """Where a tensor was in a context."""

    def __init__(self, index: int):
        self.index = index


class _Context:
    """What a backward sees of its function's context."""

    def __init__(self, attributes: dict, saved: tuple, needed: tuple[bool, ...]):
        vars(self).update(attributes)
        self.saved_tensors, self.needs_input_grad = saved, needed


def _saved(node) -> tuple:
    try:
        return node.saved_tensors or ()
    except AttributeError:
        return ()


def _gradient(call: Call, gradient, dtype: torch.dtype, shape):
    """JAX's cotangent of an input for PyTorch's gradient, summed and cast to what the input is."""
    if gradient is None:
        gradient = torch.zeros(shape, dtype=dtype)
    gradient = call.lift(gradient)
    if gradient.shape != shape:
        gradient = gradient.sum_to_size(shape)
    return _conjugate(call.lift(gradient.to(dtype)).read())


def _conjugate(array):
    return lax.conj(array) if array.dtype.kind == "c" else array


@stands_in(functorch_utils, "unwrap_dead_wrappers")  # the first that `Function.apply` calls with its arguments
def _begin(args):
    call = current()
    call.functions.begin(args, call)
    return args
