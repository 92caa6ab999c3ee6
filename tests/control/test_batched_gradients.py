"""Gradients of batches of loops that end on data, with conditions in them."""

import jax
import numpy as np
import pytest
import torch

from tests.control.test_conditions import INPUTS, QUICK
from torch2jax import t2j

BATCH = np.stack([*INPUTS, np.array([3, 0.1, -0.1], np.float32), np.array([1, 4, 9], np.float32)])


def breaks(x):
    for _ in range(6):
        if x.norm() > 4:
            break
        x = x * 1.3
    return x


def chooses(x):
    n = 0
    while x.norm() < 40 and n < 5:
        x = x * 1.5 if x.sum() > 0 else x.flip(0) * 2
        if x[0] > 3:
            x = x + x[1] ** 2 * 0.1 if x[1] > 2 else x - 1
        n += 1
    return x * n


def singular(x):
    for _ in range(4):
        if x.min() > 0:
            x = x.sqrt() * 3
        elif x.norm() > 20:
            break
        else:
            x = x * 1.5
    return x


def loops_in_loops(x):
    for _ in range(3):
        for k in range(3):
            if x[k] > 3:
                break
            x = x * 1.2 if x[k] > 0 else x * 0.9
        if x.norm() > 9:
            break
    return x


def writes(x):
    rows = torch.zeros(5, 3)
    n = 0
    while n < 5 and rows.sum() < 20:
        if x[0] > 0:
            rows[n] = x * (n + 1)
        else:
            rows[n : n + 1] += x.abs().sqrt()
        n += 1
    return rows


PROGRAMS = [breaks, chooses, singular, loops_in_loops, writes]


def wanted(program) -> np.ndarray:
    given = torch.tensor(BATCH, requires_grad=True)
    sum(program(x * 1).square().sum() for x in given).backward()
    return given.grad.numpy()


def loss(program, batch):
    return (jax.vmap(t2j(program))(batch) ** 2).sum()


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_gradient_of_a_batch(program):
    found = jax.jit(jax.grad(lambda batch: loss(program, batch)), compiler_options=QUICK)(BATCH)
    np.testing.assert_allclose(found, wanted(program), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("program", PROGRAMS[:2])
def test_batches_of_batches(program):
    twice = jax.grad(lambda batch: (jax.vmap(jax.vmap(t2j(program)))(batch) ** 2).sum())
    found = jax.jit(twice, compiler_options=QUICK)(BATCH.reshape(2, 3, 3))
    np.testing.assert_allclose(found.reshape(BATCH.shape), wanted(program), rtol=1e-4, atol=1e-5)
    around = jax.vmap(jax.grad(lambda batch: loss(program, batch)))
    found = jax.jit(around, compiler_options=QUICK)(BATCH.reshape(2, 3, 3))
    np.testing.assert_allclose(found.reshape(BATCH.shape), wanted(program), rtol=1e-4, atol=1e-5)


def test_random_numbers_on_a_side():
    def drawn(x):
        for _ in range(4):
            if x.norm() > 20:
                break
            x = x * (1 + torch.rand(())) if x.sum() > 0 else x * 2
        return x

    keys = jax.random.split(jax.random.key(0), len(BATCH))
    single = jax.grad(lambda x, key: (t2j(drawn)(x, rng=key) ** 2).sum())
    each = jax.vmap(single)(BATCH, keys)
    batched = jax.grad(lambda xs: (jax.vmap(lambda x, key: t2j(drawn)(x, rng=key))(xs, keys) ** 2).sum())
    np.testing.assert_allclose(batched(BATCH), each, rtol=1e-5)
    np.testing.assert_allclose(each[1], single(BATCH[1], keys[1]), rtol=1e-5)
