"""Hooks on gradients: each kind of hook, on each kind of tensor, with each way to change a gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch2jax import t2j

SCALE = torch.tensor([5.0, -7.0, 0.5])
X = [0.7, -1.5, 2.0]


# What hooks do with a gradient.


def look(gradient):
    gradient.sum()


def give(gradient):
    return gradient * 0.5 + 1


def clamp(gradient):
    gradient.clamp_(-1, 1)


def freeze(gradient):
    gradient[0] = 0
    return gradient


def through_view(gradient):
    gradient.view(-1)[1:].add_(3)


def unseen(gradient):
    gradient.detach().mul_(3)


def both(gradient):
    gradient.mul_(2)
    return gradient + 1


HOOKS = [look, give, clamp, freeze, through_view, unseen, both]


def of_node(hook):
    """The hook for a node, of which the first gradient is looked at."""

    def of_first(gradients, *outputs):
        found = hook(gradients[0])
        return None if found is None else (found, *gradients[1:])

    return of_first


def writes_only(hook):
    """The hook where nothing may be returned."""

    def without_result(gradient):
        hook(gradient)

    return without_result


# What has hooks: each gives a loss.


def leaf(x, hook):
    x.register_hook(hook)
    return (x * SCALE).sum()


def used_before(x, hook):
    loss = (x * x).sum()
    x.register_hook(hook)
    return loss + (x * SCALE).sum()


def inner(x, hook):
    y = x * 2
    loss = (y * y).sum()
    y.register_hook(hook)
    return loss + (y * SCALE).sum()


def twice(x, hook):
    y = x * 2
    y.register_hook(hook)
    y.register_hook(lambda gradient: gradient * gradient)
    return (y * y).sum()


def view(x, hook):
    v = (x * 2)[:2]
    v.register_hook(hook)
    return (v * v).sum()


def written(x, hook):
    y = x * 2
    y.mul_(3)
    y.register_hook(hook)
    return (y * y).sum()


def output(x, hook):
    loss = (x * x).sum().reshape(1)
    loss.register_hook(hook)
    return loss.sum()


def removed(x, hook):
    y = x * 2
    y.register_hook(hook).remove()
    return (y * y).sum()


TENSORS = [leaf, used_before, inner, twice, view, written, output, removed]


def prehook(x, hook):
    y = x * 2
    y.grad_fn.register_prehook(of_node(hook))
    return (y * y).sum()


def posthook(x, hook):
    y = x * x.sin()
    y.grad_fn.register_hook(of_node(hook))
    return (y * y).sum()


def of_function(x, hook):
    y = Doubled.apply(x)
    y.grad_fn.register_prehook(of_node(hook))
    y.grad_fn.register_hook(of_node(hook))
    return (y * y).sum()


def multi(x, hook):
    y = x.sin()
    torch.autograd.graph.register_multi_grad_hook([y], lambda gradients: writes_only(hook)(gradients[0]), mode="all")
    return (y * y).sum()


def any_of_several(x, hook):
    a, b = x * 2, x.sin()
    torch.autograd.graph.register_multi_grad_hook([a, b], writes_only(hook), mode="any")
    return (a * b).sum()


NODES = [prehook, posthook, of_function, multi, any_of_several]


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class Hooked(torch.nn.Module):
    """A layer, of which a part has a hook."""

    def __init__(self, kind, hook):
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)
        self.layer.load_state_dict({"weight": torch.arange(6.0).view(2, 3) / 3, "bias": torch.ones(2)})
        if kind == "weight":
            self.layer.weight.register_hook(hook)
        elif kind == "full":
            self.layer.register_full_backward_hook(lambda module, inputs, outputs: of_node(hook)(inputs, outputs))
        else:
            self.layer.register_full_backward_pre_hook(lambda module, outputs: of_node(hook)(outputs))

    def forward(self, x):
        return self.layer(x * 2).square().sum()


PARTS = ["full", "pre"]


def differentiated(loss, hook):
    """The gradient that a function takes within."""

    def inside(x):
        x = x.detach().clone().requires_grad_()
        loss(x, hook).backward()
        return x.grad

    return inside


def expect_same(got, wanted):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b.detach().numpy(), rtol=1e-5, atol=1e-6), got, wanted)


@pytest.mark.parametrize("loss", TENSORS + NODES)
def test_inside(loss):
    for hook in HOOKS:
        if loss is output and hook is through_view:
            continue
        function = differentiated(loss, hook)
        wanted = function(torch.tensor(X))
        expect_same(t2j(function)(jnp.array(X)), wanted)
    expect_same(jax.jit(t2j(function))(jnp.array(X)), wanted)


@pytest.mark.parametrize("kind", PARTS)
def test_modules_inside(kind):
    for hook in HOOKS:
        module = Hooked(kind, hook)

        def gradients(x, module=module):
            x = x.detach().clone().requires_grad_()
            module.zero_grad()
            module(x).backward()
            return x.grad, module.layer.weight.grad

        wanted = gradients(torch.tensor(X))
        expect_same(t2j(gradients)(jnp.array(X)), wanted)


def test_what_hooks_write_is_seen_by_others_that_get_the_gradient():
    for hook in HOOKS:

        def several(x, hook=hook):
            x = x.detach().clone().requires_grad_()
            y = x * 2
            y.retain_grad()
            y.register_hook(hook)
            found = torch.autograd.grad((y * y).sum(), [x, y], retain_graph=True)
            (y * y).sum().backward()
            return *found, x.grad, y.grad

        expect_same(t2j(several)(jnp.array(X)), several(torch.tensor(X)))


def test_of_accumulated_gradients():
    for hook in HOOKS:

        def accumulated(x, hook=hook):
            x = x.detach().clone().requires_grad_()
            node = (x * 2).grad_fn.next_functions[0][0]  # PyTorch forgets it, and its hooks, if nobody has it
            node.register_prehook(of_node(hook))
            x.register_post_accumulate_grad_hook(lambda x: writes_only(hook)(x.grad))
            (x * x).sum().backward()
            (x * SCALE).sum().backward()
            return x.grad

        expect_same(t2j(accumulated)(jnp.array(X)), accumulated(torch.tensor(X)))


def test_second_derivatives_inside():
    for hook in HOOKS:

        def second(x, hook=hook):
            x = x.detach().clone().requires_grad_()
            y = x * 2
            y.register_hook(hook)
            (slope,) = torch.autograd.grad((y * y * y).sum(), x, create_graph=True)
            slope.square().sum().backward()
            return x.grad

        expect_same(t2j(second)(jnp.array(X)), second(torch.tensor(X)))
