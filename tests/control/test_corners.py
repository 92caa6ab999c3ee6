"""Corners of Python: right, or refused by name."""

import itertools

import jax
import numpy as np
import pytest
import torch

from tests.control.programs import corners, flow
from torch2jax import t2j
from torch2jax.runtime.errors import BranchError


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


def catches_all(x):
    """Its handler would take an error of the translation for the program's own."""
    parts = [x.clone(), x * 2, x * 3]
    number = 0 if x.sum() > 0 else 2
    try:
        parts[number].add_(1)
    except Exception:
        parts.append(x * 0)
    return parts


def catches_what_leaves_pytorch(x):
    try:
        return x * float(x.numpy().sum())
    except TypeError:
        return x * 0


def catches_what_c_code_says_of_a_number(x):
    grad = True if x.sum() > 0 else False  # noqa: SIM210 - a bool of Python's
    try:
        with torch.set_grad_enabled(grad):
            return x.sort(descending=grad).values, x.new_ones(2) * torch.is_grad_enabled()
    except TypeError:
        return x * 0, x[:2] * 0


def test_a_handler_that_catches_all_sees_no_error_of_the_translation():
    for sign in (1.0, -1.0):
        x = np.array([1, 3, 2], np.float32) * sign
        for function in (catches_all, catches_what_c_code_says_of_a_number):
            wanted = function(torch.from_numpy(x))
            for got, want in zip(jax.jit(t2j(function))(x), wanted, strict=True):
                np.testing.assert_allclose(got, want)
    with pytest.raises(TypeError, match="numpy"):
        jax.jit(t2j(catches_what_leaves_pytorch))(x)
