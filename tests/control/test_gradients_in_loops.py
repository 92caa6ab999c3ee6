"""Iterations and sides that differentiate with respect to tensors from before them, against PyTorch."""

from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

from tests.control.test_loops import agree, loops, plain
from torch2jax import t2j
from torch2jax.runtime.errors import BranchError

X = np.array([0.5, 2, -1], np.float32)


def descends(x):
    w, n = x.clone().requires_grad_(), 0
    while True:
        ((w - 1) ** 2).sum().backward()
        with torch.no_grad():
            if w.grad.norm() < 1e-2:
                break
            w -= 0.1 * w.grad
            w.grad.zero_()
        n += 1
    return w.detach(), n


def descends_with_momentum(x):
    w, scale = x.clone().requires_grad_(), (x * 0 + 0.5).requires_grad_()
    optimizer, smooth, n = torch.optim.SGD([w], lr=0.1, momentum=0.5), x.sum() ** 2 + 9, 0
    while smooth > 1e-2:
        optimizer.zero_grad()
        loss = ((w * scale - 1) ** 2).sum()
        loss.backward()
        optimizer.step()
        smooth, n = 0.5 * smooth + 0.5 * loss, n + 1
    return w.detach(), n, smooth.detach(), w.is_leaf


def trains_a_layer(x):
    layer: Any = torch.nn.utils.skip_init(torch.nn.Linear, 3, 1)
    with torch.no_grad():
        layer.weight.fill_(0.1)
        layer.bias.zero_()
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    for steps in range(60):  # noqa: B007 - it tells where the loop ends
        optimizer.zero_grad()
        loss = ((layer(x) - 1) ** 2).sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
        optimizer.step()
        if loss < 1e-3:
            break
    return layer.weight.detach(), layer.bias.detach(), steps


def takes_gradients(x):
    w, n = x.clone().requires_grad_(), 0
    while True:
        (g,) = torch.autograd.grad(((w - 1) ** 2).sum(), w)
        if g.norm() < 1e-2:
            break
        with torch.no_grad():
            w.sub_(0.3 * g)
        n += 1
    return w.detach(), n, g


def begins_leaves_anew(x):
    w, n = x.clone().requires_grad_(), 0
    while n < 30 and w.norm() > 0.2:
        (g,) = torch.autograd.grad((w**2).sum(), w)
        w = (w - 0.1 * g).detach().requires_grad_()
        n += 1
    return w.detach(), n


def has_a_second_name_for_the_gradient(x):
    w = x.clone().requires_grad_()
    w.grad = torch.zeros_like(w)
    g, n = w.grad, 0
    while g.norm() < 50:
        ((w - 1) ** 2).sum().backward()
        with torch.no_grad():
            w += 0.1
        n += 1
    return w.detach(), g, n


def reads_a_detached_name(x):
    w, n = x.clone().requires_grad_(), 0
    d = w.detach()
    while n < 50 and d.norm() > 0.5:
        (g,) = torch.autograd.grad((w**2).sum(), w)
        with torch.no_grad():
            w.sub_(0.1 * g)
        n += 1
    return w.detach(), d, n


def loops_in_loops(x):
    w, n = x.clone().requires_grad_(), 0
    while n < 30 and w.detach().norm() > 0.3:
        k = 0
        while k < 5 and w.detach().norm() > 0.2:
            (g,) = torch.autograd.grad((w**2).sum(), w)
            with torch.no_grad():
                w.sub_(0.05 * g)
            k += 1
        n += 1
    return w.detach(), n


def goes_back_on_one_side(x):
    w, n = x.clone().requires_grad_(), 0
    w.grad = torch.zeros_like(w)
    while n < 30:
        loss = ((w - 1) ** 2).sum()
        if loss > 0.3:
            loss.backward()
        with torch.no_grad():
            w -= 0.05 * w.grad
            if loss < 1e-1:
                break
        w.grad *= 0.5
        n += 1
    return w.detach(), n, w.grad


def takes_second_derivatives(x):
    w, n = x.clone().requires_grad_(), 0
    while n < 30:
        (g,) = torch.autograd.grad(((w - 1) ** 4).sum(), w, create_graph=True)
        (h,) = torch.autograd.grad((g**2).sum(), w)
        with torch.no_grad():
            w -= 0.001 * h
        if g.norm() < 1:
            break
        n += 1
    return w.detach(), n


class Doubled(torch.autograd.Function):
    """A square whose gradient is not its derivative."""

    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        return a * a

    @staticmethod
    def backward(ctx, grad_output):
        (a,) = ctx.saved_tensors
        return grad_output * 2.5 * a


def goes_through_custom_functions(x):
    w, n = x.clone().requires_grad_(), 0
    while n < 30 and w.norm() > 0.2:
        (g,) = torch.autograd.grad(Doubled.apply(w).sum(), w)
        with torch.no_grad():
            w -= 0.1 * g
        n += 1
    return w.detach(), n


def goes_through_checkpoints(x):
    w, n = x.clone().requires_grad_(), 0
    while n < 30 and w.norm() > 0.2:
        (g,) = torch.autograd.grad(checkpoint(lambda a: (a.sin() * a).sum(), w, use_reentrant=False), w)
        with torch.no_grad():
            w -= 0.1 * g
        n += 1
    return w.detach(), n


def has_a_hook(x):
    w, n = x.clone().requires_grad_(), 0
    w.register_hook(lambda g: g * 2)
    while n < 30 and w.norm() > 0.2:
        (g,) = torch.autograd.grad((w**2).sum(), w)
        with torch.no_grad():
            w -= 0.1 * g
        n += 1
    return w.detach(), n


PROGRAMS = [
    *(descends, descends_with_momentum, trains_a_layer, takes_gradients, begins_leaves_anew),
    *(has_a_second_name_for_the_gradient, reads_a_detached_name, loops_in_loops, goes_back_on_one_side),
    *(takes_second_derivatives, goes_through_custom_functions, goes_through_checkpoints, has_a_hook),
]


@pytest.mark.parametrize("function", PROGRAMS)
def test_iterations_differentiate_with_respect_to_leaves_from_before_them(function):
    text = str(jax.make_jaxpr(t2j(function))(X))
    assert " while[" in text or " scan[" in text
    agree(function, X, least=0)


def follows_schedules(x):
    """Which of two schedulers steps depends on data."""
    w = x.clone().requires_grad_()
    optimizer = torch.optim.SGD([w], lr=0.1)
    rates = torch.optim.lr_scheduler
    scheduler = rates.SequentialLR(
        optimizer, [rates.ConstantLR(optimizer, 0.5, 2), rates.ExponentialLR(optimizer, 0.9)], [2]
    )
    for _ in range(3):
        optimizer.zero_grad()
        ((w - 1) ** 2).sum().backward()
        optimizer.step()
        if w.grad.norm() > 2.2:
            scheduler.step()
    return w.detach(), scheduler.last_epoch, scheduler.get_last_lr()[0]


@pytest.mark.parametrize("scale", [0.5, 1, 2])
def test_schedulers_that_step_on_sides(scale):
    agree(follows_schedules, X * scale, least=0)


# A gradient without `create_graph` is a constant to the code, wherever it has been taken.


def in_a_loop(x):
    w, n, s = x.clone().requires_grad_(), 0, x.sum() * 0
    while n < 5 and s < 100:
        (g,) = torch.autograd.grad((w**2).sum(), w)
        s = s + (w * g).sum()
        n += 1
    s.backward()
    return w.grad, n


def on_a_side(x):
    w = x.clone().requires_grad_()
    if x.sum() > 0:
        (g,) = torch.autograd.grad((w * w).sum(), w)
        y = w * g
    else:
        y = w
    y.sum().backward()
    return w.grad


def of_a_leaf_of_the_side(x):
    w = x.clone().requires_grad_()
    if x.sum() > 0:
        v = (x * 1.5).requires_grad_()
        (g,) = torch.autograd.grad((v * w * w).sum(), v)
        y = w * g
    else:
        y = w
    y.sum().backward()
    return w.grad


def in_a_checkpoint(x):
    w = x.clone().requires_grad_()

    def function(w):
        v = (x * 1.5).requires_grad_()
        with torch.enable_grad():
            (g,) = torch.autograd.grad((v * w * w).sum(), v)
        return w * g

    checkpoint(function, w, use_reentrant=False).sum().backward()
    return w.grad


def on_a_side_with_a_graph(x):
    w = x.clone().requires_grad_()
    if x.sum() > 0:
        (g,) = torch.autograd.grad((w * w).sum(), w, create_graph=True)
        y = w * g
    else:
        y = w
    y.sum().backward()
    return w.grad


@pytest.mark.parametrize(
    "function", [in_a_loop, on_a_side, of_a_leaf_of_the_side, in_a_checkpoint, on_a_side_with_a_graph]
)
def test_gradients_are_constants_to_derivatives_around(function):
    got, wanted = plain(jax.jit(t2j(function))(X)), plain(function(torch.from_numpy(X)))
    for leaf, want in zip(got, wanted, strict=True):
        np.testing.assert_allclose(leaf, want, 1e-5)


def test_jax_differentiates_gradients_that_are_taken_on_sides():
    def function(x, y, is_on_side):
        w = x.clone().requires_grad_()
        if not is_on_side or x.sum() > 0:
            (g,) = torch.autograd.grad((w * w * y).sum(), w)
            return (g * y * y).sum() + (w * g).sum()
        return w.sum()

    got, wanted = (
        jax.jit(jax.grad(t2j(lambda x, y, is_on_side=is_on_side: function(x, y, is_on_side)), (0, 1)))(X, X * X)
        for is_on_side in (True, False)
    )
    for leaf, want in zip(got, wanted, strict=True):
        np.testing.assert_allclose(leaf, want, 1e-5)


# What is refused.


def leads_through_what_was_before(x):
    w = x.clone().requires_grad_()
    y = w * 2
    while w.norm() < 5:
        (g,) = torch.autograd.grad((y * w).sum(), w, retain_graph=True)
        with torch.no_grad():
            w.add_(0.1 * g.sign())
    return w.detach()


def leads_through_iterations(x):
    w, h = x.clone().requires_grad_(), x * 0
    while h.norm() < 5:
        h = h + w * w
        torch.autograd.grad(h.sum(), w, retain_graph=True)
    return h.detach()


@pytest.mark.parametrize("function", [leads_through_what_was_before, leads_through_iterations])
def test_derivatives_that_leave_an_iteration_are_refused(function):
    with pytest.raises(BranchError, match="a derivative that leads through what was computed before"):
        jax.make_jaxpr(t2j(function, max_paths=4))(X)


def test_the_gradient_of_a_leaf_that_is_another_one_in_each_iteration_is_refused():
    def function(x):
        w = x.clone().requires_grad_()
        while w.norm() > 0.2:
            (w**2).sum().backward()
            w = (w - 0.1 * w.grad).detach().requires_grad_()
        return w.detach()

    with pytest.raises(BranchError, match=r"w is float32\[3\] where the loop begins.* attributes of its own \(grad\)"):
        jax.make_jaxpr(t2j(function, max_paths=4))(X)


def test_an_iteration_is_in_the_graph_once():
    def function(x):
        w = x.clone().requires_grad_()
        while w.norm() > 2:
            (g,) = torch.autograd.grad(((w - 1) ** 2).sum(), w)
            with torch.no_grad():
                w.sub_(0.3 * g)
        return w.detach()

    assert loops(function, X) == 1
    text = str(jax.make_jaxpr(t2j(function))(X))
    assert text.count(" sub ") == 2, text  # w - 1 and w - 0.3 * g


def grows_where_it_differentiates(x):
    """Two leaves from before a loop, which a side takes in; and a list that makes the rest go into both sides."""
    w, v = x.clone().requires_grad_(), (x * 1.5).detach().requires_grad_()
    a, h, found = x, w.detach(), [x]
    if x.sum() > -9:
        k = 0
        while a.sum() > 0.1:
            k += 1
            if k >= 4:
                break
            (h,) = torch.autograd.grad((w * w * h.detach()).sum() * 0.5 + v.sum() * 0, w)
            a = (x * a).sin()
    if a.mean() < 0.2:
        found.append(a)
    ((v * v * w).sum() * 0.5).backward()
    return torch.stack(found).sum(0).detach(), h, w.grad, v.grad


def test_runs_of_the_rest_have_one_order():
    function = t2j(grows_where_it_differentiates, max_steps=8)
    texts = {str(jax.make_jaxpr(lambda x: function(x))(X)) for _ in range(6)}
    assert len(texts) == 1
    for x in (X, -X, X / 9):
        got, want = jax.jit(function)(x), grows_where_it_differentiates(torch.from_numpy(x.copy()))
        for one, other in zip(got, want, strict=True):
            np.testing.assert_allclose(one, other.numpy(), rtol=1e-5, atol=1e-6)


def _adapts(w, x):
    w, k = w.clone().requires_grad_(), 0
    while k < 2:
        loss = ((x * w).sum() - 1) ** 2
        if loss < 1e-3:
            break
        (gradient,) = torch.autograd.grad(loss, w, create_graph=True)
        w = w - 0.1 * gradient
        k += 1
    return ((x * w).sum() - 1) ** 2


def _adapts_by_choice(w, x):
    w = w.clone().requires_grad_()
    is_over = torch.tensor(False)
    for _ in range(2):
        loss = ((x * w).sum() - 1) ** 2
        is_over = is_over | (loss < 1e-3)
        (gradient,) = torch.autograd.grad(loss, w, create_graph=True)
        w = torch.where(is_over, w, w - 0.1 * gradient)
    return ((x * w).sum() - 1) ** 2


@pytest.mark.slow("runs with ever deeper tapes")
def test_iterations_that_need_one_order_more_each_are_refused():
    given = np.full(3, 0.1, np.float32), np.ones(3, np.float32)
    with pytest.raises(BranchError, match="needs one order more in each iteration"):
        jax.jit(t2j(_adapts, max_steps=30))(*given)
    wanted = _adapts(*map(torch.from_numpy, given)).detach()
    np.testing.assert_allclose(jax.jit(t2j(_adapts_by_choice))(*given), wanted, rtol=1e-5)
