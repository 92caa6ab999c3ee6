"""Lists of traced numbers as subscripts, identity, text, and iterators read as far as data say: as in PyTorch."""

import contextvars
import enum
import json
import os
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from tests.control.test_conditions import agree_under_jit
from torch2jax import TracedValueError, t2j

V = contextvars.ContextVar("V", default=1.0)
INPUTS = [1, 2, 0.5], [-1, -2, 0.25], [3, -1, 2.5]


def mask_of_bools(x):
    return x[[bool(v > 0) for v in x]].sum()


def mask_that_conditions_write(x):
    m = [True] * 3
    for i in range(3):
        if x[i] < 0:
            m[i] = False
    return x[m].sum()


def mask_with_known_bools(x):
    b = bool(x.sum() > 0)
    return x[[b, False, True]].sum()


def write_by_a_mask_of_bools(x):
    y = x.clone()
    y[[bool(v > 0) for v in x]] = 7
    return y


def indices(x):
    k = int((x > 0).sum()) - 1
    return x[[k, 0]]


def rows_by_indices(x):
    M = x[:, None] * torch.ones(3)
    return M[[t.item() for t in x.argsort()]]


def any_of_an_expression_that_writes(x):
    tried = []

    def ok(v):
        tried.append(v)
        return v < 0

    any(ok(v) for v in x)
    return x * len(tried)


def all_of_a_map_that_writes(x):
    n = [0]

    def g(v):
        n[0] += 1
        return v > 0

    all(map(g, x))
    return x * n[0]


def any_of_an_iterator_that_is_read_on(x):
    it = iter([x[0] < 0, x[1] < 0, x[2] < 0])
    r = any(it)
    return x * len(list(it)) + (1 if r else 5)


def any_of_an_expression(x):
    return x * 2 if any(v > 2 for v in x) else x


def all_of_a_map(x):
    return x * 2 if all(map(torch.signbit, -x)) else x


def is_of_a_chosen_list(x):
    a = [x]
    b = a if x.sum() > 0 else [x * 2]
    return x * (2 if a is b else 3)


def is_of_a_list_that_one_side_replaces(x):
    D = []
    b = D
    if x.sum() > 0:
        b = []
    return x * (2 if b is D else 3)


def id_of_a_chosen_list(x):
    a = [1.0]
    b = [2.0]
    o = a if x.sum() > 0 else b
    return x * (2 if id(o) == id(a) else 3)


def is_of_a_chosen_tuple(x):
    a, b = (x, 1), (x * 2, 2)
    c = a if x.sum() > 0 else b
    return x + 1 if c is a else x - 1


def equality_of_lists_of_objects(x):
    a, b = Plain(), Plain()
    found = [[a]] if x.sum() > 0 else [[b]]
    return x + 1 if found == [[a]] else x - 1


def memory_of_a_chosen_tensor(x):
    a, b = torch.zeros(2), torch.ones(2)
    c = a if x.sum() > 0 else b
    return x + 1 if c.data_ptr() == a.data_ptr() else x - 1


def any_of_a_generator_that_is_read_on(x):
    g = (v > 0 for v in x)
    return x + 1 + len(list(g)) if any(g) else x


def text_of_a_tuple(x):
    k = 3 if x.sum() > 0 else 100
    return x * {"(3, 0)": 1.0, "(100, 0)": 2.0}.get(str((k, 0)), 50.0)


def text_of_a_chosen_list(x):
    m = ["a"] if x.sum() > 0 else ["b"]
    return x * {"k=['a']": 1.0, "k=['b']": 2.0}.get(f"k={m}", 50.0)


def context_variable_that_is_reset(x):
    t = V.set(2.0)
    y = x * 2 if x.sum() > 0 else x
    V.reset(t)
    return y * V.get()


def set_of_a_chosen_tensor(x):
    a = x * 2
    b = a if x.sum() > 0 else x * 3
    return sum({a, b}) * len({a: 1, b: 2})


class Plain:
    pass


def set_of_a_chosen_object(x):
    a, b = Plain(), Plain()
    o = a if x.sum() > 0 else b
    return x * len({a, o})


def array_that_is_a_chosen_view(x):
    a = np.zeros((2, 3))
    row = a[0]
    if x.sum() > 0:
        row = a[1]
    row[:] = 3
    return x * float(a[0].sum()) + float(a[1].sum()) * 2


def array_of_each_side(x):
    row = np.ones(3) if x.sum() > 0 else np.zeros(3) + 1
    row[0] = 2
    return x * float(row.sum())


def chosen_text_in_a_library(x):
    s = "ab" if x.sum() > 0 else "cde"
    return x * len(os.path.join("r", s)) * (2 if re.match("a", s) else 3) * len(json.dumps({"a": s}))


def kind_of_a_chosen_value(x):
    value = 1.5 if x.sum() > 0 else "a"
    return x * (2 if np.isscalar(value) else 3)


def chosen_iterator(x):
    it = iter([x, x * 2]) if x.sum() > 0 else iter([x * 3])
    return next(it)


def padding_by_a_number(x):
    return torch.nn.functional.pad(x, [1, 1], value=x[0].item())


PROGRAMS = [
    mask_of_bools,
    mask_that_conditions_write,
    mask_with_known_bools,
    write_by_a_mask_of_bools,
    indices,
    rows_by_indices,
    any_of_an_expression_that_writes,
    all_of_a_map_that_writes,
    any_of_an_iterator_that_is_read_on,
    any_of_an_expression,
    all_of_a_map,
    is_of_a_chosen_list,
    is_of_a_list_that_one_side_replaces,
    id_of_a_chosen_list,
    is_of_a_chosen_tuple,
    equality_of_lists_of_objects,
    memory_of_a_chosen_tensor,
    any_of_a_generator_that_is_read_on,
    text_of_a_tuple,
    text_of_a_chosen_list,
    context_variable_that_is_reset,
    set_of_a_chosen_tensor,
    set_of_a_chosen_object,
    array_that_is_a_chosen_view,
    array_of_each_side,
    chosen_text_in_a_library,
    kind_of_a_chosen_value,
    chosen_iterator,
    padding_by_a_number,
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_jitted_as_in_pytorch(program):
    agree_under_jit(program, INPUTS, 1e-6)
    assert V.get() == 1


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 10


def test_members_of_an_enum_are_numbers():
    x = jnp.array(INPUTS[0])
    for function in (t2j(lambda x: x * Level.HIGH), jax.jit(t2j(lambda x: Level.HIGH * x))):
        np.testing.assert_array_equal(function(x), 10 * x)
        assert function(x).dtype == x.dtype


def text_in_a_list(x):
    return x * len(str([x.sum().item()]))


def test_text_of_a_number_in_a_list_is_an_error():
    with pytest.raises(TracedValueError, match="the text of a traced number"):
        jax.jit(t2j(text_in_a_list))(jnp.array(INPUTS[0]))


def halved_until_small(x):
    return x if x.abs().max() < 0.5 else halved_until_small(x * 0.5) + 1


def test_recursion_until_a_condition_on_data_holds():
    with pytest.raises(RecursionError) as raised:
        jax.jit(t2j(halved_until_small))(jnp.array(INPUTS[0]))
    assert any("write it as a `while` loop" in note for note in raised.value.__notes__)
