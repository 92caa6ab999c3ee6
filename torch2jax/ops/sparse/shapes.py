"""Functions of the positions of elements: transpose, select, join."""

import math

import numpy as np
import torch

from ...rules.registry import implements_sparse
from ...values.sparse import BLOCKED, Sparse, make_sparse, size_of
from .conversion import to_layout
from .declaring import expect_no_out, implements_forms
from .places import dim_of, kept, known_places, length_of, of_known, places

__all__ = ["transposed", "widened"]

Tensor = torch.Tensor
_COO = torch.sparse_coo
_FLIPPED = {
    torch.sparse_csr: torch.sparse_csc,
    torch.sparse_csc: torch.sparse_csr,
    torch.sparse_bsr: torch.sparse_bsc,
    torch.sparse_bsc: torch.sparse_bsr,
}


def _swapped(values, one: int, other: int) -> tuple:
    values = list(values)
    values[one], values[other] = values[other], values[one]
    return tuple(values)


def _as_view_of(tensor: Sparse, found: Sparse) -> Sparse:
    found.base = tensor if tensor.base is None else tensor.base
    return found


def transposed(tensor: Sparse, dim0: int, dim1: int) -> Sparse:
    """Two dimensions exchanged: of compressed layouts, those that have an index, which compresses the other one."""
    return _as_view_of(tensor, _transposed(tensor, dim0, dim1))


def _transposed(tensor: Sparse, dim0: int, dim1: int) -> Sparse:
    shape = size_of(tensor)
    one, other = dim_of(dim0, len(shape)), dim_of(dim1, len(shape))
    if one == other:
        return tensor.of_values(tensor.elements.clone())
    if tensor.kind is not _COO:
        batch, values = tensor.batch_ndim, tensor.elements
        names = ["Batch" if x < batch else "Sparse" if x < batch + 2 else "Dense" for x in (one, other)]
        if tensor.dense_ndim and names != ["Sparse", "Sparse"]:
            raise RuntimeError("transpose(): hybrid sparse compressed tensors with dense dimensions are not supported")
        if names[0] != names[1]:
            raise RuntimeError(
                "transpose(): can only transpose dimensions of the same type (Batch, Sparse, Dense), got "
                f"{dim0}({names[0]}) and {dim1}({names[1]})"
            )
        if names[0] == "Batch":
            index = [x.transpose(one, other) for x in tensor.index]
            values = values.transpose(one, other)
            return make_sparse(tensor.kind, index, values, _swapped(shape, one, other), True, tensor.length)
        if tensor.kind in BLOCKED:
            values = values.transpose(batch + 1, batch + 2)
        return make_sparse(
            _FLIPPED[tensor.kind], tensor.index, values, _swapped(shape, one, other), True, tensor.length
        )
    sparse = tensor.sparse_ndim
    indices, values = tensor.index[0], tensor.elements.clone()  # it is a view, but has values of its own, in PyTorch
    if (one < sparse) != (other < sparse):
        raise RuntimeError("transpose(): can only transpose two sparse dimensions or two dense dimensions")
    if one >= sparse:
        values = values.transpose(one - sparse + 1, other - sparse + 1)
        return make_sparse(_COO, [indices], values, _swapped(shape, one, other), tensor.coalesced, tensor.length)
    order = _swapped(range(sparse), one, other)
    known = known_places(indices)
    index = of_known(known[list(order)]) if known is not None else torch.stack([indices[i] for i in order])
    return make_sparse(_COO, [index], values, _swapped(shape, one, other), False, tensor.length)


@implements_forms("transpose", "swapaxes", "swapdims")
def transpose(input, dim0, dim1):
    return transposed(input, dim0, dim1)


@implements_forms("t", "adjoint")
def t(input):
    if len(size_of(input)) > 2:
        raise RuntimeError(f"t() expects a tensor with <= 2 dimensions, but self is {len(size_of(input))}D")
    if len(size_of(input)) < 2:
        return _as_view_of(input, input.of_values(input.elements.clone()))
    return transposed(input, 0, 1)


for _name in ("T", "mT"):
    implements_sparse(getattr(Tensor, _name).__get__)(lambda self: transposed(self, -2, -1))


@implements_forms("permute")
def permute(input, *dims, **named):
    dims = named["dims"] if named else dims[0] if len(dims) == 1 and isinstance(dims[0], (tuple, list)) else dims
    order = [dim_of(dim, len(size_of(input))) for dim in dims]
    sparse = input.sparse_ndim
    if input.kind is not _COO:
        raise RuntimeError(f"permute() of a tensor of layout {input.kind} is not supported: call .to_dense() first")
    if len(order) != len(size_of(input)):
        raise RuntimeError(
            f"permute(sparse_coo): number of dimensions in the tensor input does not match the length of the desired "
            f"ordering of dimensions i.e. input.dim() = {len(size_of(input))} is not equal to len(dims) = {len(order)}"
        )
    if len(set(order)) != len(order):
        raise RuntimeError("permute(): duplicate dims are not allowed.")
    if set(order[:sparse]) != set(range(sparse)):
        raise RuntimeError("permute(): sparse and dense dimensions cannot be exchanged")
    values = input.elements.permute(0, *(dim - sparse + 1 for dim in order[sparse:]))
    index = input.index[0].index_select(0, torch.tensor(order[:sparse], dtype=torch.int64))
    coalesced = input.coalesced and order[:sparse] == sorted(order[:sparse])
    size = [size_of(input)[dim] for dim in order]
    return _as_view_of(input, make_sparse(_COO, [index], values, size, coalesced, input.length))


def _chosen(tensor: Sparse, known: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, torch.Tensor]:
    """The places and values of those elements at known places that a mask chooses."""
    where = np.nonzero(mask)[0]
    return known[:, where], tensor.elements.index_select(0, of_known(where))


def _select(tensor: Sparse, dim: int, index: int) -> torch.Tensor:
    shape = size_of(tensor)
    dim = dim_of(dim, len(shape))
    size = shape[dim]
    if not -size <= index < size:
        raise IndexError(f"select(): index {index} out of range for tensor of size {list(shape)} at dimension {dim}")
    index %= max(size, 1)
    rest = (*shape[:dim], *shape[dim + 1 :])
    if tensor.kind is not _COO:
        if dim < tensor.batch_ndim:
            parts = [x.select(dim, index) for x in tensor.index]
            return make_sparse(tensor.kind, parts, tensor.elements.select(dim, index), rest, True)
        if dim < tensor.batch_ndim + 2:
            if tensor.batch_ndim:
                raise RuntimeError(
                    "select(): selecting sparse dimensions is not supported for batched sparse compressed tensors."
                )
            found = _select(to_layout(tensor, _COO), dim, index)
            if isinstance(found, Sparse):
                found.coalesced = True
            return found
        place = dim - len(shape)
        return make_sparse(tensor.kind, tensor.index, tensor.elements.select(place, index), rest, True)
    sparse = tensor.sparse_ndim
    if dim >= sparse:
        values = tensor.elements.select(dim - sparse + 1, index)
        return make_sparse(_COO, tensor.index, values, rest, tensor.coalesced, tensor.length)
    indices = tensor.index[0]
    known = known_places(indices)
    if known is None:
        part = torch.cat([indices[:dim], indices[dim + 1 :]])
        found = kept(tensor, indices[dim] == index, part, rest, False)
        return found if sparse > 1 else found.elements.sum(0, dtype=found.dtype)
    found, values = _chosen(tensor, known, known[dim] == index)
    if sparse == 1:
        return values.sum(0, dtype=values.dtype)
    return make_sparse(_COO, [of_known(np.delete(found, dim, 0))], values, rest, False)


@implements_forms("select", "select_copy")
def select(input, dim, index):
    return _select(input, dim, int(index))


@implements_forms("narrow_copy", "narrow")
def narrow(input, dim, start, length):
    if not -len(size_of(input)) <= dim < len(size_of(input)):
        raise RuntimeError(f"Dimension {dim} out of range. Expecting 0 <= dim < {len(size_of(input))}.")
    dim = dim_of(dim, len(size_of(input)))
    start = int(start) % max(size_of(input)[dim], 1) if int(start) < 0 else int(start)
    if start + length > size_of(input)[dim] or length < 0:
        raise RuntimeError(f"start ({start}) + length ({length}) exceeds dimension size ({size_of(input)[dim]}).")
    return _slice(input, dim, start, start + length, 1)


def _slice(tensor: Sparse, dim: int, start: int, stop: int, step: int) -> Sparse:
    shape = size_of(tensor)
    count = len(range(start, stop, step))
    size = (*shape[:dim], count, *shape[dim + 1 :])
    kind = tensor.kind
    if kind is not _COO:
        if dim < tensor.batch_ndim:
            part = slice(start, stop, step)
            cut = (*[slice(None)] * dim, part)
            return make_sparse(kind, [x[cut] for x in tensor.index], tensor.elements[cut], size, True)
        return to_layout(_slice(to_layout(tensor, _COO), dim, start, stop, step), kind)
    if dim >= tensor.sparse_ndim:
        values = tensor.elements[(*[slice(None)] * (dim - tensor.sparse_ndim + 1), slice(start, stop, step))]
        return make_sparse(_COO, tensor.index, values, size, tensor.coalesced, tensor.length)
    known = known_places(tensor.index[0])
    at = tensor.index[0][dim] if known is None else known[dim]
    mask = (at >= start) & (at < stop) & ((at - start) % step == 0)
    if known is None:
        rows = [(x - start) // step if i == dim else x for i, x in enumerate(tensor.index[0])]
        return kept(tensor, mask, torch.stack(rows), size, tensor.coalesced)
    found, values = _chosen(tensor, known, mask)
    found = found.copy()
    found[dim] = (found[dim] - start) // step
    return make_sparse(_COO, [of_known(found)], values, size, tensor.coalesced)


@implements_sparse(Tensor.__getitem__)
def getitem(self, subscript):
    subscript = subscript if isinstance(subscript, tuple) else (subscript,)
    if any(x is Ellipsis for x in subscript):
        place = [x is Ellipsis for x in subscript].index(True)
        missing = len(size_of(self)) - sum(x is not None for x in subscript) + 1
        subscript = (*subscript[:place], *[slice(None)] * missing, *subscript[place + 1 :])
    if sum(x is not None for x in subscript) > len(size_of(self)):
        raise IndexError(f"too many indices for tensor of dimension {len(size_of(self))}")
    result, dim = self, 0
    for place, x in enumerate(subscript):
        if not isinstance(result, Sparse):
            return result[(*[slice(None)] * dim, *subscript[place:])]
        if isinstance(x, (int, np.integer)) and not isinstance(x, bool):
            result = _select(result, dim, int(x))
            continue
        if x is None:
            result = unsqueeze(result, dim)
        elif isinstance(x, slice):
            size = size_of(result)[dim]
            if x != slice(None) and (start_stop := x.indices(size)) != (0, size, 1):
                result = _slice(result, dim, *start_stop)
        elif isinstance(x, torch.Tensor) and x.dtype not in (torch.bool, torch.uint8) and x.ndim == 1:
            result = index_select(result, dim, x)
        elif isinstance(x, torch.Tensor) and x.ndim == 0 and x.dtype != torch.bool:
            result = _select(result, dim, int(x))
            continue
        else:
            raise NotImplementedError(
                f"a subscript of a tensor of layout {self.kind} with a {_kind_of(x)} is not supported; wanted whole "
                "numbers, slices and vectors of indices, or call .to_dense() first"
            )
        dim += 1
    return result


def _kind_of(subscript) -> str:
    is_mask = isinstance(subscript, torch.Tensor) and subscript.dtype in (torch.bool, torch.uint8)
    return "mask" if is_mask else type(subscript).__name__


@implements_forms("index_select")
def index_select(input, dim, index):
    if index.dtype not in (torch.int32, torch.int64):
        raise RuntimeError(f"index_select(): Expected dtype int32 or int64 for index, but got {index.dtype}")
    shape = size_of(input)
    dim = dim_of(dim, len(shape))
    if input.kind is not _COO:
        return to_layout(index_select(to_layout(input, _COO), dim, index), input.kind)
    size = (*shape[:dim], index.numel(), *shape[dim + 1 :])
    if dim >= input.sparse_ndim:
        values = input.elements.index_select(dim - input.sparse_ndim + 1, index)
        return make_sparse(_COO, input.index, values, size, input.coalesced, input.length)
    wanted = places(index, "index_select() of a sparse tensor").reshape(-1)
    if wanted.size and (wanted.min() < -shape[dim] or wanted.max() >= shape[dim]):
        raise IndexError(
            f"index_select(): index contains {wanted.max()} that is out of range for tensor of size {list(shape)}"
        )
    wanted = wanted % max(shape[dim], 1)
    known = known_places(input.index[0])
    if known is None and len(set(wanted.tolist())) == len(wanted):
        found = np.full(shape[dim], -1)
        found[wanted] = np.arange(len(wanted))
        at = of_known(found).index_select(0, input.index[0][dim].clamp(max=max(shape[dim] - 1, 0)))
        rows = [at if i == dim else x for i, x in enumerate(input.index[0])]
        return kept(input, at >= 0, torch.stack(rows), size, False)
    if known is None:
        known = places(input.index[0], "index_select() of one place more than once of a sparse tensor")
    order = np.argsort(known[dim], kind="stable")
    counts = np.bincount(known[dim], minlength=shape[dim])
    begins = np.concatenate([[0], counts.cumsum()])
    repeats = counts[wanted]
    which = np.repeat(np.arange(len(wanted)), repeats)
    within = np.arange(len(which)) - np.repeat(repeats.cumsum() - repeats, repeats)
    taken = order[begins[wanted[which]] + within]
    found = known[:, taken].copy()
    found[dim] = which
    values = input.elements.index_select(0, of_known(taken))
    return make_sparse(_COO, [of_known(found)], values, size, False)


@implements_forms("unsqueeze")
def unsqueeze(input, dim):
    shape = size_of(input)
    dim = dim_of(dim, len(shape) + 1)
    size = (*shape[:dim], 1, *shape[dim:])
    if input.kind is not _COO:
        raise RuntimeError(f"unsqueeze() of a tensor of layout {input.kind} is not supported: call .to_dense() first")
    indices, sparse = input.index[0], input.sparse_ndim
    if dim > sparse:
        values = input.elements.unsqueeze(dim - sparse + 1)
        return make_sparse(_COO, [indices], values, size, input.coalesced, input.length)
    index = torch.cat([indices[:dim], torch.zeros_like(indices[:1]), indices[dim:]])
    return make_sparse(_COO, [index], input.elements, size, False, input.length)


@implements_forms("squeeze")
def squeeze(input, dim=None):
    shape = size_of(input)
    if input.kind is not _COO:
        raise RuntimeError(f"squeeze() of a tensor of layout {input.kind} is not supported: call .to_dense() first")
    dims = range(len(shape)) if dim is None else dim if isinstance(dim, (tuple, list)) else (dim,)
    for each in sorted({dim_of(x, len(shape)) for x in dims}, reverse=True):
        if shape[each] == 1:
            input = _select(input, each, 0)
    return input


@implements_forms("cat", "concat", "concatenate")
def cat(tensors, dim=0, *, out=None):
    expect_no_out("cat", out)
    tensors = list(tensors)
    if not all(isinstance(x, Sparse) and x.kind is _COO for x in tensors):
        place, other = next((i, x) for i, x in enumerate(tensors) if not (isinstance(x, Sparse) and x.kind is _COO))
        kind = f"tensor of layout {other.kind}" if isinstance(other, Sparse) else "dense tensor"
        raise RuntimeError(
            f"Concatenating sparse tensors, but a {kind} was found at position {place}. Wanted tensors of layout "
            "torch.sparse_coo: .to_sparse(), or .to_dense() of all"
        )
    first = tensors[0]
    shape, sparse = size_of(first), first.sparse_ndim
    dim = dim_of(dim, len(shape))
    for position, each in enumerate(tensors):
        other = size_of(each)
        if len(other) != len(shape) or any(
            a != b for i, (a, b) in enumerate(zip(shape, other, strict=True)) if i != dim
        ):
            raise RuntimeError(
                f"All tensors must have the same shape: {list(shape)} (except in the concatenating dimension), but "
                f"found shape: {list(other)}"
            )
        if each.sparse_ndim != sparse:
            raise RuntimeError(
                f"All tensors must have the same sparse_dim and dense_dim: {sparse}, {len(shape) - sparse}, but "
                f"tensor at position {position} has {each.sparse_ndim}, {len(shape) - each.sparse_ndim}."
            )
    size = (*shape[:dim], sum(size_of(x)[dim] for x in tensors), *shape[dim + 1 :])
    indices, values, before = [], [], 0
    for each in tensors:
        index, elements = each.index[0], each.elements
        if dim < sparse:
            index = _moved_on(index, dim, before, size_of(each)[dim], size[dim])
        else:
            pads = [0, 0] * (len(shape) - dim - 1) + [before, size[dim] - before - size_of(each)[dim]]
            elements = torch.nn.functional.pad(elements, pads)
        before += size_of(each)[dim]
        indices.append(index)
        values.append(elements)
    return make_sparse(_COO, [torch.cat(indices, 1)], torch.cat(values), size, False, length_of(tensors))


def _moved_on(index: torch.Tensor, dim: int, before: int, size: int, whole: int) -> torch.Tensor:
    """An index with its places along a dimension behind others; what pads stays beyond the whole."""
    known = known_places(index)
    if known is not None:
        moved = known.copy()
        moved[dim] += before
        return of_known(moved)
    at = torch.where(index[dim] < size, index[dim] + before, whole)
    return torch.stack([at if i == dim else x for i, x in enumerate(index)])


@implements_forms("stack")
def stack(tensors, dim=0, *, out=None):
    return cat([unsqueeze(x, dim) for x in tensors], dim, out=out)


@implements_forms("reshape", "view")
def reshape(input, *shape):
    shape = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
    size = torch.empty(size_of(input), device="meta").reshape(shape).shape
    if input.kind is not _COO or input.dense_ndim:
        raise RuntimeError(
            f"reshape() of a tensor of layout {input.kind} with dense dimensions is not supported: use .to_dense()"
        )
    known = places(input.index[0], "reshape() of a sparse tensor")
    found = np.stack(np.unravel_index(np.ravel_multi_index(tuple(known), tuple(size_of(input))), tuple(size)))
    return make_sparse(_COO, [of_known(found)], input.elements, size, input.coalesced)


@implements_forms("_sparse_broadcast_to")
def broadcast_to(self, size):
    shape = (1,) * (len(size) - len(size_of(self))) + size_of(self)
    if len(size) < len(shape) or any(old not in (1, new) for old, new in zip(shape, size, strict=True)):
        raise RuntimeError(
            f"got a tensor of size {list(size_of(self))} to broadcast to {list(size)}; wanted a size of as many "
            "dimensions, or more in front, that differs where the tensor's is one"
        )
    return widened(self, tuple(size))


def widened(tensor: Sparse, size: tuple[int, ...]) -> Sparse:
    """A tensor broadcast to a size: its elements again for each place along a dimension that it lacks."""
    if tensor.kind is not _COO:
        return to_layout(widened(to_layout(tensor, _COO), size), tensor.kind, tensor.block or None)
    added = len(size) - len(size_of(tensor))
    sparse = added + tensor.sparse_ndim
    grown = [i for i in range(sparse) if i < added or size_of(tensor)[i - added] != size[i]]
    fixed = [i for i in range(sparse) if i not in grown]
    count, index = math.prod(size[i] for i in grown), tensor.index[0]
    new = np.tile(np.indices([size[i] for i in grown]).reshape(len(grown), count), index.shape[1])
    known, order = known_places(index), np.argsort([*grown, *fixed])
    if known is not None:
        rows = of_known(np.concatenate([new, known.repeat(count, 1)[[i - added for i in fixed]]])[order])
    else:
        old, along = index.repeat_interleave(count, 1), of_known(new)
        places_along = [  # what pads has its place beyond the shape
            row if i < added else torch.where(old[i - added] == 0, row, size[i])
            for i, row in zip(grown, along, strict=True)
        ]
        both = [*places_along, *(old[i - added] for i in fixed)]
        rows = torch.stack([both[i] for i in order])
    elements = tensor.elements.expand(-1, *size[sparse:]).repeat_interleave(count, 0)
    # they stay in order if what has grown comes last
    in_order = tensor.coalesced and max(fixed, default=-1) < min(grown, default=sparse)
    length = None if tensor.length is None else tensor.length * count
    return make_sparse(_COO, [rows], elements, size, in_order, length)
