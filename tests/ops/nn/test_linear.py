"""Linear and bilinear layers."""

import jax
import jax.numpy as jnp
import pytest
import torch
from torch.nn import functional as F

from tests.ops.database import compare
from torch2jax import t2j


def test_linear_is_one_matrix_product_with_its_bias_added_before_the_reshape():
    jaxpr = jax.make_jaxpr(t2j(F.linear))(jnp.ones((2, 3, 4)), jnp.ones((5, 4)), jnp.ones(5))
    names = [equation.primitive.name for equation in jaxpr.eqns]
    assert names == ["reshape", "dot_general", "broadcast_in_dim", "add", "reshape"]


def test_mismatches_are_refused():
    with pytest.raises(RuntimeError, match="last dimension"):
        t2j(F.linear)(jnp.ones((2, 3)), jnp.ones((5, 4)))
    with pytest.raises(RuntimeError, match="same dtype"):
        t2j(F.linear)(jnp.ones((2, 4), jnp.bfloat16), jnp.ones((5, 4)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int64])
def test_a_bias_of_another_dtype_is_added_where_the_input_is_not_contiguous(dtype):
    def f(x, bias):
        x = x.transpose(0, 1).detach().requires_grad_()
        y = F.linear(x, torch.linspace(-1, 1, 15).view(5, 3), bias)
        y.square().sum().backward()
        return y, x.grad

    x, bias = torch.linspace(-2, 3, 24).view(4, 2, 3), (torch.linspace(-3, 3, 5) / 0.7).to(dtype)
    for run in (t2j(f), jax.jit(t2j(f))):
        for got, want in zip(run(t2j(x), t2j(bias)), f(x, bias), strict=True):
            compare(got, want)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((2, 3), torch.float16), ((3,), torch.bfloat16), ((2, 2, 3), torch.int64), (None, torch.cfloat)],
)
def test_a_bias_of_another_dtype_is_refused_where_pytorch_does(shape, dtype):
    x = torch.ones(2, 4, 3).transpose(0, 1) if shape is None else torch.ones(shape)
    for linear in (F.linear, t2j(F.linear)):
        with pytest.raises(RuntimeError, match=r"same dtype|result type ComplexFloat can't be cast"):
            linear(x, torch.ones(5, 3), torch.ones(5, dtype=dtype))
