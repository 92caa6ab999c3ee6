"""In-place writes without an out-of-place form: copies, fills, and tensors that change their memory."""

import jax.numpy as jnp
import numpy as np
import torch

from ..rules.inplace import expect_writable, write_in_place
from ..rules.options import Tag
from ..rules.registry import implements_tensors
from ..runtime.patches import runs_instead_of
from ..runtime.translation import current, lift
from ..tensors.array_buffer import ArrayBuffer
from ..tensors.dtypes import canonical
from ..tensors.history import Node, Source
from ..tensors.rebinding import alias_of, become, resize
from ..tensors.storage import Storage, View
from ..tensors.tensor import Torchish, make_region, strides_of_shape
from ..tensors.traced import is_traced, with_derivatives_of
from ..tensors.wrapped import is_wrapper
from ..tracing.value_ranges import is_same_value
from ..transforms.vmap import batch_of
from .arrays import cast
from .creation import filled, unwritten

aten = torch.ops.aten
Tensor = torch.Tensor


def _lift(tensor) -> Torchish:
    return lift(tensor)


@implements_tensors(Tensor.copy_, aten.copy_.default)
def copy_(self, src, non_blocking=False):
    self, src = _lift(self), _lift(src)
    if _same_elements(self._node, src._node):  # what `x[0] += 1` ends in
        if torch.is_grad_enabled():
            expect_writable(self)
        self.count_write()
        return self
    value = src.to(self.dtype)
    return write_in_place(self, value if src.shape == self.shape else value.expand(self.shape), (src,))


def _same_elements(a: Storage | View, b: Storage | View) -> bool:
    if a is b:
        return True
    return isinstance(a, View) and isinstance(b, View) and _same_kind(a, b) and _same_elements(a.parent, b.parent)


def _same_kind(a: View, b: View) -> bool:
    if a.kind is b.kind:
        return True
    one, other = a.kind.traced, b.kind.traced
    return len(one) == len(other) > 0 and all(map(_is_same_region, one, other))


def _is_same_region(one: tuple, other: tuple) -> bool:
    """Returns True if two views have the same part of a dimension, chosen by traced indices."""
    (dim, start, size), (other_dim, other_start, other_size) = one, other
    return (dim, size) == (other_dim, other_size) and is_same_value(start, other_start)


@implements_tensors(Tensor.fill_, aten.fill_.Scalar, aten.fill_.Tensor)
def fill_(self, value):
    return write_in_place(self, fill(self, value), fills=not isinstance(value, torch.Tensor))


@implements_tensors(aten.fill.Scalar, aten.fill.Tensor)
def fill(self, value):
    if not isinstance(value, torch.Tensor):
        return filled(self.shape, value, self.dtype)
    value = _lift(value)
    if value.ndim:
        raise RuntimeError(f"fill_ only supports 0-dimension value tensor but got tensor with {value.ndim} dimensions.")
    known = value.known
    if isinstance(known, torch.Tensor) and value.history is None and known.is_complex() <= self.is_complex():
        return filled(self.shape, known.item(), self.dtype)
    if is_traced(value.read()) or (value.is_complex() and not self.is_complex()):
        return value.to(self.dtype).expand(self.shape)
    return filled(self.shape, np.asarray(value.read()).item(), self.dtype)


@implements_tensors(Tensor.zero_, aten.zero_.default, torch.zero_)
def zero_(self):
    return write_in_place(self, filled(self.shape, 0, self.dtype), fills=True)


# The tensor itself gets other memory, or another part of its memory.


@implements_tensors(Tensor.resize_, aten.resize_.default)
def resize_(self, *size, memory_format=None):
    shape = tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else size
    self = _lift(self)
    if any(n < 0 for n in shape):
        raise RuntimeError(f"resize_ got the shape {list(shape)}; wanted sizes that are not negative")
    if memory_format is torch.preserve_format:
        raise RuntimeError("Unsupported memory format Preserve")
    if self.history is not None and not torch.is_inference_mode_enabled():
        raise RuntimeError("cannot resize variables that require grad")
    if shape == tuple(self.shape) and memory_format is None:
        return self
    before = self._node.storage.memory.size
    resize(self, shape, strides_of_shape(shape, memory_format or torch.contiguous_format))
    self.count_write()
    _show_unwritten(self, before)
    return self


def _show_unwritten(tensor: Torchish, before: int) -> None:
    """Fills the new part of grown memory as PyTorch does where algorithms are deterministic."""
    storage, value = tensor._node.storage, unwritten(tensor.dtype)
    more = storage.memory.size - before
    if value and more > 0 and storage.dtype == canonical(tensor.dtype):
        with torch.no_grad():
            make_region(tensor, (more,), (1,), before).fill_(value)


@implements_tensors(Tensor.resize_as_, torch.resize_as_, aten.resize_as_.default)
def resize_as_(input, the_template, *, memory_format=None):
    if memory_format is torch.preserve_format:
        memory_format = _memory_format(the_template)
    return input.resize_(tuple(the_template.shape), memory_format=memory_format)


def _memory_format(tensor) -> torch.memory_format:
    for wanted in (torch.contiguous_format, torch.channels_last, torch.channels_last_3d):
        ndim = {torch.channels_last: 4, torch.channels_last_3d: 5}.get(wanted, tensor.ndim)
        if tensor.ndim == ndim and tensor.is_contiguous(memory_format=wanted):
            return wanted
    return torch.contiguous_format


@implements_tensors(Tensor.data.__set__, tags=[Tag.SHARES])
def set_data(self, value):
    if not isinstance(value, Tensor):
        raise TypeError(f"Variable data has to be a tensor, but got {type(value).__name__}")
    if batch_of(_lift(self)) is not None:
        raise RuntimeError("mutating directly with `.data` under vmap transform is not allowed.")
    self, value = _lift(self), _lift(value).detach()
    same = self.shape == value.shape and self.dtype == value.dtype
    before, history, origin = self.buffer, self.history, alias_of(self)
    if history is not None and not (value.is_floating_point() or value.is_complex()):
        raise RuntimeError("data set to a tensor that requires gradients must be floating point or complex dtype")
    differentiable = same and self._node.storage.differentiable
    become(self, value)
    array, layout = value.buffer
    if differentiable:
        array, layout = value.buffer.arranged(before.layout), before.layout  # a gradient comes as the leaf is held
        self.change("_node", self._node.rebased(ArrayBuffer(with_derivatives_of(before.array, array), layout)))
    elif history is not None:
        tape = current().tape
        begins = isinstance(history, Source) and history.variable is self
        is_leaf = begins and tape is not None
        if is_leaf:
            array = tape.leaf(array, history)
        elif not begins and _takes_gradient(origin, value):
            array, layout = _with_derivatives_summed(before, value), None
        elif not begins:
            set_without_derivative(self, origin, _gradient_error(history, origin, value))
            return
        self.change("_node", self._node.rebased(ArrayBuffer(array, layout)))
        if is_leaf:
            history.end = tape.end_of(self)
    self._node.storage.history = history


def _takes_gradient(tensor: Torchish, value: Torchish) -> bool:
    """Returns True if the gradient of a value is one of the tensor whose `data` it becomes."""
    fits = [own in (1, size) for own, size in zip(reversed(tensor.shape), reversed(value.shape), strict=False)]
    return tensor.ndim <= value.ndim and all(fits) and tensor.is_complex() >= value.is_complex()


def _with_derivatives_summed(before: ArrayBuffer, value: Torchish):
    """The values, with gradients that are summed and cast to the shape and dtype from before."""
    array, expanded = value.read(), jnp.broadcast_to(before.arranged(None), value.shape)
    expanded = expanded if value.is_complex() else jnp.real(expanded)
    return with_derivatives_of(cast(expanded, array.dtype), array)


def _gradient_error(history: Node, tensor: Torchish, value: Torchish) -> str:
    got, wanted = list(value.shape), list(tensor.shape)
    return (
        f"Function {history.name()} returned an invalid gradient at index 0 - got {got} but expected shape compatible "
        f"with {wanted}"
    )


def set_without_derivative(tensor: Torchish, origin: Torchish, message: str) -> None:
    """Makes a tensor require grad as `origin` does, with an error if a backward pass goes from the one to the other."""
    buffer, tape = tensor.buffer, current().tape
    if tape is not None:
        buffer = ArrayBuffer(tape.primal(buffer.array), buffer.layout)
    tensor.change("_node", tensor._node.rebased(buffer))
    tensor.descend((origin,), "NotImplemented")
    tensor.refuse(message)


@runs_instead_of(torch.utils.swap_tensors, with_original=True)
def swap_tensors(original, t1, t2):
    if not all(is_wrapper(t) or (t.is_meta and not isinstance(t, Torchish)) for t in (t1, t2)):
        raise RuntimeError(
            "torch.utils.swap_tensors got a tensor with values within a translated call, whose memory cannot be "
            "exchanged; wanted `tensor.data = other`, which PyTorch's modules use after "
            "torch.__future__.set_swap_module_params_on_conversion(False)"
        )
    original(t1, t2)
