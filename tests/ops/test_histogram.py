"""Histograms and counts."""

import jax
import pytest
import torch

from tests.ops.database import compare, compare_trees
from torch2jax import TracedValueError, t2j


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.bincount(x),
        lambda x: torch.bincount(x, minlength=9),
        lambda x: x.bincount(torch.tensor([0.5, 1, 2, 3])),
        lambda x: torch.bincount(x[:0]),
    ],
)
def test_bincount(function):
    x = torch.tensor([1, 4, 1, 0])
    compare_trees(t2j(function)(x), function(x))


def test_bincount_of_a_traced_input_says_that_it_needs_values():
    with pytest.raises(TracedValueError):
        jax.jit(t2j(torch.bincount))(t2j(torch.tensor([1, 2])))
    compare(
        jax.jit(t2j(lambda w: torch.bincount(torch.tensor([1, 1]), w)))(t2j(torch.ones(2))), torch.tensor([0.0, 2.0])
    )


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_bincount_of_a_batch():
    def counted(x, w):
        return torch.vmap(torch.bincount)(x), torch.vmap(lambda x, w: torch.bincount(x, w, 5))(x, w)

    x, w = torch.tensor([[0, 1, 1], [1, 0, 0]]), torch.tensor([[1.0, 2, 3], [4, 5, 6]])
    compare_trees(t2j(counted)(t2j(x), t2j(w)), counted(x, w))


def test_bincount_refuses_negative_numbers():
    with pytest.raises(RuntimeError, match="non-negative"):
        t2j(torch.bincount)(torch.tensor([-1]))
