"""Autograd functions whose backward differentiates what their forward recorded, or weights that they close over.

So reversible layers, checkpoints of people's own and equilibria are written.
"""

import jax
import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd import Function

from torch2jax import t2j


class _Recorded(Function):
    """Keeps a graph of detached arguments."""

    @staticmethod
    def forward(ctx, x, w):
        with torch.enable_grad():
            ctx.x, ctx.w = x.detach().requires_grad_(), w.detach().requires_grad_()
            ctx.y = (ctx.x * ctx.w).sin()
        return ctx.y.detach()

    @staticmethod
    def backward(ctx, gradient):
        return torch.autograd.grad(ctx.y, (ctx.x, ctx.w), gradient)


class _Saved(Function):
    """Saves it, in a context that is set up apart."""

    @staticmethod
    def forward(x, w):
        with torch.enable_grad():
            x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
            y = (x * w).sin()
        return y.detach(), x, w, y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*output[1:])
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    def backward(ctx, gradient, *_):
        x, w, y = ctx.saved_tensors
        return torch.autograd.grad(y, (x, w), gradient)


class _Drawn(Function):
    """Draws random numbers on the way."""

    @staticmethod
    def forward(ctx, x, w):
        with torch.enable_grad():
            ctx.x, ctx.w = x.detach().requires_grad_(), w.detach().requires_grad_()
            ctx.y = nn.functional.dropout((ctx.x * ctx.w).sin(), 0.5)
        return ctx.y.detach()

    backward = _Recorded.backward


FUNCTIONS = {
    "recorded": lambda x, w: _Recorded.apply(x, w),
    "saved": lambda x, w: _Saved.apply(x, w)[0],
    "drawn": lambda x, w: _Drawn.apply(x, w),
}


def _plain(name, x, w):
    y = (x * w).sin()
    return nn.functional.dropout(y, 0.5) if name == "drawn" else y


def _inside(function):
    def run(x, w):
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        function(x, w).square().sum().backward()
        return x.grad, w.grad

    return run


def _loss(function, key):
    return lambda x, w: t2j(lambda x, w: function(x, w).square().sum())(x, w, **key)


WAYS = {
    "grad": lambda f, key: jax.grad(_loss(f, key), (0, 1)),
    "jit of grad": lambda f, key: jax.jit(jax.grad(_loss(f, key), (0, 1))),
    "grad of jit": lambda f, key: jax.grad(jax.jit(_loss(f, key)), (0, 1)),
    "inside": lambda f, key: lambda x, w: t2j(_inside(f))(x, w, **key),
    "inside, jit": lambda f, key: jax.jit(lambda x, w: t2j(_inside(f))(x, w, **key)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("way", WAYS)
def test_what_the_forward_recorded(name, way):
    torch.manual_seed(0)
    operands = [t2j(torch.randn(2, 3)) for _ in range(2)]
    key = {"rng": jax.random.key(1)} if name == "drawn" else {}
    expected = jax.grad(_loss(lambda x, w: _plain(name, x, w), key), (0, 1))(*operands)
    for got, wanted in zip(WAYS[way](FUNCTIONS[name], key)(*operands), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_a_second_derivative_says_why_there_is_none():
    x = t2j(torch.ones(3))
    loss = _loss(FUNCTIONS["recorded"], {})
    with pytest.raises(RuntimeError, match="second derivative of _Recorded"):
        jax.grad(lambda x: jax.grad(loss)(x, x).sum())(x)


def _record(ctx, x, module):
    """What a forward gives whose context keeps the graph of it, from `ctx.x` to `ctx.y`."""
    with torch.enable_grad():
        ctx.x = x.detach().requires_grad_()
        ctx.y = module.inner(ctx.x)
    return ctx.y.detach()


class _OfArguments(Function):
    """Weights are arguments besides; their gradients are asked for."""

    @staticmethod
    def forward(ctx, x, module, *weights):
        ctx.weights = weights
        return _record(ctx, x, module)

    @staticmethod
    def backward(ctx, gradient):
        found = torch.autograd.grad(ctx.y, (ctx.x, *ctx.weights), gradient)
        return found[0], None, *found[1:]


class _LeftThere(Function):
    """A pass within the backward leaves gradients at the weights."""

    @staticmethod
    def forward(ctx, x, module, *weights):
        ctx.count = len(weights)
        return _record(ctx, x, module)

    @staticmethod
    def backward(ctx, gradient):
        ctx.y.backward(gradient)
        return ctx.x.grad, None, *[None] * ctx.count


class _ComputedAgain(Function):
    """The backward computes what it differentiates: a checkpoint."""

    @staticmethod
    def forward(ctx, x, module, *weights):
        ctx.function, ctx.count = module.inner, len(weights)
        ctx.save_for_backward(x)
        return module.inner(x)

    @staticmethod
    def backward(ctx, gradient):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.function(x)
        y.backward(gradient)
        return x.grad, None, *[None] * ctx.count


class _Layer(nn.Module):
    def __init__(self, function, gives_weights):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.linear = nn.Linear(3, 3), nn.Linear(3, 3)
        self.function, self.gives_weights = function, gives_weights

    def inner(self, x):
        return torch.tanh(self.linear(x))

    def forward(self, x):
        weights = list(self.linear.parameters()) if self.gives_weights else []
        for _ in range(2):  # what several runs leave there is added up
            x = self.function.apply(self.first(x), self, *weights)
        return x.square().sum()


LAYERS = [
    (_OfArguments, True),
    (_LeftThere, True),
    (_LeftThere, False),
    (_ComputedAgain, True),
    (_ComputedAgain, False),
]


@pytest.mark.parametrize(("function", "gives_weights"), LAYERS)
def test_weights_that_a_backward_comes_by(function, gives_weights):
    layer, x = _Layer(function, gives_weights), torch.randn(2, 3)
    layer(x).backward()
    expected = {name: weight.grad for name, weight in layer.named_parameters()}
    f, state = t2j(layer), t2j(layer.state_dict())

    def loss(state, x):
        return f(x, state_dict=state)

    ways = jax.grad(loss), jax.jit(jax.grad(loss)), jax.grad(jax.jit(loss))
    for way in ways:
        found = way(state, t2j(x))
        for name, gradient in expected.items():
            np.testing.assert_allclose(found[name], gradient, rtol=1e-4, atol=1e-6)
    jax.grad(jax.jit(loss), 1)(state, t2j(x))  # of the input alone


def test_gradients_left_within_a_call():
    """They are those of PyTorch where the backward runs within, too."""
    for function, gives_weights in LAYERS:
        layer, x = _Layer(function, gives_weights), torch.randn(2, 3)

        def step(layer, x):
            layer(x).backward()
            return [weight.grad for weight in layer.parameters()]

        expected = step(layer, x)
        layer.zero_grad()
        got = jax.jit(t2j(lambda x, layer=layer: step(layer, x)))(t2j(x))
        for mine, theirs in zip(got, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)
