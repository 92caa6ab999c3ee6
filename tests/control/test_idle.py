"""Questions of libraries that decide nothing are answered, and others are followed both ways."""

import linecache

import jax
import jax.numpy as jnp
import pytest

from torch2jax import t2j
from torch2jax.tracing import conditions

CODE = """
def warned(x, told):
    if (
        len(told) >= 0
        and (x > 0).any()
    ):
        told.append("positive")
    return x + 1

def other(x):
    return x + 1 if x.sum() > 0 else x
"""


@pytest.fixture
def library(monkeypatch):
    file = "/somewhere/site-packages/some_library/masks.py"
    monkeypatch.setitem(linecache.cache, file, (len(CODE), None, CODE.splitlines(keepends=True), file))
    monkeypatch.setattr(conditions, "_idle", {})
    names: dict = {}
    exec(compile(CODE, file, "exec"), names)
    return names


def count_of_conditions(function, *args):
    return str(jax.make_jaxpr(lambda x: t2j(function)(x, *args))(jnp.ones(3))).count("cond[")


def test_answers_a_line_that_is_named(library):
    conditions.add_idle_question("some_library/masks.py", "warned", "(x > 0).any()", False)
    told: list = []
    assert count_of_conditions(library["warned"], told) == 0
    assert told == []


@pytest.mark.parametrize(
    ("function", "text"), [("other", "(x > 0).any()"), ("warned", "another text"), ("other", "x.max")]
)
def test_asks_lines_that_are_not(library, function, text):
    conditions.add_idle_question("some_library/masks.py", function, text, False)
    assert count_of_conditions(library["other"]) == 1
