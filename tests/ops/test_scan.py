"""Scans: running sums, products and extrema."""

import jax
import pytest
import torch

from tests.ops.database import compare, compare_trees
from torch2jax import t2j

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


def test_dtypes():
    mask = torch.tensor([True, False, True])
    compare(t2j(lambda x: x.cumsum(0))(mask), mask.cumsum(0))
    assert t2j(lambda x: x.cumsum(0).dtype == torch.int64)(mask)
    with pytest.raises(IndexError):
        t2j(lambda x: x.cumsum(2))(mask)
