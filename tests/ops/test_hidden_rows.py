"""Programs of rows that a traced mask chooses, where singular points are among those that it does not, or first."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.ops.hidden_rows import KINDS, compare, given, masks, spread
from torch2jax import Padded, t2j

ROWS = torch.tensor([[0.0, 0.5, 0.25], [0.75, 0.25, 0.875], [0.5, 0.5, 0.5], [0.125, 0.875, 0.0]])
WEIGHTS = torch.tensor([0.5, 1.0, 0.25])
"""What is beside the rows: it has derivatives too."""


def _ones_for_zeros(y):
    y = y * 1.5
    y[y == 0] = 1.0
    return y


def _whitened(y):
    centred = y - y.mean(0)
    covariance = centred.T @ centred / len(centred) + 0.1 * torch.eye(3)
    return centred @ torch.linalg.inv(torch.linalg.cholesky(covariance)).T


def _above_zero(distances):
    return distances[distances > 0].log()


def _places(y):
    return (y[:, 0].detach().abs() * 10).long().clamp(0, 2)


def _reduced(reduce: str):
    return lambda y, w: w.clone().scatter_reduce(0, _places(y), y[:, 1], reduce)


def _at(y, places):
    return y[places[:, 0], places[:, 1]]


def _apart(y, pairs):
    return (y[pairs[0]] - y[pairs[1]]).norm(dim=1)


PROGRAMS: dict[str, Callable[[Any, Any], Any]] = {
    # parts, joins, writes
    "part": lambda y, w: (y * w)[1:].log(),
    "part of what is sorted": lambda y, w: (y[:, 0] * w[0]).sort().values[1:].sqrt(),
    "narrow": lambda y, w: (y * w).narrow(0, 1, len(y) - 1).sqrt() * w,
    "split": lambda y, w: (y * w).split([1, len(y) - 1])[1].sqrt() * w,
    "part of a view": lambda y, w: (y * w).view(-1)[1:].sqrt(),
    "chosen again": lambda y, w: (lambda z: z[z[:, 0] > 0.3].log())(y * w),
    "cat": lambda y, w: torch.cat([y * w, (y * w)[2:]]).sqrt() * w,
    "cat of a tensor": lambda y, w: (torch.cat([y * w, w[None]]) - 1).log() * w,
    "written": lambda y, w: (1 / _ones_for_zeros(y * w)) * w,
    "written without gradients": lambda y, w: F.gaussian_nll_loss(y, y.flip(0), y + 0.1),
    "padded": lambda y, w: F.pad(y, (0, 0, 1, 1), value=1.0).log(),
    "stack": lambda y, w: torch.stack([y.sqrt(), y.log()], 1).norm(dim=1),
    # what is beside the rows
    "shared operands": lambda y, w: (y / w, w / y, y**w, w**y, torch.atan2(y, w), torch.where(y > 0.3, y, w).sqrt()),
    "numbers": lambda y, w: (y / w[0], w[0] / y, torch.atan2(y.log(), w[0].double())),
    "products": lambda y, w: (y.atanh() * w, (y + 1).acosh() * w, F.linear(y.log(), w[None]), y.log().T @ (y / w)),
    "layer norm": lambda y, w: F.layer_norm(y, (3,), w),
    "a gradient inside": lambda y, w: torch.func.grad(lambda w: ((y * w)[1:].log() * w).sum())(w),
    # pairs
    "distances": lambda y, w: 1 / torch.cdist(y, y).fill_diagonal_(math.inf),
    "nearby": lambda y, w: (1 / (y[:, None] - y).norm(dim=-1).fill_diagonal_(math.inf)) @ y,
    "pairs by a mask": lambda y, w: (_above_zero(torch.cdist(y, y)), _above_zero((y[:, None] - y).square().sum(-1))),
    "triangle": lambda y, w: _apart(y, torch.triu_indices(len(y), len(y), 1)),
    "diagonal": lambda y, w: ((y @ y.T).diagonal().sqrt(), (y @ w[:, None] @ w[None] @ y.T).diagonal(1).sqrt()),
    "attention": lambda y, w: (y @ y.T).masked_fill(torch.eye(len(y)).bool(), -math.inf).softmax(1) @ y,
    # statistics
    "std": lambda y, w: (y.std(0), y.std(), y.std(1) * w[0], (y * w).std(1), y.var(0).sqrt(), y.var()),
    "norm": lambda y, w: (y.norm(dim=0) * w, y.norm(dim=1) * w[0], (y - y[:1]).norm(dim=1), y.norm()),
    "of centred rows": lambda y, w: (y - y.mean(0)).norm(3, dim=1) * w[0],
    "normalized": lambda y, w: (F.normalize(y - y.mean(0), dim=1) * w, F.normalize(y, dim=0) * w),
    "standardized": lambda y, w: ((y - y.mean(0)) / y.std(0), (y - y.mean(1, True)) / y.std(1, keepdim=True)),
    "whitened": lambda y, w: _whitened(y),
    "correlation": lambda y, w: (torch.corrcoef(y.T), torch.cov(y.T)),
    "order": lambda y, w: (y.median(0).values, y.median(), y.mode(0).values, y.quantile(0.3, 0), y.amax(0), y.min()),
    "softmax": lambda y, w: (y.softmax(0).log(), y.log_softmax(0) * w, y.logsumexp(0)),
    "product": lambda y, w: (y.prod(0), y.prod(), y.prod(1) * w[0], y.cumprod(0)),
    # places
    "taken": lambda y, w: (torch.take(w, _places(y)).sqrt() * y[:, 0], y.take_along_dim(y.argsort(0), 0).sqrt()),
    "by order": lambda y, w: ((y * w)[y[:, 0].argsort()].log(), y.gather(0, y.argsort(0)).log()),
    "nonzero": lambda y, w: _at(y, y.nonzero()).sqrt(),
    "unique": lambda y, w: y[:, 0].detach().unique(),
    "scatter of products": _reduced("prod"),
    "scatter": lambda y, w: tuple(_reduced(name)(y, w) for name in ("sum", "mean", "amax")),
    "index_add": lambda y, w: w.clone().index_add(0, _places(y), y[:, 1].sqrt()),
    "repeated": lambda y, w: torch.repeat_interleave(y * w, 2, 0).sqrt() * w,
    # losses
    "losses": lambda y, w: (F.cross_entropy(y.log(), torch.arange(len(y)) % 3), F.kl_div(y.log(), y), F.mse_loss(y, y)),
}


def _wrong(program: Callable, rows: torch.Tensor, weights: torch.Tensor) -> dict[str, str]:
    def function(mask, wholes):
        found = program(wholes[0][mask], wholes[1])
        return [found] if isinstance(found, torch.Tensor) else list(found)

    cases = {}
    for kind in KINDS:
        places, mask = masks(len(rows), kind)
        cases[kind] = given(function, mask, [spread(rows, places, 0, kind), weights], [0, None])
    return {kind: text for kind, text in compare(function, cases).items() if text and text != "left out"}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program(name):
    assert not _wrong(PROGRAMS[name], ROWS, WEIGHTS)


def _loss_of_padded(rows, w):
    found = t2j(lambda y, w: (PROGRAMS["part"](y, w), (y / w).prod(0), y.std(1)))(rows, w)
    return sum([(x.values if isinstance(x, Padded) else x).sum() for x in found], jnp.zeros(()))


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0])
def test_rows_beyond_a_length(value):
    """Padding may be anything."""
    rows = t2j(ROWS)
    padded = jnp.concatenate([rows, jnp.full((2, 3), value)])
    slopes = jax.value_and_grad(lambda x, w, n: _loss_of_padded(x if n is None else Padded(x, n), w), (0, 1))
    loss, (of_rows, of_weights) = jax.jit(slopes)(padded, t2j(WEIGHTS), len(rows))
    wanted, (of_rows_alone, of_weights_alone) = slopes(rows, t2j(WEIGHTS), None)
    np.testing.assert_allclose(loss, wanted, 1e-5)
    np.testing.assert_allclose(of_rows[:4], of_rows_alone, 1e-5)
    np.testing.assert_array_equal(of_rows[4:], 0)
    np.testing.assert_allclose(of_weights, of_weights_alone, 1e-5)


@pytest.mark.parametrize("name", ["part", "shared operands", "numbers", "std", "scatter of products"])
def test_a_program_in_double_precision(name):
    with jax.enable_x64(True):
        assert not _wrong(PROGRAMS[name], ROWS.double(), WEIGHTS.double())
