"""The metadata of tensors, from which results and gradients are made."""

from typing import Any, NamedTuple

import jax
import torch
from jax import lax

from ..internals.dispatch import DisableTorchFunction
from ..runtime.translation import this_call
from ..tensors.array_buffer import ArrayBuffer
from ..tensors.interop import fills_memory, is_dense
from ..tensors.tensor import Torchish, strides_of_copy, wrap, wrap_spread


class TensorSpec(NamedTuple):
    """The metadata of a tensor: dtype, layout, strides, device, and whether it requires grad; all but its array."""

    dtype: torch.dtype
    layout: tuple[int, ...] | None
    strides: tuple[int, ...] | None
    device: torch.device
    wants_grad: bool

    @classmethod
    def of(cls, tensor: Torchish) -> "TensorSpec":
        with DisableTorchFunction():
            strides = tensor.stride() if is_dense(tensor) else strides_of_copy(tensor)
        return cls(tensor.dtype, tensor.buffer.layout, strides, tensor._label, tensor.history is not None)

    @property
    def is_differentiable(self) -> bool:
        return self.dtype.is_floating_point or self.dtype.is_complex

    def that_may_want_grad(self, wants_grad: bool) -> "TensorSpec":
        """The form of a result that wants grad, if its dtype can."""
        return self._replace(wants_grad=wants_grad and self.is_differentiable)

    def example(self, dim: int) -> "TensorSpec":
        """The form of one example of a tensor with examples along a dimension."""
        layout, strides = self.layout, self.strides
        if layout is not None:
            layout = tuple(other - (other > dim) for other in layout if other != dim)
            layout = None if layout == tuple(range(len(layout))) else layout
        if strides is not None:  # those of a dense tensor, if no other dimension is further out
            strides = None if any(stride > strides[dim] for stride in strides) else strides[:dim] + strides[dim + 1 :]
        return self._replace(layout=layout, strides=strides)

    def with_examples(self, dim: int) -> "TensorSpec":
        """The form of all examples, of which this is one; if the layout is not in order, the examples come first."""
        layout = self.layout
        if layout is not None:
            layout = (dim, *(other + (other >= dim) for other in layout))
        return self._replace(layout=layout, strides=None)

    def tensor(self, array: Any, known: Any = None) -> Torchish:
        """The tensor of this form that holds `array`."""
        tensor = wrap(array, self.dtype, known, layout=self.layout, strides=self.strides, device=self.device)
        if self.wants_grad:
            tensor.descend_from_afar()
        return tensor

    def at(self, array: jax.Array, strides: tuple[int, ...], offset: int) -> Torchish:
        """The tensor of this form on new memory, with the strides and the offset of one on other memory."""
        buffer = ArrayBuffer(array, self.layout)
        if offset or not fills_memory(buffer.shape, strides):
            return wrap_spread(buffer, self.dtype, strides, offset, self.device)
        return self._replace(strides=strides, wants_grad=False).tensor(array)

    def result(self, array: Any) -> Torchish:
        """As `tensor`, for a transformation's result: with gradients off it has no derivative."""
        if torch.is_grad_enabled():
            tape, wants_grad = this_call().tape, self.wants_grad
            if tape is not None and (tape.outer is None or not wants_grad):  # it does not know arrays of outer ones
                wants_grad = tape.knows(array)
            return self._replace(wants_grad=wants_grad).tensor(array)
        tensor = self._replace(wants_grad=False).tensor(lax.stop_gradient(array) if self.is_differentiable else array)
        tensor._node.storage.differentiable = False
        return tensor


def conjugate(array: jax.Array):
    """PyTorch's gradient for JAX's cotangent, and the other way round."""
    return lax.conj(array) if array.dtype.kind == "c" else array
