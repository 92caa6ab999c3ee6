"""The strides of what subscripts read: PyTorch's, whatever the strides of the tensor and of the indices."""

import itertools

import jax
import pytest
import torch

from torch2jax import t2j

ROWS, MATRIX = torch.tensor([1, 0]), torch.tensor([[0, 1, 2], [2, 1, 0]])
COLUMNS = torch.tensor([[1, 0, 1], [0, 0, 1]]).t()  # which is not contiguous
READS = {
    "first": lambda y: y[ROWS],
    "second": lambda y: y[:, ROWS],
    "last": lambda y: y[..., ROWS],
    "matrix": lambda y: y[:, MATRIX],
    "not contiguous": lambda y: y[:, COLUMNS],
    "several": lambda y: y[ROWS, :2, ROWS],
    "several orders": lambda y: y[:, COLUMNS, MATRIX.T],
    "apart": lambda y: y[ROWS, None, :, ROWS],
    "outer": lambda y: y[:, ROWS[:, None], torch.tensor([0, 1, 2])],
    "list": lambda y: y[[-1, 0]],
    "mask": lambda y: y[torch.arange(len(y)) > 0],
    "mask of two dimensions": lambda y: y[torch.eye(*y.shape[:2]).bool()],
    "nothing": lambda y: y[:, ROWS[:0]],
    "one": lambda y: y[:, :1, None][ROWS, ..., ROWS[:1]],
    "expanded": lambda y: y[:1].expand(2, -1, -1)[:, ROWS],
    "by ATen": lambda y: torch.ops.aten._unsafe_index(y, [None, ROWS]),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_strides_of_reads(read):
    def geometries(x):
        results = [read(x.permute(order)) for order in itertools.permutations(range(3))]
        return [(tuple(y.shape), y.stride()) for y in results]

    x, got = torch.randn(5, 4, 3), []
    jax.make_jaxpr(t2j(lambda x: got.append(geometries(x))))(t2j(x))
    assert got == [geometries(x)]


def test_what_is_read_is_viewed_where_pytorch_views_it():
    def view(x):
        return x.mT[[1, 0]].view(2, -1)

    x = torch.randn(2, 3, 4)
    for function in (view, t2j(view)):
        with pytest.raises(RuntimeError, match="view size is not compatible"):
            function(x if function is view else t2j(x))
