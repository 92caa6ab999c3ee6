"""Hooks on saved tensors, against PyTorch where what an operation saves is the same."""

import gc
import weakref

import jax
import numpy as np
import pytest
import torch
from torch.autograd.graph import disable_saved_tensors_hooks, save_on_cpu, saved_tensors_hooks

from torch2jax import t2j

X, Y = torch.tensor([0.5, -1.5, 2.0]), torch.tensor([3.0, 0.25, -1.0])


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, gradient):
        x, y = ctx.saved_tensors
        return gradient * y, gradient * x


def scaled(function, x, y):
    x, y = x.clone().requires_grad_(), y.clone().requires_grad_()
    with saved_tensors_hooks(lambda kept: 3 * kept, lambda kept: 3 * kept):
        outer = function(x, y)
        with saved_tensors_hooks(lambda kept: kept + 1, lambda kept: kept):
            inner = function(x, y)
    return torch.autograd.grad((outer + inner * function(x, y)).sum(), (x, y))


@pytest.mark.parametrize("function", [torch.mul, Product.apply, torch.Tensor.sin], ids=["mul", "custom", "sin"])
def test_hooks_change_what_is_saved(function):
    if function is torch.Tensor.sin:
        function = lambda x, y: torch.mul(x, 2 * y)
    wanted = scaled(function, X, Y)
    for run in (t2j(scaled), jax.jit(t2j(scaled), static_argnums=0)):
        for got, value in zip(run(function, t2j(X), t2j(Y)), wanted, strict=True):
            np.testing.assert_allclose(got, value, rtol=1e-5)


def test_what_hooks_see_and_when():
    def function(x, y):
        events = []

        def pack(kept):
            events.append("pack")
            return kept.shape, kept

        def unpack(packed):
            events.append("unpack")
            return packed[1]

        x = x.clone().requires_grad_()
        with saved_tensors_hooks(pack, unpack):
            z = x * y
        assert events == ["pack"]
        z.sum().backward()
        assert events == ["pack", "unpack"]
        return x.grad

    np.testing.assert_allclose(t2j(function)(t2j(X), t2j(Y)), function(X, Y))


def test_gradients_of_gradients_pass_hooks():
    def function(x, y):
        x, y = x.clone().requires_grad_(), y.clone().requires_grad_()
        with save_on_cpu(), saved_tensors_hooks(lambda kept: (kept,), lambda packed: packed[0]):
            (gradient,) = torch.autograd.grad((x * y).sin().sum(), x, create_graph=True)
            return torch.autograd.grad(gradient.sum(), (x, y))

    for run in (t2j(function), jax.jit(t2j(function))):
        for got, wanted in zip(run(t2j(X), t2j(Y)), function(X, Y), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_errors():
    def failing(where):
        def fail(_):
            raise ValueError(where)

        same = lambda kept: kept
        x = X.clone().requires_grad_()
        with saved_tensors_hooks(fail if where == "pack" else same, fail if where == "unpack" else same):
            x.sin().sum().backward()

    def written_to():
        x = X.clone().requires_grad_()
        with saved_tensors_hooks(lambda kept: kept.mul_(2), lambda kept: kept):
            x.sin()

    def no_tensor():
        x = X.clone().requires_grad_()
        with saved_tensors_hooks(lambda kept: kept, lambda kept: 1):
            x.sin().sum().backward()

    def disabled():
        with disable_saved_tensors_hooks("not here"), saved_tensors_hooks(lambda kept: kept, lambda kept: kept):
            pass

    for function, error, message in (
        (lambda: failing("pack"), ValueError, "pack"),
        (lambda: failing("unpack"), ValueError, "unpack"),
        (written_to, RuntimeError, "modifying its input in place"),
        (no_tensor, TypeError, "expected to be a Tensor"),
        (disabled, RuntimeError, "not here"),
    ):
        for run in (function, t2j(function)):
            with pytest.raises(error, match=message):
                run()


def test_hooks_end_with_the_graph():
    def function(x):
        x = x.clone().requires_grad_()
        made = [set(), set()]
        physical = list(map(weakref.ref, made))

        def of_tensor(gradient, kept=made[0]):
            return gradient * 2

        def unpack(packed, kept=made[1]):
            return packed

        y = x * 1
        y.register_hook(of_tensor)
        with saved_tensors_hooks(lambda kept: kept, unpack):
            z = y.sin()
        made.clear()
        del of_tensor, unpack
        gc.collect()
        assert all(reference() is not None for reference in physical)
        z.sum().backward()
        del y, z
        gc.collect()
        assert all(reference() is None for reference in physical)
        return x.grad

    np.testing.assert_allclose(t2j(function)(t2j(X)), 2 * X.cos(), rtol=1e-6)


def test_hooks_that_nobody_takes_back_end_with_the_pass_or_the_call():
    seen = []

    def leaving():
        context = saved_tensors_hooks(
            lambda x: x, lambda x: saved_tensors_hooks(seen.append, seen.append).__enter__() or x
        )
        x = X.clone().requires_grad_()
        context.__enter__()
        x.sin().sum().backward()
        assert not seen
        return x.grad

    np.testing.assert_allclose(t2j(leaving)(), X.cos(), rtol=1e-6)
    assert torch._C._autograd._top_saved_tensors_default_hooks(False) is None  # type: ignore[attr-defined]


def test_hooks_see_no_keys_of_random_numbers():
    class Noisy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x.exp().clone().detach_().requires_grad_())
            return torch.nn.functional.dropout(x.exp(), 0.5)

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.saved_tensors[0]

    def function(x):
        x = x.clone().requires_grad_()
        with saved_tensors_hooks(lambda kept: kept.clone(), lambda kept: kept):
            y = Noisy.apply(x)
        y.sum().backward()
        return x.grad

    np.testing.assert_allclose(t2j(function)(t2j(X), rng=jax.random.key(0)), X.exp(), rtol=1e-6)
