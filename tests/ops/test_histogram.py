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


X = torch.tensor([3, 7, 1, 0, -5, 3, 200])


def _bounded(x):
    x = x.clone()
    x[x >= 4] = 3
    x[x < 0] = 0
    return x


BOUNDED = {
    "remainder": lambda x: torch.bincount(x % 4, minlength=4),
    "clamp": lambda x: torch.bincount(x.clamp(0, 3), minlength=6),
    "and": lambda x: torch.bincount(x & 3, minlength=4),
    "rows": lambda x: torch.bincount(torch.stack([x, x + 1]).clamp(0, 3).unbind()[1], minlength=4),
    "chunks": lambda x: torch.bincount((x % 4).chunk(3)[1], minlength=4),
    "bool": lambda x: torch.bincount((x > 2).long(), minlength=2),
    "argmax": lambda x: torch.bincount(x[:6].float().reshape(2, 3).argmax(1), minlength=3),
    "bytes": lambda x: torch.bincount(x.to(torch.uint8), minlength=256),
    "written": lambda x: torch.bincount(_bounded(x), minlength=4),
    "codes": lambda x: torch.bincount(x % 2 * 2 + (x > 3).long(), minlength=4),
    "places": lambda x: torch.bincount(torch.arange(7)[x % 7], minlength=7),
    "where": lambda x: torch.bincount(torch.where(x > 3, 1, 0), minlength=2),
    "quotient": lambda x: torch.bincount(x.clamp(0, 9) // 3, minlength=4),
    "sorted": lambda x: torch.bincount(torch.cat([x % 4, x % 3]).sort()[0], minlength=4),
    "weights": lambda x: torch.bincount(x % 4, x.float(), minlength=4),
    "chosen": lambda x: torch.bincount((x % 4)[x > 1], minlength=4),
    "weights chosen": lambda x: torch.bincount((x % 4)[x > 1], x[x > 1].float(), minlength=4),
}


def test_bincount_of_values_that_are_seen_to_be_less_than_minlength():
    def all_of(x):
        return [function(x) for function in BOUNDED.values()]

    compare_trees(jax.jit(t2j(all_of))(t2j(X)), all_of(X))


def test_bincount_of_as_many_numbers_as_data_decide():
    def all_of(x):
        return (
            torch.bincount(x % 5, minlength=4),
            torch.bincount(x % 4),
            torch.bincount(x % 4 * 2, minlength=4),
            torch.bincount(x % 7, x.float()),
            torch.bincount((x % 7)[x > 1], minlength=2),
        )

    found = jax.jit(t2j(all_of))(t2j(X))
    compare_trees(tuple(x.compact() for x in found), all_of(X))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.bincount(x, minlength=4),
        lambda x: torch.bincount(x.clamp(max=3), minlength=4),
        lambda x: torch.bincount(torch.where(x < 4, x.flip(0), 0).clamp(min=0), minlength=4),
    ],
)
def test_bincount_of_values_that_may_be_more_is_refused(function):
    with pytest.raises(TracedValueError, match="number of results of torch"):
        jax.jit(t2j(function))(t2j(X))
