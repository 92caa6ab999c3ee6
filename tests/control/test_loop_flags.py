"""Loops on data whose bools change, and whose variables exchange tensors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from tests.control.test_conditions import QUICK
from torch2jax import t2j

INPUTS = [np.array(x, np.float32) for x in ([3, 1, 2, 5], [0.5, 0.25, -1, 4], [-9, 8, 5, 0])]
MATRIX = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


def bisected(x):
    """`mid` becomes one of the ends."""
    low, high = x.min(), x.max()
    for _ in range(40):
        mid = (low + high) / 2
        count = (x < mid).sum()
        if count == 2:
            break
        if count < 2:
            low = mid
        else:
            high = mid
    return mid, low, high


def restarted(x):
    """Accelerated descent: the point that goes ahead is the last one where it restarts."""
    y, t = x, 1.0
    for _ in range(60):
        new = y - 0.05 * MATRIX.T @ (MATRIX @ y - 1)
        t_new = (1 + (1 + 4 * t * t) ** 0.5) / 2
        if (y - new) @ (new - x) > 0:
            y, t_new = new, 1.0
        else:
            y = new + (t - 1) / t_new * (new - x)
        if (new - x).norm() < 1e-4:
            break
        x, t = new, t_new
    return x, y


def swapped(x):
    x = x.clone()
    is_done = False
    while not is_done:
        is_done = True
        for i in range(3):
            if x[i] > x[i + 1]:
                x[[i, i + 1]] = x[[i + 1, i]]
                is_done = False
    return x


def switched(x):
    """What one iteration found decides what the next one does."""
    is_far, n = True, 0
    while x.abs().max() > 0.01 and n < 100:
        x = x * 0.5 if is_far else x - 0.1 * x.sign()
        is_far = bool(x.norm() > 2)
        n += 1
    return x, n, is_far


class Searched(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.has_found = False

    def forward(self, x):
        n = 0
        while n < 30:
            x = x * 0.9
            if self.has_found:
                x = x * 0.5
            if x.norm() < 1 and not self.has_found:
                self.has_found = True
            if x.norm() < 0.1:
                break
            n += 1
        return x, self.has_found


FUNCTIONS = [bisected, restarted, swapped, switched]


def agree(function, new=None, loops=1):
    new = new or (lambda: function)
    jitted, mapped = (jax.jit(run, compiler_options=QUICK) for run in (t2j(new()), jax.vmap(t2j(new()))))
    batch = mapped(jnp.stack(INPUTS))
    for i, x in enumerate(INPUTS):
        wanted = jax.tree.map(np.asarray, new()(torch.from_numpy(x.copy())))
        for got in (jitted(x), jax.tree.map(lambda leaf, i=i: leaf[i], batch)):
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-4, 1e-4), got, wanted)
    assert str(jax.make_jaxpr(t2j(new()))(INPUTS[0])).count(" while[") >= loops


@pytest.mark.parametrize("function", FUNCTIONS)
def test_loops(function):
    agree(function)


def test_a_bool_that_an_object_has():
    agree(None, Searched)


@pytest.mark.parametrize("function", [bisected, restarted])
def test_gradients(function):
    x = torch.from_numpy(INPUTS[0].copy()).requires_grad_()
    (wanted,) = torch.autograd.grad(function(x)[0].sum(), x)
    found = jax.jit(jax.grad(lambda x: t2j(function)(x)[0].sum()), compiler_options=QUICK)(INPUTS[0])
    np.testing.assert_allclose(found, wanted, 1e-4, 1e-5)
