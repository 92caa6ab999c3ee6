"""64-bit values where JAX's arrays have 32 bits: refused where 32 do not hold them, exact where they do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch2jax import load_state, t2j
from torch2jax.tensors import dtypes

LARGE = 2**40
CLOSED_OVER = torch.tensor([LARGE, 1])


class Hashes(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("multiplier", torch.tensor(6364136223846793005))

    def forward(self, x):
        return x * self.multiplier % 1000


WAYS = {
    "add": lambda x: x + LARGE,
    "add to it": lambda x: LARGE + x,
    "alpha": lambda x: torch.add(x, x, alpha=LARGE),
    "sub": lambda x: LARGE - x,
    "mul": lambda x: x * 6364136223846793005 % 1000,
    "remainder": lambda x: x % LARGE,
    "floor_divide": lambda x: x // LARGE,
    "unsigned": lambda x: x & 0xFFFFFFFF,
    "one more than fits": lambda x: x + 2**31,
    "negative": lambda x: x - (2**31 + 1),
    "in place": lambda x: x.clone().mul_(LARGE),
    "compared": lambda x: x < LARGE,
    "where": lambda x: torch.where(x > 2, x, LARGE),
    "masked_fill": lambda x: x.masked_fill(x > 2, LARGE),
    "clamp": lambda x: x.clamp(max=LARGE),
    "full": lambda x: x + torch.full((2,), LARGE),
    "full_like": lambda x: torch.full_like(x, LARGE),
    "tensor": lambda x: x + torch.tensor(LARGE),
    "tensors": lambda x: x * torch.tensor([LARGE, 3]),
    "arange": lambda x: x + torch.arange(2) * LARGE,
    "closed over": lambda x: x + CLOSED_OVER,
    "a result": lambda x: CLOSED_OVER * 1,
    "written": lambda x: x.long().index_put((torch.tensor([0]),), torch.tensor(LARGE)),
    "fill": lambda x: x.clone().fill_(LARGE),
    "pad": lambda x: torch.nn.functional.pad(x, (1, 1), value=LARGE),
    "a buffer": Hashes(),
}
X = torch.tensor([5, -7])


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("way", WAYS)
def test_integers_that_32_bits_do_not_hold(way, jit):
    f = t2j(WAYS[way])
    f = jax.jit(f) if jit else f
    with pytest.raises(OverflowError, match=r"got the integer -?\d+, at .*test_narrow\.py.*jax_enable_x64"):
        f(jnp.array(X.numpy()))
    with jax.enable_x64(True):
        np.testing.assert_array_equal(f(jnp.array(X.numpy())), WAYS[way](X))


@pytest.mark.parametrize(
    "give",
    [t2j, lambda x: t2j({"a": x}), lambda x: t2j(lambda y: y + 1)(x), lambda x: load_state({"a": x})],
    ids=["t2j", "tree", "argument", "load_state"],
)
def test_tensors_that_32_bits_do_not_hold(give):
    with pytest.raises(OverflowError, match="jax_enable_x64"):
        give(torch.tensor([3, LARGE]))
    with pytest.raises(OverflowError, match="jax_enable_x64"):
        give(torch.tensor([-LARGE]))


def test_states_that_32_bits_do_not_hold():
    with pytest.raises(OverflowError, match="jax_enable_x64"):
        t2j(Hashes()).split()


@pytest.mark.parametrize(
    "f",
    [
        lambda x: torch.where(x > 2, x, torch.iinfo(torch.int64).max).amin(),
        lambda x: x.masked_fill(x > 2, torch.iinfo(torch.int64).min).amax(),
        lambda x: x.clamp(torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max),
        lambda x: torch.full_like(x, torch.iinfo(torch.int64).max) > x,
        lambda x: x.float() * LARGE,
        lambda x: x + (2**31 - 1) - 2**30,
    ],
    ids=["least", "greatest", "clamp", "compared", "float", "the largest that fits"],
)
def test_bounds_and_what_fits(f):
    np.testing.assert_array_equal(t2j(f)(jnp.array(X.numpy())), f(X))


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x + torch.arange(2) * LARGE // LARGE,
        lambda x: x + torch.arange(2) % LARGE,
        lambda x: x + torch.arange(2) * 6364136223846793005 % 1000003,
        lambda x: x * (torch.arange(2) < LARGE),
        lambda x: x + (CLOSED_OVER // LARGE),
        lambda x: x + (torch.tensor(LARGE) + 1) // LARGE,
    ],
    ids=["quotient", "remainder", "hash", "compared", "closed over", "number"],
)
def test_what_no_input_decides_is_computed_in_64_bits(f):
    np.testing.assert_array_equal(jax.jit(t2j(f))(jnp.array(X.numpy())), f(X))


NET = torch.nn.Linear(2, 2).double()


@pytest.mark.parametrize(
    "use",
    [
        lambda: t2j(NET)(jnp.ones(2)),
        lambda: t2j(NET).split(),
        lambda: t2j(torch.ones(2, dtype=torch.float64)),
        lambda: t2j(lambda x: x)(torch.ones(2, dtype=torch.complex128)),
        lambda: t2j(lambda x: x)(np.ones(2)),
    ],
    ids=["module", "state", "tensor", "argument", "numpy"],
)
def test_narrowed_floats_are_told_of_once(use, monkeypatch, recwarn):
    monkeypatch.setattr(dtypes, "_has_warned", False)
    with pytest.warns(UserWarning, match=r"torch\.(float64|complex128).*jax_enable_x64") as warned:
        use()
    assert warned[0].filename == __file__
    use()
    assert not recwarn.list
    monkeypatch.setattr(dtypes, "_has_warned", False)
    with jax.enable_x64(True):
        use()
    assert not recwarn.list
