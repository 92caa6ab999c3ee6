"""Variables that share memory in some iterations of a loop only: carried as two, unless somebody writes there."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from tests.control.test_conditions import QUICK
from tests.control.test_loops import agree
from torch2jax import t2j
from torch2jax.runtime.errors import BranchError

X = np.array([[1, 2], [3, -1]], np.float32)


def best_so_far(x):
    best, n = x, 0
    while x.norm() > 0.5:
        x = x * 0.8
        if x.sum() < 3:
            best = x
        n += 1
    return best, n


def best_of_a_for(x):
    best, error = x, x.norm()
    for _ in range(20):
        x = x * 0.7 - 0.05
        if x.norm() < error:
            best, error = x, x.norm()
        if error < 0.4:
            break
    return best, error


def view_of_the_first(x):
    first, n = x[:, 0], 0
    while n < 20 and x.abs().sum() > 0.3:
        if x.sum() > 1:
            x = x * 0.5
        else:
            x = x.sin() - 0.1
            first = x[:, 0]
        n += 1
    return x, first, n


def swapped(x):
    one, other = x, x
    while one.norm() > 0.5:
        if one.sum() > 2:
            one, other = other * 0.5, one
        else:
            other = one = one * 0.5
    return one, other


def written_when_new(x):
    """The write is before the variables are one tensor."""
    best = x
    while x.norm() > 0.5:
        x = x * 0.9
        x.mul_(0.9)
        if x.sum() < 3:
            best = x
    return x, best


FUNCTIONS = [best_so_far, best_of_a_for, view_of_the_first, swapped, written_when_new]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_agree(function):
    agree(function, X)


def test_gradients():
    x = torch.tensor(X, requires_grad=True)
    best, error = best_of_a_for(x)
    (best.sum() + error).backward()
    found = jax.jit(jax.grad(lambda x: sum(map(jnp.sum, t2j(best_of_a_for)(x)))), compiler_options=QUICK)(X)
    np.testing.assert_allclose(found, x.grad, 1e-5)


def derived(x):
    """The code takes derivatives itself: these tell apart what has one history."""
    w = torch.zeros(2, requires_grad=True)
    best = torch.zeros(2)
    for _ in range(12):
        w.grad = None
        loss = (w - x[0]).square().sum()
        loss.backward()
        with torch.no_grad():
            w -= 0.2 * w.grad
            moved = w * 1.0
        if loss < 2:
            best = moved
        if loss < 0.1:
            break
    return best, w.detach()


def test_code_that_takes_derivatives():
    for got, want in zip(jax.jit(t2j(derived), compiler_options=QUICK)(X), derived(torch.from_numpy(X)), strict=True):
        np.testing.assert_allclose(got, want, 1e-5)


def written(x):
    best, x = x, x.clone()
    while x.norm() > 0.5:
        if x.sum() > 1:
            best = x = x * 0.8
        else:
            x.mul_(0.7)
    return x, best


def asked(x):
    best, n = x, 0
    while x.norm() > 0.1:
        n = n + 1 if best is x else n + 2
        x = x * 0.8
        if x.sum() < 3:
            best = x
    return best, n


def asked_by_the_caller(x):
    best, n = best_so_far(x)
    return n if best is x else n + 1


@pytest.mark.parametrize("function", [written, asked, asked_by_the_caller])
def test_what_is_written_to_or_asked_for_is_refused(function):
    with pytest.raises(BranchError, match=r"data decide (whether another one is|which of two)"):
        jax.make_jaxpr(t2j(function, max_paths=16))(X)


def written_behind(x):
    best = x
    while x.norm() > 2:
        x = x * 0.8
        if x.sum() < 5:
            best = x
    best.mul_(2)
    return x, best


def test_writes_behind_the_loop():
    """These show whether the variables are one tensor."""
    with pytest.raises(BranchError, match="a tensor is written to in place, and data decide"):
        jax.make_jaxpr(t2j(written_behind, max_paths=16))(X)


def test_refused_loops_leave_no_copies():
    """Other runs do not have what was made for a loop that then is none of the graph."""

    def program(x, b):
        v, w, n = b[1], torch.zeros(16), 0
        while True:
            x, n = x.T, n + 1
            if n >= 12 or not (x.abs() < 4).all():
                break
            w[n] = x.mean()
        return x, b, v, w, n

    compiled = jax.jit(t2j(program), compiler_options=QUICK)
    for x in X, 4 * X:
        for got, want in zip(compiled(x, X), program(torch.from_numpy(x), torch.from_numpy(X)), strict=True):
            np.testing.assert_allclose(got, want, 1e-5)
