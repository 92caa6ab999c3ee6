"""Joining, splitting, repeating, rearranging and padding. Views of one tensor are in `views.py`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..internals.tensors import canonicalize_dim, canonicalize_dims
from ..rules.inplace import write_out
from ..rules.options import Tag
from ..rules.pointwise import as_joined
from ..rules.promotion import Promotion, promoted
from ..rules.registry import implements, implements_tensors, tag
from ..runtime.errors import TracedValueError
from ..runtime.translation import lift
from ..tensors.dtypes import canonical, dtype_j2t, expect
from ..tensors.regions import Split, SplitPart
from ..tensors.storage import View
from ..tensors.tensor import Restriction, Torchish
from ..tensors.view_kind import reshape
from . import bounds
from .arrays import at_least_1d, axes_of, axis_of, cast, like, where
from .bounds import known_values, seen

aten = torch.ops.aten


def common_dtype(tensors) -> torch.dtype:
    """The dtype of a concatenation of tensors, or of their arrays."""
    dtypes = [x.dtype if isinstance(x, torch.Tensor) else dtype_j2t(x.dtype) for x in tensors]
    if all(dtype == dtypes[0] for dtype in dtypes):
        return dtypes[0]
    kinds = tuple((dtype, x.ndim == 0) for x, dtype in zip(tensors, dtypes, strict=True))
    return promoted(Promotion.NO_OPMATH, kinds)[1]


def _cast_to_common(arrays) -> list:
    dtype = canonical(common_dtype(arrays))
    return [cast(array, dtype) for array in arrays]


def _listed(values: tuple, named: dict) -> tuple[int, ...]:
    """Integers given one by one, as one sequence, or by name."""
    values = values or tuple(named.values())
    values = values[0] if len(values) == 1 and isinstance(values[0], (tuple, list)) else values
    return tuple(int(value) for value in values)


# Joining.


def _joined_dtype(tensors, dim=0, **_):
    return common_dtype(tensors) if tensors else None


@implements(
    torch.cat,
    torch.concat,
    torch.concatenate,
    dtype=_joined_dtype,
    channels_last=("follow", 4),
    strides=as_joined,
    tags=[Tag.LINEAR, Tag.READS_BY_INDEX],
)
def cat(tensors, dim=0, *, channels_last=False):
    if not tensors:
        raise ValueError("torch.cat(): expected a non-empty list of Tensors")
    arrays = _cast_to_common(tensors)
    for i, array in enumerate(arrays):
        if array.ndim == 0:
            raise RuntimeError(f"zero-dimensional tensor (at position {i}) cannot be concatenated")
    arrays = [array for array in arrays if array.shape != (0,)] or arrays[:1]  # PyTorch passes over these
    if arrays[0].shape == (0,):
        return arrays[0]  # whatever `dim` is
    dim = axis_of(arrays[0], dim)
    if channels_last:
        dim = (0, 3, 1, 2)[dim]
    _check_joinable(arrays, dim)
    return arrays[0] if len(arrays) == 1 else lax.concatenate(arrays, dim)


def _check_joinable(arrays, dim: int) -> None:
    first = arrays[0].shape
    for i, array in enumerate(arrays):
        if array.ndim != len(first):
            raise RuntimeError(f"Tensors must have same number of dimensions: got {len(first)} and {array.ndim}")
        for d, (wanted, got) in enumerate(zip(first, array.shape, strict=True)):
            if d != dim and got != wanted:
                raise RuntimeError(
                    f"Sizes of tensors must match except in dimension {dim}. Expected size {wanted} but got size "
                    f"{got} for tensor number {i} in the list."
                )


@implements(torch.stack, dtype=_joined_dtype, tags=[Tag.LINEAR, Tag.READS_BY_INDEX])
def stack(tensors, dim=0):
    if not tensors:
        raise RuntimeError("stack expects a non-empty TensorList")
    arrays = _cast_to_common(tensors)
    for i, array in enumerate(arrays):
        if array.shape != arrays[0].shape:
            raise RuntimeError(
                f"stack expects each tensor to be equal size, but got {list(arrays[0].shape)} at entry 0 and "
                f"{list(array.shape)} at entry {i}"
            )
    dim = canonicalize_dim(arrays[0].ndim + 1, dim)
    arrays = [lax.expand_dims(array, (dim,)) for array in arrays]
    return arrays[0] if len(arrays) == 1 else lax.concatenate(arrays, dim)


# Repeating.


@implements(torch.Tensor.repeat, aten.repeat, tags=[Tag.LINEAR])
def repeat(input, *repeats, **named):
    counts = _listed(repeats, named)
    if len(counts) < input.ndim:
        raise RuntimeError("Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor")
    shape = (1,) * (len(counts) - input.ndim) + input.shape
    result = tuple(count * size for count, size in zip(counts, shape, strict=True))
    if any(count < 0 for count in counts):
        raise RuntimeError(f"Trying to create tensor with negative dimension {min(result)}: {list(result)}")
    # One broadcast along new dimensions, each before the one it repeats; a size of one is broadcast where it is.
    expanded, kept = [], []
    for i, (count, size) in enumerate(zip(counts, shape, strict=True)):
        if count != 1 and size != 1:
            expanded.append(count)
        if i >= len(shape) - input.ndim:
            kept.append(len(expanded))
        expanded.append(count if size == 1 else size)
    if tuple(expanded) == input.shape:
        return input
    return reshape(lax.broadcast_in_dim(input, expanded, kept), result)


def _prepare_repeats(input, repeats=None, dim=None, *, output_size=None):
    if repeats is None:  # the one-argument form: how often each of 0, 1, 2, ...
        input, repeats, dim = torch.arange(input.shape[0], dtype=input.dtype, device=input.device), input, 0
    elif dim is None:
        input, dim = input.reshape(-1), 0
    if isinstance(repeats, torch.Tensor):
        repeats = lift(repeats)
        expect("repeat_interleave_cpu", repeats.dtype, bounds.DTYPES_OF_COUNTS)
        values = known_values(repeats)
        _expect_repeats(repeats, output_size)
        if values is not None:
            repeats = [int(value) for value in values.reshape(-1)]
        elif output_size is None:
            raise TracedValueError("torch.repeat_interleave without output_size")
    return (input, repeats, dim), {"output_size": output_size}


def _expect_repeats(repeats, output_size: int | None) -> None:
    """Raises if known repetition counts are negative, or sum to a different size."""
    values = seen(repeats)
    if values is None or not values.size:
        return
    if values.min() < 0:
        raise RuntimeError("repeats can not be negative")
    total = values.reshape(len(values), -1).sum(1)
    if output_size is not None and repeats.numel() > 1 and (total != output_size).any():
        raise RuntimeError(f"allocated size does not match required size: {output_size}, but need {total[0]}")


@implements(torch.repeat_interleave, prepare=_prepare_repeats)
def repeat_interleave(input, repeats, dim, *, output_size):
    dim, input = axis_of(input, dim), at_least_1d(input)
    size = input.shape[dim]
    if isinstance(repeats, list) and len(repeats) == 1:
        repeats = repeats[0]
    if isinstance(repeats, int):
        return _repeat_each(input, repeats, dim)
    count = repeats.size if isinstance(repeats, jax.Array) else len(repeats)
    if count != size:
        raise RuntimeError(f"repeats must have the same size as input along dim, but got {count} and {size}")
    if isinstance(repeats, list):
        rows = np.repeat(np.arange(size, dtype=np.int32), repeats)
    else:
        ends = lax.cumsum(lax.convert_element_type(repeats, np.int32))
        rows = jnp.searchsorted(ends, lax.iota(np.int32, output_size), side="right")
    index = (slice(None),) * dim + (rows,)
    return input.at[index].get(mode="promise_in_bounds", wrap_negative_indices=False)


def _repeat_each(array, repeats: int, dim: int):
    """Repeats every element along `dim` a number of times, by one broadcast."""
    if repeats < 0:
        raise RuntimeError(f"Repeats must be non-negative, but got {repeats}")
    shape = (*array.shape[: dim + 1], repeats, *array.shape[dim + 1 :])
    dims = [d for d in range(array.ndim + 1) if d != dim + 1]
    result = (*array.shape[:dim], array.shape[dim] * repeats, *array.shape[dim + 1 :])
    return array if repeats == 1 else reshape(lax.broadcast_in_dim(array, shape, dims), result)


# Rearranging.


@implements(torch.roll, tags=[Tag.LINEAR])
def roll(input, shifts, dims=()):
    shifts = (shifts,) if isinstance(shifts, int) else tuple(shifts)
    dims = (dims,) if isinstance(dims, int) else tuple(dims)
    if not dims and len(shifts) == 1:
        return reshape(_roll_one(reshape(input, (input.size,)), shifts[0], 0), input.shape)
    if not shifts:
        raise RuntimeError("`shifts` required")
    if len(shifts) != len(dims):
        raise RuntimeError(f"shifts and dimensions must align. shifts: {len(shifts)}, dims:{len(dims)}")
    for shift, dim in zip(shifts, dims, strict=True):
        input = _roll_one(input, shift, axis_of(input, dim))
    return input


def _roll_one(array, shift: int, dim: int):
    size = array.shape[dim]
    shift = shift % size if size else 0
    if shift == 0:
        return array
    last = lax.slice_in_dim(array, size - shift, size, axis=dim)
    return lax.concatenate([last, lax.slice_in_dim(array, 0, size - shift, axis=dim)], dim)


@implements(torch.flip, torch.Tensor.flip, aten.flip, tags=[Tag.LINEAR])
def flip(input, *dims, **named):
    dims = _listed(dims, named)
    return lax.rev(input, axes_of(input, dims)) if dims and input.ndim else input


# Triangles and diagonals.


def _difference(rows: int, columns: int):
    """Column minus row, of every element of a matrix."""
    shape = (rows, columns)
    return lax.sub(lax.broadcasted_iota(np.int32, shape, 1), lax.broadcasted_iota(np.int32, shape, 0))


def _keep(input, keep):
    """`input` where the mask of its last two dimensions is true, zero elsewhere."""
    return where(keep, input, like(input, 0))


def _check_matrix(input, name: str) -> None:
    if input.ndim < 2:
        raise RuntimeError(f"{name}: input tensor must have at least 2 dimensions, got {input.ndim}")


@implements(torch.tril, tags=[Tag.LINEAR])
def tril(input, diagonal=0):
    _check_matrix(input, "tril")
    return _keep(input, lax.le(_difference(*input.shape[-2:]), np.int32(diagonal)))


@implements(torch.triu, tags=[Tag.LINEAR])
def triu(input, diagonal=0):
    _check_matrix(input, "triu")
    return _keep(input, lax.ge(_difference(*input.shape[-2:]), np.int32(diagonal)))


@implements(torch.diag_embed, tags=[Tag.LINEAR])
def diag_embed(input, offset=0, dim1=-2, dim2=-1):
    if input.ndim == 0:
        raise RuntimeError("diag_embed: expected a tensor of at least one dimension, but got a 0-d tensor")
    dim1, dim2 = canonicalize_dims(input.ndim + 1, (dim1, dim2))
    if dim1 == dim2:
        raise RuntimeError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    size = input.shape[-1] + abs(offset)
    if offset:  # each value to the column it stands in
        input = lax.pad(input, like(input, 0), [(0, 0, 0)] * (input.ndim - 1) + [(max(offset, 0), max(-offset, 0), 0)])
    shape = (*input.shape[:-1], size, size)
    spread = lax.broadcast_in_dim(input, shape, (*range(input.ndim - 1), input.ndim))
    matrix = _keep(spread, lax.eq(_difference(size, size), np.int32(offset)))
    return matrix if (dim1, dim2) == (input.ndim - 1, input.ndim) else jnp.moveaxis(matrix, (-2, -1), (dim1, dim2))


# A view of a copy, written.


def _scattered(view):
    """The rule that writes `src` to a view of a copy of `input`."""

    def rule(input, src, *args, out=None, **kwargs):
        result = input.clone()
        view(result, *args, **kwargs).copy_(src)
        return result if out is None else write_out(result, out)

    return rule


for _name, _view in (
    ("slice_scatter", aten.slice),
    ("select_scatter", torch.select),
    ("diagonal_scatter", torch.diagonal),
    ("as_strided_scatter", torch.as_strided),
):
    implements_tensors(getattr(torch, _name), getattr(torch.Tensor, _name), getattr(aten, _name).default)(
        _scattered(_view)
    )


@implements_tensors(aten.split.Tensor)
def split(self, split_size, dim=0):
    size = self.shape[dim]
    if split_size < 0 or (split_size == 0 and size != 0):
        raise RuntimeError(f"split expects split_size be non-negative, but got split_size={split_size}")
    if split_size == 0:
        return [aten.slice(self, dim, 0, 0)]
    return _parts(self, [min(split_size, size - start) for start in range(0, max(size, 1), split_size)], dim)


@implements_tensors(aten.unsafe_split.Tensor)
def unsafe_split(self, split_size, dim=0):
    return _unrestricted(split(self, split_size, dim))


@implements_tensors(aten.unsafe_split_with_sizes.default)
def unsafe_split_with_sizes(self, split_sizes, dim=0):
    return _unrestricted(split_with_sizes(self, split_sizes, dim))


def _unrestricted(views: list[Torchish]) -> list[Torchish]:
    """Views that may be written to."""
    for view in views:
        view._restriction = None
    return views


@implements_tensors(aten.split_with_sizes.default)
def split_with_sizes(self, split_sizes, dim=0):
    if any(size < 0 for size in split_sizes):
        raise RuntimeError(f"split_with_sizes expects sizes that are not negative, but got {list(split_sizes)}")
    if sum(split_sizes) != self.shape[dim]:
        raise RuntimeError(
            f"split_with_sizes expects split_sizes to sum exactly to {self.shape[dim]} (input tensor's size at "
            f"dimension {dim}), but got split_sizes={list(split_sizes)}"
        )
    return _parts(self, split_sizes, dim)


def _parts(self, sizes, dim) -> list[Torchish]:
    ends = [int(end) for end in np.cumsum(sizes)]
    views = [aten.slice(self, dim, end - size, end) for size, end in zip(sizes, ends, strict=True)]
    return _read_together(self, views, sizes, dim % self.ndim)


def _read_together(base, views: list[Torchish], sizes, dim: int, squeezed: int | None = None) -> list[Torchish]:
    nodes: list[Any] = [view._node for view in views]
    # Without gradients they are views of detached memory, and of a tensor without elements each part is all.
    if len(nodes) > 1 and all(isinstance(node, View) and node.parent is base._node for node in nodes):
        split = Split(base._node, tuple(sizes), dim)
        for index, (view, node) in enumerate(zip(views, nodes, strict=True)):
            view._node = SplitPart(node, split, index, squeezed)
    if torch.is_grad_enabled():
        name = "Unbind" if squeezed is not None else "Split"
        for index, view in enumerate(views):
            view._restriction = Restriction("multiple", name, index)
    return views


@implements_tensors(aten.unbind.int)
def unbind(self, dim=0):
    if self.ndim == 0:
        raise IndexError("Dimension specified as 0 but tensor has no dimensions")
    dim = axis_of(self, dim)
    views = [aten.select(self, dim, index) for index in range(self.shape[dim])]
    return _read_together(self, views, [1] * len(views), dim, squeezed=dim)


@implements_tensors(aten.tensor_split.sections)
def tensor_split_sections(self, sections, dim=0):
    size = self.shape[_axis_to_split(self, dim)]
    if sections <= 0:
        raise RuntimeError(f"number of sections must be larger than 0, got {sections}")
    least, larger = divmod(size, sections)
    ends = [least * (index + 1) + min(index + 1, larger) for index in range(sections)]
    return tensor_split_indices(self, ends[:-1], dim)


@implements_tensors(aten.tensor_split.indices)
def tensor_split_indices(self, indices, dim=0):
    axis = _axis_to_split(self, dim)
    starts, ends = [0, *indices], [*indices, self.shape[axis]]
    return [aten.slice(self, axis, start, end) for start, end in zip(starts, ends, strict=True)]


@implements_tensors(aten.tensor_split.tensor_indices_or_sections)
def tensor_split(self, tensor_indices_or_sections, dim=0):
    ndim, name = tensor_indices_or_sections.ndim, "tensor_split expected tensor_indices_or_sections to"
    if canonical(tensor_indices_or_sections.dtype) != canonical(torch.int64):
        kind = tensor_indices_or_sections.type().removeprefix("torch.").removesuffix("Tensor")
        raise RuntimeError(f"{name} have dtype of long, but got {kind}")
    if ndim > 1:
        raise RuntimeError(f"{name} be a zero-dimensional or one-dimensional tensor, but got a tensor with {ndim} dims")
    found = tensor_indices_or_sections.tolist()
    return tensor_split_sections(self, found, dim) if ndim == 0 else tensor_split_indices(self, found, dim)


def _axis_to_split(self, dim: int) -> int:
    if self.ndim == 0:
        raise RuntimeError("tensor_split expected at least a 1-dimensional tensor, but got a tensor with 0 dims")
    return axis_of(self, dim)


for _owner in (torch, torch.Tensor):
    tag(_owner.unsafe_split, _owner.unsafe_split_with_sizes, tags=[Tag.VIEW])
