"""The product of a sparse and a dense matrix, on arrays.

Elements in the order of their rows are a ``BCSR`` to JAX, whose product is a kernel of its own on the CPU. Where the
elements are is mostly known: then so is the order of the transposed matrix, which the derivative for the other matrix
needs, and it is the same kernel. Elsewhere it is rows, taken and added up.
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
from ...tracing.linear_call import linear_call
from ..nn.embedding_rows import take_rows

__all__ = ["Order", "order_of", "product"]


class Order(NamedTuple):
    """Elements at known places in the order of their rows."""

    which: np.ndarray | None
    """The place of each among those that are given; None if they are in order."""
    begins: np.ndarray
    """Where each row begins."""
    columns: np.ndarray


def order_of(rows: np.ndarray, columns: np.ndarray, size: int) -> Order:
    """The order of elements by the rows of a matrix."""
    which = None
    if len(rows) and (rows[1:] < rows[:-1]).any():
        which = np.argsort(rows, kind="stable")
        rows, columns = rows[which], columns[which]
    begins = np.concatenate([[0], np.bincount(rows, minlength=size).cumsum()])
    return Order(None if which is None else which.astype(np.int32), begins.astype(np.int32), columns.astype(np.int32))


def _by_rows(values, order: Order, other):
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
    """Known places, all of which are within the shape, as constants of the graph."""

    rows: np.ndarray
    columns: np.ndarray


def _added_at(values, places: _Constant, other, size: int, is_sorted: bool):
    return _added(values, places.rows, places.columns, other, size, is_sorted, True)


class _Known:
    """Products at known places, as a function with the derivatives that these allow."""

    def __init__(self, rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int]):
        self.rows, self.columns, self.shape = rows.astype(np.int32), columns.astype(np.int32), shape
        self._forward = order_of(rows, columns, shape[0])

    @functools.cached_property
    def _backward(self) -> Order:
        return order_of(self.columns, self.rows, self.shape[1])

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
            moved = [] if of_values is None else [self._of_values(of_values, other)]
            moved += [] if of_other is None else [self._of_other(values, of_other)]
            return run(values, other), functools.reduce(lax.add, moved)

        run.defjvp(derivative, symbolic_zeros=True)
        return run(values, other)


@functools.lru_cache(maxsize=64)
def _known_of(places: bytes, shape: tuple[int, int]) -> _Known:
    """The same for the same places, for which what is compiled is found again."""
    return _Known(*np.frombuffer(places, np.int64).reshape(2, -1), shape)


def _known_product(values, other, known: _Known):
    return known(values, other)


_ADDED = InnerRule(_added, "sparse.mm")
_ADDED_AT = InnerRule(_added_at, "sparse.mm")
_KNOWN = InnerRule(_known_product, "sparse.mm")
_DTYPES = frozenset((torch.float32, torch.float64, torch.complex64, torch.complex128))
"""Those that JAX's kernel takes."""
_FEW = 8
"""Columns below which adding up is faster than the kernel, by benchmarks/sparse.py."""


def product(values, indices, other, size: int, is_sorted: bool, places: np.ndarray | None):
    """A sparse matrix times a strided one.

    Args:
        values: ``(nnz,)``.
        indices: ``(2, nnz)``; a place beyond the shape is no element.
        other: ``(columns, n)``.
        size: how many rows there are.
        is_sorted: whether the elements are in the order of their rows.
        places: the indices, if they are known.
    """
    if places is not None and places.size:
        within = places.min() >= 0 and places[0].max() < size and places[1].max() < other.shape[0]
        if within and values.dtype in _DTYPES and other.shape[1] >= _FEW:
            known = _known_of(np.ascontiguousarray(places, np.int64).tobytes(), (size, other.shape[0]))
            return _KNOWN((values, other, known), {})
        is_sorted = is_sorted or not (places[0, 1:] < places[0, :-1]).any()
        if within:
            return _ADDED_AT((values, _Constant(*places.astype(np.int32)), other, size, is_sorted), {})
    return _ADDED((values, indices[0], indices[1], other, size, is_sorted, False), {})
