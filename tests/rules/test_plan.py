"""Plans give what the long way gives."""

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from tests.plan_checks import PlanError, checking_plans
from torch2jax import t2j
from torch2jax.calls import plans
from torch2jax.rules.plan import ArrayPlan
from torch2jax.rules.registry import Rules, implements
from torch2jax.runtime import caches

X = torch.tensor([[1.0, -2.0, 3.0], [0.0, -0.0, 5.0]])
INPUTS = {"x": X, "transposed": X.mT.contiguous().mT, "strided": X.repeat(1, 2)[:, ::2]}

CASES = {
    "numbers that are equal": lambda x: [x * True, x * 1, x * 1.0, x / 0.0, x / -0.0],
    "numbers of other kinds": lambda x: [x.int() + 1, x.int() + 1.5, x.int() + True, x.half() * 1e5],
    "a tensor of no dimensions": lambda x: [x * torch.tensor(2.0), x.int() * torch.tensor(2.5), torch.tensor(3) - x],
    "shapes that broadcast": lambda x: [x + x[0], x[:, :1] * x[1:], x[:, None] - x],
    "strides": lambda x: [x.mT + 1, x.mT * x.mT, x[:, ::2] + x[:, ::2], x.expand(2, 2, 3) + 1],
    "comparisons": lambda x: [x > 0, x == x.mT.mT, x.ge(1), torch.maximum(x, x[0])],
    "overloads": lambda x: [torch.max(x, x[0]), torch.min(x, x.abs())],
    "reductions": lambda x: [x.sum(-1), x.sum(0), x.bool().sum(), x.amax(0), x.cumsum(1), x.int().cumsum(0)],
    "products": lambda x: [x @ x.mT, torch.matmul(x.mT, x), torch.nn.functional.linear(x, x), x.mT @ x[:, 0]],
    "lists": lambda x: [torch.cat([x, x]), torch.cat((x, x), 1), torch.stack([x, x]), torch.cat([x, x.double()])],
    "arguments by place": lambda x: [torch.softmax(x.bool(), 1, torch.float32), torch.sum(x, 1, True)],
    "several results": lambda x: [*torch.sort(x, 1), *torch.max(x, 1), *torch.aminmax(x)],
    "without gradients": lambda x: [_without_gradients(x)],
    "in place after it": lambda x: [(x + 1).add_(x), x + 1],
}


def _without_gradients(x):
    with torch.no_grad():
        return x * 2 + x


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("layout", INPUTS)
def test_results_are_pytorchs(name, layout, monkeypatch):
    found: dict = {}
    monkeypatch.setattr(plans, "_plans", found)
    described = []

    def function(x):
        x = torch.empty_strided(x.shape, INPUTS[layout].stride()).copy_(x)
        results = [CASES[name](x) for _ in range(4)][-1]  # what recurs is compiled
        described.append([(each.dtype, each.shape, each.stride(), each.requires_grad) for each in results])
        return results

    want = function(X)
    for translated in (t2j(function), jax.jit(t2j(function))):
        with checking_plans():
            results = translated(t2j(X))
        for got, each in zip(results, want, strict=True):
            np.testing.assert_allclose(got, each.numpy(), 1e-6)
            np.testing.assert_array_equal(np.signbit(got), np.signbit(each.numpy()))
        assert described[-1] == described[0]
    assert any(type(plan) is ArrayPlan for plan in found.values())


def test_channels_stay_last():
    strides = []

    def function(x):
        x = x.contiguous(memory_format=torch.channels_last)
        strides.append((x * 2 + x).relu().stride())
        return x * 2 + x

    x = torch.arange(48.0).view(1, 3, 4, 4)
    np.testing.assert_array_equal(t2j(function)(t2j(x)), function(x))
    assert strides[0] == strides[1]


def test_the_default_dtype_decides():
    def function(x):
        before = torch.get_default_dtype()
        found = []
        for dtype in (torch.float32, torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            found.append((x / 2).dtype)
        torch.set_default_dtype(before)
        return found

    found = []
    t2j(lambda x: found.extend(function(x)) or x)(jnp.arange(3))
    assert found == [torch.float32, torch.float64, torch.float32]


def test_64_bits_on_and_off():
    def function(x):
        return x * 2 + 0.5

    for is_wide in (False, True, False):
        with jax.enable_x64(is_wide):
            assert t2j(function)(jnp.asarray(np.arange(3.0))).dtype == (jnp.float64 if is_wide else jnp.float32)


def test_what_is_refused_has_the_words_of_the_rule():
    def function(x):
        with pytest.raises(RuntimeError, match="Subtraction, the `-` operator, with a bool tensor"):
            _ = x - x
        with pytest.raises(RuntimeError, match=r"must match"):
            _ = x | x.new_ones(2, 5)
        return x

    t2j(function)(jnp.ones((2, 3), bool))


def test_gradients_and_batches_go_through():
    def function(x):
        return (x * 2 + x.sin()) * x

    x = jnp.arange(3.0)
    np.testing.assert_allclose(jax.grad(lambda x: t2j(function)(x).sum())(x), 4 * x + jnp.sin(x) + x * jnp.cos(x), 1e-6)
    np.testing.assert_allclose(jax.vmap(t2j(function))(jnp.stack([x, x])), jnp.stack([t2j(function)(x)] * 2))
    inner = t2j(lambda x: torch.vmap(function)(x[None]))
    np.testing.assert_allclose(inner(x)[0], t2j(function)(x), 1e-6)


def _memory(x):
    found = []
    for i in range(4):
        y = x + i
        view = y[1:, ::2]
        row = y.mT[0]
        y[0] = 0.5
        y[1, 1:] = row.new_ones(2) * i
        view.mul_(2)
        y += row[0].clone()
        y[:, 0].add_(y[:, 1]).relu_()
        found += [y, view, row, y.reshape(-1), y.unsqueeze(0).expand(2, 2, 3), y[None, ..., -1], y.contiguous(), y.mT]
        with torch.no_grad():
            found += [y[0], y[1:].sub_(0.5)]
        found.append(torch.nn.functional.relu(y.clone(), inplace=True))
        found.append(y)
    return found


@pytest.mark.parametrize("layout", INPUTS)
def test_views_and_writes_are_pytorchs(layout):
    described = []

    def function(x):
        x = torch.empty_strided(x.shape, INPUTS[layout].stride()).copy_(x)
        results = _memory(x)
        described.append([(y.shape, y.stride(), y.storage_offset(), y._version, y._is_view()) for y in results])
        return results

    want = function(X)
    with checking_plans():
        for translated in (t2j(function), jax.jit(t2j(function))):
            for got, each in zip(translated(t2j(X)), want, strict=True):
                np.testing.assert_allclose(got, each.numpy(), 1e-6)
            assert described[-1] == described[0]


def test_keywords_and_flags_have_plans():
    def function(x):
        for _ in range(3):
            found = [torch.add(x, x[0], alpha=2), x.sum(dim=-1, keepdim=True), torch.sum(input=x, axis=0), 2 - x]
            found += [torch.nn.functional.gelu(x, approximate="tanh"), torch.clamp(x, max=1), torch.max(x, dim=1)[0]]
            found += [torch.nn.functional.leaky_relu(x, 0.1), x.div(x, rounding_mode="floor")]
        return found

    want = function(X)
    plans.bypassed.clear()
    with checking_plans():
        for got, each in zip(t2j(function)(t2j(X)), want, strict=True):
            np.testing.assert_allclose(got, each.numpy(), 1e-5)
    assert not plans.bypassed["operands that the rule refuses"]


def test_a_plan_is_of_each_tensor_and_not_of_one_that_comes_twice():
    def function(x, y):
        return (
            [torch.sub(a, b, alpha=2) for a, b in ((x, x), (x, y), (y, x))],
            torch.cat([x, y, x]),
            torch.cat([x, x, y]),
        )

    x, y = torch.ones(3), torch.arange(3.0)
    jax.tree.map(np.testing.assert_array_equal, t2j(function)(t2j(x), t2j(y)), t2j(function(x, y)))


def test_what_has_no_plan_is_counted_by_reason():
    def function(x):
        for _ in range(2):
            torch.nonzero(x)
            torch.rand_like(x)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                x @ x
        return x

    caches.clear()
    plans.bypassed.clear()
    t2j(function)(jnp.eye(2), rng=jax.random.key(0))
    assert plans.bypassed["a shape that depends on values"] == 2
    assert plans.bypassed["a rule that is a TensorRule"] >= 2
    assert plans.bypassed["casts, modes or rules that are entered"] >= 2


def test_a_rule_that_is_declared_later_is_used():
    double = torch.library.custom_op("plans::double", lambda x: x * 2, mutates_args=(), schema="(Tensor x) -> Tensor")
    called = []

    def function(x):
        return x.sin() + double(x)

    rules = Rules()
    rules.implements(torch.sin)(lambda input: called.append(input) or jnp.cos(input))
    implements(double)(lambda x: 2 * x)
    x = jnp.arange(2.0)
    for _ in range(4):
        np.testing.assert_allclose(t2j(function)(x), jnp.sin(x) + 2 * x, 1e-6)
    with rules:
        np.testing.assert_allclose(t2j(function)(x), jnp.cos(x) + 2 * x, 1e-6)
    assert called
    implements(double, replace=True)(lambda x: 3 * x)
    np.testing.assert_allclose(t2j(function)(x), jnp.sin(x) + 3 * x, 1e-6)


def test_a_plan_that_is_wrong_is_told(monkeypatch):
    run = ArrayPlan.run
    monkeypatch.setattr(ArrayPlan, "run", lambda self, call, *args: run(self, call, *args).neg())
    with checking_plans(), pytest.raises(PlanError, match="values"):
        t2j(lambda x: x.exp())(jnp.ones(3))


def test_plans_keep_no_tensors():
    references = []

    def function(x):
        found = [
            x.cumsum(0),
            x.mT,
            torch.nn.functional.glu(torch.cat([x, x], 1)),
            x.sort(1)[0],
            torch.prelu(x, x[0, :1]),
        ]
        found.append(found[0].add_(1))
        references.extend(map(weakref.ref, found))
        return x.clone()

    caches.clear()
    jax.make_jaxpr(t2j(function))(jnp.ones((3, 2)))
    gc.collect()
    assert not [reference for reference in references if reference() is not None]


def test_what_is_a_copy_depends_on_bits():
    def function(x):
        found = []
        for y in (x, x.conj(), x) * 2:
            parts = y.resolve_conj(), y.imag.resolve_neg(), y.real, y.imag[1:], y.conj().contiguous()
            found += [(part.is_conj(), part.is_neg(), part._is_view()) for part in parts] + [y.resolve_conj() is y]
        return found

    found = []
    t2j(lambda x: found.extend(function(x)) or x)(jnp.arange(3) * (1 + 2j))
    assert found == function(torch.arange(3) * (1 + 2j))


def test_views_of_what_has_a_keyword():
    for view in (
        lambda x: torch.transpose(input=x, dim0=0, dim1=1),
        lambda x: torch.conj(input=x),
        lambda x: torch.unsqueeze(input=x, dim=0),
    ):
        for _ in range(3):
            np.testing.assert_array_equal(t2j(view)(jnp.ones((2, 3))), view(torch.ones(2, 3)))


def test_a_tensor_in_place_of_a_number_is_read_each_time():
    def function(x):
        halves, thirds = torch.tensor(0.5), torch.tensor(0.25)
        return torch.addcmul(x, x, x, value=halves), torch.addcmul(x, x, x, value=thirds)

    x = torch.arange(3.0)
    for translated in (t2j(function), jax.jit(t2j(function))):
        for found, expected in zip(translated(t2j(x)), function(x), strict=True):
            np.testing.assert_array_equal(found, expected.numpy())


def test_to_make_a_plan_leaves_nothing_in_the_graph():
    def function(x, weight):
        y = torch.relu(torch.nn.functional.conv2d(x, weight, padding=1))
        return y.mean((2, 3)), y.mT * y.mT, torch.add(y, y, alpha=3)

    translated = t2j(function)
    graphs = [jax.make_jaxpr(translated)(jnp.ones((2, 3, 5, 3)), jnp.ones((3, 3, 3, 3))) for _ in "12"]
    assert str(graphs[0]) == str(graphs[1])
