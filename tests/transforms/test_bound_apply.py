"""`apply` of an autograd function that was bound before the call began, as most code binds it."""

import jax
import jax.numpy as jnp
import pytest
import torch
from torch.autograd import Function

from torch2jax import t2j


class Doubled(Function):
    """Twice a number, whose derivative is said to be five."""

    @staticmethod
    def forward(ctx, x, factor=2.0):
        ctx.save_for_backward(x)
        return x * factor

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 5 + 0 * x, None


class WithContext(Function):
    @staticmethod
    def forward(x, y):
        return x * y, y + 1

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx, g, _):
        x, y = ctx.saved_tensors
        return g * y * 7, g * x * 3


class Filled(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(3)

    @staticmethod
    def backward(ctx, g):
        return g * 11


class Same(Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, g):
        return g * 13


class Nested(Function):
    @staticmethod
    def forward(ctx, x):
        assert not torch.is_grad_enabled()
        a, _ = with_context(x, x)
        return doubled(a) + Doubled.forward(ctx, x)

    @staticmethod
    def backward(ctx, g):
        return doubled(g)


doubled, with_context, filled, same, nested = (f.apply for f in (Doubled, WithContext, Filled, Same, Nested))
WEIGHT = torch.nn.Parameter(torch.tensor([0.5, -1.5, 2.0]))
PROGRAMS = {
    "context": lambda x: doubled(x),
    "a context of its own": lambda x: with_context(x, x.sin())[0],
    "two results": lambda x: sum(with_context(x.sin(), x)),
    "a weight from outside": lambda x: with_context(x, WEIGHT)[0] + doubled(WEIGHT),
    "in place": lambda x: filled(x * 1),
    "its input": lambda x: same(x) + same(x.sin()),
    "within each other": lambda x: nested(x.cos()),
    "many times": lambda x: doubled(doubled(doubled(x))),
    "by keyword": lambda x: with_context(x, y=x.exp())[0],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_derivatives_are_the_functions_own(name):
    program, values = PROGRAMS[name], [0.3, -1.2, 2.5]
    x = torch.tensor(values, requires_grad=True)
    wanted = program(x)
    (wanted_gradient,) = torch.autograd.grad(wanted.sum(), x)

    def loss(x):
        return t2j(program)(x).sum()

    def inside(x):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(program(x).sum(), x)[0]

    array = jnp.asarray(values)
    for way in (lambda f: f, jax.jit):
        assert jnp.allclose(way(t2j(program))(array), wanted.detach().numpy(), atol=1e-6)
        assert jnp.allclose(way(jax.grad(loss))(array), wanted_gradient.numpy(), atol=1e-6)
        assert jnp.allclose(way(t2j(inside))(array), wanted_gradient.numpy(), atol=1e-6)


def test_numbers_are_saved():
    assert jax.grad(t2j(doubled))(1.0) == jax.jit(jax.grad(t2j(doubled)))(1.0) == 5


def test_errors_in_a_forward_leave_nothing_behind():
    def code(x):
        with pytest.raises(TypeError, match="forward"):
            doubled(x, 1.0, 2.0, 3.0)
        assert torch.is_grad_enabled()
        return doubled(x)

    assert jax.grad(lambda x: t2j(code)(x).sum())(jnp.ones(2)).tolist() == [5, 5]
    assert doubled(torch.ones(2)).tolist() == [2, 2]
