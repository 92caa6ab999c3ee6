"""The dimensions of masked tensors: their order, more and fewer of them, views, parts, and writes to all of one.

Slices and single elements of it are at positions that data decide. Code that writes to them writes to the whole, and
they show what is written to the whole, as in PyTorch.

A view in rows of another size is one that the elements, a data-dependent number of them, must fill. PyTorch raises an
error where they do not. Here that they do is proved by the sums that make the numbers, or else it is in doubt, and the
results of the call tell: see `expect_to_fit`.
"""

import math
from typing import Any

import torch
from jax import lax

from ..internals.tensors import canonicalize_dim
from ..rules.registry import (
    implements_by_length,
    implements_masked,
)
from ..runtime.errors import TracedValueError
from ..runtime.translation import lift
from ..tensors.storage import View
from ..tensors.tensor import geometry, make_view
from ..tensors.view_kind import ViewKind
from ..values.lengths import expect_to_fit, is_multiple, is_same_number, is_traced_number, tensor_of
from ..values.masked import (
    Masked,
    aligned_along,
    at_axis,
    first,
    flattened,
    leads,
    masked,
    merged,
    packed,
    permuted,
    positions_of,
    unknown_dims,
    unnested,
    with_masks,
)
from ..values.masked_functions import broadcast

aten = torch.ops.aten
Tensor = torch.Tensor


def rows_at(rows: Any, positions: torch.Tensor, count: torch.Tensor) -> Any:
    """The view of rows ``(n, ...)``, of which the first few are valid.

    Args:
        positions: ``(k,)``, within the rows.
        count: how many of them are there. The others are read, and not written.
    """
    rows = lift(rows)
    index, is_there = lift(positions).read(), (torch.arange(len(positions)) < count).read()  # pyright: ignore
    nowhere = lax.full_like(index, len(rows))

    def read(array):
        return array.at[index].get(mode="promise_in_bounds", wrap_negative_indices=False)

    def write(array, value):
        return array.at[lax.select(is_there, index, nowhere)].set(value, mode="drop")

    like = geometry(aten.slice.Tensor, rows, 0, 0, len(positions))
    return make_view(rows, View(rows._node, ViewKind(read, write, traced=((0, index, None),))), like)


def element_at(rows: Any, position: torch.Tensor, is_there: torch.Tensor) -> Any:
    """The view of one row of ``(n, ...)``. One that is not there is nan, if it can be, and is not written."""
    rows = lift(rows)
    index, flag = lift(position).read(), lift(is_there).read()

    def read(array):
        row = array.at[index].get(mode="promise_in_bounds", wrap_negative_indices=False)
        if row.dtype.kind not in "fcV":
            return row
        return lax.select(lax.broadcast(flag, row.shape), row, lax.full_like(row, float("nan")))

    def write(array, value):
        return array.at[lax.select(flag, index, lax.full_like(index, len(rows)))].set(value, mode="drop")

    like = geometry(aten.select.int, rows, 0, 0)
    return make_view(rows, View(rows._node, ViewKind(read, write, traced=((0, index, 1),))), like)


def is_view(rows: Any, of: Any) -> bool:
    """Returns True if rows are in the memory of others."""
    base = lambda x: x.unmasked if isinstance(x, Masked) else x
    return base(rows)._node.storage is base(of)._node.storage


# In rows of another size.


def in_parts(flat: Masked, shape: tuple) -> Any:
    """All elements in a shape of which data decide one size at most."""
    unknown = [i for i, size in enumerate(shape) if is_traced_number(size) or size == -1]
    at = unknown[0] if unknown else 0
    before, behind = tuple(shape[:at]), tuple(shape[at + 1 :])
    size = 0 if len(unknown) > 1 else math.prod(before) * math.prod(behind) if unknown else math.prod(shape)
    if size < 1:
        raise TracedValueError(f"a view of shape {shown(shape)} of a boolean-mask selection")
    if not unknown:
        return _of_known_size(flat, shape, size)
    if is_traced_number(shape[at]):
        length, is_sure = tensor_of(shape[at]), is_same_number(shape[at] * size, flat.number)
    else:
        length, is_sure = flat.length // size, is_multiple(flat.length, size)
    if not is_sure:
        _expect_filled(shape, length * size == flat.length)
    capacity, part = flat.mask.numel() // size, math.prod(behind)
    index = torch.arange(capacity * part)
    if at:
        starts = torch.arange(math.prod(before))[:, None] * (length * part)
        index = (index.reshape(capacity, 1, part) + starts).reshape(-1)
    return at_axis(_at_positions(flat, index, (capacity, *before, *behind), length), at)


def _of_known_size(flat: Masked, shape: tuple[int, ...], size: int) -> torch.Tensor:
    if size > flat.mask.numel():
        raise RuntimeError(f"shape '{list(shape)}' is invalid for input of at most {flat.mask.numel()} elements")
    _expect_filled(shape, flat.length == size)
    found = _at_positions(flat, torch.arange(size), shape, flat.length)
    if found.refuses_writes:
        raise TracedValueError(f"a view of shape {list(shape)} of a boolean-mask selection with other strides")
    return found.rows


def _at_positions(flat: Masked, positions: torch.Tensor, shape: tuple[int, ...], length: torch.Tensor) -> Masked:
    """The view of the elements at indices into the selection, in rows of which the first few are valid."""
    rows = flat.rows.flatten(0, flat.mask.ndim - 1)
    positions = positions.clamp(0, max(len(rows) - 1, 0))
    if not flat.is_compact:
        positions = positions_of(flat, flat.mask.numel())[positions]
    found = first(rows_at(rows, positions, flat.length).reshape(shape), length)
    found.shares_memory, found.refuses_writes = True, flat.refuses_writes or not is_view(rows, flat.rows)
    return found


def _expect_filled(shape: tuple, fits: torch.Tensor) -> None:
    text = shown(shape)
    expect_to_fit(fits, f"a view of shape {text}", f"shape '{text}' is invalid for as many elements as data decide")


def shown(shape: tuple) -> str:
    return f"[{', '.join('n' if is_traced_number(size) else str(size) for size in shape)}]"


# Writes to all of a selection, along whichever dimension.


@implements_masked(Tensor.fill_)
def fill_(self, value):
    self.overwrite(torch.zeros_like(self.unmasked).fill_(value))
    return self


@implements_masked(Tensor.copy_)
def copy_(self, src, non_blocking=False):
    del non_blocking
    self.assign(torch.where(torch.ones((), dtype=torch.bool), src.to(self.dtype), self))
    return self


implements_masked(Tensor.zero_)(lambda self: fill_(self, 0))
implements_masked(Tensor.masked_fill_)(lambda self, mask, value: copy_(self, torch.where(mask, value, self)))


# In another order.


def _given(dims) -> tuple:
    return tuple(dims[0]) if len(dims) == 1 and isinstance(dims[0], (tuple, list)) else tuple(dims)


@implements_masked(torch.permute, Tensor.permute)
def permute(input, *dims):
    order = [canonicalize_dim(input.ndim, dim) for dim in _given(dims)]
    if sorted(order) != list(range(input.ndim)):
        raise RuntimeError(f"permute(dims): got {tuple(order)} of a tensor of {input.ndim} dimensions")
    return permuted(input, order)


@implements_masked(torch.transpose, Tensor.transpose, torch.swapaxes, Tensor.swapaxes)
def transpose(input, dim0, dim1):
    order = list(range(input.ndim))
    dim0, dim1 = (canonicalize_dim(input.ndim, dim) for dim in (dim0, dim1))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return permuted(input, order)


implements_masked(Tensor.mT.__get__)(lambda self: transpose(self, -2, -1))
implements_masked(Tensor.T.__get__)(lambda self: permuted(self, list(reversed(range(self.ndim)))))


@implements_masked(torch.movedim, Tensor.movedim, torch.moveaxis, Tensor.moveaxis)
def movedim(input, source, destination):
    sources, positions = (
        [canonicalize_dim(input.ndim, dim) for dim in ((dims,) if isinstance(dims, int) else dims)]
        for dims in (source, destination)
    )
    rest = iter([dim for dim in range(input.ndim) if dim not in sources])
    there = dict(zip(positions, sources, strict=True))
    return permuted(input, [there[dim] if dim in there else next(rest) for dim in range(input.ndim)])


# With more dimensions, or fewer.


@implements_masked(torch.unsqueeze, Tensor.unsqueeze)
def unsqueeze(input, dim):
    dim = canonicalize_dim(input.ndim + 1, dim)
    masks = {at + (dim <= at): mask for at, mask in input.masks.items()}
    return with_masks(input.unmasked.unsqueeze(input.axis(dim)), input, masks)


@implements_masked(torch.squeeze, Tensor.squeeze)
def squeeze(input, dim=None):
    """Data-dependent dimensions stay, though they may be one."""
    dims = range(input.ndim) if dim is None else _given((dim,))
    dropped = [x for x in {canonicalize_dim(input.ndim, x) for x in dims} if input.sizes[x] == 1]
    if not dropped:
        return input
    masks = {at - len([x for x in dropped if x < at]): mask for at, mask in input.masks.items()}
    return with_masks(input.unmasked.squeeze(tuple(map(input.axis, dropped))), input, masks)


@implements_masked(Tensor.reshape, torch.reshape)
def reshape(input, *shape):
    found = view(input, *shape)
    if leads(found) and math.prod(input.shape[: min(input.masks)]) != 1:
        return _copied(found)
    return found


def _copied(x: Masked) -> Masked:
    """A copy where PyTorch has a view or a copy: that depends on an order in memory which is not known here."""
    found = with_masks(x.unmasked.clone(), x)
    found.refuses_writes = True
    return found


@implements_masked(Tensor.view)
def view(input, *shape):
    shape = _given(shape)
    if len(shape) == 1 and isinstance(shape[0], torch.dtype):
        return broadcast(lambda x: x.view(shape[0]), (input,), {}, "a view")
    kept = _kept(input, shape)
    for stop in range(max(input.masks) + 1, input.ndim + 1):
        kept = _kept(merged(input, stop), shape) if kept is None else kept
    return in_parts(flattened(input), shape) if kept is None else kept


def _kept(x: Masked, shape: tuple) -> Any:
    """A view of a shape that keeps the data-dependent dimensions; None if it does not."""
    at = [i for i, size in enumerate(shape) if is_traced_number(size)]
    rest = [i for i, size in enumerate(shape) if i not in at and size == -1]
    at = sorted([*at, *rest]) if len(at) < len(x.masks) else at
    if len(at) != len(x.masks):
        return None
    made, masks = [], {}
    starts, own_starts = (0, *(i + 1 for i in at)), (0, *(dim + 1 for dim in x.masks))
    for stop, own_stop, start, own_start in zip((*at, None), (*x.masks, None), starts, own_starts, strict=True):
        sizes, count = shape[start:stop], math.prod(x.sizes[own_start:own_stop])
        known = math.prod(size for size in sizes if size != -1)
        if known != count if -1 not in sizes else not known or count % known:
            return None
        made += [count // known if size == -1 else size for size in sizes]
        if stop is not None:
            mask = masks[stop] = x.masks[own_stop]
            if is_traced_number(shape[stop]) and not is_same_number(shape[stop], mask.number):
                return None
            made += mask.where.shape
    return with_masks(x.unmasked.reshape(made), x, masks)


@implements_masked(torch.flatten, Tensor.flatten)
def flatten(input, start_dim=0, end_dim=-1):
    start, end = (canonicalize_dim(input.ndim, dim) for dim in (start_dim, end_dim))
    inside = [dim for dim in input.masks if start <= dim <= end]
    if inside:
        found = merged(input, end + 1, start)
        return _copied(found) if math.prod(input.sizes[start : inside[0]]) != 1 else found
    masks = {dim - (end - start if dim > end else 0): mask for dim, mask in input.masks.items()}
    return with_masks(input.unmasked.flatten(input.axis(start), input.axis(end)), input, masks)


@implements_masked(torch.unflatten, Tensor.unflatten)
def unflatten(input, dim, sizes):
    dim = canonicalize_dim(input.ndim, dim)
    if dim in input.masks:
        return view(input, *input.shape[:dim], *sizes, *input.shape[dim + 1 :])
    masks = {at + (len(sizes) - 1 if at > dim else 0): mask for at, mask in input.masks.items()}
    return with_masks(input.unmasked.unflatten(input.axis(dim), sizes), input, masks)


# Of several.


@implements_masked(torch.gather, Tensor.gather)
def gather(input, dim, index, *, sparse_grad=False):
    del sparse_grad
    dim = canonicalize_dim(input.ndim, dim)
    shared = {*unknown_dims(input)} & {*unknown_dims(index)} - {dim}
    for each in {*unknown_dims(input)} - shared:
        input = packed(input, dim=each)
    for each in {*unknown_dims(index)} - shared - {dim}:
        index = packed(index, input.shape[each], each)
    for each in shared:
        input, index = aligned_along([input, index], [each, each], "torch.gather")
    positions, masks = unnested(index, Masked.copied)
    return masked(torch.gather(unnested(input)[0], dim, positions), masks)


@implements_masked(torch.unbind, Tensor.unbind)
def unbind(input, dim=0):
    dim = canonicalize_dim(input.ndim, dim)
    if dim in input.masks:
        raise TracedValueError("torch.unbind of a boolean-mask selection", instead="iterate over the tensor itself")
    masks = {at - (dim < at): mask for at, mask in input.masks.items()}
    return tuple(with_masks(each, input, masks) for each in input.unmasked.unbind(input.axis(dim)))


@implements_by_length(torch.split, Tensor.split, torch.split_with_sizes, Tensor.split_with_sizes)
@implements_masked(torch.split, Tensor.split, torch.split_with_sizes, Tensor.split_with_sizes)
def split(tensor, split_size_or_sections, dim=0):
    dim, sizes = canonicalize_dim(tensor.ndim, dim), split_size_or_sections
    is_by_sizes = isinstance(sizes, (tuple, list))
    if dim not in unknown_dims(tensor) and not any(map(is_traced_number, sizes if is_by_sizes else [sizes])):
        return tuple(with_masks(each, tensor) for each in tensor.unmasked.split(sizes, tensor.axis(dim)))
    if not is_by_sizes:
        raise TracedValueError("torch.split into parts of one size, of a data-dependent length,")
    found, start = [], 0
    for size in sizes:
        found.append(tensor[(*[slice(None)] * dim, slice(start, start + size))])
        start = start + size
    return tuple(found)


@implements_masked(torch.chunk, Tensor.chunk)
def chunk(input, chunks, dim=0):
    dim = canonicalize_dim(input.ndim, dim)
    if dim in unknown_dims(input):
        raise TracedValueError("torch.chunk of a dimension that a boolean mask selected")
    return input.split(-(-input.shape[dim] // chunks), dim)
