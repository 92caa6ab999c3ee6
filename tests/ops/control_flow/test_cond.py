"""`torch.cond` within translated code."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax import lax

from tests.ops.control_flow.agreement import agree, compare, graph
from torch2jax import t2j

X = torch.linspace(-1, 2, 6).reshape(2, 3)
PLUS, MINUS = torch.tensor(1.0), torch.tensor(-1.0)


def test_branches_are_lax_cond():
    def translated(flag, x, w):
        return torch.cond(flag, lambda y: y.sin() @ w, lambda y: y.cos(), (x * 2,))

    def by_hand(flag, x, w):
        y = x * 2
        return lax.cond(flag, lambda: jnp.sin(y) @ w, lambda: jnp.cos(y))

    args = (True, jnp.ones((3, 3)), jnp.ones((3, 3)))
    assert graph(t2j(translated), *args) == graph(by_hand, *args)


@pytest.mark.parametrize("sign", [PLUS, MINUS])
def test_values_and_derivatives(sign):
    linear = torch.nn.Linear(3, 3)

    def deep(choose):
        def function(sign, x, w):
            y = x * sign

            def inner(x):  # a module, a captured tensor, a nested choice, writes to what is new
                z = linear(x).tanh() @ w
                z[0] += y[1]
                return choose(z.sum() > 0, lambda z: z.exp(), lambda z: z * y, (z,)), {"mean": x.mean()}

            return choose(sign > 0, lambda x: (x.sin(), {"mean": x.sum() * 0}), inner, (x,))

        return function

    def plain(flag, true_fn, false_fn, operands):
        return (true_fn if flag else false_fn)(*operands)

    agree(deep(torch.cond), deep(plain), sign, X, torch.eye(3) * 0.3)


def test_known_predicate_runs_one_branch_in_python():
    ran = []

    def branch(name):
        def run(x):
            ran.append(name)
            return x + len(name)

        return run

    def function(x):
        mask = torch.arange(x.shape[0]) > 0
        y = torch.cond(mask.any(), branch("yes"), branch("no"), (x,))
        return torch.cond(x.dim() == 7, branch("seven"), branch("other"), (y,))

    assert "cond" not in graph(t2j(function), jnp.ones(3))
    assert ran == ["yes", "other"]
    ran.clear()
    t2j(lambda x: torch.cond(x.sum() > 0, branch("yes"), branch("no"), (x,)))(jnp.ones(3))
    assert ran == ["yes"]


@pytest.mark.parametrize("pred", [torch.tensor([True]), torch.tensor(0.0), torch.tensor(3), torch.tensor(False)])
def test_predicates_of_one_element(pred):
    def function(pred, x):
        return torch.cond(pred, lambda x: (x + 1, 2), lambda x: (x - 1, 3), (x,))

    expected = (X + 1, 2) if pred else (X - 1, 3)
    compare(jax.jit(t2j(function))(jnp.asarray(pred.numpy()), jnp.asarray(X.numpy())), expected)


def test_batches():
    def function(sign, x):
        return torch.cond(sign > 0, lambda x: x.sin(), lambda x: x * sign, (x,))

    signs, xs = jnp.array([1.0, -2.0]), jnp.asarray(X.numpy())
    expected = jnp.stack([jnp.sin(xs[0]), xs[1] * -2])
    for mapped in (jax.vmap(t2j(function)), t2j(torch.vmap(function)), jax.jit(t2j(torch.vmap(function)))):
        np.testing.assert_allclose(mapped(signs, xs), expected, 1e-6)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_penalty_on_gradients_behind_it(sign):
    """The gradient depends on what the branches were given, so that a second one goes through it."""

    def function(x):
        leaf = x.detach().clone().requires_grad_()
        y = torch.cond(leaf[0] > 0, lambda leaf: (leaf**3).sum(), lambda leaf: leaf.sin().sum(), (leaf,))
        (slope,) = torch.autograd.grad(y, leaf, create_graph=True)
        (y + (slope**2).sum()).backward()
        return leaf.grad

    x = sign * np.array([1, 2, 3], np.float32)
    leaf = torch.from_numpy(x.copy()).requires_grad_()
    y = (leaf**3).sum() if sign > 0 else leaf.sin().sum()
    (slope,) = torch.autograd.grad(y, leaf, create_graph=True)
    (y + (slope**2).sum()).backward()
    np.testing.assert_allclose(jax.jit(t2j(function))(x), leaf.grad, 1e-5)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_writes_to_tensors_outside_are_carried_out(sign):
    def function(x):
        total, other = torch.zeros(3), torch.ones(3)
        views = total[1:], total.view(3, 1)
        views[0].sum()

        def add(x):
            views[0].add_(x[1:])
            return x * 2

        def multiply(x):
            other.mul_(x)
            return x * total

        y = torch.cond(x.sum() > 0, add, multiply, (x,))
        return y, total, views[1] + 1, other

    x = jnp.array([1.0, 2.0, 3.0]) * sign
    expected = (
        ([2.0, 4, 6], [0.0, 2, 3], [[1.0], [3], [4]], [1.0, 1, 1])
        if sign > 0
        else ([0.0, 0, 0], [0.0, 0, 0], [[1.0], [1], [1]], [-1.0, -2, -3])
    )
    for got, wanted in zip(jax.jit(t2j(function))(x), expected, strict=True):
        np.testing.assert_allclose(got, wanted)


def test_what_a_branch_computes_first_does_not_leak():
    weight = torch.nn.Parameter(torch.arange(4.0).reshape(2, 2))

    def function(x):
        turned, constant = (x * 2).T[0], torch.ones(2)
        first = torch.cond(x.sum() > 0, lambda: turned @ weight + constant, lambda: turned * 0)
        return first + turned @ weight + constant

    x = jnp.array([[1.0, 2.0], [3.0, 4.0]])
    turned = (x * 2).T[0]
    np.testing.assert_allclose(jax.jit(t2j(function))(x), 2 * (turned @ jnp.arange(4.0).reshape(2, 2) + 1))


def test_random_numbers():
    def function(x):
        y = torch.cond(x.sum() > 0, lambda x: torch.nn.functional.dropout(x), lambda x: x, (x,))
        return y, torch.nn.functional.dropout(x)

    x, key = jnp.ones(64), jax.random.key(0)
    first, second = jax.jit(lambda x, key: t2j(function)(x, rng=key))(x, key)
    assert set(np.unique(first)) == {0.0, 2.0}
    assert (first != second).any()
    np.testing.assert_array_equal(first, t2j(function)(x, rng=key)[0])


def test_backward_with_parameters():
    linear = torch.nn.Linear(3, 3)

    def step(x):
        loss = torch.cond(x.sum() > 0, lambda x: linear(x).square().sum(), lambda x: (x * linear.bias).sum(), (x,))
        assert loss.requires_grad
        loss.backward()
        return linear.weight.grad, linear.bias.grad

    for x in (X, -X):
        linear.zero_grad()
        loss = linear(x).square().sum() if x.sum() > 0 else (x * linear.bias).sum() + linear.weight.sum() * 0
        loss.backward()
        wanted = linear.weight.grad, linear.bias.grad
        linear.weight.grad = linear.bias.grad = None
        got = jax.jit(t2j(step))(jnp.asarray(x.numpy()))
        compare([jnp.zeros((3, 3)) if g is None else g for g in got], wanted)
        assert linear.weight.grad is None


def plus_one(x):
    return x + 1


REFUSED = {
    "structures": (lambda x: (x, x), "same structure"),
    "shapes": (lambda x: x[:1] * 1, r"shape: \[1, 3\] vs \[2, 3\]"),
    "dtypes": (lambda x: x.int(), r"dtype: torch.int32 vs torch.float32"),
    "results": (lambda x: "text", "wanted tensors and integers"),
    "seeds": (lambda x: torch.manual_seed(0) and x + 1, "torch.manual_seed"),
    "attributes": (lambda x: x.requires_grad_() * 1, "requires* grad"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_branches_must_not_do(name):
    branch, message = REFUSED[name]
    with pytest.raises(torch._dynamo.exc.UncapturedHigherOrderOpError, match=message):
        jax.jit(t2j(lambda x: torch.cond(x.sum() > 0, branch, plus_one, (x,))))(jnp.ones((2, 3)))


def test_arguments_are_checked_as_in_pytorch():
    x = jnp.ones(3)
    for match, args in {
        "single-element tensor": (torch.tensor([True, False]), plus_one, plus_one, ()),
        "bool or tensor": ("yes", plus_one, plus_one, ()),
        "callable": (torch.tensor(True), 3, plus_one, ()),
        "tensor leaves": (torch.tensor(True), plus_one, plus_one, (3,)),
    }.items():
        for function in (lambda: torch.cond(*args), lambda: t2j(lambda x: torch.cond(*args))(x)):  # noqa: B023
            with pytest.raises(RuntimeError, match=match):
                function()


def test_a_number_within_a_branch():
    found = jax.jit(t2j(lambda x: torch.cond(x.sum() > 0, lambda x: x * float(x[0]), plus_one, (x,))))
    np.testing.assert_allclose(found(2 * jnp.ones(3)), 4 * np.ones(3))
    np.testing.assert_allclose(found(-jnp.ones(3)), np.zeros(3))


def test_a_tensor_that_is_put_aside_in_a_branch_is_not_to_be_had_outside():
    def function(x, use):
        kept = []

        def branch(x):
            kept.extend([x * 2, (x * 3)[1:], torch.ones(3)])
            return x + kept[0]

        y = torch.cond(x.sum() > 0, branch, lambda x: x, (x,))
        return use(kept) + y

    run = lambda use: jax.jit(t2j(lambda x: function(x, use)))(jnp.ones(3))
    np.testing.assert_array_equal(run(lambda kept: kept[2]), [4, 4, 4])  # a constant
    for use in (lambda kept: kept[0], lambda kept: kept[1].sum(), lambda kept: kept[0][0]):
        with pytest.raises(RuntimeError, match="put aside there"):
            run(use)
