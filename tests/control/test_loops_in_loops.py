"""Loops on data within others, against PyTorch."""

import jax
import numpy as np
import pytest
import torch

from tests.control.test_conditions import QUICK
from torch2jax import t2j

INPUTS = [np.array(x, np.float32) for x in ([3, 1, 2], [0.5, 0.25, -1], [-9, 8, 5])]


def for_in_while(x):
    n = 0
    while n < 9 and x.norm() > 0.1:
        for _ in range(5):
            x = x / 2 + 0.01
            if x.norm() < 1:
                break
        n += 1
    return x, n


def for_in_for(x):
    for i in range(6):
        for _ in range(5):
            x = x / 2 + 0.01
            if x.norm() < 1:
                break
        x = x * 1.5 + i
    return x


def while_in_while(x):
    n = 0
    while x.abs().sum() < 1000:
        while x.norm() > 1:
            x = x / 2
        x = x * 30
        n += 1
        if n > 20:
            break
    return x


def solved(x):
    for _ in range(8):
        y = x / 2 + 0.01
        if (y - x).norm() < 0.1:
            break
        x = y
    return x


def of_functions(x):
    for i in range(7):
        x = solved(x) * 2 + i
        if x.norm() > 50:
            break
    return x


def three(x):
    for _ in range(4):
        for _ in range(4):
            for k in range(4):
                x = x * 0.9 + 0.1 * k
                if x.norm() < 1:
                    break
            x = x + 0.1
            if x.norm() < 0.5:
                break
        x = x * 2
    return x


def newton_with_a_line_search(x):
    for _ in range(20):
        slope, step = 4 * x**3, 1.0
        for _ in range(10):
            if ((x - step * slope) ** 4).sum() < (x**4).sum() - 0.1 * step * (slope * slope).sum():
                break
            step = step * 0.5
        x = x - step * slope
        if slope.norm() < 1e-3:
            break
    return x


def goes_on(x):
    for i in range(12):
        if x[0] > i:
            continue
        for _ in range(4):
            x = x * 0.8
            if x.norm() < 2:
                break
        x = x + i
    return x


def changes_strides(x):
    for _ in range(7):
        x = x.T.sin()
        for _ in range(9):
            if x.sum() < 1:
                break
            x = x * 0.5
        else:
            x = x + 1
    return x


def loops_on_three_paths(x):
    if x.sum() > 0:
        while x.norm() > 1:
            x = x / 2
    elif x.min() > -3:
        while x.norm() > 2:
            x = x / 3
    else:
        for _ in range(20):
            if x.norm() < 3:
                break
            x = x * 0.9
    return x


@pytest.mark.parametrize(
    ("function", "least"),
    [
        (for_in_while, 1),
        (for_in_for, 1),
        (while_in_while, 2),
        (of_functions, 1),
        (three, 1),
        (newton_with_a_line_search, 1),
        (goes_on, 1),
        (loops_on_three_paths, 3),
    ],
)
def test_loops_in_loops(function, least):
    jitted = jax.jit(t2j(function), compiler_options=QUICK)
    for x in INPUTS:
        wanted = jax.tree.map(np.asarray, function(torch.from_numpy(x)))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-4, 1e-5), jitted(x), wanted)
    assert str(jax.make_jaxpr(t2j(function))(INPUTS[0])).count(" while[") >= least


def test_strides_that_differ_from_iteration_to_iteration():
    x = np.array([[1, 2], [0.5, -1]], np.float32)
    got = jax.jit(t2j(changes_strides), compiler_options=QUICK)(x)
    np.testing.assert_allclose(got, changes_strides(torch.from_numpy(x)), 1e-5)
