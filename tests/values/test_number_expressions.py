"""Expressions over numbers that come from data, each alone, on a side of a condition, and in a loop that data end.

Each is right, in its value and in its type, or is refused by an error that says what of.
"""

import jax
import numpy as np
import pytest
import torch

from torch2jax import Padded, TracedValueError, t2j

from .number_expressions import (
    INPUTS,
    REAL,
    REFUSED,
    REFUSED_IN_LOOPS,
    SETTINGS,
    expressions,
    module_of,
    other_of,
    source_of,
)

TABLE = expressions()
REASONS = {name: reason for reason, names in REFUSED.items() for name in names}
SPLIT = [name for name in TABLE if any(x in name for x in ("try:", "case 0", "next("))]
"""What goes both ways to the end of the code."""
FOLLOWED = [name for name in TABLE if name not in REASONS and name not in SPLIT]
GROUPS = [FOLLOWED[i : i + 24] for i in range(0, len(FOLLOWED), 24)]


def functions(names, setting, path):
    """Functions that compute expressions, each with what PyTorch gives for the inputs; None where Python raises."""
    blocks = [TABLE[name] for name in names]
    plain = module_of([source_of(x, "alone", f"f{i}", "0") for i, x in enumerate(blocks)], path / "plain.py")
    others = [next(x for x in results(getattr(plain, f"f{i}")) if x is not None) for i in range(len(names))]
    sources = [source_of(x, setting, f"f{i}", other_of(others[i])) for i, x in enumerate(blocks)]
    found = module_of(sources, path / f"{setting}.py")
    return [(getattr(found, f"f{i}"), results(getattr(found, f"f{i}"))) for i in range(len(names))]


def results(function):
    return [result(function, x) for x in INPUTS]


def result(function, values):
    try:
        return function(torch.tensor(values))
    except (ArithmeticError, ValueError, IndexError):
        return None


def expect_same(got, want, name):
    leaves = jax.tree.leaves(got, is_leaf=lambda x: isinstance(x, Padded))
    for one, other in zip(leaves, jax.tree.leaves(want), strict=True):
        array = np.asarray(one.compact() if isinstance(one, Padded) else one)
        wanted = np.asarray(other)
        assert array.shape == wanted.shape, name
        assert array.dtype.kind == wanted.dtype.kind or name in REAL, name
        np.testing.assert_allclose(array.astype(np.float64), wanted, 1e-5, 1e-6, err_msg=name)


def agree(names, setting, path):
    found = functions(names, setting, path)
    jitted = jax.jit(t2j(lambda x: [function(x) for function, _ in found]))
    for i, values in enumerate(INPUTS):
        got = jitted(np.array(values, np.float32))
        for name, one, (_, wanted) in zip(names, got, found, strict=True):
            if wanted[i] is not None:
                expect_same(one, wanted[i], name)


@pytest.mark.parametrize("setting", ["alone", "condition"])
@pytest.mark.parametrize("group", range(len(GROUPS)))
def test_expressions(group, setting, tmp_path):
    agree(GROUPS[group], setting, tmp_path)


@pytest.mark.parametrize("group", range(len(GROUPS)))
def test_expressions_in_loops(group, tmp_path):
    agree([name for name in GROUPS[group] if name not in REFUSED_IN_LOOPS], "loop", tmp_path)


@pytest.mark.parametrize("name", SPLIT)
def test_what_goes_both_ways(name, tmp_path):
    for setting in SETTINGS:
        if setting != "loop" or name not in REFUSED_IN_LOOPS:
            (tmp_path / setting).mkdir()
            agree([name], setting, tmp_path / setting)


@pytest.mark.parametrize("setting", SETTINGS)
def test_what_is_refused(setting, tmp_path):
    names = [*REASONS, *(REFUSED_IN_LOOPS if setting == "loop" else ())]
    for name, (function, _) in zip(names, functions(names, setting, tmp_path), strict=True):
        with pytest.raises((TracedValueError, OverflowError), match=REASONS.get(name, "paths through it|bool")):
            jax.make_jaxpr(t2j(function))(np.array(INPUTS[0], np.float32))


def test_the_table_names_what_it_has():
    assert len(TABLE) > 360
    assert {*REASONS, *REFUSED_IN_LOOPS, *REAL} <= TABLE.keys()
