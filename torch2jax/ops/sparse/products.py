"""Products of sparse and dense matrices.

A product with a strided matrix takes, for each element, a row of that matrix, times the element, and sums them by the
rows of the result; its derivatives are of the same kind.
"""

import numpy as np
import torch

from ...rules.registry import implements_sparse
from ...values.sparse import Sparse, make_sparse, size_of
from .conversion import dense, marked_elements, masked_by, to_layout
from .declaring import implements_forms
from .kernels import product
from .places import coo, filled, first_places, known_places, of_known, room, scattered
from .shapes import transposed

Tensor = torch.Tensor


def _expect_matrices(name: str, first, second) -> None:
    one, other = size_of(first), size_of(second)
    if len(one) != 2 or len(other) != 2:
        raise RuntimeError(f"{name}: expected matrices, got tensors of {len(one)} and {len(other)} dimensions")
    if one[1] != other[0]:
        raise RuntimeError(f"mat1 and mat2 shapes cannot be multiplied ({one[0]}x{one[1]} and {other[0]}x{other[1]})")


def _expect_same_dtype(name: str, first, second) -> None:
    if first.dtype != second.dtype:
        raise RuntimeError(f"{name}: expected operands of one dtype, but got {first.dtype} and {second.dtype}")


def times(matrix: Sparse, other: torch.Tensor) -> torch.Tensor:
    """A sparse matrix times a strided one."""
    indices, values = coo(matrix)
    if values.ndim > 1:
        raise RuntimeError(
            "a product of a sparse tensor with dense dimensions is not supported: call .to_dense() first"
        )
    ordered = matrix.coalesced and matrix.kind in (torch.sparse_coo, torch.sparse_csr)
    return product(values, indices, other, size_of(matrix)[0], ordered, known_places(indices))


def _mm(name: str, first, second):
    _expect_matrices(name, first, second)
    _expect_same_dtype(name, first, second)
    if isinstance(first, Sparse) and isinstance(second, Sparse):
        return _sparse_times_sparse(first, second)
    if isinstance(first, Sparse):
        return times(first, second)
    return times(transposed(second, 0, 1), first.t()).t()


@implements_sparse(torch.mm, Tensor.mm, torch.ops.aten.mm)
def mm(input, mat2, out_dtype=None, *, out=None):
    del out_dtype
    return _written(_mm("mm", input, mat2), out)


@implements_sparse(torch.sparse.mm, torch.hspmm, torch.smm)
def sparse_mm(mat1, mat2, reduce=None):
    if reduce is not None:
        return _reduced(mat1, mat2, reduce)
    return _mm("sparse.mm", mat1, mat2)


@implements_sparse(Tensor.smm)
def smm(self, mat):
    return to_layout(_mm("smm", self, mat), torch.sparse_coo)


def _written(result, out):
    if out is None:
        return result
    if isinstance(out, Sparse):
        return out.become(to_layout(result, out.kind))
    return out.copy_(dense(result))


_REDUCTIONS = {"sum": "sum", "mean": "mean", "amax": "amax", "amin": "amin", "max": "amax", "min": "amin"}


def _reduced(matrix, other, reduce: str):
    """The product with another sum of the elements of each row, those that are there alone."""
    if reduce not in _REDUCTIONS:
        raise RuntimeError(f"sparse.mm: unknown reduction {reduce!r}, wanted one of {', '.join(_REDUCTIONS)}")
    _expect_matrices("sparse.mm", matrix, other)
    indices, values = coo(matrix)
    terms = values[:, None] * other.index_select(0, indices[1])
    rows = size_of(matrix)[0]
    index = indices[0][:, None].expand(terms.shape)
    result = torch.zeros(rows, other.shape[1], dtype=terms.dtype)
    return result.scatter_reduce(0, index, terms, _REDUCTIONS[reduce], include_self=False)


@implements_sparse(torch.mv, Tensor.mv, torch.ops.aten.mv)
def mv(input, vec, *, out=None):
    if len(size_of(vec)) != 1 or len(size_of(input)) != 2 or size_of(input)[1] != size_of(vec)[0]:
        raise RuntimeError(f"size mismatch, got input {list(size_of(input))}, vec {list(size_of(vec))}")
    _expect_same_dtype("mv", input, vec)
    return _written(times(input, dense(vec)[:, None])[:, 0], out)


def _matmul(input, other):
    one, two = len(size_of(input)), len(size_of(other))
    if (one, two) == (2, 2):
        return _mm("matmul", input, other)
    if (one, two) == (2, 1) and isinstance(input, Sparse):
        return mv(input, other)
    if (one, two) == (1, 2) and isinstance(other, Sparse):
        return mv(transposed(other, 0, 1), input)
    if (one, two) == (1, 1):
        return (dense(input) * dense(other)).sum()
    if (one, two) == (3, 3):
        return _bmm(input, other)
    if isinstance(input, Sparse) and one == 2:  # a matrix for all of a batch
        flat = other.movedim(-2, 0)
        result = times(input, flat.reshape(flat.shape[0], -1))
        return result.reshape(result.shape[0], *flat.shape[1:]).movedim(0, -2)
    if isinstance(other, Sparse) and two == 2:
        result = _mm("matmul", input.reshape(-1, size_of(input)[-1]), other)
        return result.reshape(*size_of(input)[:-1], size_of(other)[1])
    raise RuntimeError(f"matmul of tensors of {one} and {two} dimensions is not supported with sparse layouts")


@implements_forms("matmul")
def matmul(input, other, *, out=None):
    return _written(_matmul(input, other), out)


@implements_sparse(Tensor.__rmatmul__)
def rmatmul(self, other):
    return _matmul(other, self)


@implements_sparse(torch.nn.functional.linear)
def linear(input, weight, bias=None):
    result = _matmul(input, transposed(weight, 0, 1) if isinstance(weight, Sparse) else weight.t())
    return result if bias is None else result + bias


def _bmm(first, second):
    one, other = size_of(first), size_of(second)
    if len(one) != 3 or len(other) != 3 or one[0] != other[0] or one[2] != other[1]:
        raise RuntimeError(f"bmm: got tensors of shapes {list(one)} and {list(other)}")
    if isinstance(first, Sparse) and isinstance(second, Sparse):
        raise RuntimeError("bmm: expected one strided tensor")
    if not isinstance(first, Sparse):
        return _bmm(transposed(second, 1, 2), first.mT).mT
    return times(_diagonal_of_batch(first), second.reshape(-1, other[2])).reshape(one[0], one[1], other[2])


def _diagonal_of_batch(tensor: Sparse) -> Sparse:
    """The matrix with those of a batch one after the other, each in rows and columns of its own."""
    batch, rows, columns = size_of(tensor)
    indices, values = coo(tensor)
    if indices.shape[0] != 3:
        raise RuntimeError(
            "a batched product of a tensor with dense dimensions is not supported: call .to_dense() first"
        )
    index = torch.stack([indices[0] * rows + indices[1], indices[0] * columns + indices[2]])
    ordered = tensor.coalesced and tensor.kind in (torch.sparse_coo, torch.sparse_csr)
    return make_sparse(torch.sparse_coo, [index], values, (batch * rows, batch * columns), ordered)


@implements_sparse(torch.bmm, Tensor.bmm, torch.ops.aten.bmm)
def bmm(input, mat2, out_dtype=None, *, out=None):
    del out_dtype
    return _written(_bmm(input, mat2), out)


def _added(input, multiplied, beta, alpha):
    if alpha != 1:
        multiplied = multiplied * alpha
    if beta == 0:
        return multiplied
    return (input if beta == 1 else input * beta) + multiplied


@implements_forms("addmm", "_sparse_addmm")
def addmm(input, mat1, mat2, *, beta=1, alpha=1, out=None):
    return _written(_added(input, _mm("addmm", mat1, mat2), beta, alpha), out)


@implements_forms("sspaddmm", "saddmm")
def sspaddmm(input, mat1, mat2, *, beta=1, alpha=1, out=None):
    """Of which everything but `mat2` is sparse."""
    product = to_layout(_mm("sspaddmm", mat1, mat2), torch.sparse_coo)
    return _written(_added(input, product, beta, alpha), out)


@implements_forms("addmv")
def addmv(input, mat, vec, *, beta=1, alpha=1, out=None):
    return _written(_added(input, mv(mat, vec), beta, alpha), out)


@implements_forms("baddbmm")
def baddbmm(input, batch1, batch2, *, beta=1, alpha=1, out=None):
    return _written(_added(input, _bmm(batch1, batch2), beta, alpha), out)


@implements_sparse(torch.sparse.sampled_addmm)
def sampled_addmm(input, mat1, mat2, *, beta=1.0, alpha=1.0, out=None):
    """The elements of ``mat1 @ mat2`` where a sparse matrix has some, and of that itself."""
    if not isinstance(input, Sparse) or input.kind is torch.sparse_coo:
        raise RuntimeError("sampled_addmm: Expected self to have sparse csr layout")
    rows, columns = mat1.shape[-2], mat2.shape[-1]
    if mat1.ndim > 2 and not input.batch_ndim:
        batch = tuple(mat1.shape[:-2])
        index = [x.expand(*batch, *x.shape) for x in input.index]
        values = input.elements.expand(*batch, *input.elements.shape)
        input = make_sparse(input.kind, index, values, (*batch, *size_of(input)), True)
    if tuple(size_of(input)) != (*mat1.shape[:-2], rows, columns) or mat1.shape[-1] != mat2.shape[-2]:
        raise RuntimeError(
            f"sampled_addmm: shapes {list(size_of(input))}, {list(mat1.shape)} and {list(mat2.shape)} do not fit"
        )
    if mat1.ndim > 2:
        found = masked_by(mat1 @ mat2, input)
    else:
        indices, _ = coo(input)
        found = (mat1.index_select(0, indices[0]) * mat2.t().index_select(0, indices[1])).sum(-1)
        found = filled(input, found.reshape(input.elements.shape))
    elements = found.elements if alpha == 1 else found.elements * alpha
    if beta != 0:
        elements = elements + (input.elements if beta == 1 else input.elements * beta)
    return _written(input.of_values(elements), out)


@implements_sparse(torch.triangular_solve, Tensor.triangular_solve)
def triangular_solve(input, A, upper=True, transpose=False, unitriangular=False, *, out=None):
    """As of a strided matrix, whose copy PyTorch does not give back of a sparse one."""
    if room(A):
        solution = torch.triangular_solve(dense(input), dense(A), upper, transpose, unitriangular).solution
    else:
        solution = torch.full_like(dense(input), float("nan"))  # as in PyTorch, whatever the diagonal is said to be
    if out is not None:
        return torch.return_types.triangular_solve((out[0].copy_(solution), out[1].resize_(0)))
    return torch.return_types.triangular_solve((solution, torch.empty(0, dtype=A.dtype)))


# Of two sparse ones: where the elements are is known, or cannot be.


def _sparse_times_sparse(first: Sparse, second: Sparse) -> Sparse:
    left, a = coo(first)
    right, b = coo(second)
    one, other = known_places(left), known_places(right)
    if one is None or other is None:
        return _product_of_traced(first, second)
    order = np.argsort(other[0], kind="stable")
    counts = np.bincount(other[0], minlength=size_of(second)[0])
    begins = np.concatenate([[0], counts.cumsum()])
    repeats = counts[one[1]]
    which = np.repeat(np.arange(one.shape[1]), repeats)
    within = np.arange(len(which)) - np.repeat(repeats.cumsum() - repeats, repeats)
    partner = order[begins[one[1][which]] + within]
    found, target = first_places(np.stack([one[0][which], other[1][partner]]))
    terms = a.index_select(0, of_known(which)) * b.index_select(0, of_known(partner))
    values = scattered(terms, of_known(target), found.shape[1])
    size = (size_of(first)[0], size_of(second)[1])
    return _in_layout_of_product(make_sparse(torch.sparse_coo, [of_known(found)], values, size, True), first, second)


def _product_of_traced(first: Sparse, second: Sparse) -> Sparse:
    """One where a traced input decides places, by way of strided matrices: of values, and of how many meet."""
    ones = [filled(x, torch.ones_like(x.elements, dtype=torch.float32)) for x in (first, second)]
    counts = times(ones[0], dense(ones[1]))
    result = marked_elements(times(first, dense(second)), counts > 0)
    return _in_layout_of_product(result, first, second)


def _in_layout_of_product(result: Sparse, first: Sparse, second: Sparse) -> Sparse:
    if first.kind is torch.sparse_coo:
        return result
    both = first.kind is second.kind is torch.sparse_csc
    return to_layout(result, torch.sparse_csc if both else torch.sparse_csr)
