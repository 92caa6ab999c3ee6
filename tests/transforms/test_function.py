"""Custom `torch.autograd.Function`s: their own backward is what JAX differentiates with."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch2jax import t2j


class Round(torch.autograd.Function):
    """A straight-through estimator."""

    @staticmethod
    def forward(ctx, x):
        return torch.round(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Scaled(torch.autograd.Function):
    """Saves inputs and a result, keeps a number, and takes other arguments than tensors."""

    @staticmethod
    def forward(ctx, x, scale, w, indices):
        y = torch.exp(x * scale) * w
        ctx.save_for_backward(x, y, w)
        ctx.scale = scale
        return y, x[indices], indices + 1

    @staticmethod
    def backward(ctx, of_y, of_part, of_indices):
        x, y, _ = ctx.saved_tensors
        return of_y * y * ctx.scale * 10, None, (of_y * torch.exp(x * ctx.scale)).sum() * 100, None


class Separate(torch.autograd.Function):
    """The newer style, with a context of its own, and tensors among its attributes."""

    @staticmethod
    def forward(x, y):
        return x * y, x + y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.both = {"inputs": inputs, "sum": output[1]}
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, of_product, of_sum):
        x, y = ctx.both["inputs"]
        return of_product * y * 2 + of_sum * ctx.both["sum"], of_product * x * 3


class Same(torch.autograd.Function):
    """Returns its input as it is, and reverses the gradient."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


class Conjugating(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z):
        return z * (1 + 2j)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (3 - 1j)


class Reopening(torch.autograd.Function):
    """Turns gradients on within its forward, as activation checkpointing does."""

    @staticmethod
    def forward(ctx, x):
        with torch.enable_grad():
            y = x.sin()
        return y * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 5


round_through = Round.apply  # bound before any call, as code often has it
X = torch.tensor([0.3, 1.4, -2.6])
INDICES = torch.tensor([2, 0])


def scaled(x):
    y, part, indices = Scaled.apply(x, 3, x.mean(), INDICES)
    return y.sum() + part.sum() * indices.sum()


def separate(x):
    product, total = Separate.apply(x, x.cos())
    return (product * total).sum()


CASES = {
    "straight through": lambda x: (round_through(x) * x).sum(),
    "saved tensors": scaled,
    "setup_context": separate,
    "input as it is": lambda x: (Same.apply(x) * x).sum(),
    "one after the other": lambda x: Same.apply(round_through(x * 2)).square().sum(),
    "one in the other's place": lambda x: round_through(round_through(x)).sum(),
    "gradients on within": lambda x: Reopening.apply(x).sum(),
    "a view of it": lambda x: Same.apply(x)[1:].sum(),
    "written to after": lambda x: round_through(x).mul_(2).add_(x).sum(),
    "without gradients": lambda x: (torch.no_grad()(round_through)(x) * x).sum(),
    "with gradients again": lambda x: (torch.no_grad()(torch.enable_grad()(round_through))(x) * x).sum(),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("jit", [False, True])
def test_gradients_are_the_functions_own(name, jit):
    function = CASES[name]
    x = X.clone().requires_grad_()
    value = function(x)
    (expected,) = torch.autograd.grad(value, x)
    transform = jax.value_and_grad(t2j(function))
    actual = (jax.jit(transform) if jit else transform)(t2j(X))
    np.testing.assert_allclose(actual[0], value.detach(), rtol=1e-5)
    np.testing.assert_allclose(actual[1], expected, rtol=1e-5)


def test_complex_gradients():
    z = torch.tensor([1 + 2j, -1j]).requires_grad_()
    (expected,) = torch.autograd.grad(Conjugating.apply(z).abs().sum(), z)
    actual = jax.grad(t2j(lambda z: Conjugating.apply(z).abs().sum()))(t2j(z.detach()))
    np.testing.assert_allclose(np.conj(actual), expected, rtol=1e-5)


def test_second_order_goes_through_the_backward():
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            return gradient * 3 * x**2

    second = jax.grad(jax.grad(t2j(Cube.apply)))
    np.testing.assert_allclose(second(jnp.float32(2)), 12)


def test_vmap_and_parameters():
    class Quantized(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.tensor([[0.4, 1.6, 2.2]]))

        def forward(self, x):
            return (x @ Round.apply(self.weight).mT).sum()

    model, x = Quantized(), torch.randn(5, 3)
    gradients = jax.vmap(jax.grad(lambda p, x: t2j(model)(x, state_dict=p)), (None, 0))(t2j(model.state_dict()), t2j(x))
    np.testing.assert_allclose(gradients["weight"][:, 0], x)


def test_functions_outside_keep_pytorchs_autograd():
    t2j(Round.apply)(t2j(X))
    x = X.clone().requires_grad_()
    Round.apply(x).sum().backward()
    assert (x.grad == 1).all()


def test_reentrant_checkpoints_have_gradients():
    layer = torch.nn.Linear(3, 3)
    checkpoint = torch.utils.checkpoint.checkpoint

    def function(x):
        return checkpoint(layer, x, use_reentrant=True).square().sum() + checkpoint(layer, x, use_reentrant=False).sum()

    x = X.clone().requires_grad_()
    (expected,) = torch.autograd.grad(layer(x).square().sum() + layer(x).sum(), x)
    np.testing.assert_allclose(jax.grad(t2j(function))(t2j(X)), expected, rtol=1e-5)


def test_scalars_are_differentiated_and_stay_numbers_to_pytorch():
    class Times(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, scale):
            ctx.save_for_backward(x)
            return x * scale

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            return gradient, 7 * (gradient * x).sum()

    def function(x, scale):
        y = Times.apply(x, scale).sum()
        return y + torch.full((2,), scale).sum()

    gradient = jax.grad(t2j(function), 1)(t2j(X), jnp.float32(2))
    np.testing.assert_allclose(gradient, 7 * X.sum(), rtol=1e-5)  # what is filled with a number has none
