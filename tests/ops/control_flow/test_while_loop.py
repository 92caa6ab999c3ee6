"""PyTorch's `while_loop` within translated code."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax import lax
from torch._higher_order_ops import while_loop

from tests.ops.control_flow.agreement import agree, compare
from torch2jax import t2j

X = torch.tensor([0.5, 0.3, 2.0])


def plain_loop(cond_fn, body_fn, carried):
    while cond_fn(*carried):
        carried = body_fn(*carried)
    return carried


def growing(run, x, limit):
    return run(lambda i, x: x.sum() < limit, lambda i, x: (i + 1, x * 2 + i), (0, x))


def nested(run, x):
    scale = torch.ones(3)

    def body(state):
        inner = run(lambda i, x: i < 2, lambda i, x: (i + 1, x + scale), (torch.tensor(0), state["x"]))
        return ({"i": state["i"] + 1, "x": inner[1] * 2},)

    return run(lambda state: state["i"] < 3, body, ({"i": torch.tensor(0), "x": x},))


def test_while_loop_is_lax_while_loop():
    def translated(x, limit):
        return growing(while_loop, x, limit)

    def by_hand(x, limit):
        return lax.while_loop(
            lambda state: state[1].sum() < limit, lambda state: (state[0] + 1, state[1] * 2 + state[0]), (0, x)
        )

    args = (jnp.ones(3), jnp.float32(100))
    mine, other = (jax.make_jaxpr(f)(*args).eqns[-1] for f in (t2j(translated), by_hand))
    assert mine.primitive is other.primitive
    assert [x.aval for x in mine.outvars] == [x.aval.strip_weak_type() for x in other.outvars]
    for part in ("cond_jaxpr", "body_jaxpr"):
        names = [[str(x.primitive) for x in loop.params[part].eqns] for loop in (mine, other)]
        assert sorted(names[0]) == sorted(names[1])


@pytest.mark.parametrize("limit", [100.0, 0.0])
def test_values(limit):
    function, plain = (functools.partial(growing, run) for run in (while_loop, plain_loop))
    agree(function, plain, X, torch.tensor(limit), derivatives=False)


def test_nested_loops_and_trees():
    agree(functools.partial(nested, while_loop), functools.partial(nested, plain_loop), X, derivatives=False)


def test_forward_derivatives():
    def function(x):
        return growing(while_loop, x, 100.0)[1]

    x = jnp.asarray(X.numpy())
    for run in (t2j(function), jax.jit(t2j(function)), lambda x: t2j(torch.vmap(function))(x[None])[0]):
        value, tangent = jax.jvp(run, (x,), (x,))
        np.testing.assert_allclose(value, growing(plain_loop, X, 100.0)[1], 1e-6)
        np.testing.assert_allclose(tangent, 32 * x, 1e-6)


def test_backwards_where_nothing_is_staged():
    def function(run):
        return lambda x: torch.autograd.grad(growing(run, x.requires_grad_(), 100.0)[1].sin().sum(), x)

    compare(t2j(function(while_loop))(jnp.asarray(X.numpy())), function(plain_loop)(X.clone()))


def test_batches_end_each_in_its_time():
    def function(x):
        return while_loop(lambda i, x: x < 100, lambda i, x: (i + 1, x * 2), (torch.tensor(0), x))

    x = jnp.array([1.0, 30.0, 200.0])
    for mapped in (jax.vmap(t2j(function)), t2j(torch.vmap(function))):
        counts, values = mapped(x)
        assert counts.tolist() == [7, 2, 0]
        assert values.tolist() == [128, 120, 200]


def test_writes_and_random_numbers():
    def function(x):
        total = torch.zeros(3)

        def body(i, x):
            total.add_(x)
            return i + 1, torch.rand(3)

        last = while_loop(lambda i, x: total.sum() < 5, body, (torch.tensor(0), x))
        return last, total

    for run in (t2j(function), lambda x, rng: jax.jit(lambda x, key: t2j(function)(x, rng=key))(x, rng)):
        (count, last), total = run(jnp.ones(3), rng=jax.random.key(0))
        assert count > 2
        assert 5 <= total.sum() < 8
        assert len(np.unique(last)) == 3


def counting(run, x, stop):
    """The number of steps does not depend on the data: two counters, one of which the other waits for."""

    def body(i, j, x):
        return i + j, (j + 1) % 3, (x * scale).sin() + i

    scale = torch.nn.Parameter(torch.tensor(1.5))
    return run(lambda i, j, x: i < stop, body, (0, torch.tensor(1), x))


def test_a_loop_that_counts_is_a_scan_with_all_derivatives():
    stop = torch.tensor(7)

    def function(run):
        return lambda x: counting(run, x, stop)

    agree(function(while_loop), function(plain_loop), X)
    jaxpr = jax.make_jaxpr(t2j(function(while_loop)))(jnp.ones(3))
    assert [str(x.primitive) for x in jaxpr.eqns][-1] == "scan"
    assert [x.params["length"] for x in jaxpr.eqns if str(x.primitive) == "scan"] == [7]


def test_a_loop_that_never_counts_to_its_end_is_left_to_jax():
    jaxpr = jax.make_jaxpr(t2j(lambda x: counting(while_loop, x, 10**9)))(jnp.ones(3))
    assert [str(x.primitive) for x in jaxpr.eqns][-1] == "while"


REFUSED = {
    "flag of one element": (lambda x: x > 0, lambda x: (x - 1,), RuntimeError, "boolean scalar tensor"),
    "number": (lambda x: x.sum(), lambda x: (x - 1,), RuntimeError, "boolean scalar tensor"),
    "for ever": (lambda x: True, lambda x: (x - 1,), RuntimeError, "infinite loop"),
    "dtype": (lambda x: x.sum() > 0, lambda x: ((x - 1).int(),), RuntimeError, "dtype"),
    "number of results": (lambda x: x.sum() > 0, lambda x: (x, x), RuntimeError, "expected 1 results"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_loop_must_not_do(name):
    condition, body, error, message = REFUSED[name]
    run = jax.jit(t2j(lambda x: while_loop(condition, body, (x,))))
    with pytest.raises(error, match=message):
        run(jnp.ones(1))


def test_a_condition_does_not_write_to_tensors_outside():
    def function(x):
        asked = torch.zeros(())
        return while_loop(lambda x: asked.add_(1) < x, lambda x: (x - 1,), (x,))

    with pytest.raises(torch._dynamo.exc.UncapturedHigherOrderOpError, match="a write to a tensor from outside"):
        jax.jit(t2j(function))(jnp.float32(5))
