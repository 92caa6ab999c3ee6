"""`torch.cond` of selections: its operands, and results that are not as long, with room for the longest."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch2jax import Padded, t2j

X = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))


def or_rows(choose, x):
    """A selection, or a tensor."""
    return choose(x.sum() > 0, lambda x: x[x[:, 0] > 0], lambda x: x[:2], (x,))


def operand(choose, x):
    chosen = x[x[:, 0] > 0]
    return choose(x.sum() > 0, lambda s: s * 2, lambda s: s[1:], (chosen,))


def several(choose, x):
    chosen = x[x[:, 0] > 0]
    yes = lambda s: (s["rows"].sum(), s["rows"][s["rows"][:, 1] > 0], len(s["rows"]))
    no = lambda s: (s["rows"].sum() * 2, torch.cat([s["rows"], x]), 2)
    total, rows, count = choose(chosen.sum() > 1, yes, no, ({"rows": chosen},))
    return total + count, rows


def columns(choose, x):
    """Data decide one dimension in one branch, and two in the other."""
    chosen = x[x[:, 0] > 0]
    return choose(x.sum() > 0, lambda: chosen @ x.T, lambda: chosen @ chosen.T, ())


def python_if(pred, yes, no, operands):
    return yes(*operands) if pred else no(*operands)


@pytest.mark.parametrize("function", [or_rows, operand, several, columns], ids=lambda f: f.__name__)
def test_values_and_gradients(function):
    def loss(x):
        found = jax.tree.leaves(t2j(lambda x: function(torch.cond, x))(x), is_leaf=lambda x: isinstance(x, Padded))
        return sum((x.values if isinstance(x, Padded) else x).sum() for x in found), found

    compiled = jax.jit(jax.value_and_grad(loss, has_aux=True))
    for x in (X, -X, X + 3, X - 3):
        (_, found), gradient = compiled(t2j(x))
        leaf = x.clone().requires_grad_()
        wanted = jax.tree.leaves(function(python_if, leaf))
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one.compact() if isinstance(one, Padded) else one, other.detach(), 1e-5, 1e-6)
        total = sum(x.sum() for x in wanted)
        slope = torch.autograd.grad(total, leaf)[0] if total.requires_grad else torch.zeros_like(x)
        np.testing.assert_allclose(gradient, slope, 1e-4, 1e-5)


def test_each_example_has_its_own():
    found = jax.jit(jax.vmap(t2j(lambda x: or_rows(torch.cond, x))))(jnp.stack([t2j(X), t2j(-X)])).compact()
    for one, x in zip(found, (X, -X), strict=True):
        np.testing.assert_array_equal(one, or_rows(python_if, x))
