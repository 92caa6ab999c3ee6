"""Views: tensors that share a storage. One rule for each ATen view operator.

PyTorch itself parses the arguments of the Python forms and computes shape, strides and offset. A rule here says how
the view reads the array of its base, and how a write to the view changes that array.
"""

import functools
import math

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..dtypes import canonical
from ..registry import implements_tensors
from ..rule import values_only
from ..storage import ViewKind
from ..tensor import Torchish, geometry, make_view, strides_of_copy, wrap

aten = torch.ops.aten


def _view(function):
    """Declares the decorated function to give the `ViewKind` of a view operator from its base and arguments."""

    def register(kind_of):
        @functools.wraps(kind_of)
        def rule(self, *args, **kwargs):
            like = geometry(function, self, *args, **kwargs)
            return make_view(self, kind_of(self, like, *args, **kwargs), like)

        implements_tensors(function)(rule)
        return rule

    return register


def _shape_of(tensor: torch.Tensor) -> tuple[int, ...]:
    with torch._C.DisableTorchFunction():
        return tuple(tensor.shape)


def _reshape(self, like) -> ViewKind:
    before, after = _shape_of(self), _shape_of(like)
    return ViewKind(lambda array: reshape(array, after), lambda _, value: reshape(value, before))


def reshape(array, shape):
    """`array` in another shape; nothing is emitted where it has that shape already."""
    return array if array.shape == shape else lax.reshape(array, shape)


def transpose(array, permutation):
    """`array` with its dimensions permuted; nothing is emitted for the identity."""
    return array if list(permutation) == list(range(array.ndim)) else lax.transpose(array, permutation)


def _permutation(permutation) -> ViewKind:
    inverse = tuple(int(i) for i in np.argsort(permutation))
    return ViewKind(
        lambda array: transpose(array, permutation), lambda _, value: transpose(value, inverse), permutation=permutation
    )


def _slices(starts, limits, strides, squeezed=None) -> ViewKind:
    """A strided region, with at most one dimension of size one dropped."""

    def read(array):
        part = lax.slice(array, starts, limits, strides)
        return part if squeezed is None else lax.squeeze(part, (squeezed,))

    def write(array, value):
        if squeezed is not None:
            value = lax.expand_dims(value, (squeezed,))
        if value.shape == array.shape:
            return value
        if strides is None:
            return lax.dynamic_update_slice(array, value, [np.int32(start) for start in starts])
        index = tuple(slice(*bounds) for bounds in zip(starts, limits, strides, strict=True))
        return array.at[index].set(value, unique_indices=True, indices_are_sorted=True)

    return ViewKind(read, write)


@_view(aten.view.default)
def view(self, like, size):
    return _reshape(self, like)


@_view(aten._unsafe_view.default)
def _unsafe_view(self, like, size):
    return _reshape(self, like)


@_view(aten._reshape_alias.default)
def _reshape_alias(self, like, size, stride):
    return _reshape(self, like)


@_view(aten.unsqueeze.default)
def unsqueeze(self, like, dim):
    return _reshape(self, like)


@_view(aten.squeeze.default)
def squeeze(self, like):
    return _reshape(self, like)


@_view(aten.squeeze.dim)
def squeeze_dim(self, like, dim):
    return _reshape(self, like)


@_view(aten.squeeze.dims)
def squeeze_dims(self, like, dim):
    return _reshape(self, like)


@_view(aten.permute.default)
def permute(self, like, dims):
    return _permutation(tuple(dim % len(dims) for dim in dims))


@_view(aten.transpose.int)
def transpose_int(self, like, dim0, dim1):
    permutation = list(range(len(_shape_of(like))))
    if permutation:
        permutation[dim0], permutation[dim1] = permutation[dim1], permutation[dim0]
    return _permutation(tuple(permutation))


@_view(aten.t.default)
def t(self, like):
    return _permutation(tuple(reversed(range(len(_shape_of(like))))))


@_view(aten.select.int)
def select(self, like, dim, index):
    shape = _shape_of(self)
    dim, index = dim % len(shape), int(index)
    index += shape[dim] if index < 0 else 0
    starts, limits = [0] * len(shape), list(shape)
    starts[dim], limits[dim] = index, index + 1
    return _slices(starts, limits, None, dim)


@_view(aten.slice.Tensor)
def slice_tensor(self, like, dim=0, start=None, end=None, step=1):
    shape = _shape_of(self)
    if _shape_of(like) == shape and step == 1:
        return _reshape(self, like)
    dim %= len(shape)
    start, end, _ = slice(start, end).indices(shape[dim])
    starts, limits = [0] * len(shape), list(shape)
    starts[dim], limits[dim] = start, max(start, end)
    strides = None
    if step != 1:
        strides = [1] * len(shape)
        strides[dim] = step
    return _slices(starts, limits, strides)


@_view(aten.expand.default)
def expand(self, like, size, *, implicit=False):
    before, after = _shape_of(self), _shape_of(like)
    if before == after:
        return _reshape(self, like)
    dimensions = range(len(after) - len(before), len(after))
    read = functools.partial(lax.broadcast_in_dim, shape=after, broadcast_dimensions=dimensions)
    return ViewKind(read, functools.partial(_refuse_overlapping, after, before))


def _refuse_overlapping(after, before, array, value):
    # Writes that overlap themselves are refused before they come here, but for views of views.
    index = tuple(
        slice(None) if after[i + len(after) - len(before)] == size else slice(0, 1) for i, size in enumerate(before)
    )
    return value[(0,) * (len(after) - len(before))][index].reshape(before)


@_view(aten.diagonal.default)
def diagonal(self, like, offset=0, dim1=0, dim2=1):
    ndim = len(_shape_of(self))
    dim1, dim2 = dim1 % ndim, dim2 % ndim

    def read(array):
        return jnp.diagonal(array, offset, dim1, dim2)

    def write(array, value):
        size = value.shape[-1]
        rows = np.arange(size) + max(-offset, 0)
        columns = np.arange(size) + max(offset, 0)
        moved = jnp.moveaxis(array, (dim1, dim2), (-2, -1))
        moved = moved.at[..., rows, columns].set(value, unique_indices=True)
        return jnp.moveaxis(moved, (-2, -1), (dim1, dim2))

    return ViewKind(read, write)


@_view(aten.unfold.default)
def unfold(self, like, dimension, size, step):
    shape = _shape_of(self)
    if not shape:
        return _reshape(self, like)
    dim = dimension % len(shape)
    count = _shape_of(like)[dim]
    indices = np.arange(count)[:, None] * step + np.arange(size)

    def read(array):
        windows = jnp.take(array, indices, axis=dim, mode="clip")
        return jnp.moveaxis(windows, dim + 1, -1)

    def write(array, value):
        index = (slice(None),) * dim + (indices,)
        return array.at[index].set(jnp.moveaxis(value, -1, dim + 1))

    return ViewKind(read, write)


@implements_tensors(aten.as_strided.default)
def as_strided(self, size, stride, storage_offset=None):
    like = geometry(aten.as_strided.default, self, size, stride, storage_offset)
    with torch._C.DisableTorchFunction():
        shape, strides, offset = tuple(like.shape), like.stride(), like.storage_offset()
        contiguous = like.is_contiguous()
    storage, dtype = self._node.storage, canonical(self.dtype)
    size_in_memory = storage.held.array.nbytes // dtype.itemsize
    last = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + offset
    if math.prod(shape) and last >= size_in_memory:
        raise RuntimeError(
            f"setStorage: sizes {list(shape)}, strides {list(strides)}, storage offset {offset} are out of bounds for "
            f"a storage of {size_in_memory} elements"
        )
    region = _contiguous_region(shape, offset) if contiguous else _gathered(shape, strides, offset)
    return make_view(self, _through_memory(region, storage, dtype), like, of_storage=True)


def _contiguous_region(shape, offset) -> ViewKind:
    size = math.prod(shape)

    def read(flat):
        return reshape(flat if flat.size == size else lax.slice(flat, (offset,), (offset + size,)), shape)

    def write(flat, value):
        value = reshape(value, (size,))
        return value if flat.size == size else lax.dynamic_update_slice(flat, value, (np.int32(offset),))

    return ViewKind(read, write)


def _gathered(shape, strides, offset: int) -> ViewKind:
    """Any strided region of flat memory, through the indices that it stands for."""
    indices = np.full((), offset, np.int32)
    for size, stride in zip(shape, strides, strict=True):
        indices = indices[..., None] + np.arange(size, dtype=np.int32) * stride
    return ViewKind(lambda flat: flat[indices], lambda flat, value: flat.at[indices].set(value))


def _through_memory(region: ViewKind, storage, dtype) -> ViewKind:
    """A region of flat memory in `dtype`, as a view of the storage's array."""
    array, order = storage.read(), storage.order
    held, shape, size = array.dtype, array.shape, array.nbytes // dtype.itemsize

    def flatten(array):
        array = array if order is None else transpose(array, order)
        return bitcast(reshape(array, (array.size,)), dtype, (size,))

    def unflatten(flat):
        flat = bitcast(flat, held, (math.prod(shape),))
        if order is None:
            return reshape(flat, shape)
        array = reshape(flat, tuple(shape[dim] for dim in order))
        return transpose(array, tuple(int(dim) for dim in np.argsort(order)))

    return ViewKind(
        lambda array: region.read(flatten(array)),
        lambda array, value: unflatten(region.write(flatten(array), value)),
    )


@_view(aten.alias.default)
def alias(self, like):
    return _reshape(self, like)


@_view(aten.lift_fresh.default)
def lift_fresh(self, like):
    return _reshape(self, like)


@implements_tensors(aten.detach.default, torch.Tensor.detach, torch.detach, torch.Tensor.data.__get__)
def detach(input):
    kind = ViewKind(lax.stop_gradient, values_only, reads_back=False)
    with torch._C.DisableTorchFunction():
        if not (input.dtype.is_floating_point or input.dtype.is_complex):
            kind = _reshape(input, input)
        view = make_view(input, kind, input)
    view._wants_grad = False
    return view


@_view(aten.view_as_real.default)
def view_as_real(self, like):
    return ViewKind(
        lambda array: jnp.stack([lax.real(array), lax.imag(array)], axis=-1),
        lambda _, value: lax.complex(value[..., 0], value[..., 1]),
    )


@_view(aten.view_as_complex.default)
def view_as_complex(self, like):
    return ViewKind(
        lambda array: lax.complex(array[..., 0], array[..., 1]),
        lambda _, value: jnp.stack([lax.real(value), lax.imag(value)], axis=-1),
    )


@implements_tensors(aten.real.default, torch.real, torch.Tensor.real.__get__)
def real(input):
    if not input.is_complex():
        return aten.alias(input)
    return torch.view_as_real(input).select(-1, 0)


@implements_tensors(aten.imag.default, torch.imag, torch.Tensor.imag.__get__)
def imag(input):
    if not input.is_complex():
        raise RuntimeError("imag is not implemented for tensors with non-complex dtypes.")
    return torch.view_as_real(input).select(-1, 1)


def _map_view(input: Torchish, function) -> Torchish:
    """A view of the same geometry through a function that is its own inverse."""
    return make_view(input, ViewKind(function, lambda _, value: function(value)), input)


@implements_tensors(aten._conj.default, aten.conj.default, torch.conj, torch.Tensor.conj)
def conj(input):
    return _map_view(input, lax.conj) if input.is_complex() else aten.alias(input)


@implements_tensors(aten._neg_view.default)
def _neg_view(self):
    return _map_view(self, lax.neg)


@implements_tensors(aten.view.dtype)
def view_dtype(self, dtype):
    like = geometry(aten.view.dtype, self, dtype)
    before, after = canonical(self.dtype), canonical(dtype)
    shape, new_shape = _shape_of(self), _shape_of(like)
    if before.itemsize * math.prod(shape) != after.itemsize * math.prod(new_shape):
        raise RuntimeError(
            f"view from {self.dtype} to {dtype} needs 64-bit arrays: set jax_enable_x64, or use .to(dtype)"
        )
    return make_view(
        self,
        ViewKind(lambda array: bitcast(array, after, new_shape), lambda _, value: bitcast(value, before, shape)),
        like,
    )


def bitcast(array, dtype, shape):
    """The same bytes as another dtype, in `shape`."""
    if array.dtype == dtype:
        return array
    for complex_dtype, part in ((np.complex64, np.float32), (np.complex128, np.float64)):
        if array.dtype == complex_dtype:
            parts = jnp.stack([lax.real(array), lax.imag(array)], axis=-1)
            return bitcast(parts.reshape(*array.shape[:-1], -1) if array.ndim else parts, dtype, shape)
        if dtype == complex_dtype:
            parts = bitcast(array, np.dtype(part), (*shape, 2))
            return lax.complex(parts[..., 0], parts[..., 1])
    if array.dtype == bool:
        array = array.astype(np.uint8)
    if dtype == bool:
        return bitcast(array, np.dtype(np.uint8), shape).astype(bool)
    if array.dtype.itemsize < dtype.itemsize:
        array = array.reshape(*array.shape[:-1], -1, dtype.itemsize // array.dtype.itemsize)
    return lax.bitcast_convert_type(array, dtype).reshape(shape)


# Several views at once.


@implements_tensors(aten.split.Tensor, aten.unsafe_split.Tensor)
def split(self, split_size, dim=0):
    size = self.shape[dim]
    if split_size < 0 or (split_size == 0 and size != 0):
        raise RuntimeError(f"split expects split_size be non-negative, but got split_size={split_size}")
    if split_size == 0:
        return [aten.slice(self, dim, 0, 0)]
    starts = range(0, max(size, 1), split_size)
    return [aten.slice(self, dim, start, min(start + split_size, size)) for start in starts]


@implements_tensors(aten.split_with_sizes.default, aten.unsafe_split_with_sizes.default)
def split_with_sizes(self, split_sizes, dim=0):
    if sum(split_sizes) != self.shape[dim]:
        raise RuntimeError(
            f"split_with_sizes expects split_sizes to sum exactly to {self.shape[dim]} (input tensor's size at "
            f"dimension {dim}), but got split_sizes={list(split_sizes)}"
        )
    ends = np.cumsum(split_sizes)
    return [
        aten.slice(self, dim, int(end) - size, int(end)) for size, end in zip(split_sizes, ends, strict=True)
    ]


@implements_tensors(aten.unbind.int)
def unbind(self, dim=0):
    if self.ndim == 0:
        raise RuntimeError("Dimension specified as 0 but tensor has no dimensions")
    return [aten.select(self, dim, index) for index in range(self.shape[dim])]


# Views in place: the tensor itself becomes the view.


def _becomes(function_, view):
    """An in-place view operator: `self` turns into what `view` makes of it."""

    def rule(self, *args, **kwargs):
        viewed = view(self, *args, **kwargs)
        geometry(function_, self, *args, **kwargs)
        self._node = viewed._node
        return self

    implements_tensors(function_)(rule)


for _name, _overload in (
    ("t", "default"),
    ("transpose", "int"),
    ("squeeze", "default"),
    ("squeeze", "dim"),
    ("squeeze", "dims"),
    ("unsqueeze", "default"),
    ("as_strided", "default"),
):
    _inplace = getattr(aten, _name + "_")
    _becomes(
        getattr(_inplace, "default" if _name == "transpose" else _overload),
        getattr(getattr(aten, _name), _overload),
    )


@implements_tensors(aten.detach_.default, torch.Tensor.detach_)
def detach_(self):
    self._node = detach(self)._node
    self._wants_grad = False
    return self


@implements_tensors(aten.contiguous.default)
def contiguous(self, *, memory_format=torch.contiguous_format):
    if self.is_contiguous(memory_format=memory_format):
        return self
    return self.clone(memory_format=memory_format)


@implements_tensors(aten.clone.default, torch.clone, torch.Tensor.clone)
def clone(input, *, memory_format=torch.preserve_format):
    held, strides = input.held, strides_of_copy(input, memory_format)
    copied = wrap(held.array, input.dtype, input.known, layout=held.layout, strides=strides, device=input._label)
    copied._wants_grad = input._wants_grad and torch.is_grad_enabled()
    return copied
