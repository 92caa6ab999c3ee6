"""Rules' bodies that recur: compiled as one when called op by op, and pasted into graphs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax import lax

from torch2jax import t2j
from torch2jax.rules.inline import call_inlined
from torch2jax.tensors.traced import is_traced


@pytest.fixture
def counted():
    """A body, and the list of whether each of its runs was traced."""
    runs = []

    def body(x, scale):
        runs.append(isinstance(x, jax.core.Tracer))
        return lax.mul(x, np.float32(scale))

    return body, runs


def test_what_recurs_is_compiled_once(counted):
    body, runs = counted
    results = [call_inlined(body, (jnp.ones(3), 2.0), {}, "body") for _ in range(6)]
    assert runs == [False, False, True]
    assert all((result == 2).all() for result in results)


def test_a_scalar_that_changes_is_no_reason_to_compile(counted):
    body, runs = counted
    for step in range(6):
        assert call_inlined(body, (jnp.ones(3), 0.5**step), {}, "body")[0] == 0.5**step
    assert not any(runs)


@pytest.mark.parametrize(("steps", "traces"), [(1, 1), (8, 3)])  # one whose steps are kept, or two and one to be pasted
def test_in_a_program_long_bodies_that_recur_are_pasted_and_steps_of_short_ones_kept(steps, traces):
    runs = []

    def body(x):
        runs.append(x)
        for _ in range(steps):
            x = lax.sin(x)
        return x

    def program(x):
        for _ in range(6):
            x = call_inlined(body, (x,), {}, "body")
        return x

    assert len(jax.make_jaxpr(program)(jnp.ones(3)).eqns) == 6 * steps
    assert len(runs) == traces


def test_scalars_of_other_types_and_signs_are_others():
    def body(x, scalar):
        return lax.full_like(x, np.copysign(1, scalar) if type(scalar) is float else 7)

    for _ in range(4):
        values = [float(call_inlined(body, (jnp.ones(()), scalar), {}, "body")) for scalar in (0.0, -0.0, 0, False)]
        assert values == [1, -1, 7, 7]


@pytest.mark.parametrize(
    "asks", [lambda x: not is_traced(x) and (np.asarray(x) < 0).any(), lambda x: bool((x < 0).any())]
)
def test_a_body_that_looks_at_values_always_sees_them(asks):
    def body(x):
        if asks(x):
            raise ValueError("negative")
        return lax.sqrt(x)

    for _ in range(5):
        call_inlined(body, (jnp.ones(2),), {}, "body")
    with pytest.raises(ValueError, match="negative"):
        call_inlined(body, (-jnp.ones(2),), {}, "body")


def test_bounds_are_checked_however_often_an_index_is_used():
    take = t2j(lambda x, index: torch.index_select(x, 0, index))
    for _ in range(5):
        take(jnp.arange(4.0), jnp.array([1, 3]))
    with pytest.raises(IndexError):
        take(jnp.arange(4.0), jnp.array([1, 4]))


def test_nothing_nested_is_left_in_a_graph():
    constant = torch.arange(3.0)

    def function(x):
        for _ in range(4):
            x = torch.softmax(x + torch.softmax(constant, -1), -1)
        return x

    text = str(jax.make_jaxpr(t2j(function))(jnp.ones(3)))
    assert "jit[" not in text
    assert "pjit" not in text


def test_errors_of_compiled_bodies_keep_their_type():
    add = t2j(lambda x, y: torch.addmm(x, y, y))
    for _ in range(4):
        add(jnp.ones((2, 2)), jnp.ones((2, 2)))
    with pytest.raises(RuntimeError):
        add(jnp.ones((2, 2)), jnp.ones((2, 3)))
