"""Exceptions that data raise somewhere in an expression or a loop, and that code around it catches: as in PyTorch."""

import pytest
import torch

from tests.control.test_conditions import agree_under_jit

INPUTS = [3, 4, -1, 2], [-3, -4, 1, 0.5], [0.1, 0.2, 0.05, 1], [3, -0.2, 3, 0]


class TooSmall(Exception):
    pass


def checked(v):
    if v < 1:
        raise TooSmall
    return v


def in_an_if(x):
    if x[0] > 0:
        if x[2] < 1:
            raise TooSmall
        return x + 1
    return x


def in_three_ifs(x):
    if x[0] > 0:
        if x[1] > 0:
            if x[2] < 1:
                raise TooSmall
            x = x + 1
        x = x + 2
    return x


def behind_and(x):
    return x + 1 if x[0] > 0 and checked(x[2]) > 1 else x


def behind_or(x):
    return x + 1 if x[0] > 0 or checked(x[1]) > 1 else x


def behind_not(x):
    return x + 1 if not (x[0] > 0 and checked(x[2]) > 1) else x


def in_a_conditional_expression(x):
    return x[3] if x[0] > 3.5 else checked(x[2]) if x[1] > 0 else x[1]


def in_an_argument(x):
    return torch.abs(checked(x[2]) if x[0] > 0 else x[1])


def in_a_lambda(x):
    function = lambda v: checked(v) if v < 1 else v
    return function(x[0])


def in_a_list(x):
    return torch.stack([checked(v) if v < 1 else v * 0 for v in x])


def in_a_dictionary(x):
    return {i: (checked(v) if v < 1 else v) for i, v in enumerate(x)}[1]


def in_any(x):
    return x + 1 if any(v > 3.5 or checked(v) > 100 for v in x) else x


def in_all(x):
    return x + 1 if all(checked(v) < 3.5 for v in x) else x


def in_sum(x):
    return sum(checked(v) if v < 1 else v for v in x)


def in_the_test_of_a_loop(x):
    i = 0
    while i < 4 and checked(x[i]) >= 0:
        i += 1
    return x + i


def behind_or_of_values(x):
    first = lambda v: v if v > 0 else None
    return first(x[0]) or first(x[1]) or checked(x[2])


def in_an_assertion(x):
    def positive(v):
        assert v > 0
        return v

    return x + 1 if x[0] > 0 and positive(x[2]) else x


PROGRAMS = [
    in_an_if,
    in_three_ifs,
    behind_and,
    behind_or,
    behind_not,
    in_a_conditional_expression,
    in_an_argument,
    in_a_lambda,
    in_a_list,
    in_a_dictionary,
    in_any,
    in_all,
    in_sum,
    in_the_test_of_a_loop,
    behind_or_of_values,
    in_an_assertion,
]


def caught(program):
    def call(x):
        try:
            return program(x).sum()
        except (TooSmall, AssertionError):
            return x.sum() * 100

    return call


@pytest.mark.parametrize("program", PROGRAMS)
def test_jitted_as_in_pytorch(program):
    agree_under_jit(caught(program), INPUTS, 1e-5)


class UntilNegative:
    def __init__(self, x):
        self.x = x

    def __next__(self):
        if self.x[0] < 0:
            raise StopIteration
        return self.x[0]

    @property
    def positive(self):
        if self.x[0] < 0:
            raise AttributeError("positive")
        return self.x[0]

    def __getattr__(self, name):
        return self.x[1] * 100


def protocol_of_iterators(x):
    return next(UntilNegative(x), x[1])


def protocol_of_attributes(x):
    return UntilNegative(x).positive


def protocol_of_sequences(x):
    class Sequence:
        def __getitem__(self, i):
            if i >= 4 or x[i] < 0:
                raise IndexError
            return i

    return x.sum() + len(list(Sequence())) + 10 * (3 in Sequence())


def generator_that_a_loop_leaves(x):
    log = []

    def rows():
        try:
            yield from x
        finally:
            log.append(1)

    for v in rows():
        if v < 0:
            break
    return v + len(log)


def mode_of_a_generator(x):
    def rows():
        with torch.no_grad():
            yield from x

    for i, _ in enumerate(rows()):
        if i == 1:
            break
    total = (x * x).sum() if x[0] > 0 else x.sum()
    return total + torch.is_grad_enabled()


def name_of_one_side(x):
    if x[0] > 0:
        y = x * 2
    try:
        return y.sum()
    except NameError:
        return x.sum()


@pytest.mark.parametrize(
    "program",
    [
        protocol_of_iterators,
        protocol_of_attributes,
        protocol_of_sequences,
        generator_that_a_loop_leaves,
        mode_of_a_generator,
        name_of_one_side,
    ],
)
def test_protocols_of_python(program):
    agree_under_jit(program, INPUTS, 1e-5)
