"""Views: tensors that share memory. One rule for each ATen view operator.

PyTorch itself parses the arguments of the Python forms and computes shape, strides and offset. A rule here says how
the view reads the array of its base, and how a write to the view changes that array.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..internals.dispatch import DisableTorchFunction
from ..rules.inplace import expect_in_its_mode, expect_writable
from ..rules.registry import implements_tensors
from ..runtime.caches import remembered
from ..runtime.errors import TracedValueError
from ..runtime.translation import current, lift
from ..tensors.dtypes import canonical
from ..tensors.rebinding import become, keep_geometry
from ..tensors.regions import CONJUGATE, NEGATIVE, bitcast, gathered
from ..tensors.storage import Storage, View
from ..tensors.tensor import Torchish, geometry, make_region, make_view, strides_of_copy, wrap, wrap_buffer
from ..tensors.traced import is_at_once, without_gradient
from ..tensors.view_kind import ViewKind, element_offsets, reshape, transpose
from ..tracing.value_ranges import range_of
from ..transforms.vmap import batch_of
from .arrays import axis_of, is_inexact
from .bounds import known_values, outside
from .traced_slices import Span, spanning

aten = torch.ops.aten


def _view(function):
    """Declares the decorated function, which returns the `ViewKind` of a view operator for its base and arguments."""

    def register(kind_of):
        @functools.wraps(kind_of)
        def rule(self, *args, **kwargs):
            like = geometry(function, self, *args, **kwargs)
            kind = kind_of(self, like, *args, **kwargs)
            return make_view(self, self._node if _is_identity(kind) else View(self._node, kind), like)

        implements_tensors(function)(rule)
        return rule

    return register


def _is_identity(kind: ViewKind) -> bool:
    return kind.permutation is not None and kind.permutation == tuple(range(len(kind.permutation)))


def _function(*functions):
    """Declares a rule on a tensor for functions of PyTorch's Python interface, where it may be one from outside."""

    def register(body):
        @functools.wraps(body)
        def rule(input, *args, **kwargs):
            return body(lift(input), *args, **kwargs)

        implements_tensors(*functions)(rule)
        return rule

    return register


def _shape_of(tensor: torch.Tensor) -> tuple[int, ...]:
    with DisableTorchFunction():
        return tuple(tensor.shape)


def _reshape(self, like) -> ViewKind:
    before, after = _shape_of(self), _shape_of(like)
    return _permutation(tuple(range(len(before)))) if before == after else _reshaping(before, after)


# Kinds are cached, so that views of the same elements are known to be that, and to trace faster.


@remembered(4096)
def _reshaping(before, after) -> ViewKind:
    return ViewKind(lambda array: reshape(array, after), lambda _, value: reshape(value, before), covers=True)


@remembered(4096)
def _permutation(permutation) -> ViewKind:
    inverse = tuple(int(i) for i in np.argsort(permutation))
    return ViewKind(
        lambda array: transpose(array, permutation),
        lambda _, value: transpose(value, inverse),
        covers=True,
        permutation=permutation,
    )


@remembered(4096)
def _slices(starts, limits, strides, squeezed=None) -> ViewKind:
    """A strided region, with at most one dimension of size one dropped."""

    squeezes = () if squeezed is None else (squeezed,)
    sizes = tuple(limit - start for start, limit in zip(starts, limits, strict=True))
    may_be_one_call = strides is None and max(limits, default=0) < 2**31

    def read(array):
        if may_be_one_call and is_at_once(array):
            return _at(array, np.asarray(starts, np.int32), sizes, squeezes)
        part = lax.slice(array, starts, limits, strides)
        return lax.squeeze(part, squeezes) if squeezes else part

    def write(array, value):
        if may_be_one_call and is_at_once(array, value):
            return _put_at(array, value, np.asarray(starts, np.int32), squeezes)
        if squeezed is not None:
            value = lax.expand_dims(value, (squeezed,))
        if value.shape == array.shape:
            return value
        if value.size == 0:
            return array
        if strides is None:
            return lax.dynamic_update_slice(array, value, [np.int32(start) for start in starts])
        return _write_strided(array, value, starts, limits, strides)

    return ViewKind(read, write)


@functools.partial(jax.jit, static_argnums=(2, 3))
def _at(array, starts, sizes, squeezes):
    """A region: one program for all of a size."""
    return lax.squeeze(lax.dynamic_slice(array, [*starts], sizes), squeezes)


@functools.partial(jax.jit, static_argnums=3)
def _put_at(array, value, starts, squeezes):
    """An array with another region: one program for all of a size."""
    return lax.dynamic_update_slice(array, lax.expand_dims(value, squeezes), [*starts])


def _write_strided(array, value, starts, limits, strides):
    """Spreads `value` out and selects it where it belongs: unlike a scatter, XLA fuses that with its surroundings."""
    padding = [
        (start, size - start - (count - 1) * step - 1, step - 1)
        for start, step, size, count in zip(starts, strides, array.shape, value.shape, strict=True)
    ]
    mask = np.ones((), bool)
    for start, limit, step, size in zip(starts, limits, strides, array.shape, strict=True):
        line = np.zeros(size, bool)
        line[start:limit:step] = True
        mask = mask[..., None] & line if step != 1 else mask[..., None]
    spread = lax.pad(value, np.zeros((), value.dtype), padding)
    return lax.select(lax.broadcast_in_dim(mask, array.shape, range(array.ndim)), spread, array)


@_view(aten.view.default)
def view(self, like, size):
    return _reshape(self, like)


@implements_tensors(aten._unsafe_view.default)
def _unsafe_view(self, size):
    viewed = view(self, size)
    viewed._viewed = None  # PyTorch makes it of copies only, and does not count it as a view
    return viewed


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
    return _slices(tuple(starts), tuple(limits), None, dim)


@_view(aten.slice.Tensor)
def slice_tensor(self, like, dim=0, start=None, end=None, step=1):
    shape = _shape_of(self)
    if _shape_of(like) == shape and step == 1:
        return _reshape(self, like)
    dim %= len(shape)
    start, end, _ = slice(start, end).indices(shape[dim])
    starts, limits = [0] * len(shape), list(shape)
    starts[dim], limits[dim] = start, max(start, end)
    strides = None if step == 1 else tuple(step if d == dim else 1 for d in range(len(shape)))
    return _slices(tuple(starts), tuple(limits), strides)


@_view(aten.expand.default)
def expand(self, like, size, *, implicit=False):
    before, after = _shape_of(self), _shape_of(like)
    if math.prod(before) == math.prod(after):
        return _reshape(self, like)
    dimensions = range(len(after) - len(before), len(after))
    read = functools.partial(lax.broadcast_in_dim, shape=after, broadcast_dimensions=dimensions)
    return ViewKind(read, _write_to_region, overlaps=True)


def _write_to_region(array, value):
    raise AssertionError("what overlaps itself is written as a region of memory")


@_view(aten.diagonal.default)
def diagonal(self, like, offset=0, dim1=0, dim2=1):
    shape = _shape_of(self)
    dim1, dim2 = dim1 % len(shape), dim2 % len(shape)
    others = [dim for dim in range(len(shape)) if dim not in (dim1, dim2)]
    permutation = _permutation((*others, dim1, dim2))
    flat = (*(shape[dim] for dim in others), shape[dim1] * shape[dim2])
    in_order = (*flat[:-1], shape[dim1], shape[dim2])
    # In one dimension, the diagonal is every so manieth element.
    first = max(-offset, 0) * shape[dim2] + max(offset, 0)
    count, step = _shape_of(like)[-1], shape[dim2] + 1
    along = len(flat) - 1
    starts, limits, strides = [0] * len(flat), list(flat), [1] * len(flat)
    starts[along], limits[along], strides[along] = (first, first + (count - 1) * step + 1, step) if count else (0, 0, 1)
    region = _slices(tuple(starts), tuple(limits), tuple(strides))

    def read(array):
        return region.read(reshape(permutation.read(array), flat))

    def write(array, value):
        written = region.write(reshape(permutation.read(array), flat), value)
        return permutation.write(None, reshape(written, in_order))

    return ViewKind(read, write)


@_view(aten.unfold.default)
def unfold(self, like, dimension, size, step):
    shape = _shape_of(self)
    if not shape:  # as if it had one dimension, of size one
        empty = ViewKind(lambda array: lax.full((0,), 0, array.dtype), lambda array, _: array)
        return _reshape(self, like) if size else empty
    dim = dimension % len(shape)
    count = _shape_of(like)[dim]
    positions = np.arange(count, dtype=np.int32)[:, None] * step + np.arange(size, dtype=np.int32)
    windows = gathered((*[slice(None)] * dim, positions), unique=step >= size or count < 2)
    order = [*range(dim + 1), *range(dim + 2, len(shape) + 1), dim + 1]
    last = _permutation(tuple(order))
    return ViewKind(
        lambda array: last.read(windows.read(array)),
        lambda array, value: windows.write(array, last.write(None, value)),
        overlaps=windows.overlaps,
    )


@implements_tensors(aten.as_strided.default)
def as_strided(self, size, stride, storage_offset=None):
    if len(size) != len(stride):
        raise RuntimeError(
            "mismatch in length of strides and shape: size and stride must have the same length, got size "
            f"{list(size)}, stride {list(stride)}"
        )
    if any(n < 0 for n in (*size, *stride)):
        raise RuntimeError(
            f"as_strided: negative sizes and strides are not supported, got {list(size)}, {list(stride)}"
        )
    self._node.storage.memory.expect_all()
    if storage_offset is None and _begins_where_traced(self._node):
        raise TracedValueError("as_strided of a view at a traced index, without a storage_offset,")
    offset = self.storage_offset() if storage_offset is None else storage_offset
    if offset < 0:
        raise RuntimeError(f"Tensor: invalid storage offset {offset}")
    _expect_no_gaps(self, size, stride, offset)
    return make_region(self, tuple(size), tuple(stride), offset)


def _expect_no_gaps(self: Torchish, size, stride, offset: int) -> None:
    """Refuses a region with memory between the elements of a transformation's argument: nothing has its values."""
    storage = self._node.storage
    if storage.gaps is None or storage.is_outgrown:
        return
    before, after = storage.dtype.itemsize, canonical(self.dtype).itemsize
    unit = min(before, after)
    units = _units(element_offsets(storage.frame.shape, *storage.gaps), before // unit)
    if not np.isin(_units(element_offsets(size, stride, offset), after // unit), units).all():
        raise RuntimeError(
            f"result = tensor.as_strided({list(size)}, {list(stride)}, {offset}) can access memory outside of the "
            f"tensor, of shape {list(self.shape)}, strides {list(self.stride())} and offset {self.storage_offset()}. "
            "This is not supported inside of vmap and of derivatives, please try to rewrite the `as_strided` call as a "
            "sequence of PyTorch view operations"
        )


def _units(elements: np.ndarray, width: int) -> np.ndarray:
    return elements[..., None] * width + np.arange(width)


def _begins_where_traced(node: Storage | View) -> bool:
    return isinstance(node, View) and (bool(node.kind.traced) or _begins_where_traced(node.parent))


@implements_tensors(aten.as_strided_.default)
def as_strided_(self, size, stride, storage_offset=None):
    expect_in_its_mode(self)
    if torch.is_grad_enabled():
        expect_writable(self)
    with torch.enable_grad():
        become(self, as_strided(self, size, stride, storage_offset))
    self.count_write()
    return self


@_view(aten.alias.default)
def alias(self, like):
    return _reshape(self, like)


@_view(aten.lift_fresh.default)
def lift_fresh(self, like):
    return _reshape(self, like)


@_function(aten.detach.default, torch.Tensor.detach, torch.detach)
def detach(input):
    node = input._node.detached() if input.dtype.is_floating_point or input.dtype.is_complex else input._node
    detached = make_view(input, node, input)
    detached._viewed, detached._restriction = None, None
    return detached


@_function(torch.Tensor.data.__get__)
def _data(self):
    if batch_of(self) is not None:
        raise RuntimeError("accessing `data` under vmap transform is not allowed")
    data = detach(self)
    data._writes = [0]
    data._node.storage.is_data = data._node is not self._node
    return data


@_view(aten.view_as_real.default)
def view_as_real(self, like):
    _refuse_bit(self, "conj", "view_as_real doesn't work on unresolved conjugated tensors; call resolve_conj() first")
    return ViewKind(
        lambda array: jnp.stack([lax.real(array), lax.imag(array)], axis=-1),
        lambda _, value: lax.complex(value[..., 0], value[..., 1]),
        covers=True,
    )


@_view(aten.view_as_complex.default)
def view_as_complex(self, like):
    canonical(like.dtype)  # says that JAX has no complex32
    self._node.storage.memory.expect_all()  # an offset that is odd is an error
    return ViewKind(
        lambda array: lax.complex(array[..., 0], array[..., 1]),
        lambda _, value: jnp.stack([lax.real(value), lax.imag(value)], axis=-1),
        covers=True,
    )


def _refuse_bit(tensor: Torchish, bit: str, message: str) -> None:
    if bit in tensor._node.bits:
        raise RuntimeError(message)


def _with_bit(input: Torchish, kind: ViewKind) -> Torchish:
    return make_view(input, View(input._node, kind), input)


@_function(aten.real.default, torch.real, torch.Tensor.real.__get__)
def real(input):
    if not input.is_complex():
        return input
    return _part(conj(input) if is_conj(input) else input, 0)


@_function(aten.imag.default, torch.imag, torch.Tensor.imag.__get__)
def imag(input):
    if not input.is_complex():
        raise RuntimeError("imag is not implemented for tensors with non-complex dtypes.")
    return _neg_view(_part(conj(input), 1)) if is_conj(input) else _part(input, 1)


def _part(input: Torchish, index: int) -> Torchish:
    kinds = (
        ViewKind(lax.real, lambda array, value: lax.complex(value, lax.imag(array))),
        ViewKind(lax.imag, lambda array, value: lax.complex(lax.real(array), value)),
    )
    like = geometry(aten.select.int, geometry(aten.view_as_real.default, input), -1, index)
    return make_view(input, View(input._node, kinds[index]), like)


@_function(aten._conj.default, aten.conj.default, torch.conj, torch.Tensor.conj)
def conj(input):
    return _with_bit(input, CONJUGATE) if input.is_complex() else input


@implements_tensors(aten._neg_view.default)
def _neg_view(self):
    return _with_bit(self, NEGATIVE)


@_function(torch.is_conj, torch.Tensor.is_conj, aten.is_conj.default)
def is_conj(input):
    return "conj" in input._node.bits


@_function(torch.is_neg, torch.Tensor.is_neg, aten.is_neg.default)
def is_neg(input):
    return "neg" in input._node.bits


@_function(torch.resolve_conj, torch.Tensor.resolve_conj, aten.resolve_conj.default)
def resolve_conj(input):
    return input.clone() if is_conj(input) else input


@_function(torch.resolve_neg, torch.Tensor.resolve_neg, aten.resolve_neg.default)
def resolve_neg(input):
    return input.clone() if is_neg(input) else input


@implements_tensors(aten.view.dtype)
def view_dtype(self, dtype):
    _refuse_bit(self, "conj", "view(dtype) is not supported for conjugate view tensors; call resolve_conj() first")
    _refuse_bit(self, "neg", "view is not supported for tensors with negative bit set; call resolve_neg() first")
    if dtype.itemsize > self.dtype.itemsize:
        self._node.storage.memory.expect_all()  # not every offset is in order
    like = geometry(aten.view.dtype, self, dtype)
    before, after = canonical(self.dtype), canonical(dtype)
    shape, new_shape = _shape_of(self), _shape_of(like)
    if before.itemsize * math.prod(shape) != after.itemsize * math.prod(new_shape):
        raise RuntimeError(
            f"view from {self.dtype} to {dtype} needs 64-bit arrays: set jax_enable_x64, or use .to(dtype)"
        )
    kind = ViewKind(
        lambda array: bitcast(array, after, new_shape), lambda _, value: bitcast(value, before, shape), covers=True
    )
    # As in PyTorch, a write to the bytes is none that autograd sees.
    viewed = make_view(self, View(self._node.detached(), kind), like)
    viewed._viewed = None
    return viewed


@_function(torch.Tensor._is_view)
def _is_view(self):
    return self._viewed is not None


@_function(torch.Tensor._base.__get__)
def _base(self):
    return self._viewed


@_function(torch.narrow, torch.Tensor.narrow)
def narrow(input, dim, start, length):
    if isinstance(length, torch.Tensor):
        start = start.item() if isinstance(start, torch.Tensor) else start
        return torch.narrow(input, dim, start, length.item())
    if not isinstance(start, torch.Tensor) or known_values(lift(start)) is not None:
        return current().run_compiled(torch.narrow, (input, dim, start, length), {})
    if start.ndim or is_inexact(start.read()):
        raise RuntimeError("start must be an 0-dim integral Tensor.")
    dim = axis_of(input, dim)
    size = input.shape[dim]
    if outside(start, -size, size) is not None:
        raise IndexError(f"start out of range (expected to be in range of [{-size}, {size}])")
    if outside(start, -size, size - length) is not None:
        raise RuntimeError(f"start + length ({length}) exceeds dimension size ({size})")
    if not 0 <= length <= size:
        raise RuntimeError(f"start + length exceeds dimension size ({size}), got length={length}")
    first = start.read()
    low, high = range_of(first)
    span = Span(first, length, is_negative=True, is_in_doubt=low < 0 or high > size - length)
    return spanning(input, {dim: span}, is_expected=True)


@implements_tensors(aten.narrow_copy.default)
def narrow_copy(self, dim, start, length):
    if dim >= self.ndim:  # an IndexError of every other function
        raise RuntimeError(f"narrow_copy(): dim {dim} is out of range for a tensor of {self.ndim} dimensions")
    return self.narrow(dim, start, length).clone()


# Views in place: the tensor itself becomes the view.


def _becomes(function_, view):
    """Declares an in-place view operator: `self` becomes the result of `view`."""

    def rule(self, *args, **kwargs):
        expect_in_its_mode(self)
        if torch.is_grad_enabled():
            expect_writable(self)
        with torch.enable_grad():
            node = view(self, *args, **kwargs)._node
        keep_geometry(self)
        geometry(function_, self, *args, **kwargs)
        self.change("_node", node)
        self.count_write()
        return self

    implements_tensors(function_)(rule)


for _name, _overload in (
    ("t", "default"),
    ("transpose", "int"),
    ("squeeze", "default"),
    ("squeeze", "dim"),
    ("squeeze", "dims"),
    ("unsqueeze", "default"),
):
    _inplace = getattr(aten, _name + "_")
    _becomes(
        getattr(_inplace, "default" if _name == "transpose" else _overload),
        getattr(getattr(aten, _name), _overload),
    )


@_function(aten.detach_.default, torch.Tensor.detach_)
def detach_(self):
    if self._viewed is not None:
        raise RuntimeError("Can't detach views in-place. Use detach() instead.")
    self.change("_node", detach(self)._node)
    return self


@implements_tensors(aten.contiguous.default)
def contiguous(self, *, memory_format=torch.contiguous_format):
    if self.is_contiguous(memory_format=memory_format):
        return self
    return self.clone(memory_format=memory_format)


@_function(aten.clone.default, aten.lift_fresh_copy.default, torch.clone, torch.Tensor.clone)
def clone(input, *, memory_format=torch.preserve_format):
    strides = strides_of_copy(input, memory_format)
    if isinstance(input.known, torch.Tensor) and input.history is None and current().is_lazy:
        return wrap_buffer(input.lazy, input.dtype, input.known, strides, input._label)
    array, layout = input.buffer
    if not torch.is_grad_enabled() and input._node.storage.differentiable:
        array = without_gradient(array)
    copied = wrap(array, input.dtype, input.known, layout=layout, strides=strides, device=input._label)
    if torch.is_grad_enabled():
        copied.descend((input,), "Clone")
    return copied
