"""Sorting, order statistics, searching and sets."""

import jax
import jax.numpy as jnp
import pytest
import torch

from tests.ops.database import compare, compare_trees
from tests.refusals import error_of
from torch2jax import t2j

# PyTorch's choice among equal values is not defined, and integers and bfloat16 have many.


NAN = float("nan")
LINES = torch.tensor([[3.0, 1, NAN, 2, 1], [2, 2, 1, 1, 0], [NAN, 4, NAN, 4, 5]])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sort(stable=True),
        lambda x: x.sort(dim=0, descending=True, stable=True),
        lambda x: x.sort(dim=1, stable=True).values,
        lambda x: x.argsort(dim=1, stable=True, descending=True),
        lambda x: x.nan_to_num().int().sort(dim=1, descending=True, stable=True),
        lambda x: (x > 1).sort(stable=True),
        lambda x: x.topk(2)[0],
        lambda x: x.topk(5, largest=False)[0],
        lambda x: x.nan_to_num().int().topk(2, 0, False)[0],
        lambda x: x.median(),
        lambda x: x.median(1).values,
        lambda x: x.nanmedian(1).values,
        lambda x: x.nanmedian(),
        lambda x: x.nan_to_num().mode(1),
        lambda x: x.kthvalue(2).values,
        lambda x: torch.tensor(2.0).sort(),
        lambda x: torch.tensor(2.0).topk(1),
        lambda x: torch.unique(x),
        lambda x: torch.unique(x.nan_to_num(), return_inverse=True, return_counts=True),
        lambda x: torch.unique(x.nan_to_num(), dim=1, return_inverse=True),
        lambda x: torch.unique(x, dim=0, return_inverse=True, return_counts=True),
        lambda x: torch.unique(x[:, 2], dim=0, return_inverse=True, return_counts=True),
        lambda x: torch.unique(x[:, :0], dim=1, return_inverse=True, return_counts=True),
        lambda x: torch.unique(x.bfloat16(), return_inverse=True),
        lambda x: torch.unique_consecutive(x, dim=1, return_inverse=True, return_counts=True),
        lambda x: x.nan_to_num().int().unique_consecutive(return_inverse=True, return_counts=True),
        lambda x: torch.equal(x, x),
        lambda x: torch.allclose(x, x, equal_nan=True),
        lambda x: x.quantile(0.3, dim=1),
        lambda x: torch.isin(x, 2),
    ],
)
def test_values(function):
    compare_trees(t2j(function)(LINES), function(LINES))


def test_no_nan_is_another():
    x = torch.tensor([NAN, 0, 0, NAN, NAN, 1])
    values, inverse, counts = t2j(lambda x: torch.unique(x, return_inverse=True, return_counts=True, dim=0))(x)
    compare(values[inverse], x)
    assert sorted(counts.tolist()) == [1, 1, 1, 1, 2]


@pytest.mark.parametrize(
    "function", [lambda x: x.median(), lambda x: x.median(1).values, lambda x: x.kthvalue(2)[0], lambda x: x.mode(1)[0]]
)
def test_derivative_at_ties(function):
    x = torch.tensor([[2.0, 1, 1, 1, 2], [3, 2, 1, 0, 2]], requires_grad=True)
    (gradient,) = torch.autograd.grad(function(x).sum(), x)
    actual = jax.grad(lambda array: t2j(function)(array).sum())(t2j(x.detach()))
    compare(actual.sum(), gradient.sum())
    if function(x).ndim == 0:
        compare(actual, gradient)


@pytest.mark.filterwarnings("ignore:.*non-contiguous")
@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_search(dtype, right):
    edges, values = torch.tensor([1, 3, 3, 5]).to(dtype), torch.tensor([[0, 1, 3], [4, 5, 6]]).to(dtype)
    for function in (
        lambda: torch.searchsorted(edges, values, right=right),
        lambda: torch.searchsorted(edges.expand(2, 4), values, right=right, out_int32=True),
        lambda: torch.searchsorted(edges, 3, right=right),
        lambda: torch.bucketize(values, edges, right=right),
        lambda: torch.searchsorted(edges.flip(0), values, sorter=torch.tensor([3, 2, 1, 0]), side="left"),
    ):
        compare(t2j(function)(), function())


@pytest.mark.parametrize(
    "function",
    [
        lambda: torch.ones(2).topk(3),
        lambda: torch.ones(2).kthvalue(3),
        lambda: torch.ones(2).sort(2),
        lambda: torch.zeros(0, 2).median(0),
        lambda: torch.ones(2, dtype=torch.complex64).sort(),
        lambda: torch.bucketize(torch.ones(2), torch.ones(2, 2)),
    ],
)
def test_errors_are_of_the_type_that_pytorch_raises(function):
    assert isinstance(error_of(t2j(function)), type(error_of(function)))


def test_sorting_of_a_constant_is_known_under_jit():
    def function(x):
        order = torch.tensor([3, 1, 2]).sort().values
        return x * order[0].item() + torch.unique(order).shape[0]

    compare(jax.jit(t2j(function))(jnp.ones(2)), function(torch.ones(2)))


OF_TWO_DTYPES = {
    "a number that float32 does not hold": lambda x: torch.searchsorted(x, 0.1, right=True),
    "one of no dimensions": lambda x: torch.searchsorted(x, torch.tensor(0.1, dtype=torch.float64), right=True),
    "its bucket": lambda x: torch.bucketize(0.1, x, right=True),
    "a number between integers": lambda x: torch.searchsorted(torch.tensor([1, 2, 3]), 1.5),
    "float64 among float32": lambda x: torch.searchsorted(x, torch.tensor([0.1, 0.3], dtype=torch.float64)),
    "integers among float32": lambda x: torch.bucketize(torch.tensor([0, 1]), x),
}


@pytest.mark.parametrize("function", OF_TWO_DTYPES.values(), ids=OF_TWO_DTYPES.keys())
def test_numbers_of_two_dtypes_are_compared_as_pytorch_promotes_them(function):
    x = torch.tensor([0.1, 0.2, 0.3])
    with jax.enable_x64(True):
        for run in (t2j(function), jax.jit(t2j(function))):
            compare(run(t2j(x)), function(x))
