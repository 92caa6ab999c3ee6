"""The bounds that are read off the steps of a program hold for what it computes."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax import lax

from torch2jax import t2j
from torch2jax.tracing.value_ranges import range_of

UNARY = [
    lambda x: x % 5,
    lambda x: x % -3,
    lambda x: torch.fmod(x, 4),
    lambda x: x // 3,
    lambda x: torch.div(x, 7, rounding_mode="trunc"),
    lambda x: x & 13,
    lambda x: x.clamp(-2, 9),
    lambda x: x.clamp(max=6),
    lambda x: -x,
    lambda x: x.flip(0),
    lambda x: x.sort()[0],
    lambda x: x.float().topk(32)[1].int(),
    lambda x: x.cummax(0)[0],
    lambda x: x.to(torch.uint8).int(),
    lambda x: x.to(torch.int8).int(),
    lambda x: (x > 2).int(),
    lambda x: x.argmax().int().expand(32),
    lambda x: x * 3 - 4,
    lambda x: x[2:3] + x,
    lambda x: torch.where(x < 4, x, 3),
    lambda x: torch.where(x >= -1, 2, x),
    lambda x: torch.where(x > 0, x.flip(0), 1),
    lambda x: torch.where(x > 100, x, x + 100),
    lambda x: x[x.argsort()],
    lambda x: x.abs(),
    lambda x: x.clamp(-9, 9).square(),
    lambda x: torch.zeros(32, dtype=torch.int32).index_add(0, (x % 32).long(), x % 7),
    lambda x: torch.full((32,), 4, dtype=torch.int32).index_copy(0, torch.arange(32).flip(0), x % 7),
    lambda x: ~x,
]
BINARY = [
    torch.add,
    torch.sub,
    torch.mul,
    torch.maximum,
    torch.minimum,
    torch.bitwise_and,
    lambda x, y: torch.where(x < y, x, y),
    lambda x, y: torch.where(y <= 3, x, y),
    lambda x, y: torch.cat([x, y])[3:35],
]


@pytest.mark.parametrize("seed", range(6))
def test_what_random_programs_compute_is_within_the_bounds(seed):
    generator = random.Random(seed)
    ranges = []

    def program(x, y):
        values = [x, y]
        for _ in range(40):
            if generator.random() < 0.7:
                values.append(generator.choice(UNARY)(generator.choice(values[-6:])))
            else:
                values.append(generator.choice(BINARY)(*generator.choices(values[-6:], k=2)))
        ranges.extend(range_of(value.read()) for value in values)
        return values

    numbers = np.random.default_rng(seed)
    small, large = numbers.integers(-20, 20, 32), numbers.integers(-(2**31), 2**31 - 1, 32)
    results = jax.jit(t2j(program))(small.astype(np.int32), large.astype(np.int32))
    assert sum(high - low < 300 for low, high in ranges) > 5
    for (low, high), result in zip(ranges, results, strict=True):
        assert low <= result.min()
        assert result.max() <= high


def test_within_batches_and_derivatives():
    seen = []

    def count(x, w):
        seen.append(range_of(lax.rem(lax.max(x, 0), 4)))
        return (w * x).sum()

    jax.jit(jax.vmap(jax.grad(count, argnums=1)))(jnp.arange(6).reshape(2, 3), jnp.ones((2, 3)))
    assert seen == [(0, 3)]


def test_values_that_many_others_are_computed_of_are_looked_at_once():
    """A program of so many steps has ``2**60`` ways from its end to its beginning."""

    def doubled(x):
        x = lax.rem(lax.max(x, 0), 4)
        for _ in range(60):
            x = lax.min(jnp.where(x < 3, x, 3 - x), x)
        return range_of(x), x

    found = []
    jax.jit(lambda x: found.append(doubled(x)[0]))(jnp.arange(6))
    assert found[0][1] <= 3 + 2**31
