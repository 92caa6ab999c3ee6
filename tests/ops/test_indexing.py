"""Elements by index and mask: values, gradients, graphs and refusals. Subscripts are in `tests/ops/test_setitem.py`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from tests.ops.database import compare, compare_trees
from tests.refusals import error_of
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


INDEXED = {
    "gather": lambda x, i: torch.gather(x, 0, i),
    "index_add": lambda x, i: torch.index_add(x, 0, i, x[:2]),
    "index_copy": lambda x, i: torch.index_copy(x, 0, i, x[:2]),
    "index_fill": lambda x, i: torch.index_fill(x, 0, i, 2.0),
    "index_reduce": lambda x, i: torch.index_reduce(x, 0, i, x[:2], "prod"),
    "index_select": lambda x, i: torch.index_select(x, 0, i),
    "put": lambda x, i: torch.put(x, i, x[:2]),
    "scatter": lambda x, i: torch.scatter(x, 0, i, 2.0),
    "subscript": lambda x, i: x[i],
    "take": torch.take,
    "take_along_dim": lambda x, i: torch.take_along_dim(x, i, 0),
}


@pytest.mark.parametrize("name", INDEXED)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.float32])
@pytest.mark.filterwarnings("ignore:index_reduce")
def test_an_index_has_the_dtypes_that_pytorch_takes(name, dtype):
    function, x, index = INDEXED[name], torch.arange(4.0), torch.tensor([2, 0], dtype=dtype)
    try:
        expected = function(x, index)
    except (RuntimeError, IndexError) as error:
        if dtype == torch.int32 and not jax.config.jax_enable_x64:
            return  # as which an int64 index is held
        with pytest.raises(type(error)):
            t2j(function)(t2j(x), index)
    else:
        compare_trees(t2j(function)(t2j(x), index), expected)


def test_bytes_as_a_mask_warn():
    with pytest.warns(UserWarning, match="indexing with dtype torch.uint8 is now deprecated"):
        t2j(lambda x: x[torch.tensor([1, 0], dtype=torch.uint8)])(jnp.ones(2))


def test_values_that_do_not_broadcast_are_refused_before_their_dtype():
    def write(x):
        x[x > -1] = torch.tensor([])

    with pytest.raises(RuntimeError, match="shape mismatch"):
        t2j(write)(jnp.arange(4))


@pytest.mark.parametrize("zeros", [(), (0,), (0, 2), (0, 1)])
def test_second_derivatives_of_scattered_products(zeros):
    """They are right, or NaN where several zeros met: PyTorch refuses these."""
    source = jnp.asarray([1.5, 2.0, -3.0, 0.5, 2.5]).at[jnp.asarray(zeros, int)].set(0)
    index, start = torch.tensor([0, 0, 1, 1, 0]), jnp.asarray([1.5, 2.0])

    def scattered(start, source):
        result = t2j(lambda x, y: torch.scatter_reduce(x, 0, index, y, "prod"))(start, source)
        return (result**2 + result).sum()

    def wanted(start, source):
        result = start * jnp.stack([source[0] * source[1] * source[4], source[2] * source[3]])
        return (result**2 + result).sum()

    for derivative in (jax.grad, jax.hessian):
        results = [jax.tree.leaves(derivative(function, (0, 1))(start, source)) for function in (scattered, wanted)]
        for found, expected in zip(*results, strict=True):
            is_known = ~np.isnan(found)
            assert is_known.all() or (derivative is jax.hessian and zeros == (0, 1))
            np.testing.assert_allclose(found[is_known], expected[is_known], rtol=1e-5)


@pytest.mark.parametrize("value", [1j, torch.tensor(1j)], ids=["number", "tensor"])
def test_index_fill_refuses_complex_numbers_as_pytorch(value):
    def fill(x):
        return x.index_fill(0, torch.tensor([0]), value)

    for run in (fill, t2j(fill)):
        with pytest.raises(RuntimeError, match="Converting complex Scalar to non-complex type"):
            run(torch.ones(2))


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize(
    ("shape", "dim", "index"),
    [
        ((0, 3), 1, [0, 5]),
        ((0, 3), 0, [0]),
        ((2, 3), 1, [0, 5]),
        ((2, 3), 0, [0, -1]),
        ((2, 3, 4), 2, [4]),
        ((6,), 0, [7, 0]),
        ((), 0, [7]),
        ((), 0, [0, 0]),
    ],
)
def test_rows_that_are_not_there(shape, dim, index, jit):
    def select(x):
        return torch.index_select(x, dim, torch.tensor(index))

    with pytest.raises((IndexError, RuntimeError)) as expected:
        select(torch.zeros(shape))
    with pytest.raises(expected.type) as got:
        (jax.jit if jit else lambda f: f)(t2j(select))(jnp.zeros(shape))
    assert str(expected.value) in str(got.value)


BY_KNOWN_INDICES = {
    "index_copy": lambda x, i: x.index_copy(0, i, torch.ones(len(i), 3)),
    "index_copy of a number": lambda x, i: x[0, 0].index_copy(0, i[:1] * 0, torch.tensor(5.0)),
    "index_add": lambda x, i: x.index_add(0, i, torch.ones(len(i), 3)),
    "index_fill": lambda x, i: x.index_fill(0, i, 2.0),
    "index_reduce": lambda x, i: x.index_reduce(0, i, torch.ones(len(i), 3), "amax"),
    "index_select": lambda x, i: x.index_select(0, i),
    "index_put": lambda x, i: x.index_put((i,), torch.ones(3)),
    "take": lambda x, i: x.take(i),
    "gather": lambda x, i: x.gather(0, i[:, None].expand(-1, 3)),
    "scatter": lambda x, i: x.scatter(0, i[:, None].expand(-1, 3), 4.0),
    "scatter_add": lambda x, i: x.scatter_add(0, i[:, None].expand(-1, 3), torch.ones(len(i), 3)),
    "take_along_dim": lambda x, i: x.take_along_dim(i[:, None], 0),
}


@pytest.mark.parametrize("name", BY_KNOWN_INDICES)
@pytest.mark.parametrize("rows", [[0, 1], [1], [3, 1]])
@pytest.mark.parametrize("is_wide", [False, True])
@pytest.mark.filterwarnings("ignore:index_reduce")
def test_known_indices_whatever_64_bits_are(name, rows, is_wide):
    def f(x):
        return BY_KNOWN_INDICES[name](x, torch.tensor(rows))

    x = torch.arange(12.0).view(4, 3)
    want = f(x).numpy()
    with jax.enable_x64(is_wide):
        for translated in (t2j(f), jax.jit(t2j(f))):
            np.testing.assert_array_equal(translated(t2j(x)), want)
        np.testing.assert_array_equal(jax.vmap(t2j(f))(t2j(x)[None])[0], want)
