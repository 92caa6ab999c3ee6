"""``nonzero`` under jit, where a traced input decides how long it is: subscripts by it, and scatters to it."""

import jax
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from torch2jax import t2j

GENERATOR = torch.Generator().manual_seed(0)
X, Y = torch.randn(6, 3, generator=GENERATOR), torch.rand(6, 3, generator=GENERATOR)
MASK, ROWS = X > 0.1, torch.tensor([True, False, True, True, False, True])
CLASSES = torch.tensor([0, 1, 2, 0, 1, 2])


def written(x, index, value):
    x = x.clone()
    x[index] = value
    return x


FUNCTIONS = {
    "a tuple": lambda x, y, m, r: x[m.nonzero(as_tuple=True)].sum(),
    "where": lambda x, y, m, r: x[torch.where(m)].log().sum(),
    "rows": lambda x, y, m, r: x[r.nonzero().squeeze(1)].mean(0),
    "flattened": lambda x, y, m, r: x[r.nonzero().flatten()].sum(0),
    "a column": lambda x, y, m, r: x[r.nonzero()[:, 0]].sum(0),
    "columns": lambda x, y, m, r: x[m.nonzero()[:, 0], m.nonzero()[:, 1]].sum(),
    "unbound": lambda x, y, m, r: x[m.nonzero().unbind(1)].sum(),
    "argwhere": lambda x, y, m, r: torch.argwhere(m).sum(0),
    "first of a tuple": lambda x, y, m, r: x[m.nonzero(as_tuple=True)[0]].sum(0),
    "of another": lambda x, y, m, r: (y[0][m.nonzero(as_tuple=True)[1]] * x[m]).sum(),
    "and more": lambda x, y, m, r: x[torch.where(r)[0], 1].sum() + x[torch.where(r)[0], 1:].exp().mean(),
    "a number before": lambda x, y, m, r: torch.stack([y, x])[(1, *torch.where(m))].sum(),
    "numbers among": lambda x, y, m, r: torch.stack([y, x])[-1, torch.where(r)[0], 2].exp().sum(),
    "a number before what is written": lambda x, y, m, r: written(torch.stack([x, y]), (0, *torch.where(m)), y[m]),
    "index_select": lambda x, y, m, r: x.index_select(0, r.nonzero().squeeze(1)).sum(0),
    "shifted": lambda x, y, m, r: x[r.nonzero().squeeze(1) - 1].sum(0),
    "of numbers": lambda x, y, m, r: x[x.relu().nonzero(as_tuple=True)].sum(),
    "counted": lambda x, y, m, r: torch.ones_like(r.nonzero().squeeze(1)).sum(),
    "ordered": lambda x, y, m, r: x[:, 0][r.nonzero().squeeze(1)].sort()[0].cumsum(0).max(),
    "cross_entropy": lambda x, y, m, r: F.cross_entropy(x[torch.where(r)[0]], CLASSES[torch.where(r)[0]]),
    "a number written": lambda x, y, m, r: written(x, m.nonzero(as_tuple=True), 0.5),
    "the same places": lambda x, y, m, r: written(x, torch.where(m), y[torch.where(m)] * 2),
    "by the mask": lambda x, y, m, r: written(x, torch.where(m), y[m] * x[m]),
    "one row": lambda x, y, m, r: written(x, r.nonzero().squeeze(1), y[0]),
    "a part of rows": lambda x, y, m, r: written(x, (torch.where(r)[0], 0), 7.0),
    "elsewhere": lambda x, y, m, r: written(x, r.nonzero().squeeze(1) - 1, y[r] * x[r]),
    "index_add": lambda x, y, m, r: torch.zeros(4, 3).index_add(0, r.nonzero().squeeze(1) % 3, x[r], alpha=2),
    "index_add_": lambda x, y, m, r: torch.zeros(4).index_add_(0, CLASSES[r], x[:, 0][r].exp()),
    "scatter_add": lambda x, y, m, r: torch.zeros(3).scatter_add(0, m.nonzero(as_tuple=True)[1], x[m].exp()),
    "index_put_": lambda x, y, m, r: torch.zeros(3).index_put_((torch.where(m)[1],), x[m], accumulate=True),
    "index_copy": lambda x, y, m, r: x.index_copy(0, 5 - r.nonzero().squeeze(1), y[r]),
    "index_fill": lambda x, y, m, r: x.index_fill(0, 5 - r.nonzero().squeeze(1), 0.5),
    "index_fill_": lambda x, y, m, r: torch.zeros(4).index_fill_(0, CLASSES[r], 2) * x[:4, 0],
    "one_hot": lambda x, y, m, r: (F.one_hot(CLASSES[r], 3) * x[r]).sum(0),
}


@pytest.mark.parametrize("is_empty", [False, True])
def test_values_and_gradients(is_empty):
    given = (X, Y, MASK & (not is_empty), ROWS & (not is_empty))
    names = [name for name in FUNCTIONS if not (is_empty and name in ("rows", "and more", "ordered", "cross_entropy"))]

    def function(x, y, m, r):
        return {name: FUNCTIONS[name](x, y, m, r) for name in names if name != "of numbers" or not is_empty}

    def total(results):
        return sum((x * (1 + i / 8)).sum() for i, x in enumerate(jax.tree.leaves(results)))

    arrays, wanted = [t2j(x) for x in given], function(*given)
    for name, got in jax.jit(t2j(function))(*arrays).items():
        np.testing.assert_allclose(got, wanted[name].numpy(), 1e-5, 1e-6, err_msg=name)
    leaf = X.clone().requires_grad_()
    (slope,) = torch.autograd.grad(total(function(leaf, *given[1:])), leaf)
    ours = jax.jit(jax.grad(lambda *arrays: total(t2j(function)(*arrays))))(*arrays)
    np.testing.assert_allclose(ours, slope.numpy(), 1e-4, 1e-4)


def test_places_of_a_tensors_own_elements_are_the_mask():
    arrays = [t2j(x) for x in (X, Y, MASK, ROWS)]
    for name in ("a tuple", "rows", "a number written", "by the mask"):
        graph = str(jax.make_jaxpr(t2j(FUNCTIONS[name]))(*arrays))
        assert "gather" not in graph, name
        assert "scatter" not in graph, name


def test_mapped():
    def function(x, m):
        return x[m.nonzero().squeeze(1)].sum(), written(x, torch.where(m)[0], 1.0)

    masks = torch.stack([ROWS, ~ROWS, ROWS.flip(0)])
    ours = jax.vmap(t2j(function))(t2j(X.T), t2j(masks))
    wanted = [function(x, m) for x, m in zip(X.T, masks, strict=True)]
    for got, want in zip(ours, zip(*wanted, strict=True), strict=True):
        np.testing.assert_allclose(got, torch.stack(want).numpy(), 1e-5)
