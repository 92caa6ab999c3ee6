"""Scans: running sums, products and extrema."""

import jax
import pytest
import torch

from tests.ops.database import check_gradients, check_values, compare, compare_trees, entries, samples
from torch2jax import t2j

NAMES = ["cummax", "cummin", "cumprod", "cumsum", "cumulative_trapezoid", "diff", "logcumsumexp", "trapezoid"]


@pytest.mark.parametrize("name", NAMES)
def test_database(name):
    op = next(entries(name))
    for dtype in (torch.float32, torch.int64, torch.bfloat16):
        if dtype in op.supported_dtypes("cpu"):
            for sample in samples(op, dtype, 2):
                check_values(op, sample)
    if name == "logcumsumexp":
        return  # PyTorch's gradient is good to three digits only; it is compared below
    for sample in samples(op, torch.float32, 1, requires_grad=True):
        check_gradients(op, sample)


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
