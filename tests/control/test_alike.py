"""Values that are equal, and yet two: a side's own is kept, or the code is refused."""

import collections
import math
import weakref

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


def leaves(x):
    w = torch.ones(2, requires_grad=True)
    if x.sum() > 0:
        w = w * 2
    return x * 2 if w.is_leaf else x


def nodes(x):
    w = torch.ones(2, requires_grad=True)
    y = w * 1 if x.sum() > 0 else w
    return x * 2 if y.grad_fn is None else x * 3


class Counter:
    n = 0


def behind_a_proxy(x):
    counter = Counter()
    proxy = weakref.proxy(counter)
    if x.sum() > 0:
        proxy.n = proxy.n + x.sum()
    else:
        proxy.n = 3.0
    return x * counter.n


PROGRAMS = [ranges, factories, lengths_of_deques, tuples_with_attributes, zeros, sets, frozen_sets, slices]


@pytest.mark.parametrize("program", [*PROGRAMS, leaves, nodes, behind_a_proxy])
def test_each_side_has_its_own(program):
    agree_under_jit(program, INPUTS, 1e-6)
