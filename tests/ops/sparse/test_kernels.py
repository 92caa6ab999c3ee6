"""Products at known places by JAX's kernel, with all derivatives that a strided product has."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch2jax import t2j

from .table import DENSE, parts_of, sparse_of

X = jnp.linspace(-1, 1.5, 54).reshape(6, 9)  # as many columns as the kernel is for


def _functions(layout: str):
    """The product of a matrix of given values and a strided one: translated, and as of strided matrices."""
    matrix = sparse_of(layout)
    index, values = parts_of(matrix)
    indices = matrix.coalesce().indices() if layout == "uncoalesced" else matrix.to_sparse().coalesce().indices()

    def product(values, x):
        if matrix.layout is torch.sparse_coo:
            return torch.sparse_coo_tensor(*index, values, matrix.shape) @ x
        return torch.sparse_compressed_tensor(*index, values, matrix.shape, layout=matrix.layout) @ x

    def strided(values, x):
        places = (
            tuple(jnp.asarray(parts_of(matrix)[0][0]))
            if matrix.layout is torch.sparse_coo
            else tuple(jnp.asarray(indices if layout == "csr" else indices[:, np.lexsort(indices.numpy())]))
        )
        return jnp.zeros(matrix.shape, values.dtype).at[places].add(values) @ x

    return t2j(product), strided, jnp.asarray(values)


@pytest.mark.parametrize("layout", ["coo", "uncoalesced", "csr", "csc"])
def test_derivatives(layout):
    ours, wanted, values = _functions(layout)
    weights = jnp.linspace(-2, 1, 36).reshape(4, 9)
    moved = jnp.flip(values), X[::-1]

    def all_of(function):
        loss = lambda values, x: (jnp.sin(function(values, x)) * weights).sum()
        batch = jnp.stack([X, 2 * X])
        return {
            "value": function(values, X),
            "gradients": jax.grad(loss, (0, 1))(values, X),
            "of x alone": jax.grad(loss, 1)(values, X),
            "tangent": jax.jvp(function, (values, X), moved),
            "of values alone": jax.jvp(lambda values: function(values, X), (values,), moved[:1]),
            "batched": jax.vmap(function, (None, 0))(values, batch),
            "batched values": jax.vmap(function, (0, None))(jnp.stack([values, -values]), X),
            "of batches": jax.vmap(jax.grad(loss, (0, 1)), (None, 0))(values, batch),
            "second": jax.jvp(jax.grad(loss, (0, 1)), (values, X), moved)[1],
            "second, backwards": jax.grad(lambda x: (jax.grad(loss)(values, x) ** 2).sum())(X),
        }

    found = jax.jit(lambda: all_of(ours))()
    for name, each in all_of(wanted).items():
        for a, b in zip(jax.tree.leaves(found[name]), jax.tree.leaves(each), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4, err_msg=name)


def test_complex_numbers():
    matrix = (DENSE + 1j * DENSE.flip(0)).to_sparse_csr()
    x = torch.linspace(-1, 1, 54).reshape(6, 9) * (1 - 2j)
    np.testing.assert_allclose(jax.jit(t2j(lambda x: matrix @ x))(jnp.asarray(x)), matrix @ x, rtol=1e-5, atol=1e-5)


def test_the_kernel_serves():
    matrix = DENSE.to_sparse_csr()
    program = jax.make_jaxpr(jax.grad(lambda x: t2j(lambda x: matrix @ x)(x).sum()))(X)
    assert "scatter" not in str(program)
    assert str(program).count("bcsr_dot_general") <= 4


def test_few_columns_take_rows_at_constant_places():
    matrix = sparse_of("uncoalesced")
    index, values = parts_of(matrix)
    function = t2j(lambda values, x: torch.sparse_coo_tensor(*index, values, matrix.shape) @ x)
    loss = lambda values, x: (function(values, x) ** 2).sum()
    program = jax.make_jaxpr(jax.grad(loss, (0, 1)))(jnp.asarray(values), X[:, :1])
    names = [equation.primitive.name for equation in program.eqns]
    assert names.count("gather") == 2
    assert names.count("scatter-add") == 2
    assert not {"select_n", "min", "lt"} & set(names)
    assert "FILL_OR_DROP" not in str(program).replace("\n", "").partition("scatter-add")[0]
    found = jax.grad(loss, (0, 1))(jnp.asarray(values), X[:, :1])
    dense = lambda values, x: ((jnp.zeros((4, 6)).at[tuple(jnp.asarray(index[0]))].add(values) @ x) ** 2).sum()
    for one, other in zip(found, jax.grad(dense, (0, 1))(jnp.asarray(values), X[:, :1]), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
