"""Float32 beside float64, and int32 beside int64, while arrays have 32 bits: every operator takes both."""

import jax
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.ops.database import compare
from torch2jax import t2j

X = torch.tensor([[1.0, -2, 3], [0.5, 2, 1]])
Y = torch.tensor([[2.0, 1, 0.25], [-1, 4, 1]])
INDEX = torch.tensor([[0, 1, 0], [1, 0, 1]])
ROWS = torch.tensor([1, 0])


def written(x, y):
    x = x.clone()
    x[ROWS] = y
    x.scatter_add_(0, INDEX, y)
    x.index_put_((ROWS,), y, accumulate=True)
    return x


FUNCTIONS = {
    "linear": lambda x, y: F.linear(x, y),
    "lerp": lambda x, y: torch.lerp(x, y, 0.25),
    "complex": lambda x, y: torch.complex(x, y),
    "polar": lambda x, y: torch.polar(x, y),
    "isclose": lambda x, y: (torch.isclose(x, y), torch.allclose(x, y)),
    "scatter": lambda x, y: (x.scatter(0, INDEX, y), x.scatter_add(0, INDEX, y), x.scatter_reduce(0, INDEX, y, "amax")),
    "index_add": lambda x, y: (x.index_add(0, ROWS, y), x.index_copy(0, ROWS, y)),
    "index_put": lambda x, y: torch.index_put(x, (ROWS,), y, accumulate=True),
    "in place": written,
    "masked_scatter": lambda x, y: x.masked_scatter(x > 0.75, y),
    "vecdot": lambda x, y: torch.linalg.vecdot(x, y),
    "multi_dot": lambda x, y: torch.linalg.multi_dot([x, y.T, x]),
    "cartesian_prod": lambda x, y: torch.cartesian_prod(x[0], y[1]),
    "embedding_bag": lambda x, y: F.embedding_bag(INDEX, x, per_sample_weights=y, mode="sum"),
    "chunk_cat": lambda x, y: torch._chunk_cat([x, y], 0, 2),
}


@pytest.mark.parametrize("wide", [0, 1])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_both_are_taken(name, wide):
    function = FUNCTIONS[name]

    def mixed(*tensors):
        tensors = list(tensors)
        tensors[wide] = tensors[wide].double()
        return function(*tensors)

    wanted = function(X, Y)
    for _ in range(2):  # by the long way, and by what is kept of it
        for run in (t2j(mixed), jax.jit(t2j(mixed))):
            for got, want in zip(jax.tree.leaves(run(t2j(X), t2j(Y))), jax.tree.leaves(wanted), strict=True):
                np.testing.assert_allclose(got, np.asarray(want), 1e-6)
    if name in ("scatter", "in place", "lerp"):
        leaf = X.clone().requires_grad_()
        total = lambda tree: sum(x.sum() for x in jax.tree.leaves(tree))
        total(function(leaf, Y)).backward()
        compare(jax.grad(lambda x, y: total(t2j(mixed)(x, y)))(t2j(X), t2j(Y)), leaf.grad)


def test_results_have_the_dtype_of_the_first():
    def f(x, y):
        assert x.scatter_add(0, INDEX, y.double()).dtype == torch.float32
        assert x.double().scatter_add(0, INDEX, y).dtype == torch.float64
        counts = torch.zeros(2, dtype=torch.int64).index_put((ROWS,), ROWS.to(torch.int32) + x[0, 0].int())
        assert counts.dtype == torch.int64
        return counts

    np.testing.assert_array_equal(jax.jit(t2j(f))(t2j(X), t2j(Y)), [1, 2])


def test_no_step_is_left_in_the_graph():
    one = jax.make_jaxpr(t2j(lambda x, y: x.scatter_add(0, INDEX, y)))(t2j(X), t2j(Y))
    other = jax.make_jaxpr(t2j(lambda x, y: x.scatter_add(0, INDEX, y.double())))(t2j(X), t2j(Y))
    assert str(one) == str(other)


@pytest.mark.parametrize("name", ["lerp", "scatter", "index_put", "vecdot", "in place"])
def test_refused_as_in_pytorch_where_arrays_have_64_bits(name):
    with jax.enable_x64(True), pytest.raises(RuntimeError):
        t2j(FUNCTIONS[name])(t2j(X), t2j(Y.double()))


def test_other_dtypes_are_refused():
    with pytest.raises(RuntimeError, match="dtype"):
        t2j(lambda x, y: x.scatter_add(0, INDEX, y.half()))(t2j(X), t2j(Y))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        t2j(lambda x, y: x.mm(y.double()))(t2j(X), t2j(Y))
