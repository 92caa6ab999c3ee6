"""Joining, repeating, rearranging, padding: values, gradients, graphs and refusals."""

import jax
import pytest
import torch

from tests.ops.database import compare
from tests.refusals import error_of, refusal
from torch2jax import t2j


def primitives(function, *args):
    return [equation.primitive.name for equation in jax.make_jaxpr(t2j(function))(*args).eqns]


X = torch.arange(12.0).reshape(3, 4)


class TestGraphs:
    def test_joining(self):
        assert primitives(lambda x: torch.cat([x, x], 1), t2j(X)) == ["concatenate"]
        assert primitives(lambda x: torch.cat([x]), t2j(X)) == []

    def test_repeating_is_one_broadcast(self):
        assert primitives(lambda x: x.repeat(2, 3), t2j(X)) == ["broadcast_in_dim", "reshape"]
        assert primitives(lambda x: x[:, :1].repeat(1, 3), t2j(X)) == ["slice", "broadcast_in_dim"]
        assert primitives(lambda x: x.repeat_interleave(2, 0), t2j(X)) == ["broadcast_in_dim", "reshape"]

    def test_slice_scatter_is_an_update(self):
        assert primitives(lambda x: x.slice_scatter(x[:1], 0, 1, 2), t2j(X)) == ["slice", "dynamic_update_slice"]


class TestPromotion:
    @pytest.mark.parametrize("join", [torch.cat, torch.stack])
    def test_joining_takes_the_common_dtype(self, join):
        for first, second in ((torch.int64, torch.float32), (torch.uint8, torch.int8), (torch.bool, torch.int64)):
            tensors = [torch.ones(2, dtype=first), torch.ones(2, dtype=second)]
            compare(t2j(lambda a, b, join=join: join([a, b]))(*tensors), join(tensors))

    def test_int64_stays_logical(self):
        def function(x):
            joined = torch.cat([x, x]).repeat(2).repeat_interleave(2).roll(1).flip(0)
            assert joined.dtype == torch.int64
            return joined

        x = torch.arange(3)
        compare(t2j(function)(x), function(x))


def test_repeats_that_are_traced_need_the_output_size():
    counts = torch.tensor([2, 0, 1])

    def function(x, counts):
        return x.repeat_interleave(counts, 0, output_size=3)

    compare(jax.jit(t2j(function))(t2j(X), t2j(counts)), function(X, counts))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.cat([]),
        lambda x: torch.cat([x, x[:, :2]]),
        lambda x: torch.cat([x, x[0]]),
        lambda x: torch.cat([x.sum()]),
        lambda x: torch.cat([x], 2),
        lambda x: torch.stack([]),
        lambda x: torch.stack([x, x[0]]),
        lambda x: x.repeat(2),
        lambda x: x.repeat(2, -1),
        lambda x: x.repeat_interleave(-1),
        lambda x: x.repeat_interleave(torch.tensor([1, 2]), 0),
        lambda x: x.repeat_interleave(torch.ones(3), 1),
        lambda x: x.roll((1, 2), 0),
        lambda x: x.flip(0, 0),
        lambda x: x.flip(5),
        lambda x: x[0].tril(),
        lambda x: torch.nn.functional.pad(x, (-3, -3)),
    ],
)
def test_refusals_are_of_the_type_that_pytorch_raises(function):
    expected, actual = error_of(function, X), error_of(t2j(function), t2j(X))
    assert isinstance(actual, type(expected)), f"{actual!r}, but PyTorch: {expected!r}"


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64, torch.float32, torch.bool])
def test_dtypes_of_counts(dtype):
    """Which there may be differs among PyTorch's releases."""

    def function(counts):
        return torch.repeat_interleave(counts)

    counts = torch.ones(3, dtype=dtype)
    expected = refusal(function, counts)
    if expected is None:
        with jax.enable_x64(True):
            compare(t2j(function)(t2j(counts)), function(counts))
    else:
        assert isinstance(error_of(t2j(function), t2j(counts)), type(expected))


@pytest.mark.parametrize(
    "function",
    [
        lambda: torch.cat([torch.ones(0)] * 2, 1),
        lambda: torch.cat([torch.ones(0), torch.ones(0, dtype=torch.int64)], -3),
        lambda: torch.cat([torch.ones(0), torch.ones(2, 0)], 1),
        lambda: torch.block_diag(),
        lambda: torch.block_diag(torch.ones(2, 1), torch.ones(3), torch.tensor(2.0)),
    ],
)
def test_joining_nothing(function):
    compare(t2j(function)(), function())


def test_meshgrid_warns_once_that_it_will_need_an_indexing():
    before = torch.is_warn_always_enabled()
    try:
        torch.set_warn_always(True)
        with pytest.warns(UserWarning, match="required to pass the indexing"):
            t2j(torch.meshgrid)(t2j(X[0]))
    finally:
        torch.set_warn_always(before)


def test_joining_keeps_channels_last():
    convolution, wide = torch.nn.Conv2d(3, 4, 1), torch.nn.Conv2d(8, 4, 1)

    def function(x):
        y = convolution(x)
        return wide(torch.cat([y, y.relu()], -3)) + torch.cat([y[:1], y], dim=0).sum(0)

    def chain(x):
        y = convolution(x)
        return wide(torch.cat([y, y.relu()], 1))

    x = torch.randn(2, 3, 5, 5)
    names = [equation.primitive.name for equation in jax.make_jaxpr(t2j(chain))(t2j(x)).eqns]
    assert names.count("transpose") == 2  # at the beginning and at the end
    assert "reshape" not in names
    compare(t2j(function)(t2j(x)), function(x))
