"""Tensors of sizes that data decide, padding by such sizes, or of what has one, under jit; and of nothing at all."""

import jax
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

from tests.ops import test_lengths
from tests.ops.test_lengths import MASKS, X, check, check_each, check_gradients, each_of
from torch2jax import TracedValueError, t2j

FUNCTIONS = {
    "ranges": lambda x, m: (
        *(torch.arange(0, len(x[m]), 2), torch.arange(len(x[m]) - 1, -1, -1), torch.arange(len(x[m]), 0, -3)),
        *(torch.arange(0.0, len(x[m])), torch.arange(len(x[m]), 2 * len(x[m])), torch.arange(1 + len(x[m]))),
        torch.arange(len(x[m]), dtype=torch.float64),
    ),
    "spaces": lambda x, m: (torch.linspace(-1, 2, len(x[m])), torch.logspace(0, 1, 1 + len(x[m]), base=2)),
    "by tensors": lambda x, m: (
        *(torch.zeros(m.sum()), torch.arange(m.sum()), torch.ones(2, m.sum()), torch.full((m.sum(),), m.sum())),
        *(torch.arange(1, m.sum() + 1), torch.linspace(0, 1, m.sum() + 1), torch.empty(m.sum(), 3).fill_(1)),
    ),
    "to a size": lambda x, m: torch.stack([F.pad(x[m], (0, 0, 0, 8 - len(x[m]))), x]),
    "both ends": lambda x, m: (F.pad(x[m], (0, 0, 1, 2), value=7.0), F.pad(x[m], (1, 0, 2, 0)), F.pad(x[m], (1, 1))),
    "by a length": lambda x, m: (F.pad(x, (0, 0, len(x[m]), 0)), F.pad(x, (0, len(x[m])), value=-1.0)),
    "cut": lambda x, m: (F.pad(x[m], (0, 0, 0, 3 - len(x[m]))), F.pad(x, (0, 0, -len(x[m]), 0))),
    "along others": lambda x, m: (F.pad(x[m].T, (1, 2)), F.pad(x.T[:, m], (0, 8 - len(x[m]), 1, 0))),
    "by a mask of pairs": lambda x, m: (lambda d: (d[d > 0.2], d.cos()[d < 0]))(x[:3] @ x[m].T),
    "sequences": lambda x, m: (
        *(pad_sequence([x[m], x[~m]]), pad_sequence([x[m], x[~m], x[:2]], batch_first=True, padding_value=-1.0)),
        *(pad_sequence([x[m][:, 0], x[:, 1]]), pad_sequence([x[~m], x[m]], padding_side="left")),
    ),
}

of_all = each_of(FUNCTIONS)
compiled = jax.jit(t2j(of_all))


@pytest.mark.parametrize("mask", MASKS)
def test_values(mask):
    check_each(compiled(t2j(X), t2j(MASKS[mask])), of_all(X, MASKS[mask]))


def test_values_with_x64():
    with jax.enable_x64(True):
        check_each(jax.jit(t2j(of_all))(t2j(X), t2j(MASKS["few"])), of_all(X, MASKS["few"]))


def test_gradients():
    check_gradients(of_all, ("by a mask of pairs", "to a size", "both ends", "by a length", "cut", "sequences"))


def test_draws():
    def drawn(x, m):
        n = len(x[m])
        rows = torch.randint(0, n, (50,)), torch.randint(n, (2, n)), torch.normal(1.0, 0.0, (n, 2)), torch.randperm(n)
        return *rows[:3], rows[3].sort().values

    draw = jax.jit(lambda x, m, rng: t2j(drawn)(x, m, rng=rng))
    rows, more, normal, order = draw(t2j(X), t2j(MASKS["some"]), jax.random.key(0))
    n = int(MASKS["some"].sum())
    assert set(np.asarray(rows)) == set(range(n))
    assert more.compact().shape == (2, n)
    assert more.compact().max() < n
    np.testing.assert_array_equal(normal.compact(), np.ones((n, 2)))
    np.testing.assert_array_equal(order.compact(), np.arange(n))


def test_what_cannot_be_is_said():
    with pytest.raises(TracedValueError, match="mode='reflect'"):
        jax.jit(t2j(lambda x: F.pad(x[None], (len(x[x > 0]), 1), mode="reflect")))(np.ones(4, np.float32))
    with pytest.raises(TracedValueError, match=r"the size of torch\.zeros, of which no bound is seen"):
        jax.jit(t2j(lambda n: torch.zeros(n)))(3)


# Masks without any element: nothing is chosen of nothing.

_REFUSED = {"spread", "largest", "smallest"}
"""What expands by a length a dimension that is known to be none."""


def test_nothing_of_nothing():
    x, m = X[:0], torch.zeros(0, dtype=torch.bool)
    found = {}
    for name, function in (test_lengths.FUNCTIONS | FUNCTIONS).items():
        try:
            found[name] = function(x, m)
        except (IndexError, RuntimeError, ValueError):
            continue  # PyTorch's error
    names = tuple(name for name in found if name not in _REFUSED)
    results = jax.jit(lambda x, m: t2j(each_of(test_lengths.FUNCTIONS | FUNCTIONS))(x, m, names))(t2j(x), t2j(m))
    assert len(names) > 40
    for name in names:
        check(results[name], found[name], name)
