"""Functions of the positions of elements: transpose, select, join."""

import numpy as np
import torch

from ...rules.registry import implements_sparse
from ...values.sparse import Sparse, make_sparse, size_of
from .conversion import to_layout
from .rules import coalesced, dim_of, expect_known, implements_forms, kept, known_indices, length_of, of_known

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


def transposed(input: Sparse, dim0: int, dim1: int) -> Sparse:
    """Two dimensions exchanged: a compressed layout becomes that which compresses the other one."""
    shape = size_of(input)
    one, other = dim_of(dim0, len(shape)), dim_of(dim1, len(shape))
    if one == other:
        return input.of_values(input.elements.clone())
    if input.kind is not _COO:
        values = input.elements.transpose(1, 2) if input.block else input.elements
        return make_sparse(_FLIPPED[input.kind], input.index, values, _swapped(shape, 0, 1), True, input.length)
    sparse = input.sparse_ndim
    indices, values = input.index[0], input.elements.clone()  # as in PyTorch, which calls it a view
    if (one < sparse) != (other < sparse):
        raise RuntimeError("transpose(): can only transpose two sparse dimensions or two dense dimensions")
    if one >= sparse:
        values = values.transpose(one - sparse + 1, other - sparse + 1)
        return make_sparse(_COO, [indices], values, _swapped(shape, one, other), input.coalesced, input.length)
    order = _swapped(range(sparse), one, other)
    known = known_indices(indices)
    index = of_known(known[list(order)]) if known is not None else torch.stack([indices[i] for i in order])
    return make_sparse(_COO, [index], values, _swapped(shape, one, other), False, input.length)


implements_forms("transpose", "swapaxes", "swapdims")(transposed)


@implements_forms("t", "adjoint")
def t(input):
    if len(size_of(input)) > 2:
        raise RuntimeError(f"t() expects a tensor with <= 2 dimensions, but self is {len(size_of(input))}D")
    if len(size_of(input)) < 2:
        return input.of_values(input.elements.clone())
    return transposed(input, 0, 1)


for _name in ("T", "mT"):
    implements_sparse(getattr(Tensor, _name).__get__)(lambda self: transposed(self, -2, -1))


def _expect_coo(name: str, tensor: Sparse) -> None:
    if tensor.kind is not _COO:
        raise RuntimeError(
            f"{name}() of a tensor of layout {tensor.kind} is not supported: call .to_sparse_coo() or .to_dense() first"
        )


@implements_forms("permute")
def permute(input, *dims, **named):
    dims = named["dims"] if named else dims[0] if len(dims) == 1 and isinstance(dims[0], (tuple, list)) else dims
    order = [dim_of(dim, len(size_of(input))) for dim in dims]
    sparse = input.sparse_ndim
    _expect_coo("permute", input)
    if sorted(order) != list(range(len(size_of(input)))):
        raise RuntimeError(f"permute(): got dims={dims}; wanted each of {len(size_of(input))} dimensions once")
    if set(order[:sparse]) != set(range(sparse)):
        raise RuntimeError("permute(): sparse and dense dimensions cannot be exchanged: call .to_dense() first")
    values = input.elements.permute(0, *(dim - sparse + 1 for dim in order[sparse:]))
    index = input.index[0].index_select(0, torch.tensor(order[:sparse], dtype=torch.int64))
    in_order = input.coalesced and order[:sparse] == sorted(order[:sparse])
    size = [size_of(input)[dim] for dim in order]
    return make_sparse(_COO, [index], values, size, in_order, input.length)


def _chosen(tensor: Sparse, known: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, torch.Tensor]:
    """The places and values of those elements at known places that a mask chooses."""
    where = np.nonzero(mask)[0]
    return known[:, where], tensor.elements.index_select(0, of_known(where))


@implements_forms("select", "select_copy")
def select(input, dim, index):
    index = int(index)
    shape = size_of(input)
    dim = dim_of(dim, len(shape))
    size = shape[dim]
    if not -size <= index < size:
        raise IndexError(f"select(): index {index} out of range for tensor of size {list(shape)} at dimension {dim}")
    index %= max(size, 1)
    rest = (*shape[:dim], *shape[dim + 1 :])
    if input.kind is not _COO:
        return coalesced(select(to_layout(input, _COO), dim, index))
    sparse = input.sparse_ndim
    if dim >= sparse:
        values = input.elements.select(dim - sparse + 1, index)
        return make_sparse(_COO, input.index, values, rest, input.coalesced, input.length)
    indices = input.index[0]
    known = known_indices(indices)
    if known is None:
        part = torch.cat([indices[:dim], indices[dim + 1 :]])
        found = kept(input, indices[dim] == index, part, rest, False)
        return found if sparse > 1 else found.elements.sum(0, dtype=found.dtype)
    found, values = _chosen(input, known, known[dim] == index)
    if sparse == 1:
        return values.sum(0, dtype=values.dtype)
    return make_sparse(_COO, [of_known(np.delete(found, dim, 0))], values, rest, False)


@implements_forms("narrow_copy")
def narrow_copy(input, dim, start, length):
    _expect_coo("narrow_copy", input)
    if not -len(size_of(input)) <= dim < len(size_of(input)):
        raise RuntimeError(f"Dimension {dim} out of range. Expecting 0 <= dim < {len(size_of(input))}.")
    dim, count = dim_of(dim, len(size_of(input))), size_of(input)[dim]
    start = int(start) % max(count, 1) if int(start) < 0 else int(start)
    if start + length > count or length < 0:
        raise RuntimeError(f"start ({start}) + length ({length}) exceeds dimension size ({count}).")
    size = (*size_of(input)[:dim], length, *size_of(input)[dim + 1 :])
    if dim >= input.sparse_ndim:
        values = input.elements.narrow(dim - input.sparse_ndim + 1, start, length)
        return make_sparse(_COO, input.index, values, size, input.coalesced, input.length)
    known = known_indices(input.index[0])
    at = input.index[0][dim] if known is None else known[dim]
    mask = (at >= start) & (at < start + length)
    if known is None:
        rows = [x - start if i == dim else x for i, x in enumerate(input.index[0])]
        return kept(input, mask, torch.stack(rows), size, input.coalesced)
    found, values = _chosen(input, known, mask)
    found = found.copy()
    found[dim] -= start
    return make_sparse(_COO, [of_known(found)], values, size, input.coalesced)


@implements_sparse(Tensor.__getitem__)
def getitem(self, subscript):
    subscript = subscript if isinstance(subscript, tuple) else (subscript,)
    if sum(x is not None and x is not Ellipsis for x in subscript) > len(size_of(self)):
        raise IndexError(f"too many indices for tensor of dimension {len(size_of(self))}")
    result, dim = self, 0
    for position, x in enumerate(subscript):
        if not isinstance(result, Sparse):
            return result[(*[slice(None)] * dim, *subscript[position:])]
        is_number = isinstance(x, torch.Tensor) and x.ndim == 0 and x.dtype != torch.bool
        if is_number or (isinstance(x, (int, np.integer)) and not isinstance(x, bool)):
            result = select(result, dim, int(x))
            continue
        if not (isinstance(x, slice) and x == slice(None)):
            raise NotImplementedError(
                f"a subscript of a tensor of layout {self.kind} with {_kind_of(x)} is not supported; wanted whole "
                "numbers: take parts of a COO tensor by narrow_copy() or index_select(), or call .to_dense() first"
            )
        dim += 1
    return result


def _kind_of(subscript) -> str:
    is_mask = isinstance(subscript, torch.Tensor) and subscript.dtype in (torch.bool, torch.uint8)
    if subscript is None or subscript is Ellipsis:
        return str(subscript)
    return "a mask" if is_mask else f"a {type(subscript).__name__}"


@implements_forms("index_select")
def index_select(input, dim, index):
    _expect_coo("index_select", input)
    if index.dtype not in (torch.int32, torch.int64):
        raise RuntimeError(f"index_select(): Expected dtype int32 or int64 for index, but got {index.dtype}")
    shape = size_of(input)
    dim = dim_of(dim, len(shape))
    size = (*shape[:dim], index.numel(), *shape[dim + 1 :])
    if dim >= input.sparse_ndim:
        values = input.elements.index_select(dim - input.sparse_ndim + 1, index)
        return make_sparse(_COO, input.index, values, size, input.coalesced, input.length)
    wanted = expect_known(index, "index_select() of a sparse tensor").reshape(-1)
    if wanted.size and (wanted.min() < -shape[dim] or wanted.max() >= shape[dim]):
        raise IndexError(
            f"index_select(): index contains {wanted.max()} that is out of range for tensor of size {list(shape)}"
        )
    wanted = wanted % max(shape[dim], 1)
    known = known_indices(input.index[0])
    if known is None and len(set(wanted.tolist())) == len(wanted):
        found = np.full(shape[dim], -1)
        found[wanted] = np.arange(len(wanted))
        at = of_known(found).index_select(0, input.index[0][dim].clamp(max=max(shape[dim] - 1, 0)))
        rows = [at if i == dim else x for i, x in enumerate(input.index[0])]
        return kept(input, at >= 0, torch.stack(rows), size, False)
    if known is None:
        known = expect_known(input.index[0], "index_select() of one place more than once of a sparse tensor")
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
    _expect_coo("unsqueeze", input)
    indices, sparse = input.index[0], input.sparse_ndim
    if dim > sparse:
        values = input.elements.unsqueeze(dim - sparse + 1)
        return make_sparse(_COO, [indices], values, size, input.coalesced, input.length)
    index = torch.cat([indices[:dim], torch.zeros_like(indices[:1]), indices[dim:]])
    return make_sparse(_COO, [index], input.elements, size, False, input.length)


@implements_forms("cat", "concat", "concatenate")
def cat(tensors, dim=0):
    tensors = list(tensors)
    for position, each in enumerate(tensors):
        if not isinstance(each, Sparse) or each.kind is not _COO:
            kind = f"tensor of layout {each.kind}" if isinstance(each, Sparse) else "dense tensor"
            raise RuntimeError(
                f"Concatenating sparse tensors, but a {kind} was found at position {position}. Wanted tensors of "
                "layout torch.sparse_coo: .to_sparse(), or .to_dense() of all"
            )
    shape, sparse = size_of(tensors[0]), tensors[0].sparse_ndim
    dim = dim_of(dim, len(shape))
    for position, each in enumerate(tensors):
        other = size_of(each)
        if each.sparse_ndim != sparse or (*other[:dim], *other[dim + 1 :]) != (*shape[:dim], *shape[dim + 1 :]):
            raise RuntimeError(
                f"All tensors must have the same shape: {list(shape)} (except in the concatenating dimension), and the "
                f"same sparse_dim: {sparse}, but found shape: {list(other)} and {each.sparse_ndim} at position "
                f"{position}"
            )
    size = (*shape[:dim], sum(size_of(x)[dim] for x in tensors), *shape[dim + 1 :])
    indices, values, before = [], [], 0
    for each in tensors:
        index, elements = each.index[0], each.elements
        if dim < sparse:
            index = _shifted_index(index, dim, before, size_of(each)[dim], size[dim])
        else:
            pads = [0, 0] * (len(shape) - dim - 1) + [before, size[dim] - before - size_of(each)[dim]]
            elements = torch.nn.functional.pad(elements, pads)
        before += size_of(each)[dim]
        indices.append(index)
        values.append(elements)
    return make_sparse(_COO, [torch.cat(indices, 1)], torch.cat(values), size, False, length_of(tensors))


def _shifted_index(index: torch.Tensor, dim: int, before: int, size: int, total: int) -> torch.Tensor:
    """An index with an offset along a dimension; padding stays out of bounds."""
    known = known_indices(index)
    if known is not None:
        shifted = known.copy()
        shifted[dim] += before
        return of_known(shifted)
    at = torch.where(index[dim] < size, index[dim] + before, total)
    return torch.stack([at if i == dim else x for i, x in enumerate(index)])


@implements_forms("stack")
def stack(tensors, dim=0):
    return cat([unsqueeze(x, dim) for x in tensors], dim)
