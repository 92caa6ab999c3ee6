"""Tensors that become longer in each iteration of a loop that data end, against PyTorch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from tests.control.test_conditions import QUICK
from torch2jax import Padded, t2j
from torch2jax.runtime.errors import BranchError

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


def broken(ids, most=12):
    done = torch.zeros(ids.shape[0], dtype=torch.bool)
    for _ in range(most):
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


def long(ids):
    return broken(ids, 500)


def reads_what_grows(ids):
    x, n = ids[0].float(), 0
    seen = x[None]
    while x.norm() > 1 and n < 30:
        x = x / 2 + seen.mean(0) * 0.01
        seen = torch.cat([seen, x[None] * len(seen)])
        n += 1
    return seen, seen[-1]


def grows_at_both_ends(ids):
    x, n = ids[0].float(), 0
    seen, both = x[None], torch.stack([x, x], 1)
    while x.norm() > 1 and n < 30:
        x = x / 2
        seen = torch.cat([seen, x[None]])
        both = torch.cat([x[:, None], both, x[:, None]], 1)
        n += 1
    return seen, both


GROWING = [counted, broken, within, long, reads_what_grows, grows_at_both_ends]
FUNCTIONS = [*GROWING, into_a_buffer, beside_a_selection]


@pytest.mark.parametrize("function", GROWING)
def test_one_loop_of_the_graph_has_room_for_all(function):
    text = str(jax.make_jaxpr(t2j(function))(jnp.array(PROMPTS[0])))
    assert text.count(" while[") == (2 if function is within else 1)
    assert " cond[" not in text


def compact(tree):
    is_padded = lambda x: isinstance(x, Padded)
    return [x.compact() if is_padded(x) else x for x in jax.tree.leaves(tree, is_leaf=is_padded)]


def flat(tree):
    return tree if isinstance(tree, tuple) else (tree,)


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


@pytest.mark.parametrize("function", [counted, broken])
def test_each_example_has_iterations_of_its_own(function):
    found = jax.jit(jax.vmap(t2j(function)), compiler_options=QUICK)(jnp.array(PROMPTS))
    for one, prompt in zip(found.compact(), PROMPTS, strict=True):
        np.testing.assert_array_equal(one, function(torch.tensor(prompt)))


def test_room():
    """As much as the iterations need; what an iteration has added that code leaves is not left out of the room."""
    for function, room in ((counted, 15), (broken, 15)):
        found = jax.eval_shape(t2j(function), jnp.array(PROMPTS[0]))
        assert (found.values.shape, found.axis) == ((2, room), 1), function.__name__


def halves(x):
    seen = x[None]
    while x.norm() > 1:
        x = x / 2
        seen = torch.cat([seen, x[None]])
    return seen


@pytest.mark.parametrize(("steps", "is_enough"), [(3, False), (9, True), (20, True)])
def test_more_iterations_than_were_said_are_seen(steps, is_enough):
    x, wanted = jnp.array([300.0, 40.0]), halves(torch.tensor([300.0, 40.0]))
    total = jax.jit(t2j(lambda x: halves(x).sum(), max_steps=steps))
    seen = jax.jit(t2j(halves, max_steps=steps))(x)
    if is_enough:
        np.testing.assert_allclose(total(x), wanted.sum(), 1e-6)
        np.testing.assert_allclose(seen.compact(), wanted, 1e-6)
        np.testing.assert_allclose(jax.grad(total)(x), np.full(2, 1.9980469), 1e-6)
    else:
        assert jnp.isnan(total(x))
        with pytest.raises(ValueError, match="more than"):
            seen.compact()


def test_what_grows_without_a_bound_is_refused():
    with pytest.raises(BranchError, match=r"seen is float32\[1, 2\] where the loop begins, float32\[2, 2\] behind"):
        jax.jit(t2j(halves))(jnp.array([300.0, 400.0]))
