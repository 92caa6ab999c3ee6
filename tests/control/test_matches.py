"""`match` statements whose subjects data decide, and other ways to compare: as in PyTorch."""

import dataclasses
import enum
import operator

import pytest

from tests.control.test_conditions import agree_under_jit

INPUTS = [1, 2, 0.5], [-1, -2, 0.25], [3, -1, 2.5], [0.3, -0.2, 0.1]


class Mode(enum.Enum):
    UP = 1
    DOWN = 2


def a_bool(x):
    match bool(x.sum() > 0):
        case True:
            return x * 2
        case _:
            return x * 3


def a_bool_and_its_other_value(x):
    match x[0].item() > 0.5:
        case False:
            x = x - 1
        case True:
            x = x * x
    return x


def an_enum(x):
    mode = Mode.UP if x.sum() > 0 else Mode.DOWN
    match mode:
        case Mode.UP:
            return x
        case Mode.DOWN:
            return x * 2


def an_enum_in_a_loop(x):
    mode = Mode.UP
    for _ in range(4):
        match mode:
            case Mode.UP:
                x = x + 1
                mode = Mode.DOWN if x.sum() > 3 else Mode.UP
            case Mode.DOWN:
                x = x * 0.5
                mode = Mode.UP
    return x


def an_integer(x):
    match int(x.sum()):
        case 3:
            return x
        case 4 | -2:
            return x * 2
        case n if n < 0:
            return x - n
        case n:
            return x + n


def a_number_and_its_name(x):
    match x.argmax().item():
        case 0 | 1 as k:
            return x * (k + 2)
        case k:
            return x - k


def a_text(x):
    name = "low" if x.sum() < 1 else "high"
    match name:
        case "low":
            x = x + 1
        case "high":
            x = x - 1
        case _:
            raise ValueError(name)
    return x


def none(x):
    found = None if x[0] < 0 else x * 2
    match found:
        case None:
            return x
        case _:
            return found + 1


def a_guard(x):
    match x.shape[0]:
        case 3 if x.sum() > 0:
            return x * 2
        case 3:
            return x * 3
    return x


def in_a_loop_that_it_leaves(x):
    for i in range(5):
        match bool(x.sum() > 10):
            case True:
                break
            case False:
                x = x.abs() * 2 + i
    return x


def no_case(x):
    match int(x[0]):
        case 7:
            x = x * 100
    return x


def parts(x):
    match (len(x), x[0].item()):
        case (3, y) if y > 0:
            return x * y
        case (_, y):
            return x - y


def flags_in_parts(x):
    match (bool(x.sum() > 0), x):
        case (True, y):
            return y * 2
        case (False, y):
            return y * 3


def modes_in_parts(x):
    mode = Mode.UP if x.sum() > 0 else Mode.DOWN
    match (mode, x):
        case (Mode.UP, y):
            return y * 2
        case (_, y):
            return y * 3


@dataclasses.dataclass
class Step:
    is_up: bool
    size: float


def flags_of_objects(x):
    match Step(bool(x.sum() > 0), x[0].item()):
        case Step(is_up=True, size=s):
            return x * s
        case Step(size=s):
            return x - s


def flags_of_dictionaries(x):
    match {"is up": bool(x.sum() > 0), "n": 2}:
        case {"is up": True, "n": n}:
            return x * n
        case {"n": n}:
            return x - n


def of_classes(x):
    match x.tolist():
        case [a, b, c]:
            return x * a + b - c
        case _:
            return x


def by_operators(x):
    b = bool(x.sum() > 0)
    y = x * 2 if operator.is_(b, True) else x * 3
    y = y + 1 if operator.is_not(b, False) else y - 1
    y = y * 5 if operator.not_(x[0] > 0) else y
    y = y + 7 if operator.truth(x[1] > 0) else y
    return y - 2 if operator.contains([1, 2], int(x[0])) else y


PROGRAMS = [
    a_bool,
    a_bool_and_its_other_value,
    an_enum,
    an_enum_in_a_loop,
    an_integer,
    a_number_and_its_name,
    a_text,
    none,
    a_guard,
    in_a_loop_that_it_leaves,
    no_case,
    parts,
    flags_in_parts,
    modes_in_parts,
    flags_of_objects,
    flags_of_dictionaries,
    of_classes,
    by_operators,
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_jitted_as_in_pytorch(program):
    agree_under_jit(program, INPUTS, 1e-5)
