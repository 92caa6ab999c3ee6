"""Tensors that become longer in each iteration of a loop that data end: one loop of the graph, against PyTorch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from tests.control.test_conditions import QUICK
from torch2jax import Padded, t2j
from torch2jax.errors import BranchError

TABLE = torch.randn(11, 11, generator=torch.Generator().manual_seed(0))
PROMPTS = [[[3, 4, 5], [6, 7, 8]], [[4, 9, 1], [7, 7, 7]], [[10, 3, 8], [0, 5, 9]], [[2, 1, 6], [9, 9, 3]]]


def following(ids, last):
    return (TABLE[last] + ids.sum(1, keepdim=True) * 0.1).sin().argmax(-1)


def counted(ids):
    done, n = torch.zeros(ids.shape[0], dtype=torch.bool), 0
    while not done.all() and n < 12:
        new = torch.where(done, 0, following(ids, ids[:, -1]))
        ids = torch.cat([ids, new[:, None]], -1)
        done = done | (new == 2)
        n += 1
    return ids


def by_length(ids):
    """The length alone counts the iterations, and the code asks at the end of each, through tensors."""
    left, is_over = torch.ones(ids.shape[0], dtype=torch.long), False
    while not is_over:
        new = following(ids, ids[:, -1:].squeeze(1)) * left
        ids = torch.cat([ids, new.unsqueeze(1)], 1)
        done = torch.full((ids.shape[0],), ids.shape[1] >= 14) | torch.isin(new, torch.tensor([2]))
        left = left & ~done
        is_over = bool(left.max() == 0)
    return ids


def broken(ids):
    done = torch.zeros(ids.shape[0], dtype=torch.bool)
    for _ in range(12):
        new = torch.where(done, 0, following(ids, ids[:, -1]))
        ids = torch.cat([ids, new[:, None]], -1)
        done = done | (new == 2)
        if done.all():
            break
    return ids


def into_a_buffer(ids):
    done, n = torch.zeros(ids.shape[0], dtype=torch.bool), ids.shape[1]
    found = torch.zeros(ids.shape[0], n + 12, dtype=torch.int64)
    found[:, :n] = ids
    while not done.all() and n < found.shape[1]:
        new = torch.where(done, 0, following(found, found[:, n - 1]))
        found[:, n] = new
        done = done | (new == 2)
        n += 1
    return found, n


def several(ids):
    """Two that grow, one of them along its first dimension and by two rows; of one of them a part is read later."""
    done, mask = torch.zeros(ids.shape[0], dtype=torch.bool), torch.ones(ids.shape[0], 3)
    seen = ids.float().T
    while not done.all() and mask.shape[1] < 13:
        new = torch.where(done, 0, following(ids, ids[:, -1]))
        ids = torch.cat([ids, new[:, None]], -1)
        mask = torch.cat([mask, mask.new_ones((mask.shape[0], 1)) * 0.5], -1)
        seen = torch.cat([seen, ids[:, -2:].T.float().sin()])
        done = done | (new == 2)
    return ids, (mask * ids).sum(1), seen.mean(0), seen[-1]


def sometimes(ids):
    """Some iterations add nothing."""
    kept, x, n = ids[0, :1].long(), ids[0].sum(), 0
    while n < 20 and x < 90:
        if x % 3 == 0:
            kept = torch.cat([kept, x[None]])
        x = x + 1 + n % 2
        n += 1
    return kept, kept.sum()


def within(ids):
    """A loop in a loop; the inner one is a `for`."""
    x, rows, n = ids[0].float(), ids.float(), 0
    while n < 9 and x.norm() > 0.1:
        for _ in range(5):
            x = x / 2 + 0.01
            if x.norm() < 1:
                break
        rows = torch.cat([rows, x[None]])
        n += 1
    return rows


def beside_a_selection(ids):
    """What one mask chose is written, what another one chose grows, and that mask changes."""
    x, n = ids[0].float(), 0
    kept, mask = x[x > 3], x > 4
    seen = x[mask]
    while n < 30 and x.norm() > 1:
        x = x / 2
        kept.mul_(0.5)
        seen = torch.cat([seen, x[:1] + kept.sum()])
        mask[0] = seen.sum() > 5
        n += 1
    return kept, seen, mask


FUNCTIONS = [counted, by_length, broken, into_a_buffer, several, sometimes, within, beside_a_selection]


def compact(tree):
    is_padded = lambda x: isinstance(x, Padded)
    return [x.compact() if is_padded(x) else x for x in jax.tree.leaves(tree, is_leaf=is_padded)]


def flat(tree):
    return tree if isinstance(tree, tuple) else (tree,)


def loops(function, *args):
    return str(jax.make_jaxpr(t2j(function))(*args)).count(" while[")


@pytest.mark.parametrize("function", FUNCTIONS)
def test_values(function):
    traces = []

    def traced(ids):
        traces.append(None)
        return t2j(function)(ids)

    jitted = jax.jit(traced, compiler_options=QUICK)
    for prompt in PROMPTS:
        ids = torch.tensor(prompt)
        for found, wanted in zip(compact(jitted(t2j(ids))), flat(function(ids)), strict=True):
            np.testing.assert_allclose(found, wanted, 1e-5)
    assert len(traces) == 1
    assert loops(function, jnp.array(PROMPTS[0])) >= 1


@pytest.mark.parametrize("function", [counted, by_length, broken])
def test_each_example_has_iterations_of_its_own(function):
    found = jax.jit(jax.vmap(t2j(function)), compiler_options=QUICK)(jnp.array(PROMPTS))
    for one, prompt in zip(found.compact(), PROMPTS, strict=True):
        np.testing.assert_array_equal(one, function(torch.tensor(prompt)))


def test_room():
    """As much as the iterations need; what an iteration has added that code leaves is not left out of the room."""
    for function, room in ((counted, 15), (by_length, 14), (broken, 16)):
        found = jax.eval_shape(t2j(function), jnp.array(PROMPTS[0]))
        assert (found.values.shape, found.axis) == ((2, room), 1), function.__name__


def test_gradients():
    def norms(x):
        seen, n = x.norm()[None], 0
        while n < 20 and x.norm() > 1:
            x = x / 2 + 0.01 * x.sin()
            seen = torch.cat([seen, x.norm()[None] * n])
            n += 1
        return seen.square().sum()

    x = np.array([30, 40, 5], np.float32)
    leaf = torch.from_numpy(x).requires_grad_()
    (wanted,) = torch.autograd.grad(norms(leaf), leaf)
    np.testing.assert_allclose(jax.jit(jax.grad(t2j(norms)), compiler_options=QUICK)(x), wanted, 1e-4)
    np.testing.assert_allclose(jax.jit(jax.jacfwd(t2j(norms)), compiler_options=QUICK)(x), wanted, 1e-4)


def halves(x):
    seen = x[None]
    while x.norm() > 1:
        x = x / 2
        seen = torch.cat([seen, x[None]])
    return seen


def test_the_most_iterations_are_said():
    x = jnp.array([300.0, 400.0])
    with pytest.raises(BranchError, match=r"in halves makes seen longer in each iteration, by 1, and .*max_steps=N"):
        jax.jit(t2j(halves))(x)
    found = jax.jit(t2j(halves, max_steps=12))(x)
    assert found.values.shape == (13, 2)
    np.testing.assert_array_equal(found.compact(), halves(torch.tensor([300.0, 400.0])))
    few = jax.jit(t2j(halves, max_steps=3))(x)
    assert jnp.isnan(few.values).all()
    with pytest.raises(ValueError, match="room for 4 rows"):
        few.compact()


def doubles(x):
    while x.norm() > 1:
        x = torch.cat([x / 2, x / 4])
    return x.norm()


def shared(x):
    seen, n, top = x[None], 0, x
    while x.norm() > 1 and n < 200:
        x, n = x / 2, n + 1
        seen = torch.cat([seen, x[None]])
        top = seen[0]
    return seen, top


def by_data(x, most=200):
    seen, n = x, 0
    while x.norm() > 1 and n < most:
        x, n = x / 2, n + 1
        seen = torch.cat([seen, x[x > 2]])
    return seen


def written(x, most=200):
    seen, n = x[None], 0
    while x.norm() > 1 and n < most:
        x, n = x / 2, n + 1
        seen.mul_(2)
        seen = torch.cat([seen, x[None]])
    return seen


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (doubles, "x becomes longer in each iteration by a data-dependent number"),
        (by_data, "seen becomes longer in each iteration by a data-dependent number"),
        (shared, "seen has a different size in each iteration, and shares memory"),
        (written, "seen is written in place"),
    ],
)
def test_what_no_loop_can_carry(function, reason):
    with pytest.raises(
        BranchError, match=rf"The loop at .*in {function.__name__} is not a loop of the graph: .*{reason}"
    ):
        jax.make_jaxpr(t2j(function))(jnp.array([300.0, 400.0]))


@pytest.mark.parametrize("function", [by_data, written])
def test_what_no_loop_can_carry_stays_branches(function):
    jitted = jax.jit(lambda x: t2j(function)(x, 12), compiler_options=QUICK)
    for x in ([30.0, 40.0], [1.0, 9.0], [0.1, 0.2]):
        np.testing.assert_allclose(jitted(jnp.array(x)).compact(), function(torch.tensor(x), 12), 1e-6)
