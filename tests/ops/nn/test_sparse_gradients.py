"""Embeddings with ``sparse=True``: the gradients of their tables within a call, and the optimizers that take them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from torch2jax import j2t, t2j

torch.manual_seed(0)
TABLE, INDEX = torch.randn(6, 3), torch.tensor([[1, 4], [4, 0]])
pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")


def _bag(mode, **options):
    return lambda index, table: F.embedding_bag(index, table, mode=mode, sparse=True, **options).sin().sum()


LOSSES = {
    "rows": lambda index, table: F.embedding(index, table, sparse=True).square().sum(),
    "rows, one that pads": lambda index, table: F.embedding(index, table, padding_idx=4, sparse=True).sin().sum(),
    "twice": lambda index, table: sum(F.embedding(i, table, sparse=True).exp().sum() for i in (index, index[0])),
    "used beside": lambda index, table: F.embedding(index, table, sparse=True).sin().sum() + table.square().sum(),
    "sums": _bag("sum"),
    "means": _bag("mean"),
    "sums, one that pads": _bag("sum", padding_idx=4),
    "means, one that pads": _bag("mean", padding_idx=4),
    "known rows": lambda index, table: F.embedding(INDEX, table, padding_idx=0, sparse=True).exp().sum(),
    "a part of the bag": lambda index, table: (
        F.embedding_bag(
            index.flatten(),
            table,
            torch.tensor([0, 3]),
            mode="sum",
            sparse=True,
            per_sample_weights=table[0, 0] * index.flatten(),
        )
        .sin()
        .sum()
    ),
}


def _gradient(loss, ask="backward"):
    def program(table, index):
        table = table.detach().clone().requires_grad_()
        if ask == "grad":
            return torch.autograd.grad(loss(index, table), table)[0]
        loss(index, table).backward(inputs=[table] if ask == "inputs" else None)
        return table.grad

    return program


ASKED = [(name, "backward") for name in LOSSES]
ASKED += [(name, ask) for name in ("twice", "used beside") for ask in ("inputs", "grad")]


@pytest.mark.parametrize(("name", "ask"), ASKED)
def test_gradients(name, ask):
    program = _gradient(LOSSES[name], ask)
    expected = program(TABLE, INDEX)
    for run in (t2j(program), jax.jit(t2j(program))):
        found = j2t(run(jnp.asarray(TABLE), jnp.asarray(INDEX)))
        assert found.layout is expected.layout
        if found.layout is torch.sparse_coo:
            assert found.dense_dim() == expected.dense_dim() == 1
            if name != "twice":  # PyTorch coalesces sums of two where it finds them large
                assert found.is_coalesced() is expected.is_coalesced()
                assert found._nnz() == expected._nnz()
        found, wanted = (x if x.layout is torch.strided else x.to_dense() for x in (found, expected))
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_no_array_of_the_size_of_the_table_is_made():
    def program(table, index):
        table = table.detach().requires_grad_()
        F.embedding(index, table, sparse=True).square().sum().backward()
        return table.grad

    jaxpr = jax.make_jaxpr(t2j(program))(jnp.ones((999, 3)), jnp.asarray(INDEX)).jaxpr
    made = [
        x.aval.shape for equation in jaxpr.eqns for x in equation.outvars if equation.primitive.name != "stop_gradient"
    ]
    assert (4, 3) in made
    assert (999, 3) not in made


def test_gradients_add_up_over_passes():
    def program(table, index):
        table = table.detach().clone().requires_grad_()
        found = []
        for loss in ("rows", "twice", "used beside", "rows"):
            LOSSES[loss](index, table).backward()
            found.append(table.grad.clone())
        return [x.to_dense() for x in found], [x.layout is torch.sparse_coo for x in found]

    expected, layouts = program(TABLE, INDEX)
    for run in (t2j(program), jax.jit(t2j(program))):
        found, are_sparse = run(jnp.asarray(TABLE), jnp.asarray(INDEX))
        assert [bool(x) for x in are_sparse] == layouts
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5)


OPTIMIZERS = {
    "SGD": {"lr": 0.1},
    "SGD, momentum": {"lr": 0.1, "momentum": 0.9},
    "Adagrad": {"lr": 0.1},
    "SparseAdam": {"lr": 0.1},
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name):
    def train(table, index):
        embedding = torch.nn.Embedding(6, 3, sparse=True, _weight=table.detach().clone())
        optimizer = getattr(torch.optim, name.partition(",")[0])(embedding.parameters(), **OPTIMIZERS[name])
        for rows in (index, index, index[:1]):
            optimizer.zero_grad()
            embedding(rows).sin().sum().backward()
            optimizer.step()
        return embedding.weight.detach()

    expected = train(TABLE, INDEX)
    for run in (t2j(train), jax.jit(t2j(train))):
        np.testing.assert_allclose(run(jnp.asarray(TABLE), jnp.asarray(INDEX)), expected, rtol=1e-5, atol=1e-6)


def test_gradients_from_outside():
    def step(table, index):
        """One step of descent, whose result is differentiated."""
        table = table.clone().requires_grad_()
        gradient = torch.autograd.grad(LOSSES["rows"](index, table), table)[0]
        return (table - 0.1 * gradient.to_dense()).pow(3).sum()

    def plain(table):
        gradient = jax.grad(lambda table: (table[jnp.asarray(INDEX)] ** 2).sum())(table)
        return ((table - 0.1 * jax.lax.stop_gradient(gradient)) ** 3).sum()

    given = jnp.asarray(TABLE)
    found = jax.jit(jax.grad(t2j(step)))(given, jnp.asarray(INDEX))
    assert found.shape == TABLE.shape
    dense = jax.grad(lambda table: t2j(LOSSES["rows"])(jnp.asarray(INDEX), table))(given)
    np.testing.assert_allclose(dense, jax.grad(lambda t: (t[jnp.asarray(INDEX)] ** 2).sum())(given), rtol=1e-6)


def test_refusals():
    def scaled(table, index):
        table = table.detach().requires_grad_()
        F.embedding(index, table, scale_grad_by_freq=True, sparse=True).sum().backward()

    def hooked(table, index):
        table = table.detach().requires_grad_()
        loss = F.embedding(index, table, sparse=True).sum()
        table.register_hook(lambda gradient: gradient)
        loss.backward()

    given = jnp.asarray(TABLE), jnp.asarray(INDEX)
    with pytest.raises(RuntimeError, match="scale_grad_by_freq not supported with sparse gradients"):
        t2j(scaled)(*given)
    with pytest.raises(NotImplementedError, match="wanted the hook before"):
        t2j(hooked)(*given)
