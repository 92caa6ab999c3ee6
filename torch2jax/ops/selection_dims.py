"""The dimensions of a selection by a mask of unknown values: which one is selected, and functions that move it.

A function of tensors with dimensions is that of the selection with its rows in front, with other numbers for the
dimensions; see `values.at_axis`.
"""

import math
from typing import Any

import torch

from ..internals.tensors import canonicalize_dim
from ..rules.registry import (
    implements_by_length,
    implements_masked,
    lookup_masked,
)
from ..runtime.errors import TracedValueError
from ..runtime.translation import lift
from ..values.lengths import is_same_number, is_traced_number
from ..values.masked import (
    Masked,
    at_axis,
    is_later,
    leading_of,
    leads,
    like,
    merged,
    permuted,
    unknown_dims,
    with_leading,
    with_masks,
)
from ..values.masked_functions import broadcast
from .bounds import known_values
from .selection import along
from .selection_nested import gather as gather_of_nested, viewed, write
from .selection_subscripts import items_of

Tensor = torch.Tensor
_REFUSED = "of a boolean-mask selection along a later dimension"


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


@implements_masked(Tensor.mT.__get__)
def transposed_matrices(self):
    return transpose(self, -2, -1)


@implements_masked(Tensor.T.__get__)
def reversed_dims(self):
    return permuted(self, list(reversed(range(self.ndim))))


@implements_masked(torch.t, Tensor.t)
def t(input):
    return reversed_dims(input)


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


_reshape: Any = lookup_masked(Tensor.reshape).body


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
    if len(input.masks) > 1:
        kept = viewed(input, shape)
        return _reshape(merged(input), *shape) if kept is None else kept
    ((at, mask),) = input.masks.items()
    before, behind = math.prod(input.sizes[:at]), math.prod(input.sizes[at + 1 :])
    for position, size in enumerate(shape):
        rest = (*shape[:position], *shape[position + 1 :])
        if any(map(is_traced_number, rest)) or (position == 0 and at == 0):
            continue
        is_it = is_same_number(size, mask.number) if is_traced_number(size) else size == -1
        if is_it and _fits(shape[:position], before) and _fits(shape[position + 1 :], behind):
            sizes = _sizes(shape[:position], before), _sizes(shape[position + 1 :], behind)
            return with_masks(input.unmasked.reshape(*sizes[0], *mask.where.shape, *sizes[1]), input, {position: mask})
    return _reshape(merged(input), *shape)


def _fits(sizes: tuple, count: int) -> bool:
    """Returns True if a part of a shape holds so many elements."""
    known = math.prod(size for size in sizes if size != -1)
    return known > 0 and count % known == 0 if -1 in sizes else known == count


def _sizes(sizes: tuple, count: int) -> tuple:
    known = math.prod(size for size in sizes if size != -1)
    return tuple(count // known if size == -1 else size for size in sizes)


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


# Subscripts.


_getitem: Any = lookup_masked(Tensor.__getitem__).body


@implements_masked(Tensor.__getitem__)
def getitem(self, index):
    if is_later(self) and is_later(index) and index.dtype == torch.bool:
        return merged(self, index.ndim)[merged(index, index.ndim)]
    index = index[0] if isinstance(index, tuple) and len(index) == 1 else index
    items = items_of(index, self.ndim)
    if is_later(self):
        return of_dims(self, items)
    if any(map(is_later, items)):
        return _by_later_selections(self, items)
    if leads(self):
        if _are_full_rows(items) and any(map(_is_unknown, items[1:])):
            return of_dims(self, items)
        is_basic = all(x is None or isinstance(x, (int, slice)) for x in items)
        return of_dims(self, items) if items and items[0] is None and is_basic else _getitem(self, index)
    found = by_unknown(self, items) if len(items) > 1 and not isinstance(items[0], Tensor) else None
    return _getitem(self, index) if found is None else found


_setitem: Any = lookup_masked(Tensor.__setitem__).body


@implements_masked(Tensor.__setitem__)
def setitem(self, index, value):
    if not is_later(self) and not (leads(self) and isinstance(self.rows, Masked)):
        _setitem(self, index, value)
        return
    items = items_of(index, self.ndim)
    if None in [item for item in items if not isinstance(item, Tensor)]:
        raise TracedValueError("writing by a subscript with None to boolean-mask selections")
    write(self, items, value)


def _by_later_selections(tensor, items: list):
    """A subscript by places that have a later dimension as long as data decide: all of them the same."""
    count = next((i for i, item in enumerate(items) if not is_later(item)), len(items))
    indices, rest = items[:count], items[count:]
    at = min(indices[0].masks) if indices else 0
    if any((min(x.masks), x.ndim) != (at, indices[0].ndim) for x in indices) or any(
        isinstance(x, Tensor) for x in rest
    ):
        raise TracedValueError(f"this subscript by places {_REFUSED}")
    by_dim = tuple(with_leading(x, at) for x in indices)
    return at_axis(tensor[(*by_dim, *rest) if len(items) > 1 else by_dim[0]], at)


def of_dims(chosen, items: list):
    """The result of a subscript with one item for each dimension, of which one may be a tensor."""
    found, at = leading_of(chosen)
    items = [*items, *[slice(None)] * (chosen.ndim - len([x for x in items if x is not None]))]
    tensors = [x for x in items if isinstance(x, Tensor) and not is_traced_number(x)]
    if len(tensors) > 1:
        leading = items[: len(tensors)]
        if at >= len(tensors) or not all(x is y for x, y in zip(tensors, leading, strict=True)):
            raise TracedValueError(f"a subscript by several tensors {_REFUSED},")
        return found[(leading.pop(at), *leading, *items[len(tensors) :])]
    position, dim, of_row, of_chosen = 0, 0, [], slice(None)
    for item in items:
        if item is not None and dim == at:
            of_chosen, position = item, sum(map(_dims_given, of_row))
        else:
            of_row.append(item)
        dim += item is not None
    if any(not (isinstance(x, slice) and x == slice(None)) for x in of_row):
        found = like(found.rows[(*[slice(None)] * found.mask.ndim, *of_row)], found)
    if not (isinstance(of_chosen, slice) and of_chosen == slice(None)):
        found = found[of_chosen]
        if not _leads(of_chosen):
            given = _dims_given(of_chosen)
            return found.movedim(tuple(range(given)), tuple(range(position, position + given))) if given else found
        if not isinstance(found, Masked):  # a slice of a size that is known
            return found.movedim(0, position)
    return at_axis(found, position)


def _leads(item) -> bool:
    """Returns True if the dimension of a subscript's item has a length that data decide."""
    return isinstance(item, (slice, Masked)) or _is_unknown(item)


def _dims_given(item) -> int:
    """The number of dimensions that an item of a subscript for one dimension gives."""
    if isinstance(item, Tensor) and not is_traced_number(item):
        return 1 if item.dtype == torch.bool else item.ndim
    return int(item is None or isinstance(item, slice))


# Of several.


@implements_masked(torch.gather, Tensor.gather)
def gather(input, dim, index, *, sparse_grad=False):
    del sparse_grad
    dim = canonicalize_dim(input.ndim, dim)
    if dim and all(leads(x) and len(x.masks) == 1 for x in (input, index)):
        return along(Tensor.gather, copies=True)(input, dim, index)
    return gather_of_nested(input, dim, index)


@implements_masked(torch.stack)
def stack(tensors, dim=0):
    dim = canonicalize_dim(tensors[0].ndim + 1, dim)
    return torch.cat([x.unsqueeze(dim) for x in tensors], dim)


def by_unknown(tensor, items: list) -> Any:
    """The result of a subscript with one data-dependent item, and no tensor beside it; None for other subscripts."""
    found = [i for i, item in enumerate(items) if _is_unknown(item)]
    if not found or len([x for x in items if isinstance(x, Tensor) and not is_traced_number(x)]) > 1:
        return None
    before, item, behind = items[: found[0]], items[found[0]], items[found[0] + 1 :]
    at = len([x for x in before if x is not None])
    if isinstance(item, Tensor) and item.dtype == torch.bool and item.ndim > 1:
        return None
    leading = (tensor.movedim(at, 0) if at else tensor)[item]
    return of_dims(at_axis(leading, at), [*before, slice(None), *behind])


def _is_unknown(item) -> bool:
    if isinstance(item, slice):
        return any(_is_unknown_number(x) for x in (item.start, item.stop, item.step))
    if leads(item):
        return True
    is_mask = isinstance(item, Tensor) and item.dtype == torch.bool and item.ndim > 0
    return is_mask and known_values(lift(item)) is None


def _is_unknown_number(value) -> bool:
    if is_traced_number(value):
        return True
    return isinstance(value, Tensor) and known_values(lift(value)) is None


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


@implements_masked(torch.narrow, Tensor.narrow)
def narrow(input, dim, start, length):
    return input[(*[slice(None)] * canonicalize_dim(input.ndim, dim), slice(start, start + length))]


@implements_masked(torch.chunk, Tensor.chunk)
def chunk(input, chunks, dim=0):
    dim = canonicalize_dim(input.ndim, dim)
    if dim in unknown_dims(input):
        raise TracedValueError("torch.chunk of a dimension that a boolean mask selected")
    return input.split(-(-input.shape[dim] // chunks), dim)


def _are_full_rows(items: list) -> bool:
    """Returns True if a subscript takes part of each row, by one tensor at most."""
    is_full = bool(items) and isinstance(items[0], slice) and items[0] == slice(None)
    return is_full and len([x for x in items if isinstance(x, Tensor)]) < 2


@implements_masked(torch.select, Tensor.select)
def select_one(input, dim, index):
    return input[(*[slice(None)] * canonicalize_dim(input.ndim, dim), index)]


@implements_masked(torch.index_select, Tensor.index_select)
def index_select(input, dim, index):
    dim = canonicalize_dim(input.ndim, dim)
    return input[(*[slice(None)] * dim, index)]
