"""Loops on data in the forward and the backward of custom functions, against PyTorch."""

import jax
import numpy as np
import pytest
import torch

from tests.control.test_conditions import QUICK
from torch2jax import t2j

W = np.array([[0.3, 0.2, -0.1], [0.1, 0.4, 0.2], [0.0, -0.3, 0.2]], np.float32)
X = np.array([0.5, -0.2, 0.1], np.float32)


class _Equilibrium(torch.autograd.Function):
    """Where ``z = tanh(w z + x)``: its derivative is the solution of a linear equation, again found by a loop."""

    @staticmethod
    def forward(ctx, w, x):
        z, before = torch.zeros_like(x), x
        while (z - before).norm() > 1e-6:
            z, before = torch.tanh(w @ z + x), z
        ctx.save_for_backward(w, z)
        return z

    @staticmethod
    def backward(ctx, grad):
        w, z = ctx.saved_tensors
        slope = 1 - z * z
        u, before = grad, grad + 1
        for _ in range(24):
            if (u - before).norm() < 1e-6:
                break
            u, before = grad + w.T @ (slope * u), u
        return torch.outer(slope * u, z), slope * u


class _Halving(torch.autograd.Function):
    """A loop that may have no iteration: then it gives its argument itself, and the derivative is the function's."""

    @staticmethod
    def forward(ctx, w, x):
        while (w @ x).norm() > 0.05:
            x = x / 2
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        while grad.norm() > x.norm():
            grad = grad / 3
        return torch.outer(grad, grad), grad


def solved(w, x):
    return (_Equilibrium.apply(w, x) * torch.arange(1.0, 4.0)).sum()


def halved(w, x):
    return (_Halving.apply(w, x) * torch.arange(1.0, 4.0)).sum()


def by_its_own_backward(function):
    def both(w, x):
        w, x = w.detach().requires_grad_(), x.detach().requires_grad_()
        return torch.autograd.grad(function(w, x), (w, x))

    return both


@pytest.mark.parametrize("function", [solved, halved])
def test_gradients(function):
    scales = np.array([1.0, 0.02], np.float32)
    wanted = [by_its_own_backward(function)(torch.tensor(W), torch.tensor(X * scale)) for scale in scales]
    outside = jax.grad(t2j(function), (0, 1))
    batch = jax.jit(jax.vmap(outside, (None, 0)), compiler_options=QUICK)(W, X * scales[:, None])
    inside = jax.jit(t2j(by_its_own_backward(function)), compiler_options=QUICK)
    assert str(jax.make_jaxpr(outside)(W, X)).count(" while[") >= 2
    for i, scale in enumerate(scales):
        found = [*inside(W, X * scale)]
        for got, other, want in zip(found, batch, wanted[i], strict=True):
            np.testing.assert_allclose(got, want.numpy(), 1e-4, 1e-5)
            np.testing.assert_allclose(other[i], want.numpy(), 1e-4, 1e-5)
    for got, want in zip(jax.jit(outside, compiler_options=QUICK)(W, X), wanted[0], strict=True):
        np.testing.assert_allclose(got, want.numpy(), 1e-4, 1e-5)
    np.testing.assert_allclose(t2j(function)(W, X), function(torch.tensor(W), torch.tensor(X)).numpy(), 1e-5)
