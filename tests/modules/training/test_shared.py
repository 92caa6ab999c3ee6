"""Objects that share a tensor, a container or an object: a state is of one way to share them, and data decide none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch2jax import BranchError, t2j


class Cell:
    def __init__(self):
        self.value = torch.zeros(())


class Bank:
    """Keeps two of something; `now` is one of them."""

    def __init__(self, make):
        self.one, self.other = make(), make()
        self.now = self.one


KINDS = {
    "tensors": (lambda: torch.zeros(()), lambda now, x: now.add_(x), float),
    "lists": (lambda: [torch.zeros(())], lambda now, x: now.__setitem__(0, now[0] + x), lambda now: float(now[0])),
    "dictionaries": (lambda: {"a": 0.0}, lambda now, x: now.update(a=now["a"] + 1.0), lambda now: now["a"]),
    "objects": (Cell, lambda now, x: setattr(now, "value", now.value + x), lambda now: float(now.value)),
}


def takes_turns(write):
    def step(bank, x):
        write(bank.now, x.sum())
        bank.now = bank.other if bank.now is bank.one else bank.one

    return step


def chosen(write):
    def step(bank, x):
        write(bank.now, x.sum())
        if x.sum() > 2:
            bank.now = bank.other
        else:
            bank.now = bank.one

    return step


def chosen_within(write):
    def step(bank, x):
        which = bank.other if x.sum() > 2 else bank.one
        write(bank.now, x.sum() + (which if isinstance(which, torch.Tensor) else 0))

    return step


def steps(make, function, read):
    bank, twin = Bank(make), Bank(make)
    step = t2j(function, state=bank)
    state, compiled = step.init(jnp.ones(1)), jax.jit(step)
    for x in (1.0, 3.0, 3.0, 1.0, 1.0):
        _, state = compiled(state, jnp.full(1, x))
        function(twin, torch.full((1,), x))
    step.load(state)
    for name in ("one", "other", "now"):
        np.testing.assert_allclose(read(getattr(bank, name)), read(getattr(twin, name)), rtol=1e-6)
    assert (bank.now is bank.one) == (twin.now is twin.one)


@pytest.mark.parametrize("kind", KINDS)
def test_what_each_step_exchanges(kind):
    make, write, read = KINDS[kind]
    steps(make, takes_turns(write), read)


@pytest.mark.parametrize("kind", KINDS)
def test_what_data_decide_is_refused_if_it_is_kept(kind):
    make, write, read = KINDS[kind]
    with pytest.raises(BranchError, match=r"data decide whether bank\.now is bank\.o"):
        steps(make, chosen(write), read)


@pytest.mark.parametrize("kind", KINDS)
def test_what_data_decide_within_a_step(kind):
    make, write, read = KINDS[kind]
    steps(make, chosen_within(write), read)
