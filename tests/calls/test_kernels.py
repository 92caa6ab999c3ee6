"""Operators that `torch.library` got from Python code, by that code."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch2jax import TracedValueError, t2j

X = jnp.array([0.5, -1.0, 2.0])


@torch.library.custom_op("kernels::scaled_sine", mutates_args=())
def scaled_sine(x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
    return x.sin() * scale


scaled_sine.register_autograd(  # not the derivative, to see who is asked
    lambda ctx, grad: (grad * ctx.saved_tensors[0] * 10, None),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)


@torch.library.custom_op("kernels::increase", mutates_args=("x",))
def increase(x: torch.Tensor) -> None:
    x.add_(1)


@torch.library.custom_op("kernels::closed", mutates_args=())
def closed(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@torch.library.custom_op("kernels::with_numpy", mutates_args=())
def with_numpy(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.sin(x.numpy()))


library = torch.library.Library("kernels", "FRAGMENT")
library.define("weighted(Tensor x, Tensor[] ys, *, int n=1) -> Tensor")
library.impl("weighted", lambda x, ys, *, n=1: x.cos() * sum(ys) * n, "CPU")
library.define("both(Tensor x) -> (Tensor, Tensor)")
library.impl("both", lambda x: (x + 1, torch.ops.kernels.weighted(x, [x, x], n=3)), "CompositeImplicitAutograd")
library.define("by_default(Tensor x) -> Tensor")
library.impl("by_default", lambda x: torch.nn.functional.softplus(x))
library.define("plain.chosen(Tensor x) -> Tensor")
library.impl("plain.chosen", lambda x: x * 5, "CompositeExplicitAutograd")
library.define("of_old(Tensor x) -> Tensor")
library.impl("of_old", lambda x: x * 2, "CPU")


class OfOld(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        with torch._C._AutoDispatchBelowAutograd():
            return torch.ops.kernels.of_old(x)

    @staticmethod
    def backward(ctx, grad):
        return grad * 7


library.impl("of_old", lambda x: OfOld.apply(x), "Autograd")


def _weighted_setup(ctx, inputs, keyword_only_inputs, output):
    ctx.save_for_backward(inputs[0], *inputs[1])
    ctx.n = keyword_only_inputs["n"]


def _weighted_backward(ctx, grad):
    x, *ys = ctx.saved_tensors
    return -x.sin() * sum(ys) * ctx.n * grad, [x.cos() * ctx.n * grad for _ in ys]


torch.library.register_autograd("kernels::weighted", _weighted_backward, setup_context=_weighted_setup, lib=library)


def test_values():
    def function(x):
        first, second = torch.ops.kernels.both(x)
        return (
            scaled_sine(x),
            scaled_sine(x, 3.0),
            first,
            second,
            torch.ops.kernels.plain(x),
            closed(x),
            torch.ops.kernels.by_default(x),
        )

    expected = function(torch.tensor(np.asarray(X)))
    for run in (t2j(function), jax.jit(t2j(function))):
        for actual, each in zip(run(X), expected, strict=True):
            np.testing.assert_allclose(actual, each, rtol=1e-6)


def test_writes_to_arguments():
    def function(x):
        y = x * 1
        increase(y[1:])
        return y

    np.testing.assert_allclose(jax.jit(t2j(function))(X), X + jnp.array([0, 1, 1]))


def test_derivatives_are_those_registered():
    np.testing.assert_allclose(jax.grad(lambda x: t2j(scaled_sine)(x).sum())(X), X * 10)

    def inside(x):
        x.requires_grad_()
        (torch.ops.kernels.weighted(x, [x * 2, x], n=2).sum() + torch.ops.kernels.of_old(x).sum()).backward()
        return x.grad

    np.testing.assert_allclose(jax.jit(t2j(inside))(X), inside(torch.tensor(np.asarray(X))), rtol=1e-5)
    with pytest.raises(RuntimeError, match="no autograd formula was registered"):
        jax.grad(lambda x: t2j(closed)(x).sum())(X)


def test_batches():
    np.testing.assert_allclose(jax.vmap(t2j(scaled_sine))(jnp.stack([X, X + 1])), 2 * jnp.sin(jnp.stack([X, X + 1])))


def test_a_kernel_that_leaves_pytorch():
    with pytest.raises(TracedValueError) as error:
        jax.jit(t2j(with_numpy))(X)
    (note,) = [note for note in error.value.__notes__ if "kernel" in note]
    assert 'call_torch=["kernels::with_numpy"]' in note
    with pytest.warns(UserWarning, match="kernels::with_numpy"):
        np.testing.assert_allclose(jax.jit(t2j(with_numpy, call_torch=["kernels::with_numpy"]))(X), jnp.sin(X))


def test_operators_defined_in_a_call_that_runs_again():
    def function(x):
        @torch.library.custom_op("kernels::defined_inside", mutates_args=())
        def defined_inside(x: torch.Tensor) -> torch.Tensor:
            return x * 3

        x.requires_grad_()
        (defined_inside(x.detach()) * x).sum().backward()
        return x.grad

    np.testing.assert_allclose(t2j(function)(X), X * 3)
