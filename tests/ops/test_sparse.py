"""Sparse layouts raise one clear error, whoever asks for them."""

import jax.numpy as jnp
import pytest
import torch

from torch2jax import t2j
from torch2jax.errors import SparseLayoutError

INDICES = torch.tensor([[0, 1], [1, 0]])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.to_sparse(),
        lambda x: x.to_sparse_csr(),
        lambda x: x.to_sparse(1).to_dense(),
        lambda x: torch.sparse_coo_tensor(INDICES, x[0], (2, 2)),
        lambda x: torch.zeros(2, 2, layout=torch.sparse_coo),
        lambda x: torch.sparse.mm(torch.eye(2).to_sparse(), x),
    ],
)
def test_making_one_is_refused(function):
    with pytest.raises(SparseLayoutError, match=r"test_sparse\.py:\d+.*Sparse layouts are not translated"):
        t2j(function)(jnp.ones((2, 2)))


def test_a_given_one_is_refused():
    matrix = torch.eye(2).to_sparse()
    with pytest.raises(SparseLayoutError, match=r"torch\.sparse_coo"):
        t2j(lambda x: torch.sparse.mm(matrix, x))(jnp.ones((2, 2)))
    with pytest.raises(SparseLayoutError, match="to_dense"):
        t2j(matrix)
