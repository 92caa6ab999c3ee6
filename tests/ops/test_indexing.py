"""Elements by index and mask: values, gradients, graphs and refusals. Subscripts are in `tests/ops/test_setitem.py`."""

import functools

import jax
import jax.numpy as jnp
import pytest
import torch

from tests.ops.database import compare
from torch2jax import t2j

X = torch.arange(12.0).reshape(3, 4)
ROWS = torch.tensor([2, 0])


def equations(function, *args):
    return jax.make_jaxpr(t2j(function))(*args).eqns


class TestGraphs:
    def test_an_expanded_index_moves_rows(self):
        gathers = [
            equation
            for equation in equations(lambda x, i: x.gather(0, i[:, None].expand(2, 4)), t2j(X), t2j(ROWS))
            if equation.primitive.name == "gather"
        ]
        assert [equation.params["slice_sizes"] for equation in gathers] == [(1, 4)]

    def test_rows_are_one_gather(self):
        names = [e.primitive.name for e in equations(lambda x, i: x.index_select(0, i), t2j(X), t2j(ROWS))]
        assert names == ["broadcast_in_dim", "gather"]

    def test_rows_in_order_are_a_slice(self):
        names = [e.primitive.name for e in equations(lambda x: x.index_select(0, torch.tensor([1, 2])), t2j(X))]
        assert names == ["slice"]

    def test_rows_that_follow_each_other_are_copied_as_a_block(self):
        def copy(x, i, y):
            return x.index_copy(-1, i, y)

        for index, values in ((torch.tensor([1]), X[:, :1] + 9), (torch.arange(1, 4), X[:, :3] + 9)):
            known = functools.partial(copy, i=index)
            names = [e.primitive.name for e in equations(lambda x, y, f=known: f(x, y=y), t2j(X), t2j(values))]
            assert names == ["dynamic_update_slice"]
            compare(jax.jit(t2j(copy))(t2j(X), t2j(index), t2j(values)), copy(X, index, values))
            compare(jax.jit(t2j(lambda x, y, f=known: f(x, y=y)))(t2j(X), t2j(values)), copy(X, index, values))
        names = [e.primitive.name for e in equations(copy, t2j(X), t2j(ROWS[:1]), t2j(X[:, :1]))]
        assert "dynamic_update_slice" in names
        assert "scatter" not in names
        gradients = jax.grad(t2j(lambda *args: (copy(*args) ** 2).sum()), (0, 2))(
            t2j(X), t2j(ROWS[:1]), t2j(X[:, :1] + 9)
        )
        compare(gradients[0], 2 * X.index_fill(1, ROWS[:1], 0))
        compare(gradients[1], 2 * (X[:, :1] + 9))


@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("include_self", [True, False])
def test_rows_are_reduced_as_single_elements_are(reduce, include_self):
    index, src = torch.tensor([1, 1, 0]), X - 5

    def function(x, src, index):
        return x.scatter_reduce(0, index[:, None].expand(3, 4), src, reduce, include_self=include_self)

    x, src = X.clone().requires_grad_(), src.requires_grad_()
    expected = function(x, src, index)
    (expected**2).sum().backward()
    arguments = t2j(X), t2j(src.detach()), t2j(index)
    compare(jax.jit(t2j(function))(*arguments), expected)
    got = jax.grad(t2j(lambda *args: (function(*args) ** 2).sum()), (0, 1))(*arguments)
    compare(got[0], x.grad)
    compare(got[1], src.grad)


def test_where_has_three_forms():
    mask = X > 4
    compare(t2j(lambda x, m: torch.where(m, x, 0))(t2j(X), t2j(mask)), torch.where(mask, X, 0))
    compare(t2j(lambda x, m: x.where(m, -x))(t2j(X), t2j(mask)), X.where(mask, -X))
    for got, want in zip(t2j(lambda m: torch.where(m))(mask), torch.where(mask), strict=True):
        compare(got, want)


def test_in_place_forms_write_through_views():
    def function(x, i):
        x = x.clone()
        x[1:].index_fill_(1, i, 7)
        x[:, 1:].scatter_(1, i[None, :1], -1.0)
        x[0].masked_fill_(x[0] > 2, 0)
        x.t().index_add_(0, i, torch.ones(2, 3))
        return x

    compare(jax.jit(t2j(function))(t2j(X), t2j(ROWS)), function(X, ROWS))


def error_of(function, *args):
    try:
        function(*args)
    except Exception as error:
        return error
    return pytest.fail("nothing was refused")


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.gather(0, torch.tensor([[3]])),
        lambda x: x.gather(0, torch.tensor([[-1]])),
        lambda x: x.gather(0, torch.tensor([0])),
        lambda x: x.gather(1, torch.zeros(4, 1, dtype=torch.int64)),
        lambda x: x.gather(2, torch.zeros(1, 1, dtype=torch.int64)),
        lambda x: x.scatter(0, torch.tensor([[3]]), 1.0),
        lambda x: x.scatter(0, torch.zeros(2, 2, dtype=torch.int64), torch.ones(1, 1)),
        lambda x: x.scatter_add(0, torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, 1, dtype=torch.int64)),
        lambda x: x.scatter_reduce(0, torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, 1), "median"),
        lambda x: x.index_select(0, torch.tensor([3])),
        lambda x: x.index_select(0, torch.tensor([[0]])),
        lambda x: x.take(torch.tensor([12])),
        lambda x: x.masked_fill(x > 1, torch.ones(2)),
        lambda x: x.masked_fill(x, 1.0),
        lambda x: x.masked_scatter(x > 1, torch.ones(2)),
    ],
)
def test_refusals_are_of_the_type_that_pytorch_raises(function):
    expected, actual = error_of(function, X), error_of(t2j(function), t2j(X))
    assert isinstance(actual, type(expected)), f"{actual!r}, but PyTorch: {expected!r}"


def test_a_fill_value_too_large_for_32_bits_stays_the_largest():
    largest = torch.iinfo(torch.int64).max
    filled = t2j(lambda x: x.masked_fill(x > 1, largest))(torch.arange(3))
    assert filled.tolist() == [0, 1, jnp.iinfo(filled.dtype).max]
