"""Products of mask selections, under jit: of rows, along the data-dependent dimension, and what is refused."""

import jax
import numpy as np
import pytest
import torch

from tests.ops.test_lengths import MASKS, X, check_each, check_gradients, each_of
from torch2jax import t2j

A = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
FUNCTIONS = {
    "rows": lambda x, m: (x[m] @ A.T, A @ x[m].T, torch.mm(x[m], A.T), x[m] @ A[0], A[0] @ x[m].T),
    "along": lambda x, m: (x[m].T @ x[m], x[m][:, 0] @ x[m], x[m].T @ x[m][:, 1], x[m][:, 0].dot(x[m][:, 1])),
    "of two masks": lambda x, m: x[m].T @ x.flip(0)[m],
    "in two orders": lambda x, m: x[m].T @ x[m].sort(0).values,
    "of places": lambda x, m: x[m.nonzero()[:, 0]].T @ x[m],
    "batches": lambda x, m: (x[m][:, None] @ A.T, torch.bmm(x[m][:, :, None], x[m][:, None])),
    "einsum": lambda x, m: (torch.einsum("nk,jk->nj", x[m], A), torch.einsum("nk,nj->kj", x[m], x[m])),
    "implicit": lambda x, m: torch.einsum("nk,n", x[m], x[m][:, 0]),
    "outer": lambda x, m: torch.outer(x[m][:, 0], A[0]),
    "distances": lambda x, m: (torch.cdist(x[m], A), torch.cdist(A, x[m]).square()),
    "added": lambda x, m: torch.addmm(A[0, :2], x[m], A[:3, :2], beta=2),
}


of_all = each_of(FUNCTIONS)
compiled = jax.jit(t2j(of_all))


@pytest.mark.parametrize("mask", MASKS)
def test_values(mask):
    check_each(compiled(t2j(X), t2j(MASKS[mask])), of_all(X, MASKS[mask]))


def test_gradients():
    check_gradients(of_all, tuple(FUNCTIONS))


PRODUCTS = {
    5: lambda x, m: x[m].T @ x[:5],
    8: lambda x, m: torch.einsum("nk,nj->kj", x[m], x),
}


@pytest.mark.parametrize("size", PRODUCTS)
def test_beside_a_known_size(size):
    function = jax.jit(t2j(PRODUCTS[size]))
    for count in range(2, 9):
        mask = torch.arange(8) < count
        found = function(t2j(X), t2j(mask))
        if count == size:
            np.testing.assert_allclose(found, PRODUCTS[size](X, mask).numpy(), 1e-5, 1e-5)
        else:
            assert np.isnan(found).all()
