"""Reductions: PyTorch's derivatives at ties and zeros, errors, and plain graphs."""

import jax
import jax.numpy as jnp
import pytest
import torch

from tests.ops.database import compare, compare_trees
from torch2jax import t2j

TIES = torch.tensor([[1.0, 3, 3], [0, 0, 0], [2, 1, 2]])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.max(1).values,
        lambda x: x.min(0)[0],
        lambda x: x.max(),
        lambda x: x.amax(1),
        pytest.param(
            lambda x: torch.aminmax(x, dim=0)[1],
            marks=pytest.mark.skipif(torch.__version__ < (2, 13), reason="this PyTorch has no derivative of aminmax"),
        ),
        lambda x: x.norm(dim=1),
        lambda x: x.norm(1, dim=1),
        lambda x: torch.linalg.vector_norm(x, 3, 1),
        lambda x: torch.linalg.vector_norm(x, float("inf"), 1),
        lambda x: x.std(1),
        lambda x: x.prod(1),
        lambda x: (x.log() - 1).logsumexp(1),
    ],
)
def test_derivative_at_ties_and_zeros(function):
    x = TIES.clone().requires_grad_()
    expected = function(x)
    (gradient,) = torch.autograd.grad(expected.sum(), x)
    compare(t2j(function)(TIES), expected)
    compare(jax.grad(lambda array: t2j(function)(array).sum())(t2j(TIES)), gradient)


@pytest.mark.parametrize("values", [[1.0, float("nan"), 3, float("nan")], [float("nan")] * 2, [2.0, 5, 5]])
@pytest.mark.parametrize(
    "function",
    [
        torch.max,
        torch.min,
        torch.amax,
        torch.median,
        torch.nanmedian,
        lambda x: x.min(0).values,
        lambda x: x.cummax(0).values,
        lambda x: x.logcumsumexp(0),
        torch.relu,
    ],
)
def test_derivative_at_nan(function, values):
    """The largest of values with nan is nan, and its gradient is that of the nans."""
    given = torch.tensor(values)
    x = given.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(function(x).sum(), x)
    compare(jax.grad(lambda array: t2j(function)(array).sum())(t2j(given)), gradient)


@pytest.mark.parametrize(
    "function", [lambda x: x.var(), lambda x: x.std(), lambda x: x.norm(), lambda x: x.logsumexp(0)]
)
def test_second_derivative(function):
    x = torch.tensor([0.5, -1.0, 2.0])
    compare(jax.hessian(t2j(function))(t2j(x)), torch.func.jacrev(torch.func.jacrev(function))(x))


SPECIAL = torch.tensor([[float("nan"), 1, 2], [-float("inf"), -float("inf"), -float("inf")], [float("inf"), 0, 1]])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.max(1),
        lambda x: x.min(1),
        lambda x: x.argmax(1),
        lambda x: x.amax(1),
        lambda x: x.logsumexp(1),
        lambda x: x.any(1),
        lambda x: x.nansum(1),
    ],
)
def test_special_values(function):
    compare_trees(t2j(function)(SPECIAL), function(SPECIAL))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sum(),
        lambda x: x.mean(dim=(0, -1), keepdim=True),
        lambda x: x.sum(axis=1, keepdims=True),
        lambda x: x.var(False),
        lambda x: x.var(0, False),
        lambda x: x.std(dim=1, correction=0, keepdim=True),
        lambda x: torch.var_mean(x, (0, 1)),
        lambda x: torch.max(x, 1, True),
        lambda x: torch.max(input=x, dim=-1),
        lambda x: torch.max(x, other=x.flip(0)),
        lambda x: x.max(dim=0).indices,
        lambda x: x.argmax(),
        lambda x: x.argmin(keepdim=True),
        lambda x: x.sum(0, dtype=torch.float64),
        lambda x: (x > 1).sum(1).dtype == torch.int64,
        lambda x: torch.sum(x, 1, out=torch.zeros(3)),
        lambda x: torch.tensor(2.0).max(0),
        lambda x: torch.zeros(0).sum(),
        lambda x: torch.zeros(2, 0).prod(1),
    ],
)
def test_forms_of_call(function):
    compare_trees(t2j(function)(TIES), function(TIES))


@pytest.mark.parametrize(
    ("function", "error"),
    [
        (lambda: torch.ones(2).sum(3), IndexError),
        (lambda: torch.ones(2).sum((0, 0)), RuntimeError),
        (lambda: torch.ones(2, dtype=torch.int64).mean(), RuntimeError),
        (lambda: torch.ones(2, dtype=torch.int64).var(), RuntimeError),
        (lambda: torch.zeros(0).max(), RuntimeError),
        (lambda: torch.zeros(0, 2).max(0), IndexError),
        (lambda: torch.zeros(0, 2).argmax(0), IndexError),
        (lambda: torch.linalg.vector_norm(torch.zeros(0), float("inf")), RuntimeError),
    ],
)
def test_errors(function, error):
    with pytest.raises(error):
        function()
    with pytest.raises(error):
        t2j(function)()


@pytest.mark.parametrize(
    ("function", "primitives"),
    [
        (lambda x: x.sum(1), ["reduce_sum"]),
        (lambda x: x.mean(1), ["reduce_sum", "div"]),
        (lambda x: x.amax(1), ["reduce_max"]),
        (lambda x: x.argmax(1), ["argmax"]),
        (lambda x: (x > 0).all(), ["gt", "reduce_and"]),
    ],
)
def test_graph(function, primitives):
    equations = jax.make_jaxpr(t2j(function))(jnp.ones((2, 3))).jaxpr.eqns
    assert [equation.primitive.name for equation in equations] == primitives


SUMS_OF_BOOLS = {
    "all": lambda x: x.sum(dtype=torch.bool),
    "rows": lambda x: x.sum(1, dtype=torch.bool),
    "kept": lambda x: x.sum((0, 1), True, dtype=torch.bool),
    "of none": lambda x: x[:0].sum(0, dtype=torch.bool),
    "out": lambda x: torch.sum(x, 0, out=torch.zeros(2, dtype=torch.bool)),
}


@pytest.mark.parametrize("name", SUMS_OF_BOOLS)
@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.float32])
def test_sums_as_bools(name, dtype):
    x, function = torch.tensor([[2, -2], [0, 0]]).to(dtype), SUMS_OF_BOOLS[name]
    for run in (t2j(function), jax.jit(t2j(function))):
        compare(run(t2j(x)), function(x))
