"""Loops that numbers bound as well as traced values: gradients need no other bound, against PyTorch's autograd."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from tests.control.test_conditions import QUICK
from torch2jax import t2j
from torch2jax.runtime.errors import BranchError

X = np.array([30, 40, 5], np.float32)


def turned(x, y):
    return x / 2 + 0.01 * y.sin()


def counted(x, most=20):
    y, n = x, 0
    while n < most and x.norm() > 1:
        x = turned(x, y)
        n += 1
    return x.sum() + n


def condition_first(x):
    y, n = x, 0
    while x.norm() > 1 and n <= 15:
        x = turned(x, y)
        n += 1
    return x.sum() * n


def broken(x):
    y, n = x, 0
    while x.norm() > 1:
        if n >= 20:
            break
        x = turned(x, y)
        n = n + 1
    return x.sum()


def downwards(x):
    y, left = x, 30
    while left != 0 and x.norm() > 1:
        left -= 2
        x = turned(x, y)
    return x.sum() * left


def behind(x):
    y, n = x, 1
    while True:
        x = turned(x, y)
        n += 1
        if x.norm() < 1 or 2 * n > 30:
            return x.sum()


def with_continue(x):
    y, n = x, 0
    while 20 > n and x.norm() > 1:
        n += 1
        if x[0] < 3:
            x = x * 0.4
            continue
        x = turned(x, y)
    return x.sum()


def within(x):
    y, n = x, 0
    while n < 12 and x.norm() > 1:
        m = 0
        while m < 10 and x.norm() > 10:
            x = turned(x, y)
            m += 1
        x = turned(x, y)
        n += 1
    return x.sum()


def raising(x):
    y, n = x, 0
    while x.norm() > 1:
        if n > 20:
            raise RuntimeError("it has not converged")
        x = turned(x, y)
        n += 1
    return x.sum()


def returned(x):
    y, n = x, 0
    while x.norm() > 1:
        x = turned(x, y)
        n += 1
        if n >= 50:
            return x.sum() * 0
    return x.sum()


def asserted(x):
    y, n = x, 0
    while x.norm() > 1:
        x = turned(x, y)
        n += 1
        assert n < 50
    return x.sum()


BOUNDED = [counted, condition_first, broken, downwards, behind, with_continue, within, raising, returned, asserted]


@pytest.mark.parametrize("function", BOUNDED)
def test_gradients(function):
    leaf = torch.from_numpy(X.copy()).requires_grad_()
    value = function(leaf)
    (wanted,) = torch.autograd.grad(value, leaf)
    translated = t2j(function)
    np.testing.assert_allclose(translated(X), value.detach(), 1e-5)
    assert " while[" in str(jax.make_jaxpr(translated)(X))
    for found in (jax.grad(translated), jax.jit(jax.grad(jax.jit(translated)), compiler_options=QUICK)):
        np.testing.assert_allclose(found(X), wanted, 1e-4)


def test_gradients_in_a_batch():
    """Each example has its own iterations; forward mode and the other order of ``jit`` and ``grad`` give the same."""
    translated, batch = t2j(counted), np.stack([X, X / 100])
    leaf = torch.from_numpy(batch.copy()).requires_grad_()
    values = torch.stack([counted(row) for row in leaf])
    (wanted,) = torch.autograd.grad(values.sum(), leaf)
    found, slopes = jax.jit(jax.vmap(jax.value_and_grad(translated)), compiler_options=QUICK)(batch)
    np.testing.assert_allclose(found, values.detach(), 1e-5)
    np.testing.assert_allclose(slopes, wanted, 1e-4)
    np.testing.assert_allclose(jax.jit(jax.jacfwd(translated), compiler_options=QUICK)(X), wanted[0], 1e-4)


def test_the_bound_is_reached():
    """Iterations that the number ends, not the tensor: all of them count, and none more."""

    def function(x):
        n = 0
        while n < 13 and x.norm() > 1e-6:
            x = x * 0.9
            n += 1
        return x.sum()

    translated = t2j(function)
    for found in (jax.grad(jax.jit(translated))(X), jax.jit(jax.grad(translated))(X)):
        np.testing.assert_allclose(found, np.full(3, 0.9**13), 1e-5)
    few = jax.grad(jax.jit(t2j(function, max_steps=3)))(X)  # what is said stays said
    assert np.isnan(few).all()
    np.testing.assert_allclose(jax.grad(jax.jit(t2j(function, max_steps=50)))(X), np.full(3, 0.9**13), 1e-5)


def test_what_raises_in_pytorch_is_nan():
    far = X * 2**30
    with pytest.raises(RuntimeError, match="converged"):
        raising(torch.from_numpy(far))
    assert np.isnan(jax.jit(jax.grad(t2j(raising)))(far)).all()


def other_steps(x):
    n = 0
    while n < 20 and x.norm() > 1:
        n += 1 if x[0] > 3 else 0
        x = x / 2
    return x.sum()


def never_met(x):
    n = 1
    while n != 20 and x.norm() > 1:
        n += 2
        x = x / 2
    return x.sum()


def some_paths(x):
    n = 0
    while x.norm() > 1:
        n += 1
        if x[0] > 3 and n > 20:
            break
        x = x / 2
    return x.sum()


def traced_bound(x):
    n, most = 0, x.argmax().item() + 20
    while n < most and x.norm() > 1:
        n += 1
        x = x / 2
    return x.sum()


def counted_behind(x):
    n = 0
    while True:
        if x.norm() < 1:
            break
        x = x / 2
        n += 1
        if n >= 20:
            break
    return x.sum()


@pytest.mark.parametrize("function", [other_steps, never_met, some_paths, traced_bound, counted_behind])
def test_what_bounds_nothing(function):
    with pytest.raises(BranchError, match="max_steps=N"):
        jax.grad(jax.jit(t2j(function)))(X)


def _root(x, w):
    while x > 1:
        x = torch.sqrt(x) * w - 0.5
    return x * w


def test_gradients_of_a_batch_of_loops():
    """The loops of a batch end at different iterations, and past its end one of them would come to nan."""
    f, w = t2j(_root, max_steps=9), jnp.float32(1.0)
    xs = jnp.array([0.5, 1.5, 4.0, 30.0, 900.0])

    def of_one(x, w):
        x = torch.tensor(float(x), requires_grad=True)
        w = torch.tensor(float(w), requires_grad=True)
        return torch.autograd.grad(_root(x, w), (x, w))

    expected = [of_one(x, w) for x in xs]
    slopes, slope = [float(x) for x, _ in expected], sum(float(w) for _, w in expected)
    of_batch = lambda g: lambda xs, w: jax.vmap(g, (0, None))(xs, w).sum()
    for g in (of_batch(f), of_batch(jax.jit(f)), jax.jit(of_batch(f))):
        found = jax.grad(g, (0, 1))(xs, w)
        np.testing.assert_allclose(found[0], slopes, rtol=1e-5)
        np.testing.assert_allclose(found[1], slope, rtol=1e-5)
    np.testing.assert_allclose(jax.vmap(jax.grad(f), (0, None))(xs, w), slopes, rtol=1e-5)
    twice = lambda g: jax.grad(lambda x: jax.grad(lambda x: g(x, w).sum())(x).sum())
    np.testing.assert_allclose(twice(of_batch(f))(xs), jax.vmap(twice(f))(xs), rtol=1e-5)
