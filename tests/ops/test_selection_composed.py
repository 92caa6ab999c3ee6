"""What goes on, under jit, with mask selections by functions that are others put together, or act on each row."""

import jax
import pytest
import torch
import torch.nn.functional as F

from tests.ops.test_lengths import MASKS, X, check_each, check_gradients, compact, each_of, in_groups
from torch2jax import TracedValueError, t2j

ENDS = torch.tensor([-0.5, 0.5])
FUNCTIONS = {
    "filled": lambda x, m: (x[m].masked_fill(x[m] > 0, 3.0), x[m].T.masked_fill(x[m].T > 0, -1)),
    "written": lambda x, m: (x[m].zero_(), x[m].T.fill_(2.0), x[m].copy_(x[m] * 2), x[m].T.copy_(x[m].T + 1)),
    "masks written": lambda x, m: (x[m].masked_fill_(x[m] < 0, 7.0), x[m].long().fill_(3)),
    "stacks": lambda x, m: (
        *(torch.hstack([x[m], x[m]]), torch.vstack([x[m], x])),
        *(torch.column_stack([x[m][:, 0], x[m]]), torch.hstack([x[m][:, 0], x[:, 1]])),
    ),
    "distances": lambda x, m: (F.pairwise_distance(x[m], x[m].flip(1)), F.pairwise_distance(x[m], x[0], 1.0)),
    "cosines": lambda x, m: (F.cosine_similarity(x[m], x[m].flip(1)), F.cosine_similarity(x[m].T, x[m].T * 2, 0)),
    "triplets": lambda x, m: F.triplet_margin_loss(x[m], x[m].flip(1), x[m] * 2, swap=True, reduction="sum"),
    "ranks": lambda x, m: F.margin_ranking_loss(x[m][:, 0], x[m][:, 1], x[m][:, 2].sign(), 0.1, reduction="sum"),
    "like": lambda x, m: (
        x[m][:, :2].reshape(-1).view_as(x[m][:, 1:].reshape(-1)),
        torch.broadcast_to(x[0], x[m].shape),
    ),
    "sought": lambda x, m: (
        torch.bucketize(x[m], ENDS),
        torch.searchsorted(ENDS, x[m]),
        torch.isin(x[m].round(), ENDS),
    ),
    "taken": lambda x, m: (torch.take(x, (x[m] > 0).long()), torch.take_along_dim(x[m], (x[m] > 0).long(), 1)),
    "taken along": lambda x, m: (
        torch.take_along_dim(x[m], torch.tensor([[2, 0]]), 1),
        x[m].T.take_along_dim(torch.zeros(1, 1, dtype=torch.long), 0),
    ),
    "selected again": lambda x, m: (
        x[m].masked_select(x[m] > 0),
        x[m].masked_select(x[m][:, :1] > 0),
        x[m].T.masked_select(x[:3, :1] > 0),
        (x[m] @ x[m].T).masked_select(x[m][:, 0] > 0),
        torch.masked_select(x[0], x[m] > 0),
    ),
    "covariances": lambda x, m: (
        torch.cat([x[m], x]).T.cov(),
        torch.cat([x[m], x]).cov(correction=0),
        torch.cat([x[m], x])[:, 0].cov(),
        torch.cat([x[m], x]).T.corrcoef(),
        *(torch.cat([x[m], x])[:, :1].T.corrcoef(), torch.cat([x[m], x])[:, :1].T.cov(), torch.cat([x[m], x]).cov()),
    ),
    "rolled": lambda x, m: (x[m].roll(1, 1), x[m].roll((1, -1), (1, -1)), x[m].unfold(1, 2, 1)),
    "rows": lambda x, m: (
        x[m].index_fill(1, torch.tensor([2]), 5.0),
        x[m].chunk(2, 1),
        x[m].repeat(1, 2),
        x[m].repeat(2, 1),
        x[m].tile(2),
        x[m].repeat(2, 1, 2),
        x[m].T.repeat(2, 3),
        x[:, :1].repeat(1, len(x[m])),
        x[m].T.repeat(1, len(x[m])),
    ),
    "parts": lambda x, m: (
        torch.cat([x[m], x[m]]).view(2, -1, 3).sum(0),
        torch.cat([x[m].sin(), x[m]]).reshape(2, len(x[m]), 3),
        x[m].reshape(3, -1),
        torch.stack([x[:, 0][m], x[:, 1][m]]).view(-1).cos().view(2, 1, -1),
    ),
}


of_all = each_of(FUNCTIONS)
compiled = jax.jit(t2j(of_all), static_argnums=2)


@in_groups(FUNCTIONS)
def test_values(names):
    for mask in MASKS.values():
        check_each(compiled(t2j(X), t2j(mask), names), of_all(X, mask, names))


def test_gradients():
    check_gradients(of_all, ("filled", "distances", "cosines", "triplets", "rolled"))


def test_random_draws():
    draw = jax.jit(lambda x, m, rng: t2j(lambda x, m: torch.rand_like(x[m]))(x, m, rng=rng))
    found = draw(t2j(X), t2j(MASKS["some"]), jax.random.key(0))
    assert compact(found)[0].shape == tuple(X[MASKS["some"]].shape)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, m: x[m].chunk(2),
        lambda x, m: x[m].view(2, -1, len(x[m])),
        lambda x, m: torch.isin(x, x[m]),
        lambda x, m: torch.bucketize(x, x[m][:, 0]),
    ],
)
def test_refusals(function):
    with pytest.raises(TracedValueError, match=r"boolean[- ]mask select.*test_selection_composed\.py"):
        jax.jit(t2j(function))(t2j(X), t2j(MASKS["some"]))
