"""PyTorch's `scan` and `map` within translated code."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from functorch.experimental import control_flow
from jax import lax
from torch._higher_order_ops import map as torch_map, scan
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint

from tests.ops.control_flow.agreement import agree, graph
from torch2jax import t2j

XS = torch.linspace(-1, 1, 12).reshape(4, 3)
X = jnp.asarray(XS.numpy())


def plain_scan(combine_fn, init, xs, *, dim=0, reverse=False):
    length = (xs if isinstance(xs, torch.Tensor) else next(iter(xs.values()))).shape[dim]
    carry, ys = init, [None] * length
    for i in reversed(range(length)) if reverse else range(length):
        carry, ys[i] = combine_fn(carry, tree_map(lambda x, i=i: x.select(dim, i), xs))
    return carry, tree_map(lambda *leaves: torch.stack(leaves, min(dim, leaves[0].dim())), *ys)


def test_scan_is_lax_scan():
    def translated(x, w, init):
        turned = w.T
        turned.sum()

        def combine(carry, x):
            carry = torch.tanh(carry @ turned + x)
            return carry, carry * 2

        return scan(combine, init, x, reverse=True)

    def by_hand(x, w, init):
        turned = w.T
        turned.sum()

        def combine(carry, x):
            carry = jnp.tanh(carry @ turned + x)
            return carry, carry * 2

        return lax.scan(combine, init, x, reverse=True)

    args = (X, jnp.eye(3), jnp.ones(3))
    assert graph(t2j(translated), *args) == graph(by_hand, *args)


def test_map_is_lax_map():
    assert graph(t2j(lambda x: torch_map(lambda x: x.sin().sum(), x)), X) == graph(
        lambda x: lax.map(lambda x: jnp.sin(x).sum(), x), X
    )


def test_a_carry_stays_in_the_order_that_a_convolution_gives():
    kernel = torch.ones(2, 2, 3, 3)

    def function(x):
        return scan(lambda c, x: (torch.conv2d(c, kernel, padding=1).relu(), x.mean()), x[0] * 1, x)

    x = jnp.ones((2, 1, 2, 4, 4))
    jaxpr = jax.make_jaxpr(t2j(function))(x)
    (step,) = [equation.params["jaxpr"] for equation in jaxpr.eqns if str(equation.primitive) == "scan"]
    assert step.out_avals[0].shape == (1, 4, 4, 2)
    assert [str(x.primitive) for x in step.jaxpr.eqns if x.outvars[0].aval.shape == (1, 2, 4, 4)] == []


@pytest.mark.parametrize("dim", [0, -1])
@pytest.mark.parametrize("reverse", [False, True])
def test_values_and_derivatives(dim, reverse):
    weight = torch.nn.Parameter(torch.linspace(0, 1, 3))

    def function(run, xs, init):
        def combine(carry, x):
            new = {"acc": carry["acc"] * weight[0] + x["a"].sum(), "last": x["b"].sin() * carry["acc"]}
            return new, (new["acc"] * x["a"], new["last"].clone())

        xs = {"a": xs, "b": xs.exp()}
        return run(combine, {"acc": init, "last": xs["a"].select(dim, 0) * 0}, xs, dim=dim, reverse=reverse)

    agree(
        functools.partial(function, scan), functools.partial(function, plain_scan), XS, torch.tensor(0.5)
    )  # PyTorch's own second derivatives of a scan are others, and wrong


def test_map_of_trees():
    def function(run, xs, scale):
        return run(lambda x, s: {"a": [x[0] * s, (x[1].cumsum(0), None)]}, (xs, xs.exp()), scale)

    def plain_map(f, xs, *args):
        results = [f([x[i] for x in xs], *args) for i in range(len(xs[0]))]
        return {"a": [torch.stack([r["a"][0] for r in results]), torch.stack([r["a"][1][0] for r in results])]}

    agree(functools.partial(function, control_flow.map), functools.partial(function, plain_map), XS, XS[0] + 2)


def test_backward_of_a_scan_over_modules_and_what_it_does_not_need():
    cell = torch.nn.GRUCell(3, 3)

    def function(run):
        def step(xs):
            def combine(hidden, x):
                hidden = cell(x, hidden)
                return hidden, hidden * 2

            last, _ = run(combine, torch.zeros(1, 3), xs[:, None])
            last.sum().backward()
            return [parameter.grad for parameter in cell.parameters()]

        return step

    wanted = function(plain_scan)(XS)
    cell.zero_grad()
    for mine, other in zip(jax.jit(t2j(function(scan)))(X), wanted, strict=True):
        np.testing.assert_allclose(mine, other, 1e-4, 1e-6)


def test_within_a_checkpoint_and_a_checkpoint_within():
    def function(x):
        def step(carry, x):
            carry = checkpoint(lambda c: (c * x).sin(), carry, use_reentrant=False)
            return carry, carry + x

        x.requires_grad_()
        loss = checkpoint(lambda x: scan(step, x[0], x)[1].sum(), x, use_reentrant=False)
        assert loss.requires_grad
        loss.backward()
        return x.grad

    def plain(x):
        carry, total = x[0], 0
        for row in x:
            carry = (carry * row).sin()
            total = total + (carry + row).sum()
        return torch.autograd.grad(total, x)[0]

    np.testing.assert_allclose(jax.jit(t2j(function))(X), plain(XS.clone().requires_grad_()), 1e-5)


def test_gradients_within_the_body():
    def function(xs):
        def step(weight, x):
            weight = weight.detach().requires_grad_()
            loss = (weight * x).square().sum()
            loss.backward()
            slope = torch.func.grad(lambda w: (w * x).square().sum())(weight)
            return (weight - 0.1 * weight.grad).detach(), (slope - weight.grad).detach()

        return scan(step, torch.ones(3), xs)

    weight, rest = jax.jit(t2j(function))(X)
    np.testing.assert_allclose(weight, jnp.prod(1 - 0.2 * X**2, axis=0), 1e-5)
    assert jnp.abs(rest).max() < 1e-6


class Normalised(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(3)
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, xs, run=scan):
        return run(lambda c, x: (c + 1, self.dropout(self.norm(x)) + c), torch.zeros(3), xs)[1]


def test_buffers_that_the_body_writes_are_carried():
    module = Normalised()
    module.dropout.p = 0.0
    xs = torch.linspace(-1, 2, 24).reshape(2, 4, 3)
    state = {name: jnp.asarray(x.detach().numpy()) for name, x in module.state_dict().items()}
    got, state = jax.jit(lambda state, xs: t2j(module)(xs, state_dict=state, return_state_dict=True))(
        state, jnp.asarray(xs.numpy())
    )
    np.testing.assert_allclose(got, module(xs, plain_scan).detach(), 1e-4, 1e-6)
    for name, value in module.state_dict().items():
        np.testing.assert_allclose(state[name], value, 1e-5, err_msg=name)
    assert state["norm.num_batches_tracked"] == 2


def test_each_step_draws_numbers_of_its_own():
    def function(xs):
        return torch_map(torch.nn.functional.dropout, xs), torch.rand(4)

    def by_hand(xs, key):
        keys = jax.random.split(jax.random.fold_in(key, 0), 2)
        return lax.map(lambda x: t2j(torch.nn.functional.dropout)(x[0], rng=x[1]), (xs, keys))

    xs, key = jnp.ones((2, 50)), jax.random.key(0)
    (first, second), after = jax.jit(lambda xs, key: t2j(function)(xs, rng=key))(xs, key)
    assert (first != second).any()
    np.testing.assert_array_equal(jnp.stack([first, second]), by_hand(xs, key))
    assert not set(np.asarray(after)) & {0.0, 2.0}


def test_batches():
    def function(xs):
        return scan(lambda c, x: (c * x, c + x), xs[0] * 0 + 1, xs)

    xs = jnp.stack([X, X * 2])
    wanted = [t2j(function)(x) for x in xs]
    for mapped in (jax.vmap(t2j(function)), t2j(torch.vmap(function))):
        got = mapped(xs)
        jax.tree.map(lambda g, *w: np.testing.assert_allclose(g, jnp.stack(w), 1e-6), got, *wanted)


REFUSED = {
    "a carry of another dtype": (lambda c, x: (c.double(), x * 1), "dtype"),
    "a carry of another shape": (lambda c, x: (c[:1] * 1, x * 1), "shape"),
    "another number": (lambda c, x: ((c * 1, c * 2), x * 1), "have 1 tensors"),
    "no pair": (lambda c, x: c + x, "next_carry, y"),
    "integers": (lambda c, x: (c + x, 3), "wanted tensors"),
    "a generator": (lambda c, x: (c + torch.rand(3, generator=torch.Generator()), x * 1), "Generator"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_body_must_not_do(name):
    combine, message = REFUSED[name]
    with pytest.raises(torch._dynamo.exc.UncapturedHigherOrderOpError, match=message):
        jax.jit(t2j(lambda x: scan(combine, x[0], x)))(X)


def test_arguments_are_checked_by_pytorch():
    with pytest.raises(RuntimeError, match="Leading dimensions of mapped xs must be consistent"):
        t2j(lambda x: torch_map(lambda x: x[0], [x, x[:2]]))(X)
    with pytest.raises(RuntimeError, match="Reverse must be a bool"):
        t2j(lambda x: scan(lambda c, x: (c, x), x[0], x, reverse=1))(X)
    with pytest.raises(RuntimeError, match="Combine_fn must be a callable"):
        t2j(lambda x: scan(3, x[0], x))(X)
