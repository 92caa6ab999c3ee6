"""A function of tensors while JAX transforms it as a function of arrays: arguments, results, allowed writes."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import jax
import jax.core
import torch

from ..internals.tensors import tree_flatten, tree_unflatten
from ..rules.inplace import write_in_place
from ..tensors.journal import next_number
from ..tensors.rebinding import at_the_place_of
from ..tensors.tensor import Torchish, wrap
from ..tensors.trees import TensorSlot
from ..tracing.tensor_spec import TensorSpec
from ..tracing.traces import current_trace, expect_unrecorded, running
from ..translation import Call, this_call


class Transformation(ABC):
    """One transformation that translated code has begun, while its function runs.

    What JAX computes from the level's own arrays must not outlive it. So it is not written to tensors that were there
    before: as in PyTorch that is an error, except for arguments, which get their new values from `write_back`.
    """

    is_forward = False
    """Whether it takes derivatives forwards: ``no_grad`` within the function makes no constants then."""

    takes_gradients = False
    """Whether it takes derivatives backwards."""

    is_functorchs = True
    """Whether it asks of custom functions what `torch.func` does; not where autograd batches gradients."""

    def __init__(self, call: Call):
        expect_unrecorded("a transformation")
        self.call = call
        self._since = next_number()
        self.tag: Any = None
        self.trace: Any = None
        self._outer_trace, self._outer_tape = current_trace(), self.call.tape
        self.given: list[tuple[Torchish, Torchish, int, Torchish]] = []
        self._arguments: list[Torchish] = []
        self._specs: list[TensorSpec] = []
        self._arrays: list[Any] = []

    @abstractmethod
    def check_write(self, tensor: Torchish, array: jax.Array) -> None:
        """Raises on a write that the function must not do.

        Raises:
            RuntimeError: PyTorch refuses it too.
        """

    @contextlib.contextmanager
    def running(self, arrays: Any):
        """The context in which the function runs; `arrays` are some of the level's own."""
        self.trace = current_trace()
        for array in arrays:
            if isinstance(array, jax.core.Tracer):  # JAX leaves those alone that have no derivative
                self.tag = array._trace.tag  # pyright: ignore[reportAttributeAccessIssue]
        self.call.transformations.append(self)
        try:
            with self.call.nested():
                yield
        finally:
            self.call.transformations.pop()
            self.end()

    def end(self) -> None:
        """Lets go of the arrays of the trace that ends."""
        self._arguments, self.given = [outer for outer, *_ in self.given], []

    @contextlib.contextmanager
    def outside(self):
        """The context in which the transformation was begun, for code that runs there meanwhile."""
        call = this_call()
        position = call.transformations.index(self)
        inner, mapped = call.transformations[position:], call.stream.mapped
        del call.transformations[position:]
        call.stream.mapped = [x for x in mapped if x.level not in inner]
        try:
            with running(self._outer_trace), call.at(self._outer_tape):
                yield
        finally:
            call.transformations.extend(inner)
            call.stream.mapped = mapped

    def give(self, outer: Torchish, inner: Torchish) -> Torchish:
        """Notes that the function gets `inner` for the argument `outer`."""
        origin = at_the_place_of(inner)  # the function may let `inner` itself be of another shape
        self.given.append((outer, origin, inner._node.storage.memory.version, inner))
        return inner

    def owns(self, array: jax.Array) -> bool:
        """Whether an array is the level's own."""
        array = self.call.leaving(array)
        return isinstance(array, jax.core.Tracer) and getattr(array._trace, "tag", self) is self.tag

    def unowned(self, tensor: Torchish) -> Torchish:
        """A tensor whose array is not the level's own, as it is outside: without what only the function recorded."""
        array, layout = tensor.physical
        below = self.call.leaving(array)
        if below is array:
            return tensor
        found = TensorSpec.of(tensor)._replace(layout=layout, wants_grad=False).tensor(below)
        found._node.storage.history = tensor.history
        return found

    def is_new(self, tensor: Torchish) -> bool:
        """Whether a tensor's memory is of the function's own making, or an argument's."""
        return tensor._node.storage.memory.number > self._since

    def take(self, tensor: torch.Tensor) -> Any:
        """What stands for a result until `put`: the tensor itself, unless its array has to leave through JAX."""
        lifted = self.call.lift(tensor)
        if not self.owns(lifted.physical.array):
            return self.unowned(lifted)
        for outer, origin, _, _ in self.given:
            if origin._node is lifted._node:
                return outer  # not a copy of it
        self._arrays.append(self.call.leaving(lifted.physical.array))
        self._specs.append(TensorSpec.of(lifted))
        return TensorSlot(len(self._specs) - 1)

    def take_all(self, tree: Any) -> Any:
        """As `take`, for a tree.

        Raises:
            RuntimeError: a leaf of it is no tensor.
        """
        leaves, spec = tree_flatten(tree)
        for leaf in leaves:
            if not isinstance(leaf, torch.Tensor):
                raise RuntimeError(f"Expected tensors, got unsupported type {type(leaf)}")
        return tree_unflatten([self.take(leaf) for leaf in leaves], spec)

    def taken(self) -> list:
        """The arrays of what was taken."""
        arrays, self._arrays = self._arrays, []
        return arrays

    def put(self, tree: Any, arrays: Sequence[jax.Array]) -> Any:
        """A tree of what `take` gave, as tensors."""
        leaves, spec = tree_flatten(tree)
        tensors = [spec.result(array) for spec, array in zip(self._specs, arrays, strict=True)]
        return tree_unflatten([tensors[leaf.index] if isinstance(leaf, TensorSlot) else leaf for leaf in leaves], spec)

    def written(self) -> list:
        """The array of each argument that the function wrote to in place, None for others."""
        return [
            None if origin._node.storage.memory.version == before else self.call.array_of(origin)
            for _, origin, before, _ in self.given
        ]

    def write_back(self, arrays: list) -> None:
        """Writes to the arguments what the function wrote."""
        for outer, array in zip(self._arguments, arrays, strict=True):
            if array is not None:
                write_in_place(outer, wrap(array, outer.dtype))
