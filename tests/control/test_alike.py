"""Values that are equal, and yet two: a side's own is kept, or the code is refused."""

import collections
import math

import pytest
import torch

from tests.control.test_conditions import agree_under_jit

INPUTS = [1.0, 2.0], [-1.0, -2.0]


class Sized(tuple):
    k = 0


ONE, OTHER = Sized((1,)), Sized((1,))
ONE.k, OTHER.k = 5, 7


def ranges(x):
    return x * (range(0, 3, 2) if x.sum() > 0 else range(0, 4, 2)).stop


def factories(x):
    found = collections.defaultdict(int, a=1) if x.sum() > 0 else collections.defaultdict(lambda: 5, a=1)
    return x * found["z"]


def lengths_of_deques(x):
    found = collections.deque([1, 2], maxlen=2) if x.sum() > 0 else collections.deque([1, 2], maxlen=3)
    found.append(5)
    return x * found[0]


def tuples_with_attributes(x):
    return x * (ONE if x.sum() > 0 else OTHER).k


def zeros(x):
    v = 0.0 if x.sum() > 0 else -0.0
    return torch.atan2(torch.tensor(v), torch.tensor(-1.0)) + x * math.copysign(1, v)


def sets(x):
    found = {1} if x.sum() > 0 else {1.0}
    return x * 2 if isinstance(next(iter(found)), int) else x * 3


def frozen_sets(x):
    found = frozenset({1}) if x.sum() > 0 else frozenset({1.0})
    return x * 2 if isinstance(next(iter(found)), int) else x * 3


def slices(x):
    found = slice(0, 2) if x.sum() > 0 else slice(False, 2)
    return x * 2 if found.start is False else x * 3


@pytest.mark.parametrize(
    "program",
    [ranges, factories, lengths_of_deques, tuples_with_attributes, zeros, sets, frozen_sets, slices],
)
def test_each_side_has_its_own(program):
    agree_under_jit(program, INPUTS, 1e-6)
