"""Scans: running sums, products and extrema."""

import jax
import jax.numpy as jnp
import pytest
import torch

from tests.ops.database import compare, compare_trees
from torch2jax import j2t, t2j

NAN = float("nan")


@pytest.mark.parametrize("function", [torch.cummax, torch.cummin])
@pytest.mark.parametrize("values", [[1, 1, 0, 2, 2, NAN, 3, NAN], [3.0, 2, 2, 1, 5, 0, 0, 7]])
def test_extrema_take_the_last_of_equals(function, values):
    x = torch.tensor(values)
    compare_trees(t2j(lambda x: function(x, 0))(x), function(x, 0))
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(function(x, 0)[0].sum(), x)
    compare(jax.grad(lambda array: t2j(lambda x: function(x, 0)[0].sum())(array))(t2j(x.detach())), gradient)


def test_products_through_zeros_have_a_gradient():
    x = torch.tensor([2.0, 0, 3, 0, 4], requires_grad=True)
    (gradient,) = torch.autograd.grad(x.cumprod(0).sum(), x)
    compare(jax.grad(lambda array: t2j(lambda x: x.cumprod(0).sum())(array))(t2j(x.detach())), gradient)


def test_derivative_of_logcumsumexp():
    x = torch.tensor([0.5, -1.0, 2.0], requires_grad=True)
    (gradient,) = torch.autograd.grad(x.logcumsumexp(0).sum(), x)
    compare(jax.grad(lambda array: t2j(lambda x: x.logcumsumexp(0).sum())(array))(t2j(x.detach())), gradient)


INF = float("inf")


@pytest.mark.parametrize(
    "values",
    [
        [-1000 + 1j, 3, 1000 - 2j, 2j],  # far apart
        [complex(-INF, 4), complex(-INF, 1), 1.5 + 2j, complex(-INF, 3), 1 - 1j],
        [1.5 + 2j, 1e10 + 1e20j, complex(INF, 0), complex(INF, 1), complex(NAN, 2)],
    ],
)
def test_complex_logcumsumexp(values):
    x = torch.tensor(values)
    actual, expected = j2t(jax.jit(t2j(lambda x: x.logcumsumexp(0)))(t2j(x))), x.logcumsumexp(0)
    torch.testing.assert_close(actual.real, expected.real, equal_nan=True)
    decided = expected.real != -INF  # the angle of zero
    torch.testing.assert_close(actual.imag[decided], expected.imag[decided], equal_nan=True)


def test_derivative_of_complex_logcumsumexp():
    x = torch.tensor([0.5 + 1j, complex(-INF, 0), 2 - 1j, 1j], requires_grad=True)

    def loss(x):
        return (x.logcumsumexp(0)[2:] * (1 + 2j)).real.sum()

    (gradient,) = torch.autograd.grad(loss(x), x)
    compare(jax.grad(t2j(loss))(t2j(x.detach())).conj(), gradient)


def test_dtypes():
    mask = torch.tensor([True, False, True])
    compare(t2j(lambda x: x.cumsum(0))(mask), mask.cumsum(0))
    assert t2j(lambda x: x.cumsum(0).dtype == torch.int64)(mask)
    with pytest.raises(IndexError):
        t2j(lambda x: x.cumsum(2))(mask)


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "sum", "prod", "mean", "nansum"])
def test_out_tells_the_dtype(name):
    def function(x):
        dtypes = (torch.float64,) if name in ("mean", "nansum") else (torch.int64, torch.uint8, torch.float64)
        return [getattr(torch, name)(x, 0, out=torch.empty(0, dtype=dtype)) for dtype in dtypes]

    x = torch.tensor([1.5, 2.5, 3.75])
    with jax.enable_x64(True):
        for call in (t2j(function), jax.jit(t2j(function))):
            compare_trees(call(t2j(x)), function(x))


@pytest.mark.parametrize("numbers", [[1, INF, 2, -INF, 3], [-INF, 2, INF, 3], [INF, 1], [-INF, -INF, 2, 3]])
def test_logcumsumexp_behind_an_infinity(numbers):
    """PyTorch has nan where an infinity meets itself; elsewhere the derivatives are its."""
    x = torch.tensor(numbers, dtype=torch.float32, requires_grad=True)
    wanted = torch.autograd.functional.jacobian(lambda x: torch.logcumsumexp(x, 0), x)
    found = jax.jacobian(t2j(lambda x: torch.logcumsumexp(x, 0)))(t2j(x.detach()))
    assert bool(jnp.isfinite(found).all())
    found = torch.tensor(found.tolist())
    torch.testing.assert_close(torch.where(wanted.isnan(), wanted, found), wanted, equal_nan=True)
