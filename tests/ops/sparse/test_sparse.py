"""Sparse tensors around calls: as state, arguments and results, with gradients from inside, and their refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.experimental import sparse

from torch2jax import CompressedArray, NoRuleError, j2t, t2j

from .table import DENSE, LAYOUTS, sparse_of

X = torch.linspace(-1, 1.5, 18).reshape(6, 3)
KINDS = {"coo": sparse.BCOO, "uncoalesced": sparse.BCOO, "csr": sparse.BCSR}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_there_and_back(layout):
    matrix = sparse_of(layout)
    array = t2j({"matrix": matrix})["matrix"]
    assert type(array) is KINDS.get(layout, CompressedArray)
    back = j2t([array])[0]
    assert back.layout is matrix.layout
    assert back._nnz() == matrix._nnz()
    np.testing.assert_array_equal(back.to_dense(), matrix.to_dense())


def test_what_pads_a_bcoo_is_no_element():
    padded = sparse.BCOO.fromdense(jnp.asarray(DENSE), nse=12)
    assert j2t(padded)._nnz() == 7
    program = lambda m, x: (
        m @ x,
        m.to_dense(),
        torch.sparse.sum(m, 1).to_dense(),
        m.to_sparse_csr() @ x,
        m.sin().sum(),
    )
    for run in (t2j(program), jax.jit(t2j(program))):
        for found, wanted in zip(run(padded, jnp.asarray(X)), program(DENSE.to_sparse(), X), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


class Graph(torch.nn.Module):
    def __init__(self, layout: str):
        super().__init__()
        self.register_buffer("adjacency", sparse_of(layout))
        self.other = sparse_of(layout)
        self.linear = torch.nn.Linear(3, 2)

    def forward(self, x):
        return self.adjacency @ self.linear(x) + (self.other * 2) @ self.linear(x)


@pytest.mark.parametrize("layout", ["coo", "uncoalesced", "csr"])
def test_a_module_holds_some(layout):
    module = Graph(layout)
    function = t2j(module)
    params, buffers = function.split()
    assert set(buffers) == {"adjacency"}
    x, expected = jnp.asarray(X), module(X).detach()
    np.testing.assert_allclose(function(x), expected, rtol=1e-5, atol=1e-6)
    jitted = jax.jit(function)
    np.testing.assert_allclose(jitted(x, state_dict=params | buffers), expected, rtol=1e-5, atol=1e-6)
    result, state = function(x, state_dict=t2j(module.state_dict()), return_state_dict=True)
    assert type(state["adjacency"]) is KINDS[layout]
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
    batch = jax.vmap(function)(jnp.stack([x, 2 * x]))
    np.testing.assert_allclose(batch[0], expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(TypeError, match=r"layout torch\.sparse_.*wanted a sparse array"):
        function(x, state_dict={"adjacency": jnp.ones((4, 6))})


@pytest.mark.parametrize("layout", ["coo", "uncoalesced", "csr", "csc", "bsr"])
def test_gradients_from_inside(layout):
    def program(x):
        matrix = sparse_of(layout).requires_grad_()
        (matrix @ x).sin().sum().backward()
        return matrix.grad.to_dense()

    dense = DENSE.clone().requires_grad_()
    (dense @ X).sin().sum().backward()
    marks = torch.ones(4, 6).sparse_mask(sparse_of("coo" if layout == "uncoalesced" else layout)).to_dense()
    for run in (t2j(program), jax.jit(t2j(program))):
        np.testing.assert_allclose(run(jnp.asarray(X)), dense.grad * marks, rtol=1e-5, atol=1e-5)


def test_a_leaf_from_outside_has_its_gradient_inside():
    matrix = sparse_of("coo").requires_grad_()

    def program(x):
        torch.sparse.mm(matrix, x).square().sum().backward()
        gradient = torch.autograd.grad((matrix @ x).sum(), matrix)[0]
        return matrix.grad.coalesce().values(), gradient.to_dense()

    wanted = DENSE.clone().requires_grad_()
    (wanted @ X).square().sum().backward()
    values, gradient = jax.jit(t2j(program))(jnp.asarray(X))
    np.testing.assert_allclose(values, wanted.grad[DENSE != 0], rtol=1e-5)
    np.testing.assert_allclose(gradient, X.sum(1).expand(4, 6) * (DENSE != 0), rtol=1e-5, atol=1e-6)
    assert matrix.grad is None


def test_coalescing_traced_indices_keeps_room():
    def program(indices, values, x):
        matrix = torch.sparse_coo_tensor(indices, values, (4, 6)).coalesce()
        return matrix._nnz(), matrix @ x, matrix.sin().to_dense(), matrix.values().sum(), matrix

    indices, values = torch.tensor([[3, 1, 3, 0], [2, 0, 2, 5]]), torch.tensor([1.0, 2, 3, 4])
    wanted = torch.sparse_coo_tensor(indices, values, (4, 6)).coalesce()
    nnz, product, sines, total, result = jax.jit(t2j(program))(*map(jnp.asarray, (indices, values, X)))
    assert nnz == 3
    assert total == 10
    np.testing.assert_allclose(product, wanted @ X, rtol=1e-6)
    np.testing.assert_allclose(sines, wanted.sin().to_dense(), rtol=1e-6)
    assert j2t(result)._nnz() == 3
    np.testing.assert_array_equal(j2t(result).indices(), wanted.indices())


def test_batches_and_dense_dimensions():
    batch = torch.stack([DENSE, 2 * DENSE])
    hybrid = torch.sparse_coo_tensor(torch.tensor([[0, 2]]), torch.ones(2, 3), (4, 3), is_coalesced=True)

    def program(x):
        rows = batch.to_sparse_csr()
        return torch.bmm(batch.to_sparse(), x), rows.to_dense(), hybrid.to_dense(), hybrid.sum(0), rows.transpose(1, 2)

    x = torch.stack([X, -X])
    for found, wanted in zip(jax.jit(t2j(program))(jnp.asarray(x)), program(x), strict=True):
        found = j2t(found)
        assert found.layout is wanted.layout
        found, wanted = (each if each.layout is torch.strided else each.to_dense() for each in (found, wanted))
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_writes_in_place():
    def program(x):
        matrix = DENSE.to_sparse()
        alias = matrix
        matrix.mul_(2)
        matrix.add_(DENSE.to_sparse())
        matrix *= x[0, 0]
        total = torch.zeros(4, 6)
        total.add_(alias)
        return total

    np.testing.assert_allclose(jax.jit(t2j(program))(jnp.asarray(X)), program(X), rtol=1e-6)


@pytest.mark.parametrize(
    ("function", "error", "words"),
    [
        (lambda m, x: torch.cos(m), NoRuleError, r"torch\.cos of a tensor of layout torch\.sparse_csr.*to_dense"),
        (lambda m, x: m @ m.t(), RuntimeError, "close over the sparse tensor"),
        (lambda m, x: m + 1, RuntimeError, "elements everywhere"),
        (lambda m, x: m @ x.t(), RuntimeError, "cannot be multiplied"),
        (lambda m, x: m.stride(), RuntimeError, "strides"),
        (lambda m, x: m.indices(), RuntimeError, "sparse_coo"),
        (lambda m, x: x.to_sparse(), TypeError, "number of elements that are not zero"),
        (lambda m, x: torch.sparse_coo_tensor(torch.tensor([[7]]), x[0, :1], (3,)), RuntimeError, "found index 7"),
        (lambda m, x: m.numpy(), TypeError, "to_dense"),
    ],
)
def test_refusals(function, error, words):
    with pytest.raises(error, match=words):
        jax.jit(t2j(function))(t2j(sparse_of("csr")), jnp.asarray(X))
