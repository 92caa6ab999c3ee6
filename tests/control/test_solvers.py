"""Solvers of differential equations with adaptive steps, whose state begins with tensors that are one, and adjoints."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.extend.core import jaxpr_as_fun

from tests.control.test_conditions import QUICK
from torch2jax import t2j
from torch2jax.runtime.errors import BranchError

Y = np.array([0.9, -0.4], np.float32)


class Solver:
    """Steps of Heun's method as long as their error tells; the values between them by a polynomial."""

    def __init__(self, slope, y, t, tolerance=1e-3):
        self.slope, self.tolerance = slope, tolerance
        self.state = (y, slope(t[0], y), t[0], t[0], torch.tensor(0.1), [y] * 3)

    def integrate(self, t):
        found = torch.empty(len(t), *self.state[0].shape)
        found[0] = self.state[0]
        for i in range(1, len(t)):
            found[i] = self.advance(t[i])
        return found

    def advance(self, t):
        steps = 0
        while t > self.state[3]:
            if steps >= 500:
                raise RuntimeError("too many steps")
            self.state = self.step(self.state)
            steps += 1
        _, _, start, end, _, (a, b, c) = self.state
        x = (t - start) / (end - start)
        return a + x * b + x * x * c

    def step(self, state):
        y, slope, _, t, size, parts = state
        slopes = torch.stack([slope, self.slope(t + size, y + size * slope)], -1)
        new = y + size * slopes.mean(-1)
        error = (size * (slopes[..., 1] - slopes[..., 0])).abs().max() / self.tolerance
        if error <= 1:
            parts = [y, size * slopes[..., 0], new - y - size * slopes[..., 0]]
            return new, slopes[..., 1], t, t + size, size * 1.4, parts
        return y, slope, t, t, size * 0.6, parts


def field(w):
    return lambda t, y: torch.tanh(y @ w) - 0.3 * y * (1 + t)


W = torch.tensor([[0.2, 1.1], [-1.3, 0.4]])


def solved(times):
    return lambda y: Solver(field(W), y, times).integrate(times)


class Adjoint(torch.autograd.Function):
    """The solution, with the gradient by the adjoint equation, which is solved backwards between two times each."""

    @staticmethod
    def forward(ctx, y, w, times):
        found = Solver(field(w), y, times).integrate(times)
        ctx.save_for_backward(w, times, found)
        return found

    @staticmethod
    @torch.no_grad()
    def backward(ctx, grads):
        w, times, found = ctx.saved_tensors
        size = found[0].numel()

        def slope(t, state):
            y, adjoint = state[:size], state[size : 2 * size]
            with torch.enable_grad():
                y, weights = y.detach().requires_grad_(), w.detach().requires_grad_()
                value = field(weights)(-t, y)
                grad_y, grad_w = torch.autograd.grad(value, (y, weights), adjoint)
            return torch.cat([-value.detach(), grad_y, grad_w.flatten()])

        grad, grad_w = torch.zeros(size), torch.zeros_like(w)
        for i in range(len(times) - 1, 0, -1):
            state = torch.cat([found[i], grad + grads[i], grad_w.flatten()])
            between = -times[i - 1 : i + 1].flip(0)
            state = Solver(slope, state, between).integrate(between)[1]
            grad, grad_w = state[size : 2 * size], state[2 * size :].view_as(w)
        return grad + grads[0], grad_w, None


def test_adaptive_solver_is_a_loop_for_each_time():
    function = solved(torch.linspace(0, 1, 6))
    program = jax.make_jaxpr(t2j(function))(Y)
    (got,) = jax.jit(jaxpr_as_fun(program), compiler_options=QUICK)(Y)
    np.testing.assert_allclose(got, function(torch.tensor(Y)), 1e-4, 1e-5)
    assert str(program).count(" while[") == 5  # one for each time


def test_gradient_by_an_adjoint():
    times = torch.tensor([0.0, 1.0])
    y, w = torch.tensor(Y, requires_grad=True), W.clone().requires_grad_()
    loss: Any = lambda y, w: Adjoint.apply(y, w, times).square().sum()
    wanted = torch.autograd.grad(loss(y, w), (y, w))
    got = jax.jit(jax.grad(t2j(loss), (0, 1)), compiler_options=QUICK)(Y, jnp.asarray(W.numpy()))
    np.testing.assert_allclose(got[0], wanted[0], 1e-3, 1e-4)
    np.testing.assert_allclose(got[1], wanted[1], 1e-3, 1e-4)


# What shares memory before the first iteration only, and what writes there.


def shares_at_first(x):
    best = last = x
    while last.norm() > 1:
        best, last = torch.maximum(best, last), last * 0.7
    return best, last


def shares_later(x):
    best, last = x * 1, x * 2
    while last.norm() > 1:
        last = last * 0.7
        if last[0] > 1.5:
            best = last
    return best, last


def becomes_a_part(x):
    box = [x.sum()]
    while box[0] > 1:
        x = x * 0.5
        box[0] = x[0] if x.sum() > 3 else x.sum()
    return x, box[0]


@pytest.mark.parametrize(
    "function",
    [becomes_a_part, shares_at_first, shares_later],
)
def test_what_shares_memory_where_some_iterations_begin(function):
    compiled = jax.jit(t2j(function, max_paths=256), compiler_options=QUICK)
    for x in ([3.0, 4.0], [0.3, -0.4], [2.5, 0.0]):
        wanted = function(torch.tensor(x))
        for got, want in zip(compiled(np.array(x, np.float32)), wanted, strict=True):
            np.testing.assert_allclose(got, want, 1e-5)


def test_no_iteration_runs_before_a_loop_for_what_shares_memory():
    program = str(jax.make_jaxpr(t2j(shares_at_first))(np.ones(2, np.float32)))
    assert program.count(" while[") == 1
    assert "cond[" not in program


def writes_to_what_is_shared(x):
    best, last = x * 1, x * 2
    while last.norm() > 1:
        best.add_(0.25)
        last = last * 0.7
        if last[0] > 1.5:
            best = last
    return best, last


def test_loop_that_writes_to_what_some_iterations_share():
    with pytest.raises(BranchError, match="a tensor is written to in place, and data decide"):
        jax.eval_shape(t2j(writes_to_what_is_shared, max_paths=8), np.ones(2, np.float32))


def at_traced_offsets(x):
    found = torch.zeros_like(x)
    for i in range(len(x)):
        row = x[i]
        y = row * 1
        while y.norm() > row.norm() / 4:
            y = y * 0.8
            if y.sum() > 50:
                break
        found[i] = y
        if found.sum() > 1000:
            break
    return found


def test_views_at_traced_offsets_within_loops():
    x = np.arange(1, 13, dtype=np.float32).reshape(6, 2)
    got = jax.jit(t2j(at_traced_offsets), compiler_options=QUICK)(x)
    np.testing.assert_allclose(got, at_traced_offsets(torch.tensor(x)), 1e-5)


class Solution:
    def __init__(self, y, best):
        self.y, self.best = y, best


def ends_with_code_that_has_not_run(x):
    """Its first iteration is before the loop, and the paths through that begin the loop in turn."""
    best = None
    while True:
        if x.sum() > 3:
            x = x * 0.9
        best = x.norm() if best is None else torch.minimum(best, x.norm())
        x = x * 0.8
        if x.norm() > 1:
            continue
        found = Solution(x, best)
        return found.y, found.best


@pytest.mark.parametrize("x", [[3.0, 4.0], [1.0, 0.1]])
def test_loop_begins_alike_though_a_path_has_run_more_code(x):
    got = jax.jit(t2j(ends_with_code_that_has_not_run), compiler_options=QUICK)(np.array(x, np.float32))
    for leaf, want in zip(got, ends_with_code_that_has_not_run(torch.tensor(x)), strict=True):
        np.testing.assert_allclose(leaf, want, 1e-5)


class Dynamics(torch.nn.Module):
    """A module with a list where PyTorch's modules have a method."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)
        self.parameters: Any = list(self.layer.parameters())


class Solved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, dynamics, y, *parameters):
        ctx.dynamics = dynamics
        ctx.save_for_backward(y)
        return dynamics.layer(y)

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        with torch.enable_grad():
            y = y.detach().requires_grad_()
            grads = torch.autograd.grad(ctx.dynamics.layer(y), [y, *ctx.dynamics.parameters], grad)
        return None, *grads


def test_attribute_with_the_name_of_a_method_of_modules():
    torch.manual_seed(0)
    dynamics, y = Dynamics(), torch.tensor(Y, requires_grad=True)
    loss = lambda y: Solved.apply(dynamics, y, *dynamics.parameters).square().sum()
    (wanted,) = torch.autograd.grad(loss(y), y)
    np.testing.assert_allclose(jax.jit(jax.grad(t2j(loss)))(Y), wanted, 1e-5)


def bisected(x):
    """As many steps as a tolerance wants."""
    low, high = x.min(), x.max()
    for _ in range(torch.log2((high - low) / 1e-3).ceil().long()):
        middle = (low + high) / 2
        low, high = torch.where(middle > 0.3, torch.stack([low, middle]), torch.stack([middle, high]))
    return low, high


@pytest.mark.parametrize(("bound", "holds"), [(16, True), (5, False)])
def test_said_bound_of_a_range(bound, holds):
    got = jax.jit(t2j(bisected, bounds={"test_solvers.py:bisected": bound}), compiler_options=QUICK)(Y)
    for leaf, want in zip(got, bisected(torch.tensor(Y)), strict=True):
        np.testing.assert_allclose(leaf, want if holds else np.nan, 1e-5)
