"""Joining, repeating, rearranging, padding: values, gradients, graphs and refusals."""

import jax
import pytest
import torch

from tests.ops.database import check_gradients, check_values, compare, entries, samples
from torch2jax import t2j

SHAPES = [
    "cat",
    "stack",
    "hstack",
    "vstack",
    "dstack",
    "column_stack",
    "repeat",
    "tile",
    "repeat_interleave",
    "roll",
    "flip",
    "fliplr",
    "flipud",
    "rot90",
    "tril",
    "triu",
    "diag",
    "diag_embed",
    "diagflat",
    "block_diag",
    "constant_pad_nd",
    "broadcast_tensors",
    "broadcast_to",
    "atleast_1d",
    "atleast_2d",
    "atleast_3d",
    "movedim",
    "swapaxes",
    "flatten",
    "unflatten",
    "ravel",
    "hsplit",
    "vsplit",
    "dsplit",
    "tensor_split",
    "T",
    "mT",
    "H",
    "adjoint",
    "expand_as",
    "view_as",
    "squeeze",
    "squeeze.multiple",
    "unsafe_chunk",
    "permute_copy",
    "view_copy",
    "squeeze_copy",
    "transpose_copy",
    "slice_scatter",
    "select_scatter",
    "diagonal_scatter",
    "as_strided_scatter",
]
GRADIENT_DIFFERS = {"as_strided_scatter"}  # PyTorch gives the overwritten places the gradient, not the others
NOT_UNDER_JIT = {"tensor_split"}  # some samples give the sections as a tensor, whose values decide the shapes
LIMIT = 2


@pytest.mark.parametrize("name", SHAPES)
class TestDatabase:
    @pytest.mark.parametrize("jit", [False, True])
    def test_values(self, name, jit):
        for op in entries(name):
            for sample in samples(op, torch.float32, LIMIT):
                check_values(op, sample, jit and name not in NOT_UNDER_JIT)

    @pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
    def test_integers(self, name, dtype):
        for op in entries(name):
            if dtype in op.supported_dtypes("cpu"):
                for sample in samples(op, dtype, LIMIT):
                    check_values(op, sample)

    def test_gradients(self, name):
        for op in entries(name):
            if op.supports_autograd and name not in GRADIENT_DIFFERS:
                for sample in samples(op, torch.float32, LIMIT, requires_grad=True):
                    check_gradients(op, sample)


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


def error_of(function, *args):
    try:
        function(*args)
    except Exception as error:
        return error
    return pytest.fail("nothing was refused")


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
