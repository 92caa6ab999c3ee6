"""Products of sparse and dense matrices.

A product with a strided matrix takes, for each element, a row of that matrix, times the element, and sums them by the
rows of the result; its derivatives are of the same kind. Elements in the order of their rows are a ``BCSR`` to JAX,
whose product is a kernel of its own on the CPU. Where the elements are is mostly known: then so is the order of the
transposed matrix, which the derivative for the other matrix needs, and it is the same kernel. Elsewhere it is rows,
taken and added up.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from jax.custom_derivatives import SymbolicZero

from ...rules.array_rule import InnerRule
from ...rules.registry import implements_sparse
from ...runtime.caches import remembered
from ...tracing.primitives import linear_call
from ...values.sparse import Sparse, make_sparse, size_of
from ..nn.embedding import take_rows
from .conversion import dense, marked_elements, to_layout
from .rules import coo, filled, implements_forms, known_indices, of_known, scattered, unique_indices
from .shapes import transposed

Tensor = torch.Tensor


# Of arrays.


class _Order(NamedTuple):
    """Elements at known places in the order of their rows."""

    which: np.ndarray | None
    """The place of each among those that are given; None if they are in order."""
    begins: np.ndarray
    """The index of each row's first element."""
    columns: np.ndarray


def _order_of(rows: np.ndarray, columns: np.ndarray, size: int) -> _Order:
    """The order of elements by the rows of a matrix."""
    which = None
    if len(rows) and (rows[1:] < rows[:-1]).any():
        which = np.argsort(rows, kind="stable")
        rows, columns = rows[which], columns[which]
    begins = np.concatenate([[0], np.bincount(rows, minlength=size).cumsum()])
    return _Order(None if which is None else which.astype(np.int32), begins.astype(np.int32), columns.astype(np.int32))


def _by_rows(values, order: _Order, other):
    """The product of elements in known order, by JAX's kernel."""
    from jax.experimental import sparse  # slow to import, and seldom needed

    if order.which is not None:
        values = take_rows(values, jnp.asarray(order.which))
    shape = (len(order.begins) - 1, other.shape[0])
    matrix = sparse.BCSR((values, jnp.asarray(order.columns), jnp.asarray(order.begins)), shape=shape)
    return matrix @ other


def _added(values, rows, columns, other, size: int, is_sorted: bool, is_within: bool):
    """The product by rows that are taken and added up."""
    if not is_within:
        columns = lax.min(columns, np.asarray(max(other.shape[0] - 1, 0), columns.dtype))
    terms = take_rows(other, columns)
    terms = lax.mul(terms, lax.broadcast_in_dim(values, terms.shape, (0,)))
    result = jnp.zeros((size, other.shape[1]), terms.dtype)
    mode = "promise_in_bounds" if is_within else "drop"
    return result.at[rows].add(terms, mode=mode, indices_are_sorted=is_sorted, wrap_negative_indices=not is_within)


@dataclasses.dataclass(frozen=True)
class _Constant:
    """Known indices, all within the shape, as constants of the graph."""

    rows: np.ndarray
    columns: np.ndarray


def _added_at(values, positions: _Constant, other, size: int, is_sorted: bool):
    return _added(values, positions.rows, positions.columns, other, size, is_sorted, True)


class _Known:
    """Products at known places, as a function with the derivatives that these allow."""

    def __init__(self, rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int]):
        self.rows, self.columns, self.shape = rows.astype(np.int32), columns.astype(np.int32), shape
        self._forward = _order_of(rows, columns, shape[0])

    @functools.cached_property
    def _backward(self) -> _Order:
        return _order_of(self.columns, self.rows, self.shape[1])

    def _of_other(self, values, other):
        def push(residuals, arrays):
            return [_by_rows(residuals[0], self._forward, arrays[0])]

        def pull(residuals, cotangents):
            if cotangents[0] is None:
                return [None]
            return [_by_rows(residuals[0], self._backward, cotangents[0])]

        like = jax.ShapeDtypeStruct((self.shape[0], other.shape[1]), other.dtype)
        return linear_call(push, pull, [values], [other], [like])[0]

    def _of_values(self, values, other):
        def push(residuals, arrays):
            return [_by_rows(arrays[0], self._forward, residuals[0])]

        def pull(residuals, cotangents):
            if cotangents[0] is None:
                return [None]
            rows = take_rows(cotangents[0], jnp.asarray(self.rows))
            return [(rows * take_rows(residuals[0], jnp.asarray(self.columns))).sum(1)]

        like = jax.ShapeDtypeStruct((self.shape[0], other.shape[1]), other.dtype)
        return linear_call(push, pull, [other], [values], [like])[0]

    def __call__(self, values, other):
        @jax.custom_jvp
        def run(values, other):
            return _by_rows(values, self._forward, other)

        def derivative(primals, tangents):
            values, other = primals
            of_values, of_other = (None if isinstance(x, SymbolicZero) else x for x in tangents)
            terms = [] if of_values is None else [self._of_values(of_values, other)]
            terms += [] if of_other is None else [self._of_other(values, of_other)]
            return run(values, other), functools.reduce(lax.add, terms)

        run.defjvp(derivative, symbolic_zeros=True)
        return run(values, other)


@remembered(64)
def _known_of(positions: bytes, shape: tuple[int, int]) -> _Known:
    """The same object for the same indices, so that its compiled functions are reused."""
    return _Known(*np.frombuffer(positions, np.int64).reshape(2, -1), shape)


def _known_product(values, other, known: _Known):
    return known(values, other)


_ADDED = InnerRule(_added, "sparse.mm")
_ADDED_AT = InnerRule(_added_at, "sparse.mm")
_KNOWN = InnerRule(_known_product, "sparse.mm")
_DTYPES = frozenset((torch.float32, torch.float64, torch.complex64, torch.complex128))
"""The dtypes that JAX's kernel takes."""
_FEW = 8
"""Columns below which adding up is faster than the kernel, by benchmarks/sparse.py."""


def _product(values, indices, other, size: int, is_sorted: bool, positions: np.ndarray | None):
    """A sparse matrix times a strided one.

    Args:
        values: ``(nnz,)``.
        indices: ``(2, nnz)``; a place beyond the shape is no element.
        other: ``(columns, n)``.
        size: how many rows there are.
        is_sorted: whether the elements are in the order of their rows.
        positions: the indices, if they are known.
    """
    if positions is not None and positions.size:
        within = positions.min() >= 0 and positions[0].max() < size and positions[1].max() < other.shape[0]
        if within and values.dtype in _DTYPES and other.shape[1] >= _FEW:
            known = _known_of(np.ascontiguousarray(positions, np.int64).tobytes(), (size, other.shape[0]))
            return _KNOWN((values, other, known), {})
        is_sorted = is_sorted or not (positions[0, 1:] < positions[0, :-1]).any()
        if within:
            return _ADDED_AT((values, _Constant(*positions.astype(np.int32)), other, size, is_sorted), {})
    return _ADDED((values, indices[0], indices[1], other, size, is_sorted, False), {})


# Of tensors.


def _expect_matrices(name: str, first, second) -> None:
    one, other = size_of(first), size_of(second)
    if len(one) != 2 or len(other) != 2:
        raise RuntimeError(f"{name}: expected matrices, got tensors of {len(one)} and {len(other)} dimensions")
    if one[1] != other[0]:
        raise RuntimeError(f"mat1 and mat2 shapes cannot be multiplied ({one[0]}x{one[1]} and {other[0]}x{other[1]})")


def _expect_same_dtype(name: str, first, second) -> None:
    if first.dtype != second.dtype:
        raise RuntimeError(f"{name}: expected operands of one dtype, but got {first.dtype} and {second.dtype}")


def _times(matrix: Sparse, other: torch.Tensor) -> torch.Tensor:
    """A sparse matrix times a strided one."""
    indices, values = coo(matrix)
    if values.ndim > 1:
        raise RuntimeError(
            "a product of a sparse tensor with dense dimensions is not supported: call .to_dense() first"
        )
    ordered = matrix.coalesced and matrix.kind in (torch.sparse_coo, torch.sparse_csr)
    return _product(values, indices, other, size_of(matrix)[0], ordered, known_indices(indices))


def _mm(name: str, first, second):
    _expect_matrices(name, first, second)
    _expect_same_dtype(name, first, second)
    if isinstance(first, Sparse) and isinstance(second, Sparse):
        return _sparse_times_sparse(first, second)
    if isinstance(first, Sparse):
        return _times(first, second)
    return _times(transposed(second, 0, 1), first.t()).t()


@implements_sparse(torch.mm, Tensor.mm, torch.ops.aten.mm)
def mm(input, mat2, out_dtype=None):
    del out_dtype
    return _mm("mm", input, mat2)


@implements_sparse(torch.sparse.mm, torch.hspmm, torch.smm)
def sparse_mm(mat1, mat2, reduce=None):
    if reduce is not None:
        return _reduced(mat1, mat2, reduce)
    return _mm("sparse.mm", mat1, mat2)


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
def mv(input, vec):
    if len(size_of(vec)) != 1 or len(size_of(input)) != 2 or size_of(input)[1] != size_of(vec)[0]:
        raise RuntimeError(f"size mismatch, got input {list(size_of(input))}, vec {list(size_of(vec))}")
    _expect_same_dtype("mv", input, vec)
    return _times(input, dense(vec)[:, None])[:, 0]


def _matmul(input, other):
    one, two = len(size_of(input)), len(size_of(other))
    if (one, two) == (2, 1) and isinstance(input, Sparse):
        return mv(input, other)
    if (one, two) == (1, 2) and isinstance(other, Sparse):
        return mv(transposed(other, 0, 1), input)
    if (one, two) == (3, 3):
        return _bmm(input, other)
    if isinstance(other, Sparse) and one > two == 2:  # a matrix for all of a batch
        result = _mm("matmul", input.reshape(-1, size_of(input)[-1]), other)
        return result.reshape(*size_of(input)[:-1], size_of(other)[1])
    return _mm("matmul", input, other)


implements_forms("matmul")(lambda input, other: _matmul(input, other))
implements_sparse(Tensor.__rmatmul__)(lambda self, other: _matmul(other, self))


@implements_sparse(torch.nn.functional.linear)
def linear(input, weight, bias=None):
    result = _matmul(input, transposed(weight, 0, 1) if isinstance(weight, Sparse) else weight.t())
    return result if bias is None else result + bias


def _bmm(first, second):
    one, other = size_of(first), size_of(second)
    if len(one) != 3 or len(other) != 3 or one[0] != other[0] or one[2] != other[1]:
        raise RuntimeError(f"bmm: got tensors of shapes {list(one)} and {list(other)}")
    if not isinstance(first, Sparse) or isinstance(second, Sparse):
        raise RuntimeError("bmm: expected a sparse tensor and a strided one, in this order: call .to_dense() first")
    return _times(_diagonal_of_batch(first), second.reshape(-1, other[2])).reshape(one[0], one[1], other[2])


def _diagonal_of_batch(tensor: Sparse) -> Sparse:
    """A batch of matrices as the blocks of one block-diagonal matrix."""
    batch, rows, columns = size_of(tensor)
    indices, values = coo(tensor)
    if indices.shape[0] != 3:
        raise RuntimeError(
            "a batched product of a tensor with dense dimensions is not supported: call .to_dense() first"
        )
    index = torch.stack([indices[0] * rows + indices[1], indices[0] * columns + indices[2]])
    return make_sparse(torch.sparse_coo, [index], values, (batch * rows, batch * columns), tensor.coalesced)


@implements_sparse(torch.bmm, Tensor.bmm, torch.ops.aten.bmm)
def bmm(input, mat2, out_dtype=None):
    del out_dtype
    return _bmm(input, mat2)


def _plus(input, multiplied, beta, alpha):
    if alpha != 1:
        multiplied = multiplied * alpha
    if beta == 0:
        return multiplied
    return (input if beta == 1 else input * beta) + multiplied


@implements_forms("addmm", "_sparse_addmm")
def addmm(input, mat1, mat2, *, beta=1, alpha=1):
    return _plus(input, _mm("addmm", mat1, mat2), beta, alpha)


@implements_forms("addmv")
def addmv(input, mat, vec, *, beta=1, alpha=1):
    return _plus(input, mv(mat, vec), beta, alpha)


@implements_sparse(torch.sparse.sampled_addmm)
def sampled_addmm(input, mat1, mat2, *, beta=1.0, alpha=1.0):
    """The elements of ``mat1 @ mat2`` where a sparse matrix has some, and of that itself."""
    if not isinstance(input, Sparse) or input.kind is not torch.sparse_csr:
        raise RuntimeError("sampled_addmm: Expected self to have sparse csr layout: call .to_sparse_csr() first")
    if mat1.ndim != 2 or mat2.ndim != 2 or (*size_of(input), mat1.shape[1]) != (len(mat1), mat2.shape[1], len(mat2)):
        raise RuntimeError(
            f"sampled_addmm: shapes {list(size_of(input))}, {list(mat1.shape)} and {list(mat2.shape)} do not fit; "
            "wanted matrices, not batches of them"
        )
    indices, _ = coo(input)
    found = (mat1.index_select(0, indices[0]) * mat2.t().index_select(0, indices[1])).sum(-1)
    found = filled(input, found)
    elements = found.elements if alpha == 1 else found.elements * alpha
    if beta != 0:
        elements = elements + (input.elements if beta == 1 else input.elements * beta)
    return input.of_values(elements)


# Of two sparse ones: where the elements are is known, or cannot be.


def _sparse_times_sparse(first: Sparse, second: Sparse) -> Sparse:
    left, a = coo(first)
    right, b = coo(second)
    one, other = known_indices(left), known_indices(right)
    if one is None or other is None:
        return _product_of_traced(first, second)
    order = np.argsort(other[0], kind="stable")
    counts = np.bincount(other[0], minlength=size_of(second)[0])
    begins = np.concatenate([[0], counts.cumsum()])
    repeats = counts[one[1]]
    which = np.repeat(np.arange(one.shape[1]), repeats)
    within = np.arange(len(which)) - np.repeat(repeats.cumsum() - repeats, repeats)
    partner = order[begins[one[1][which]] + within]
    found, target = unique_indices(np.stack([one[0][which], other[1][partner]]))
    terms = a.index_select(0, of_known(which)) * b.index_select(0, of_known(partner))
    values = scattered(terms, of_known(target), found.shape[1])
    size = (size_of(first)[0], size_of(second)[1])
    return _in_layout_of_product(make_sparse(torch.sparse_coo, [of_known(found)], values, size, True), first, second)


def _product_of_traced(first: Sparse, second: Sparse) -> Sparse:
    """A product with traced indices, by strided matrices: of values, and of the numbers of pairs that meet."""
    ones = [filled(x, torch.ones_like(x.elements, dtype=torch.float32)) for x in (first, second)]
    counts = _times(ones[0], dense(ones[1]))
    result = marked_elements(_times(first, dense(second)), counts > 0)
    return _in_layout_of_product(result, first, second)


def _in_layout_of_product(result: Sparse, first: Sparse, second: Sparse) -> Sparse:
    if first.kind is torch.sparse_coo:
        return result
    both = first.kind is second.kind is torch.sparse_csc
    return to_layout(result, torch.sparse_csc if both else torch.sparse_csr)
