"""Pointwise operators of operands in any layout: shape, strides and dtype of the result are PyTorch's."""

import math

import jax
import pytest
import torch
from hypothesis import given, settings, strategies as st

from torch2jax import t2j

DTYPES = (torch.float32, torch.float16, torch.int32, torch.uint8, torch.bool)


@st.composite
def operands(draw, count):
    """Tensors that broadcast, and a number for the second of two.

    Those of several dtypes are not expanded: PyTorch's layout of the result is another on the CPU, which casts
    operands first, than on CUDA, which does not.
    """
    shape = draw(st.lists(st.integers(0, 3), max_size=4))
    one_dtype = draw(st.none() | st.sampled_from(DTYPES))
    tensor = tensors(shape, st.just(one_dtype) if one_dtype else st.sampled_from(DTYPES), one_dtype is not None)
    if count == 2:
        return draw(st.tuples(tensor, tensor | st.sampled_from([2, 0.5])))
    return draw(st.tuples(*[tensor] * count))


@st.composite
def tensors(draw, shape, dtypes, may_expand):
    """Permuted, expanded, with steps, of fewer dimensions, of no elements."""
    rank = len(shape)
    sizes = [1 if draw(st.integers(0, 4)) == 0 else size for size in shape]
    order = draw(st.permutations(range(rank)))
    step = draw(st.integers(1, 2))
    physical = [sizes[dim] * (step if i == rank - 1 else 1) for i, dim in enumerate(order)]
    x = torch.arange(math.prod(physical)).reshape(physical).to(draw(dtypes))
    x = (x[..., ::step] if rank else x).permute([order.index(dim) for dim in range(rank)])
    if may_expand and draw(st.booleans()):
        return x.expand(shape)
    return x[0] if rank and sizes[0] == 1 and draw(st.booleans()) else x


def outcome(function, arguments):
    result = function(*arguments)
    strides = [stride for size, stride in zip(result.shape, result.stride(), strict=True) if size > 1]
    return tuple(result.shape), strides if result.numel() else None, result.dtype


@pytest.mark.parametrize(
    ("function", "count"),
    [(torch.isnan, 1), (torch.sin, 1), (torch.mul, 2), (torch.maximum, 2), (torch.eq, 2), (torch.clamp, 3)],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_results_are_laid_out_as_in_pytorch(function, count):
    @settings(max_examples=25, deadline=None, derandomize=True, database=None)  # the same each time, as elsewhere
    @given(operands(count))
    def check(arguments):
        try:
            expected = outcome(function, arguments)
        except Exception as error:
            with pytest.raises(type(error)):
                t2j(lambda: outcome(function, arguments))()
        else:
            assert t2j(lambda: outcome(function, arguments))() == expected

    check()


LAYOUTS = [  # shapes and strides
    [((2, 1, 1), (1, 2, 1)), ((1, 1, 2, 2), (4, 4, 0, 1))],
    [((1, 3, 1), (3, 1, 3)), ((2, 1, 3, 1), (0, 1, 12, 2))],
    [((1, 2, 1, 1), (2, 1, 2, 1)), ((3, 1, 1, 1, 2), (1, 6, 6, 6, 3))],
    [((2, 1, 1, 1), (1, 1, 1, 1)), ((2, 1, 2, 1), (2, 12, 1, 4))],
    [((1, 1, 3, 1, 1), (1, 1, 1, 1, 1)), ((1, 2, 3, 1, 1), (1, 1, 2, 6, 1))],
    [((1, 3, 1, 2), (1, 2, 6, 1)), ((2, 3, 1, 2), (0, 0, 2, 2))],
    [((1, 1, 1, 3), (1, 1, 1, 1)), ((1, 1, 3, 3), (3, 3, 9, 1))],
]
BINARY = {
    "maximum": torch.maximum,
    "mul": torch.mul,
    "where": lambda x, y: torch.where(x > 0, x, y),
    "l1_loss": lambda x, y: torch.nn.functional.l1_loss(x, y, reduction="none"),
    "huber_loss": lambda x, y: torch.nn.functional.huber_loss(x, y, reduction="none"),
    "frexp": lambda x, y: torch.frexp(x + y)[1],
    "polygamma": lambda x, y: torch.polygamma(1, x + y),
}


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("layouts", LAYOUTS, ids=str)
@pytest.mark.parametrize("name", BINARY)
def test_dimensions_of_one_count_with_their_strides(name, layouts):
    arguments = [torch.ones(1 + sum((n - 1) * s for n, s in zip(*x, strict=True))) for x in layouts]

    def laid_out(*flat):
        return [x.as_strided(*layout) for x, layout in zip(flat, layouts, strict=True)]

    expected = outcome(BINARY[name], laid_out(*arguments))
    got = []
    run = t2j(lambda *flat: got.append(outcome(BINARY[name], laid_out(*flat))))
    jax.eval_shape(run, *map(t2j, arguments))
    assert got == [expected]
