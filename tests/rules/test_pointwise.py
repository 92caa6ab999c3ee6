"""Pointwise operators of operands in any layout: shape, strides and dtype of the result are PyTorch's."""

import math

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
    held = [sizes[dim] * (step if i == rank - 1 else 1) for i, dim in enumerate(order)]
    x = torch.arange(math.prod(held)).reshape(held).to(draw(dtypes))
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
