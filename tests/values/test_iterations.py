"""Loops of as many iterations as data decide, over rows and ranges: PyTorch's values and gradients, and one loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch2jax import Padded, TracedValueError, t2j

SIZES = 4, 12  # iterations as branches, and as a loop of the graph


def over_rows(x):
    found = torch.zeros(())
    for row in x[x > 0]:
        found = (found + row).sin()
    return found


def over_pairs(x):
    found = torch.zeros(())
    for one, other in torch.stack([x, x.cos()], 1)[x > 0]:
        if found > 3:
            break
        found = found + one * other
    return found


def with_numbers(x):
    chosen, found = x[x > 0], torch.zeros(2)
    for i, (one, other) in enumerate(zip(chosen, chosen.flip(0), strict=True)):
        found = (found + one * i).cos() + other
    return found


def of_range(x):
    chosen, found = x[x > 0], 0.0
    for i in range(1, len(chosen), 2):
        found = found * 0.5 + chosen[i] * i
    return found + x.sum()


def backwards(x):
    chosen, found = x[x > 0], torch.zeros_like(x)
    for i in reversed(range(len(chosen))):
        found[i] = chosen[i].exp() + found.sum()
    return found


def by_a_tensor(x):
    found, last = torch.zeros(()), -1
    for i in range((x > 0).sum()):
        if x[i] > 1:
            continue
        found, last = found + x[i].sin(), i
    return found, last


FUNCTIONS = [over_rows, over_pairs, with_numbers, of_range, backwards, by_a_tensor]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda x: x.__name__)
@pytest.mark.parametrize("size", SIZES)
def test_iterations(function, size):
    translated = t2j(function)
    draw = torch.randn(size, generator=torch.Generator().manual_seed(0))
    inputs = [draw, -draw.abs() - 0.1, draw.abs() + 0.1]
    total = lambda x: sum(jnp.sum(each) for each in jax.tree.leaves(translated(x)))
    if size == SIZES[0]:
        translated_too = jax.jit(lambda x: (jax.vmap(translated)(x), jax.vmap(jax.grad(total))(x)))
    else:
        translated_too = jax.jit(lambda x: jax.lax.map(lambda x: (translated(x), jax.grad(total)(x)), x))
    found, slopes = translated_too(jnp.stack([t2j(x) for x in inputs]))
    for i, x in enumerate(inputs):
        leaf = x.clone().requires_grad_()
        wanted = [torch.as_tensor(each) for each in jax.tree.leaves(function(leaf))]
        for one, other in zip(jax.tree.leaves(found), wanted, strict=True):
            np.testing.assert_allclose(one[i], other.detach(), 1e-4, 1e-5)
        (slope,) = torch.autograd.grad(sum(each.sum() for each in wanted) + 0 * leaf.sum(), leaf)
        np.testing.assert_allclose(slopes[i], slope, 1e-3, 1e-4)


def test_many_iterations_are_one_loop():
    jaxpr = str(jax.make_jaxpr(t2j(over_rows))(jnp.ones(40)))
    assert jaxpr.count("sin ") <= 4
    assert "while[" in jaxpr or "scan[" in jaxpr


def test_range_is_as_ever():
    def function(x):
        numbers = [*range(3), *range(2, 8, 3), len(range(4)), isinstance(range(2), range)]
        return x[: len(range(x.shape[0] - 1))].sum() * len(range(len(x[x > 0]))) + sum(numbers)

    x = jnp.array([1.0, -2.0, 3.0])
    assert jax.jit(t2j(function))(x) == t2j(function)(x)
    assert type(range(2)) is range


def test_what_is_none_is_said():
    with pytest.raises(TracedValueError, match="of which no bound is seen"):
        jax.jit(t2j(lambda x, n: sum(x[0] for _ in range(n))))(jnp.ones(3), 2)
    with pytest.raises(TracedValueError, match="iterate over the tensor itself"):
        jax.jit(t2j(lambda x: torch.stack(x[x > 0].unbind())))(jnp.ones(3))


def test_rows_of_what_a_loop_writes_to():
    def running(x):
        chosen = x[x > 0].clone()
        for i in range(1, len(chosen)):
            chosen[i] = chosen[i] + chosen[i - 1].detach().sin()
        return chosen

    for size in SIZES:
        x = torch.randn(size, generator=torch.Generator().manual_seed(1))
        found = jax.jit(t2j(running))(t2j(x))
        assert isinstance(found, Padded)
        np.testing.assert_allclose(found.compact(), running(x), 1e-5)
