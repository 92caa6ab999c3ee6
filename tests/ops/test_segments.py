"""Reductions of consecutive segments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from tests.ops.database import Trial, cases, entries
from torch2jax import t2j

NAMES = ["_segment_reduce.lengths", "_segment_reduce.offsets"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("place", range(0, 90, 29))
def test_database(name, place):
    for op in entries(name):
        Trial("values", cases(op, torch.float32)[place])()
        Trial("gradients", cases(op, torch.float32, requires_grad=True)[place])()


@pytest.mark.parametrize("reduce", ["sum", "mean", "prod", "max", "min"])
def test_without_an_initial_value(reduce):
    data, lengths = torch.tensor([3.0, 1.0, 4.0, 1.0, 5.0]), torch.tensor([2, 0, 3])
    expected = torch.segment_reduce(data, reduce, lengths=lengths)
    function = t2j(lambda data, lengths: torch.segment_reduce(data, reduce, lengths=lengths))
    for transformed in (function, jax.jit(function)):
        np.testing.assert_array_equal(np.asarray(transformed(t2j(data), t2j(lengths))), expected.numpy())


@pytest.mark.parametrize("initial", [None, 4.0])
@pytest.mark.parametrize("reduce", ["max", "min", "prod"])
def test_gradients_go_to_nans_and_are_shared_in_ties(reduce, initial):
    nan = float("nan")
    data = torch.tensor([[4.0, nan, 5.0, nan, 2.0, 4.0, 0.0, 9.0], [1.0, 1.0, nan, 4.0, 4.0, 3.0, 5.0, 5.0]])
    lengths, weights = torch.tensor([[1, 3, 3, 0, 1], [2, 1, 3, 2, 0]]), torch.arange(1.0, 11).reshape(2, 5)
    theirs = data.clone().requires_grad_(True)
    expected = torch.segment_reduce(theirs, reduce, lengths=lengths, axis=-1, initial=initial)
    (expected * weights).sum().backward()
    function = t2j(lambda x: torch.segment_reduce(x, reduce, lengths=lengths, axis=-1, initial=initial))

    def weighted(x):
        y = function(x)
        return (y * t2j(weights)).sum(), y

    gradient, result = jax.jit(jax.grad(weighted, has_aux=True))(t2j(data))
    np.testing.assert_array_equal(np.asarray(result), expected.detach().numpy())
    np.testing.assert_array_equal(np.asarray(gradient), theirs.grad.numpy())


def test_lengths_must_fill_the_axis():
    lengths = torch.tensor([2, 2])
    with pytest.raises(RuntimeError, match="lengths"):
        t2j(lambda x: torch.segment_reduce(x, "sum", lengths=lengths))(jnp.ones(5))
    assert t2j(lambda x: torch.segment_reduce(x, "sum", lengths=lengths, unsafe=True))(jnp.ones(5)).tolist() == [2, 2]


def test_unknown_reductions_are_refused():
    with pytest.raises(RuntimeError, match="median"):
        t2j(lambda x: torch.segment_reduce(x, "median", lengths=torch.tensor([5])))(jnp.ones(5))
