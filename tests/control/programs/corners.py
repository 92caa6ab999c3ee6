"""Corners of Python that an engine for control flow gets wrong in silence: each has failed once."""

import collections
import contextlib
import functools
import operator
import random
import weakref

import numpy as np
import torch

from tests.control.programs.table import PROGRAMS, program

XS = [torch.tensor(x) for x in ([1.0, 2.0, 3.0], [-1.0, -2.0, -3.0], [5.0, -1.0, 2.0])]
corner = program(*XS)
_BEFORE = set(PROGRAMS)


class Point:
    def __init__(self, h):
        self.h = h


# Exceptions of C's that are caught around a condition.


@corner
def missing_key_on_one_side(x):
    try:
        y = {}["k"] if x.sum() > 0 else x
    except KeyError:
        y = x * 100
    return y


@corner
def missing_key_that_is_suppressed(x):
    y = x * 100
    with contextlib.suppress(KeyError):
        if x.sum() > 0:  # noqa: SIM108 - a statement, as the one above is none
            y = {}["k"]
        else:
            y = x
    return y


@corner
def attribute_of_a_property_on_one_side(x):
    class Lazy:
        @property
        def v(self):
            if x.sum() > 0:
                return self.nowhere
            return x

    return getattr(Lazy(), "v", x * 7)


# Loops that end on data, over what changes meanwhile.


@corner
def list_that_the_loop_writes_to(x):
    values = [x, x * 2, x * 3, x * 4]
    for i, v in enumerate(values):
        if v.sum() > 15:
            break
        if i < 3:
            values[i + 1] = values[i + 1] + v
    return v


@corner
def generator_that_reads_what_the_loop_sets(x):
    h = x

    def steps():
        for i in range(5):
            yield h * i

    for v in steps():
        h = h + v
        if h.sum() > 10:
            break
    return h


@corner
def rest_of_an_iterator(x):
    left = iter([x, x * 2, x * 3])
    for v in left:
        if v.sum() > 7:
            break
    return v + next(left, x * 100)


@corner
def generator_that_counts(x):
    count = 0

    def counted():
        nonlocal count
        for i in range(5):
            count += 1
            yield x * i

    for v in counted():
        if v.sum() > 5:
            break
    return v, count


@corner
def any_that_stops(x):
    seen = []

    def check(v):
        seen.append(1)
        return v.sum() > 4

    found = any(check(v) for v in (x, x * 2, x * 3))
    return x * len(seen) + found


# Bools that data decide are Python's.


@corner
def bool_is_true(x):
    flag = bool(x.sum() > 0)
    if flag is True:
        return x
    return x * 3


@corner
def bools_are_added(x):
    return x * (bool(x[0] > 0) + bool(x[1] > 0)) + (not x[2] > 0)


@corner
def bool_is_counted(x):
    count = False
    for v in x:
        count += bool(v > 0)
    return x * count


@corner
def bool_has_a_second_name(x):
    flag = False
    if x[0] > 0:
        flag = True
    old = flag
    flag &= bool(x[1] > 0)
    return x * old + flag


@corner
def bool_by_its_type(x):
    flag = False
    if x.sum() > 0:
        flag = True
    return x if isinstance(flag, bool) else x * 3


# Numbers and tensors, objects and their identity.


@corner
def number_or_tensor_added_to(x):
    total = 0.0
    if x.sum() > 0:
        total = total + x.sum()
    before = total
    total += 1
    return x * before + total


@corner
def chosen_object_is_equal_to_itself(x):
    p, q = Point(x), Point(x * 2)
    best = p if x.sum() > 0 else q
    return best.h + (10 if best == p else 0) + (100 if best in [p] else 0) + {p: 1, q: 2}.get(best, 7)


@corner
def chosen_tensor_as_a_key(x):
    p, q = x * 1, x * 2
    best = p if x.sum() > 0 else q
    return best + {p: 5}.get(best, 1)


@corner
def attribute_by_two_names(x):
    p = Point(x)
    if x.sum() > 0:
        p.h = x * 2
    else:
        p.__dict__["h"] = x * 3
    return p.h


@corner
def attribute_on_one_side(x):
    p = Point(x)
    if x.sum() > 0:
        p.n = x * 2
    return x * ("n" in p.__dict__) + len(vars(p))


@corner
def chosen_object_written_by_its_dictionary(x):
    p, q = Point(x), Point(x * 2)
    best = p if x.sum() > 0 else q
    best.__dict__["h"] = x * 5
    return p.h + q.h


@corner
def property_that_a_class_overrides(x):
    class Base:
        @property
        def b(self):
            return x * 5

    class Sub(Base):
        b = None

    y = x if Sub().b is None else x * 2
    return y + 1 if x.sum() > 0 else y


# What C writes to.


@corner
def bound_method_given_to_map(x):
    out = []
    if x.sum() > 0:
        list(map(out.append, [1]))
    return x * len(out)


@corner
def method_by_its_name(x):
    out = []
    if x.sum() > 0:
        operator.methodcaller("append", 1)(out)
    return x * len(out)


@corner
def list_extended_by_a_tensor(x):
    values = [x[0]]
    old = values
    if x.sum() > 0:
        values += x
    return x * len(old)


@corner
def weak_dictionary(x):
    key = Point(x)
    held = weakref.WeakKeyDictionary()
    if x.sum() > 0:
        held[key] = 2
    return x * len(held)


@corner
def numpy_added_at(x):
    counts = np.zeros(2)
    if x.sum() > 0:
        np.add.at(counts, [0, 0], 1)
    return x + float(counts[0])


@corner
def keys_reordered(x):
    values = collections.OrderedDict(a=1.0, b=2.0)
    if x.sum() > 0:
        values.move_to_end("a")
    return x * next(iter(values.values()))


# The order in which Python does things.


@corner
def assigned_in_order(x):
    values, i = [x, x * 2, x * 3], 0
    values[i], i = x * 5, 1
    values[i] = i = 2
    if x.sum() > 0:
        i += 1
    return values[0] + i


@corner
def added_to_what_the_value_changes(x):
    values = [1.0]

    def change():
        values[0] = 10.0
        return 5.0

    values[0] += change()
    if x.sum() > 0:
        values[0] += 1
    return x * values[0]


@corner
def return_that_finally_takes_back(x):
    y = x
    try:
        try:
            return y
        finally:
            raise KeyError
    except KeyError:
        y = y * 10
    if x.sum() > 0:
        y = y + 5
    return y + 1


@corner
def keywords_of_a_function(x):
    def scaled(z, **options):
        by = options.pop("by")
        return z * by

    y = scaled(x, by=x * 2) if x.sum() > 0 else scaled(x, by=x * 3)
    return y


@corner
def rest_of_an_unpacking(x):
    if x.sum() > 0:
        first, *rest = [x, x * 2, x * 3]
        rest.append(x * 4)
    else:
        first, *rest = [x * 5, x, x, x]
    return first + sum(rest)


@corner
def annotations_that_a_library_reads(x):
    @functools.singledispatch
    def double(v):
        return v * 3

    @double.register
    def _(v: torch.Tensor):
        return v * 2

    return double(x) if x.sum() > 0 else double(2.0) * x


# Memory.


@corner
def detached_and_written_to(x):
    c = x * 1
    b = c.detach()
    if x.sum() > 0:
        c[x > 1.5] = 0.25
    else:
        b.copy_(x * 0.5)
    return c


@corner
def shared_by_both_names(x):
    a = x.clone()
    b = a if x.sum() > 0 else a + 0
    b.add_(1)
    a.mul_(2)
    return a, b


"""The programs of this file."""


# What has run once before the first condition is met, and what is behind that.


@corner
def random_numbers_of_pythons_before_a_condition(x):
    random.seed(3)
    first = random.random()
    return (x * first if x.sum() > 0 else -x) + random.random()


@corner
def detached_tensor_that_one_side_alone_returns(x):
    while True:
        x = x.detach()
        if x.norm() < 1:
            return x.detach()
        x = x / 2


@corner
def second_derivative_behind_a_condition(x):
    leaf = x.detach().clone().requires_grad_()
    y = (leaf**3).sum() if leaf[0] > 0 else leaf.sin().sum()
    (slope,) = torch.autograd.grad(y, leaf, create_graph=True)
    assert slope.requires_grad
    return torch.autograd.grad(slope.sum(), leaf)[0]


@corner
def list_with_what_one_side_alone_has(x):
    if x.sum() > 0:
        y, z = x * 2, x[:1]
    else:
        y, z = x * 3, x
    return torch.cat([y, z]).sum()


NAMES = sorted(set(PROGRAMS) - _BEFORE)
