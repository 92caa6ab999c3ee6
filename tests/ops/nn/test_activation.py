"""Activation functions: PyTorch's derivatives at kinks, extreme values, plain graphs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.ops.database import compare
from torch2jax import t2j

POINTWISE = [
    F.celu, F.elu, F.gelu, F.hardshrink, F.hardsigmoid, F.hardswish, F.hardtanh, F.leaky_relu, F.logsigmoid, F.mish,
    F.relu, F.relu6, F.selu, F.silu, F.softplus, F.softshrink, F.softsign, F.tanhshrink,
]  # fmt: skip


def _gradient(function):
    return jax.grad(lambda array: t2j(lambda x: function(x).sum())(array))


@pytest.mark.parametrize("function", POINTWISE, ids=lambda function: function.__name__)
def test_at_kinks_and_far_out(function):
    x = torch.tensor([-1e4, -20, -3, -1, -0.5, -0.0, 0, 0.5, 1, 3, 6, 20, 25, 1e4], requires_grad=True)
    expected = function(x)
    expected.sum().backward()
    compare(t2j(function)(t2j(x.detach())), expected)
    compare(_gradient(function)(t2j(x.detach())), x.grad)


@pytest.mark.parametrize("function", [F.relu, F.elu, F.softplus, F.logsigmoid, F.gelu, F.silu])
def test_second_derivatives(function):
    x = torch.tensor([-30.0, -1.0, 0.3, 30.0], requires_grad=True)
    (slope,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
    (expected,) = torch.autograd.grad((slope * x).sum(), x)
    actual = jax.grad(lambda array: (_gradient(function)(array) * array).sum())(t2j(x.detach()))
    compare(actual, expected)


@pytest.mark.parametrize("function", [F.relu, F.relu6, F.elu, F.leaky_relu, F.silu, F.hardswish])
def test_in_place(function):
    def write(x):
        x = x + 0
        y = function(x, inplace=True)
        return x, y

    x = jnp.linspace(-2.0, 8.0, 5)
    for result in t2j(write)(x):
        np.testing.assert_allclose(result, t2j(function)(x))
    np.testing.assert_array_equal(t2j(lambda x: torch.relu_(x + 0))(x), jax.nn.relu(x))


def test_softmax_of_one_number_and_of_masked_rows():
    compare(t2j(lambda x: x.softmax(0))(jnp.float32(3.0)), torch.tensor(1.0))
    x = torch.tensor([[0.0, -torch.inf], [-torch.inf, -torch.inf]])
    compare(t2j(lambda x: x.softmax(-1))(t2j(x)), x.softmax(-1))


def test_softmax_dtype():
    x = torch.tensor([1, 2, 3])
    assert t2j(lambda x: torch.softmax(x, 0, dtype=torch.bfloat16))(t2j(x)).dtype == jnp.bfloat16
    with pytest.raises(NotImplementedError, match="floating-point"):
        t2j(lambda x: torch.softmax(x, 0))(t2j(x))
    with pytest.raises(IndexError, match="Dimension out of range"):
        t2j(lambda x: torch.softmax(x, 2))(t2j(x.float()))


def test_gumbel_softmax():
    def draw(x):
        return F.gumbel_softmax(x, hard=True)

    logits = jnp.log(jnp.asarray([0.1, 0.2, 0.7]))
    draws = t2j(draw)(jnp.tile(logits, (5000, 1)), rng=jax.random.key(0))
    np.testing.assert_allclose(draws.sum(1), 1, rtol=1e-6)
    np.testing.assert_allclose(draws.mean(0), [0.1, 0.2, 0.7], atol=0.03)


def test_rrelu():
    x = -jnp.ones(5000)
    slopes = -t2j(lambda x: F.rrelu(x, 0.1, 0.3, training=True))(x, rng=jax.random.key(0))
    assert 0.1 <= slopes.min() < 0.11
    assert 0.29 < slopes.max() < 0.3
    np.testing.assert_allclose(t2j(lambda x: F.rrelu(x, 0.1, 0.3))(x), -0.2, rtol=1e-6)


@pytest.mark.parametrize("function", [F.gelu, F.elu, F.silu, F.glu])
def test_integers_are_refused(function):
    with pytest.raises(NotImplementedError, match="floating-point"):
        t2j(function)(jnp.ones(4, int))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: F.glu(x, 0), "Halving dimension must be even"),
        (lambda x: F.gelu(x, approximate="sine"), "none or tanh"),
        (lambda x: F.softshrink(x, -1.0), "greater or equal to 0"),
        (lambda x: F.prelu(x, torch.ones(7)), "Mismatch of parameter numbers"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(RuntimeError, match=message):
        t2j(call)(jnp.ones((3, 4)))


def _primitives(function, *arrays):
    return [equation.primitive.name for equation in jax.make_jaxpr(t2j(function))(*arrays).jaxpr.eqns]


def test_graphs_are_plain():
    x = jnp.ones((2, 3))
    assert _primitives(F.gelu, x) == [
        "mul",
        "mul",
        "erf",
        "add",
        "mul",
    ]
    assert _primitives(F.silu, x) == ["logistic", "mul"]
    assert _primitives(F.hardswish, x) == ["add", "clamp", "div", "mul"]
    assert "max" in str(jax.make_jaxpr(t2j(F.relu))(x))
    assert "jit" not in str(jax.make_jaxpr(t2j(lambda x: F.softmax(x, -1)))(x))


def test_glu_of_half_precision_rounds_once():
    x = torch.randn(64, 64, dtype=torch.bfloat16)
    wide = torch.func.vjp(torch.nn.functional.glu, x.float())
    found, backward = jax.vjp(t2j(torch.nn.functional.glu), t2j(x))
    compare(found, wide[0].bfloat16())
    (gradient,) = backward(jnp.ones_like(found))
    compare(gradient, wide[1](torch.ones(64, 32))[0].bfloat16())
