"""Corners of Python: right, or refused by name."""

import itertools

import jax
import numpy as np
import pytest

from tests.control.programs import corners, flow
from torch2jax import t2j
from torch2jax.errors import BranchError


@pytest.mark.parametrize("name", corners.NAMES)
def test_corners(name):
    found = flow.run(name, limit=5)
    assert found.kind in ("right", "refused"), found.text


def test_an_iterator_from_outside_is_not_read_twice():
    """The run that meets the first condition has read from it, and nobody can put it back."""
    numbers = itertools.count(1)

    def before(x):
        n = next(numbers)
        return x * n if x.sum() > 0 else -x

    def behind(x):
        x = x * 2 if x.sum() > 0 else -x
        return x * next(numbers)

    x = np.ones(3, np.float32)
    with pytest.raises(BranchError, match=r"\(count\) from outside is read or written to before .* Make it in"):
        jax.jit(t2j(before))(x)
    at = next(numbers)
    np.testing.assert_array_equal(jax.jit(t2j(behind))(x), 2 * (at + 1))
