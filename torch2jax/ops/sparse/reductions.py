"""Sums, norms, and softmax, of sparse tensors."""

import math

import numpy as np
import torch

from ...rules.registry import implements_sparse, implements_tensors
from ...values.sparse import Sparse, make_sparse, size_of
from .conversion import to_layout
from .declaring import expect_no_out, implements_forms
from .places import (
    coalesced,
    coo,
    dim_of,
    filled,
    first_places,
    flat_places,
    known_places,
    of_known,
    places,
    spread,
    within,
)

Tensor = torch.Tensor
_COO = torch.sparse_coo


def _dims(dim, ndim: int) -> list[int]:
    if dim is None or (isinstance(dim, (tuple, list)) and not len(dim)):
        return list(range(ndim))
    found = [dim_of(x, ndim) for x in (dim if isinstance(dim, (tuple, list)) else (dim,))]
    if len(set(found)) != len(found):
        raise RuntimeError(f"dim {found[0]} appears multiple times in the list of dims")
    return sorted(found)


def _sum(input: Sparse, dim, keepdim: bool, dtype):
    shape = size_of(input)
    dims = _dims(dim, len(shape))
    elements = input.elements if dtype is None else input.elements.to(dtype)
    if len(dims) == len(shape):
        total = elements.sum()
        return total.reshape([1] * len(shape)) if keepdim else total
    if input.kind is not _COO:
        as_coo = to_layout(input.of_values(elements), _COO)
        return to_layout(_sum(as_coo, dims, keepdim, None), input.kind)
    sparse = input.sparse_ndim
    summed = [x for x in dims if x >= sparse]
    if summed:
        elements = elements.sum([x - sparse + 1 for x in summed], keepdim=keepdim)
    kept = [x for x in range(sparse) if x not in dims]
    sizes = [1 if x in dims else shape[x] for x in range(len(shape))]
    size = sizes if keepdim else [shape[x] for x in range(len(shape)) if x not in dims]
    if not kept and not keepdim:
        return elements.sum(0, dtype=elements.dtype if not elements.dtype.is_floating_point else None)
    indices = input.index[0]
    if len(kept) == sparse:
        return make_sparse(_COO, [indices], elements, size, input.coalesced, input.length)
    rows = [indices[x] if x in kept else torch.zeros_like(indices[0]) for x in range(sparse) if keepdim or x in kept]
    found = coalesced(make_sparse(_COO, [torch.stack(rows)], elements, size, False))
    if keepdim:
        found.coalesced = False  # in PyTorch it is not known to be
    return found


@implements_sparse(torch.sum, Tensor.sum, torch.ops.aten.sum)
def sum(input, dim=None, keepdim=False, *, dtype=None, out=None):
    expect_no_out("sum", out)
    if dtype is None and not (input.dtype.is_floating_point or input.dtype.is_complex):
        dtype = torch.int64
    return _sum(input, dim, keepdim, dtype)


@implements_sparse(torch.sparse.sum, torch._sparse_sum)
def sparse_sum(input, dim=None, dtype=None):
    if dim is None or (isinstance(dim, (tuple, list)) and len(dim) == len(size_of(input))):
        return input.elements.sum(dtype=dtype or input.dtype)
    return _sum(input, dim, False, dtype)


@implements_sparse(torch._sparse_csr_sum)
def sparse_csr_sum(input, dim, keepdim=False, *, dtype=None):
    if not keepdim:
        raise RuntimeError("reduction operations on CSR tensors with keepdim=False is unsupported")
    total = _sum(input, dim, keepdim, dtype)
    if isinstance(total, Sparse):
        return total
    count = min(1, input.elements.shape[0])  # of all: an element, if there is one
    index = [of_known(np.array([0, count])), of_known(np.zeros(count, np.int64))]
    return make_sparse(input.kind, index, total.reshape(1)[:count], (1, count), True)


@implements_sparse(torch._sparse_csr_prod)
def sparse_csr_prod(input, dim, keepdim=False, *, dtype=None):
    """The products of the elements that are there, of each row, column, or all."""
    if not keepdim:
        raise RuntimeError("reduction operations on CSR tensors with keepdim=False is unsupported")
    indices, elements = coo(input)
    known = places(indices, "products of a sparse tensor's elements").copy()
    dims = _dims(dim, len(size_of(input)))
    known[dims] = 0
    found, which = first_places(known)
    start = torch.ones(found.shape[1], dtype=dtype or elements.dtype)
    values = start.scatter_reduce(0, of_known(which), elements.to(start.dtype), "prod")
    size = [1 if i in dims else length for i, length in enumerate(size_of(input))]
    return to_layout(make_sparse(_COO, [of_known(found)], values, size, True), input.kind)


@implements_forms("mean")
def mean(input, dim=None, keepdim=False, *, dtype=None, out=None):
    expect_no_out("mean", out)
    shape = size_of(input)
    dims = _dims(dim, len(shape))
    total = _sum(input, dims, keepdim, dtype)
    return total / math.prod(shape[x] for x in dims)


@implements_sparse(torch.norm, Tensor.norm, torch.functional.norm, torch.ops.aten.norm)
def norm(input, p="fro", dim=None, keepdim=False, out=None, dtype=None):
    expect_no_out("norm", out)
    if dim is not None and len(_dims(dim, len(size_of(input)))) != len(size_of(input)):
        raise RuntimeError(
            "norm_sparse currently only supports full reductions, so 'dim' must either be empty or contain all "
            "dimensions of the input"
        )
    if dtype is not None and p == "fro":
        raise ValueError("dtype argument is not supported in frobenius norm")
    for given, name in ((keepdim, "keepdim=True"), (dtype, "'dtype' argument")):
        if given:
            raise RuntimeError(f"norm_sparse currently does not support {name}")
    found = coalesced(input) if input.kind is _COO else input
    return torch.norm(found.elements.reshape(-1), 2 if p == "fro" else p)


@implements_sparse(torch.linalg.vector_norm, torch.ops.aten.linalg_vector_norm)
def vector_norm(x, ord=2, dim=None, keepdim=False, *, dtype=None, out=None):
    return norm(x, ord, dim, keepdim, out, dtype)


@implements_sparse(torch.frobenius_norm)
def frobenius_norm(input, dim=None, keepdim=False, *, out=None):
    return norm(input, 2, dim, keepdim, out)


@implements_sparse(torch.native_norm, torch.ops.aten.native_norm)
def native_norm(input, p=2, dim=None, keepdim=False, dtype=None):
    return norm(input, p, dim, keepdim, dtype=dtype)


@implements_forms("any", "all")
def _refuse(input, *args, **kwargs):
    del args, kwargs
    raise NotImplementedError(f"any() and all() are not defined for tensors of layout {input.kind}")


def _softmax(input: Sparse, dim: int, dtype, logarithm: bool):
    if not isinstance(input, Sparse) or input.kind is not _COO:
        raise RuntimeError("torch.sparse.softmax expects a tensor of layout torch.sparse_coo")
    function = torch.log_softmax if logarithm else torch.softmax
    found, shape = coalesced(input), size_of(input)
    dim = dim_of(dim, len(shape))
    elements = found.elements if dtype is None else found.elements.to(dtype)
    sparse = input.sparse_ndim
    if dim >= sparse:
        return filled(found, function(elements, dim - sparse + 1))
    indices = found.index[0]
    others = [x for x in range(sparse) if x != dim]
    sizes = [shape[x] for x in others]
    known = known_places(indices)
    rest = (
        of_known(known[others]) if known is not None else torch.stack([indices[x] for x in others] or [indices[0] * 0])
    )
    pools = flat_places(rest, sizes) if others else torch.zeros(indices.shape[1], dtype=torch.int64)
    mask, count = within(found), math.prod(sizes)
    if mask is not None:  # what pads weighs nothing, in whichever pool
        pools, elements = torch.where(mask, pools, 0), torch.where(spread(mask, elements), elements, -math.inf)
    index = pools.reshape(-1, *[1] * (elements.ndim - 1)).expand(elements.shape)
    zeros = torch.zeros(count, *elements.shape[1:], dtype=elements.dtype)
    with torch.no_grad():
        largest = zeros.scatter_reduce(0, index, elements.detach(), "amax", include_self=False)
    shifted = elements - largest.index_select(0, pools)
    exponentials = shifted.exp()
    totals = zeros.index_add(0, pools, exponentials)
    if logarithm:
        return filled(found, shifted - totals.index_select(0, pools).log())
    return filled(found, exponentials / totals.index_select(0, pools))


@implements_sparse(torch.sparse.softmax)
def sparse_softmax(input, dim, *, dtype=None):
    return _softmax(input, dim, dtype, False)


@implements_sparse(torch.sparse.log_softmax)
def sparse_log_softmax(input, dim, *, dtype=None):
    return _softmax(input, dim, dtype, True)


@implements_tensors(torch.ops.aten._sparse_softmax, torch.ops.aten._sparse_log_softmax)
def softmax_of_strided(self, dim, *args):
    del args
    raise RuntimeError(f"torch.sparse.softmax expects a tensor of layout torch.sparse_coo, got {self.layout}")


@implements_sparse(torch.softmax, Tensor.softmax, torch.nn.functional.softmax)
def softmax(input, dim=-1, _stacklevel=3, dtype=None):
    return _softmax(input, dim, dtype, False)


@implements_sparse(torch.log_softmax, Tensor.log_softmax, torch.nn.functional.log_softmax)
def log_softmax(input, dim=-1, _stacklevel=3, dtype=None):
    return _softmax(input, dim, dtype, True)


@implements_forms("trace")
def trace(input):
    known = places(coo(input)[0], "the trace of a sparse tensor")
    where = np.nonzero(known[0] == known[1])[0]
    return coo(input)[1].index_select(0, of_known(where)).sum()
