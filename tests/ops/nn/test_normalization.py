"""Normalization layers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.autograd import forward_ad
from torch.nn import functional as F

from tests.ops.database import compare
from torch2jax import j2t, t2j


def test_half_precision_is_computed_in_single():
    x = (torch.randn(4, 64) * 3 + 100).bfloat16()
    compare(t2j(F.layer_norm)(t2j(x), (64,)), F.layer_norm(x, (64,)))


def test_a_large_mean_loses_no_precision():
    x = torch.randn(8, 64) * 1e-2 + 1e3
    expected = F.layer_norm(x.double(), (64,)).float()
    np.testing.assert_allclose(t2j(F.layer_norm)(t2j(x), (64,)), expected, atol=2e-2)


def test_layer_norm_has_right_derivatives_of_every_kind():
    def loss(x):
        return (F.layer_norm(x, (3,)) ** 3).sum()

    x, direction = torch.randn(2, 3), torch.randn(2, 3)
    _, forward = jax.jvp(t2j(loss), (t2j(x),), (t2j(direction),))
    np.testing.assert_allclose(forward, jnp.vdot(jax.grad(t2j(loss))(t2j(x)), t2j(direction)), rtol=1e-4)
    expected = torch.autograd.functional.hessian(loss, x)
    np.testing.assert_allclose(jax.hessian(t2j(loss))(t2j(x)), expected, rtol=1e-3, atol=1e-4)


def test_batch_norm_in_evaluation_is_one_multiplication_and_one_addition():
    def norm(x, mean, var, weight, bias):
        return F.batch_norm(x, mean, var, weight, bias)

    jaxpr = jax.make_jaxpr(t2j(norm))(jnp.ones((2, 3, 4, 4)), *[jnp.ones(3)] * 4)
    large = [e.primitive.name for e in jaxpr.eqns if e.outvars[0].aval.size == 96]
    assert sorted(large) == ["add", "broadcast_in_dim", "broadcast_in_dim", "mul"]


def test_running_statistics_are_written_and_take_no_gradient():
    def norm(x, mean, var):
        F.batch_norm(x, mean, var, training=True, momentum=0.5)
        return mean, var

    x, mean, var = torch.randn(6, 3), torch.zeros(3), torch.ones(3)
    expected = norm(x, mean.clone(), var.clone())
    actual = t2j(norm)(t2j(x), t2j(mean), t2j(var))
    for got, want in zip(actual, expected, strict=True):
        compare(got, want)
    grad = jax.grad(lambda x: sum(map(jnp.sum, t2j(norm)(x, t2j(mean), t2j(var)))))(t2j(x))
    assert not grad.any()


def test_an_empty_batch_leaves_running_statistics():
    def norm(x, mean, var):
        F.batch_norm(x, mean, var, training=True)
        return mean, var

    given = torch.randn(0, 3, 2), torch.full((3,), 2.0), torch.full((3,), 3.0)
    expected = norm(*(tensor.clone() for tensor in given))
    for got, want in zip(t2j(norm)(*map(t2j, given)), expected, strict=True):
        compare(got, want)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: F.layer_norm(x, (5,)), "normalized_shape"),
        (lambda x: F.layer_norm(x, (4,), torch.ones(3)), "weight"),
        (lambda x: F.group_norm(x, 2), "divisible"),
    ],
)
def test_wrong_shapes_are_refused(call, message):
    with pytest.raises(RuntimeError, match=message):
        t2j(call)(jnp.ones((2, 3, 4)))


def with_dual_statistics(x, mean, var):
    with forward_ad.dual_level():
        x, var = (forward_ad.make_dual(tensor, torch.ones_like(tensor)) for tensor in (x, var))
        return F.batch_norm(x, mean, var)


@pytest.mark.parametrize(
    "norm",
    [
        lambda x, mean, var: F.batch_norm(x, mean.requires_grad_(), var),
        lambda x, mean, var: F.batch_norm(x, mean, var.requires_grad_(), training=True),
        lambda x, mean, var: F.instance_norm(x[..., None, None].expand(4, 3, 2, 2), mean.requires_grad_(), var),
        with_dual_statistics,
    ],
)
def test_running_statistics_are_not_differentiated(norm):
    given = torch.arange(12.0).view(4, 3), torch.zeros(3), torch.ones(3)
    for run, values in ((norm, given), (t2j(norm), list(map(t2j, given)))):
        with pytest.raises(RuntimeError, match=r"(?s)not differentiable.*cannot have"):
            run(*values)


def test_running_statistics_that_were_detached_without_gradients_are_written():
    def f(x):
        module, x = torch.nn.BatchNorm1d(3), x.clone().requires_grad_()
        with torch.no_grad():
            module.running_mean, module.running_var = module.running_mean.detach(), module.running_var.detach()
        module(x).pow(3).sum().backward()
        assert not module.running_mean.requires_grad
        return module.running_mean, module.running_var, x.grad

    x = torch.arange(12.0).view(4, 3).square()
    for got, want in zip(jax.jit(t2j(f))(t2j(x)), f(x), strict=True):
        compare(got, want)


@pytest.mark.parametrize("affine", [False, True])
def test_equal_numbers_without_eps(affine):
    x = torch.tensor([[[1.0, 1, 1], [1, 2, 3]]], requires_grad=True)
    weight = torch.tensor([2.0, 3.0]) if affine else None

    def norm(x):
        return F.instance_norm(x, weight=weight, eps=0.0)

    wanted = norm(x)
    (gradient,) = torch.autograd.grad((wanted * wanted).sum(), x)
    array = t2j(x.detach())
    torch.testing.assert_close(j2t(t2j(norm)(array)), wanted.detach())
    found = jax.jit(jax.grad(lambda x: (t2j(norm)(x) ** 2).sum()))(array)
    torch.testing.assert_close(j2t(found), gradient, atol=1e-5, rtol=0)
