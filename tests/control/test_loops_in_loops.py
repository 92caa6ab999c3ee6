"""Loops on data within others: loops of the graph, found in a few runs of the code."""

import math

import jax
import numpy as np
import pytest
import torch

from tests.control.test_conditions import QUICK, Counted
from torch2jax import t2j
from torch2jax.errors import BranchError

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


FUNCTIONS = [for_in_while, for_in_for, while_in_while, of_functions, three, newton_with_a_line_search, goes_on]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_loops_in_loops(function):
    """As many runs as there are lines to learn from, not as there are paths through the iterations of the outer one."""
    counted = Counted(function)
    jitted = jax.jit(t2j(counted), compiler_options=QUICK)
    for x in INPUTS:
        wanted = jax.tree.map(np.asarray, function(torch.from_numpy(x)))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-4, 1e-5), jitted(x), wanted)
    assert counted.runs <= 60
    assert str(jax.make_jaxpr(t2j(function))(INPUTS[0])).count(" while[") >= 1


LONG = "\n".join(f"        x = x * {1 - i / 1000} + math.sin({i})" for i in range(40))
LONG_LOOPS = f"""
def long_for(x):
    for i in range(30):
{LONG}
        if x.norm() < 20:
            break
    return x, i

def long_while(x):
    n = 0
    while x.norm() > 20:
{LONG}
        n += 1
        if n > 30:
            break
    return x, n
"""


@pytest.mark.parametrize("name", ["long_for", "long_while"])
def test_long_loops(name):
    """Python puts a prefix before the jumps of long loops, and does not tell of each instruction by itself."""
    names = {"math": math}
    exec(LONG_LOOPS, names)
    test_loops_in_loops(names[name])


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


def test_it_shows_soon_that_there_are_too_many_paths():
    """The outer loop is none of the graph, and the inner one is found on each path through it: that took 740 runs."""
    counted = Counted(changes_strides)
    with pytest.raises(BranchError, match="other strides"):
        jax.jit(t2j(counted))(np.ones((2, 2), np.float32))
    assert counted.runs < 120


def test_what_is_learned_of_a_loop_leaves_other_paths():
    """These are not gone anew: 27 runs if they were."""
    counted = Counted(loops_on_three_paths)
    compiled = jax.jit(t2j(counted), compiler_options=QUICK)
    for x in INPUTS:
        np.testing.assert_allclose(compiled(x), loops_on_three_paths(torch.from_numpy(x)), 1e-5)
    assert counted.runs < 25
