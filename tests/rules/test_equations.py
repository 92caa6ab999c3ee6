"""Equations of short bodies that are kept: the graph is that of a body that runs each time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax import lax

from torch2jax import t2j
from torch2jax.rules.inline import call_inlined

X, Y = jnp.arange(6.0).reshape(2, 3), jnp.ones((2, 3))


def traces_of(body, *calls):
    """The graph of some calls of a body, each of which is given a function of x and y, and how often it ran."""
    runs = []

    def noted(*arrays):
        runs.append(arrays)
        return body(*arrays)

    def program(x, y):
        return [call_inlined(noted, call(x, y), {}, "body") for call in calls]

    return jax.make_jaxpr(program)(X, Y), len(runs)


def both(x, y):
    return x, y


def test_a_short_body_runs_once_for_arrays_of_some_types():
    jaxpr, runs = traces_of(lambda x, y: lax.add(lax.sin(x), y), *[both] * 5, lambda x, y: (x[0], y[0]), both)
    assert runs == 2
    assert [step.primitive.name for step in jaxpr.eqns].count("sin") == 7


def test_operands_are_those_of_the_call():
    swapped, twice = (lambda x, y: (y, x)), (lambda x, y: (x, x))
    calls = [twice, both, swapped, twice, both]
    jaxpr, _ = traces_of(lax.sub, *calls)
    found = jax.core.eval_jaxpr(jaxpr.jaxpr, jaxpr.consts, X, Y)
    for got, call in zip(found, calls, strict=True):
        np.testing.assert_array_equal(got, lax.sub(*call(X, Y)))


@pytest.mark.parametrize(
    "body",
    [
        lambda x, y: (y, lax.neg(x)),
        lambda x, y: [lax.neg(x), x],
        lambda x, y: x,
        lambda x, y: lax.sort((x, y), num_keys=1),
        lambda x, y: lax.mul(x, np.float32(3)),
        lambda x, y: lax.add(x, lax.iota(np.float32, 3)[None]),
        lambda x, y: (x, np.float32(2)),
    ],
    ids=["input", "list", "nothing", "several", "number", "program", "constant"],
)
def test_results_are_those_of_the_body(body):
    jaxpr, _ = traces_of(body, *[both] * 4)
    direct = jax.make_jaxpr(lambda x, y: [body(x, y) for _ in range(4)])(X, Y)
    assert str(jaxpr) == str(direct)


def test_jaxs_settings_count():
    multiply = t2j(lambda x, y: [x @ y.T for _ in range(3)])

    def precisions():
        steps = jax.make_jaxpr(lambda x, y: multiply(x, y))(X, Y).eqns
        return {str(step.params["precision"]) for step in steps if step.primitive.name == "dot_general"}

    before = precisions()
    with jax.default_matmul_precision("highest"):
        within = precisions()
    assert precisions() == before != within


def test_numbers_of_a_weak_type_stay_so():
    def body(x):
        return lax.convert_element_type(x, np.float32) + 1  # a step whose operand is Python's number

    def program(x):
        return [call_inlined(body, (x,), {}, "body") for _ in range(4)]

    x = jnp.arange(3)
    assert str(jax.make_jaxpr(program)(x)) == str(jax.make_jaxpr(lambda x: [body(x) for _ in range(4)])(x))


def test_dtypes_of_results_are_found_for_each_plan():
    def function(x):
        sums = [x.sum(-1) for _ in range(3)] + [(x > 1).sum(-1) for _ in range(3)]
        return [*sums, *[torch.sort(x.long())[0] for _ in range(3)], *[x.max(-1)[1] for _ in range(3)]]

    dtypes = []

    def noted(x):
        found = function(x)
        dtypes.append([each.dtype for each in found])
        return found

    jax.make_jaxpr(lambda x: t2j(noted)(x))(X)
    assert dtypes[0] == [each.dtype for each in function(torch.ones(2, 3))]


def test_a_number_in_the_graph_is_that_of_its_call():
    def body(x, y):
        return lax.mul(lax.convert_element_type(x, np.float32), y)  # JAX computes the cast of a number itself

    def program(x, y):
        numbers = [jax.lax.full((), number, np.float16) for number in (2, 3)]
        return [call_inlined(body, (x, y), {}, "body") for x in (*numbers, x, *numbers)]

    x, y = jnp.float16(5), jnp.float32(1)
    jaxpr = jax.make_jaxpr(program)(x, y)
    assert jax.core.eval_jaxpr(jaxpr.jaxpr, jaxpr.consts, x, y) == [2, 3, 5, 2, 3]


@pytest.mark.parametrize("dtype", [torch.float16, torch.int32])
def test_a_traced_number_is_multiplied_as_after_a_known_one(dtype):
    def function(x, scale, factor):
        x.requires_grad_()
        x.sum().backward()  # from here on known numbers are in the graph
        with torch.no_grad():
            known = torch.full((), 3, dtype=dtype).mul(torch.full((1,), 2.0)[0])
            return known * x, scale.mul(factor)

    x, scale, factor = torch.ones(2), torch.tensor(5, dtype=dtype), torch.tensor(7.0)
    vector, number = jax.jit(t2j(function))(t2j(x), t2j(scale), t2j(factor))
    assert (*vector, number) == (6, 6, 35)
