"""Plans of writes to parts: in a graph they leave the steps of the long way, under the same names."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from tests.tensors.test_aliasing import Accumulated, Change, Copy, Drop, Leaf, Write, check
from torch2jax import t2j
from torch2jax.calls import plans
from torch2jax.rules.features import Feature
from torch2jax.runtime import caches
from torch2jax.runtime.translation import this_call

SUBSCRIPTS = [
    *(0, -1, (0, 1), slice(1, 3), (slice(None), 2), (..., 0), None, (1, slice(0, 4, 2)), [0, 2], True, slice(0, 0)),
    (slice(None, None, 2),),
]
VALUES = [0.0, 1, True, 2.5, float("nan"), 1e-50, "tensor"]


BASES = {
    "whole": lambda x: x.clone(),
    "view": lambda x: torch.cat([x, x])[1:5],
    "transposed": lambda x: x.t().contiguous().t(),
    "viewed": lambda x: (x * 1).unflatten(0, (2, 2)).flatten(0, 1),
}


def _graph(x: jax.Array, subscript, value, is_long: bool, base: str = "whole") -> list[str] | str:
    """The steps of three writes to a tensor that another views, with their names; or the error."""
    given = x[subscript] * 2 if value == "tensor" else x

    def function(x, given):
        if is_long:
            this_call().features.push(Feature())
        changed = BASES[base](x)
        viewed = changed.reshape(-1)
        for _ in range(3):
            changed[subscript] = given if value == "tensor" else value
        return changed, viewed.sum(), changed.transpose(0, 1)

    try:
        program = jax.make_jaxpr(t2j(function))(x, given)
    except (RuntimeError, TypeError) as error:
        return str(error)
    return [str(program), *(str(step.source_info.name_stack) for step in program.eqns)]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.int32])
def test_a_traced_write_to_a_part_leaves_what_the_long_way_does(dtype):
    x = jnp.ones((4, 6)).astype(dtype)
    for subscript in SUBSCRIPTS:
        if isinstance(subscript, list):
            subscript = np.asarray(subscript)
        for value in VALUES:
            _graph(x, subscript, value, False)  # makes the plans
            graphs = [_graph(x, subscript, value, is_long) for is_long in (False, True)]
            assert graphs[0] == graphs[1], (subscript, value)


@pytest.mark.parametrize("base", [name for name in BASES if name != "whole"])
def test_so_it_does_of_views(base):
    x = jnp.ones((4, 6))
    for subscript in SUBSCRIPTS:
        if not isinstance(subscript, list):
            for value in (2.0, "tensor"):
                _graph(x, subscript, value, False, base)  # makes the plans
                graphs = [_graph(x, subscript, value, is_long, base) for is_long in (False, True)]
                assert graphs[0] == graphs[1], (subscript, value)


def test_a_first_write_takes_no_steps_out_of_the_graph():
    program = [
        *(Leaf(9, True), Write("out_sin", 8, 6, True), Accumulated(5), Write("add_one", 5, 9, True)),
        *(
            Change("t_", 4, 0, 8),
            Accumulated(6),
            Write("set_step", 0, 6, False),
            Drop(10),
            Write("add_one", 5, 9, True),
        ),
        *(
            Write("add_one", 5, 9, True),
            Write("set_step", 0, 6, False),
            Copy("clone", 5, 1, True),
            Copy("product", 8, 3, True),
        ),
    ]
    caches.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(program, jit=True)


def test_a_traced_write_to_a_part_has_a_plan():
    def function(x):
        for _ in range(3):
            x[0] = 2.0
        return x

    caches.clear()
    before = plans.bypassed.total()
    jax.make_jaxpr(lambda x: t2j(function)(x + 1))(jnp.ones((3, 2)))
    reasons = plans.bypassed.total() - before
    jax.make_jaxpr(lambda x: t2j(function)(x + 1))(jnp.ones((3, 2)))
    assert plans.bypassed.total() - before == reasons


def test_a_write_to_what_shares_memory_is_no_plan():
    def function(x):
        x = x + 1
        x[0] = x[1]
        x[1:] = x[:-1].clone()
        return x

    x = torch.arange(12.0).reshape(4, 3)
    expected = function(x)
    for translated in (t2j(function), jax.jit(lambda x: t2j(function)(x))):
        for _ in range(3):
            assert np.array_equal(translated(jnp.asarray(x.numpy())), expected.numpy())


def test_derivatives_go_through_writes_by_plan():
    def function(x):
        y = x * x
        for k in range(3):
            y[k] = y[k + 1]
            y[0] = 5.0
        return (y * y).sum()

    x = torch.arange(12.0).reshape(4, 3).requires_grad_()
    function(x).backward()
    array = jnp.asarray(x.detach().numpy())
    for transformed in (jax.grad(t2j(function)), jax.jit(jax.grad(t2j(function))), jax.grad(jax.jit(t2j(function)))):
        for _ in range(2):
            assert np.allclose(transformed(array), x.grad)
    many = jnp.stack([array, array + 1])
    assert np.allclose(jax.vmap(t2j(function))(many), [t2j(function)(y) for y in many])
