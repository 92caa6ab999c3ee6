"""The short way of pointwise operators gives what the long one gives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch2jax import t2j
from torch2jax.rules import recurring

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
    ways: dict = {}
    monkeypatch.setattr(recurring, "_ways", ways)
    described = []

    def function(x):
        x = torch.empty_strided(x.shape, INPUTS[layout].stride()).copy_(x)
        results = [CASES[name](x) for _ in range(4)][-1]  # what recurs is compiled
        described.append([(each.dtype, each.shape, each.stride(), each.requires_grad) for each in results])
        return results

    want = function(X)
    for translated in (t2j(function), jax.jit(t2j(function))):
        for got, each in zip(translated(t2j(X)), want, strict=True):
            np.testing.assert_allclose(got, each.numpy(), 1e-6)
            np.testing.assert_array_equal(np.signbit(got), np.signbit(each.numpy()))
        assert described[-1] == described[0]
    assert any(ways.values())


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
