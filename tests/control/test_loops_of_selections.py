"""Loops whose iterations replace selections: values and gradients are PyTorch's, with the room of the first."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch2jax import Padded, t2j

X = torch.randn(9, 3, generator=torch.Generator().manual_seed(0))


def shrinking(x):
    """A selection of itself, first a plain tensor."""
    boxes, keep = x, x[:, 0] > -0.3
    while not keep.all():
        boxes = boxes[keep]
        keep = boxes[:, 0] > boxes[:, 1:].mean() - 1
    return boxes


def together(x):
    """Several selections by one mask, of several dtypes, in a container."""
    found = {"boxes": x[x[:, 0] > -5], "places": torch.where(x[:, 0] > -5)[0]}
    low = found["boxes"][:, 0] < 0.1
    while low.any():
        found["boxes"], found["places"] = found["boxes"][~low] - 0.3, found["places"][~low]
        low = found["boxes"][:, 0] < 0.1
    return found["boxes"].sum(0), found["boxes"], found["places"]


def greedy(x):
    """The first of those that are left, and what is far from it: parts in compact order."""
    boxes, total = x[x[:, 1].argsort()], torch.zeros(3)
    while len(boxes) > 0:
        total = total * 0.5 + boxes[0]
        boxes = boxes[1:]
        boxes = boxes[(boxes - total).norm(dim=1) > 0.5]
    return total


def one_by_one(x):
    rows, total = x[x[:, 0] > 0], torch.zeros(3)
    while len(rows):
        total = total * 0.5 + rows[0]
        rows = rows[1:]
    return total


def columns(x):
    """The data-dependent dimension is a later one."""
    table, count = x.T[:, x[:, 0] > -0.5], torch.tensor(0)
    while table.sum() > 0.5:
        table, count = table[:, table[0] > table.mean()] * 0.7, count + 1
    return table, count


def sorted_each_time(x):
    rows = x[x[:, 2] > -1]
    while rows.shape[0] > 2:
        rows = rows[rows[:, 0].argsort()][: rows.shape[0] - 2] + 0.1
    return rows


FUNCTIONS = [shrinking, together, greedy, one_by_one, columns, sorted_each_time]


def leaves(found) -> list:
    return jax.tree.leaves(found, is_leaf=lambda x: isinstance(x, Padded))


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_values_and_gradients(function):
    def loss(x):
        found = leaves(t2j(function, max_steps=16)(x))
        arrays = [x.values if isinstance(x, Padded) else x for x in found]
        return sum((x.sum() for x in arrays if x.dtype.kind == "f"), jnp.zeros(())), found

    compiled = jax.jit(jax.value_and_grad(loss, has_aux=True))
    for x in (X, -X, X + 3, X - 3):
        (_, found), gradient = compiled(t2j(x))
        leaf = x.clone().requires_grad_()
        wanted = leaves(function(leaf))
        for one, other in zip(found, wanted, strict=True):
            one = one.compact() if isinstance(one, Padded) else one
            np.testing.assert_allclose(one, other.detach(), 1e-5, 1e-6)
        total = sum(x.sum() for x in wanted if x.requires_grad)
        slope = torch.autograd.grad(total, leaf)[0] if torch.is_tensor(total) else torch.zeros_like(x)
        np.testing.assert_allclose(gradient, slope, 1e-4, 1e-5)


def test_it_is_one_loop():
    """However many iterations there may be, the program is as long."""
    sizes = [len(jax.make_jaxpr(t2j(one_by_one))(jnp.ones((n, 3))).eqns) for n in (50, 90)]
    assert sizes[0] == sizes[1]
    assert "while[" in str(jax.make_jaxpr(t2j(one_by_one))(jnp.ones((50, 3))))


def test_each_example_goes_its_own_path():
    found = jax.jit(jax.vmap(t2j(shrinking)))(jnp.stack([t2j(X), t2j(-X), t2j(X + 3)])).compact()
    for one, x in zip(found, (X, -X, X + 3), strict=True):
        np.testing.assert_allclose(one, shrinking(x), 1e-6)
