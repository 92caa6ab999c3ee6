"""The product of a sparse matrix and a strided one, on arrays."""

import jax.numpy as jnp
import numpy as np
from jax import lax

from ...rules.rule import InnerRule
from ..nn.embedding import take_rows

__all__ = ["PRODUCT"]


def _product(values, rows, columns, other, size: int, is_sorted: bool):
    """Sums by row.

    Args:
        values: ``(nnz,)``.
        rows: ``(nnz,)``, and `columns`.
        other: ``(columns, n)``.
    """
    terms = take_rows(other, lax.min(columns, np.asarray(max(other.shape[0] - 1, 0), columns.dtype)))
    terms = lax.mul(terms, lax.broadcast_in_dim(values, terms.shape, (0,)))
    result = jnp.zeros((size, other.shape[1]), terms.dtype)
    return result.at[rows].add(terms, mode="drop", indices_are_sorted=is_sorted)


class _Product:
    def __init__(self):
        self._sums = InnerRule(_product, "sparse.mm")

    def plan(self, known, size: int, is_sorted: bool):
        del known, size, is_sorted

    def __call__(self, values, rows, columns, other, size: int, is_sorted: bool, plan):
        del plan
        return self._sums((values, rows, columns, other, size, is_sorted), {})


PRODUCT = _Product()
