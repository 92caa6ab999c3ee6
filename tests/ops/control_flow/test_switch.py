"""`torch._higher_order_ops.switch` within translated code; releases without it have the rule alone."""

import jax
import jax.numpy as jnp
import pytest
import torch
from jax import lax

from tests.ops.control_flow.agreement import agree, compare, graph
from torch2jax import t2j
from torch2jax.ops.control_flow.conditions import switch as rule

HAS_SWITCH = hasattr(torch._higher_order_ops, "switch")
switch = torch._higher_order_ops.switch if HAS_SWITCH else rule
X = torch.linspace(-1, 2, 6).reshape(2, 3)


def test_branches_are_lax_switch():
    def translated(index, x, w):
        return rule(index, (lambda y: y.sin() @ w, lambda y: y.cos(), lambda y: y), (x * 2,))

    def by_hand(index, x, w):
        y = x * 2
        return lax.switch(index, (lambda: jnp.sin(y) @ w, lambda: jnp.cos(y), lambda: y))

    args = (1, jnp.ones((3, 3)), jnp.ones((3, 3)))
    assert graph(t2j(translated), *args) == graph(by_hand, *args)


@pytest.mark.parametrize("index", [0, 1, 2])
def test_values_and_derivatives(index):
    def chosen(choose):
        def function(index, x, w):
            def deep(x):
                z = x.tanh() @ w
                z[0] += 1
                return {"all": z.exp(), "number": 1}

            branches = (lambda x: {"all": x.sin(), "number": 2}, deep, lambda x: {"all": x * x, "number": 3})
            return choose(index, branches, (x,))

        return function

    def plain(index, branches, operands):
        return branches[index](*operands)

    agree(chosen(switch), chosen(plain), torch.tensor(index), X, torch.eye(3) * 0.3)


def test_writes_random_numbers_and_batches():
    def function(index, x):
        seen = torch.zeros(())

        def count(x):
            seen.add_(1)
            return x + 1

        return switch(index, (torch.sin, count, torch.rand_like), (x,)), seen

    run = jax.jit(lambda index, x: t2j(function)(index, x, rng=jax.random.key(0)))
    x = jnp.ones(3)
    compare(run(1, x), (torch.full((3,), 2.0), torch.tensor(1.0)))
    compare(run(0, x), (torch.ones(3).sin(), torch.tensor(0.0)))
    assert len(set(run(2, x)[0].tolist())) == 3
    mapped = jax.vmap(lambda index, x: t2j(function)(index, x, rng=jax.random.key(0))[0])
    batch = mapped(jnp.array([0, 1]), jnp.ones((2, 3)))
    compare(batch, torch.stack([torch.ones(3).sin(), torch.full((3,), 2.0)]))


def test_a_known_index_runs_one_branch():
    def function(x):
        return switch(torch.tensor(1), (lambda x: x + 1, lambda x: x + 2), (x,))

    assert "cond" not in graph(t2j(function), jnp.ones(3))
    compare(t2j(function)(jnp.ones(3)), torch.full((3,), 3.0))


def test_branches_have_results_alike():
    def function(index, x):
        return switch(index, (lambda x: x, lambda x: x.sum()), (x,))

    with pytest.raises(RuntimeError, match="result 0 differs in shape"):
        jax.jit(t2j(function))(1, jnp.ones(3))


@pytest.mark.skipif(not HAS_SWITCH, reason="switch is of PyTorch 2.15")
@pytest.mark.parametrize("index", [-3, 7])
def test_indices_out_of_range_are_clamped(index):
    def function(index, x):
        return switch(index, (lambda x: x + 1, lambda x: x + 2), (x,))

    expected = function(torch.tensor(index), X)
    compare(jax.jit(t2j(function))(jnp.asarray(index), jnp.asarray(X.numpy())), expected)
    compare(t2j(function)(jnp.asarray(index), jnp.asarray(X.numpy())), expected)


@pytest.mark.skipif(not hasattr(torch.ops.higher_order, "flex_gemm"), reason="flex_gemm is of PyTorch 2.15")
def test_products_with_what_becomes_of_them():
    from torch._higher_order_ops.flex_gemm import flex_gemm

    def function(x, y):
        return flex_gemm(torch.mm, (x, y), torch.relu)

    args = [jnp.asarray(x.numpy()) for x in (X, X.T.contiguous())]
    compare(jax.jit(t2j(function))(*args), (X @ X.T).relu())
