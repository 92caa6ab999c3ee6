"""What a mask chose beside tensors of a known size, and written by indices, under jit.

PyTorch refuses operands that are not as long. A program cannot, so that results tell: they are nan.
"""

import jax
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.ops.test_lengths import check, check_each, check_gradients, each_of
from torch2jax import t2j

X = torch.linspace(-2, 2, 24).mul(7).sin().reshape(6, 4)
MASK = torch.tensor([True, False, True, False, False, True])
OTHER = torch.tensor([False, True, True, False, True, False])
NONE, ALL = torch.zeros(6, dtype=torch.bool), torch.ones(6, dtype=torch.bool)
CLASSES = torch.tensor([0, 1, 1, 2, 0, 3])
FIRST = torch.tensor([0])
THREE = torch.linspace(1, 2, 12).reshape(3, 4)


def written(x, at, value):
    x = x.clone()
    x[at] = value
    return x


def square(x, m):
    return x[m] @ x[m].T


BESIDE = {
    "sums": lambda x, m: (x[m] + THREE, THREE - x[m], x[m].T * THREE.T, torch.atan2(x[m][:, 0], THREE[:, 0])),
    "compared": lambda x, m: (torch.where(THREE > 1.5, x[m], 0), x[m] > THREE, torch.maximum(x[m], THREE)),
    "products": lambda x, m: (x[m].T @ THREE, THREE.T @ x[m], x[m][:, 0] @ THREE, x[m][:, 0].dot(THREE[:, 1])),
    "in place": lambda x, m: (x[m].exp().add_(THREE), x[m].T.clone().mul_(THREE.T)),
    "losses": lambda x, m: (F.mse_loss(x[m], THREE), F.l1_loss(THREE, x[m], reduction="sum")),
    "batches": lambda x, m: (torch.baddbmm(x[m][:, :, None], x[m][:, :, None], THREE[:, :1, None]),),
    "of both kinds": lambda x, m: (square(x, m) + torch.eye(3), square(x, m) @ THREE),
    "grids": lambda x, m: F.grid_sample(x[:3].reshape(3, 1, 2, 2), x[m].reshape(-1, 1, 2, 2), align_corners=False),
    "expanded": lambda x, m: (x[m].expand(3, 4), x[m][:, :1].expand(3, 2), x[m].expand(2, 3, 4)),
    "classes": lambda x, m: (F.cross_entropy(x[m], CLASSES[:3]), F.nll_loss(x[:3], CLASSES[m], reduction="none")),
    "joined": lambda x, m: (torch.cat([square(x, m), x[m][:, :3]]), torch.cat([square(x, m), THREE[:, :3]], 1)),
    "squares": lambda x, m: (
        torch.linalg.det(x[m][:, :3]),
        torch.linalg.inv(x[m].T[:3] + torch.eye(3) * 3),
        x[m][:, :3].matrix_exp(),
    ),
    "of three": lambda x, m: (torch.linalg.cross(x[m], x[m].flip(1), dim=0), torch.linalg.cross(x[:3], x[m], dim=0)),
    "turned": lambda x, m: (x[m].roll(1, 0), x[m].roll((-5, 2), (0, 1)), x[m].rot90(), x[m].T.rot90(3)),
    "windows": lambda x, m: (x[m].unfold(0, 2, 1), x[m].T.unfold(1, 1, 2), x[m].tensor_split(2), x[m].T.hsplit((1,))),
    "chosen": lambda x, m: (torch.take(x[m], CLASSES), F.embedding(CLASSES[:2], x[m]), torch.cdist(x[m].T, x[m].T)),
    "norms": lambda x, m: (
        *(x[m].renorm(2, 0, 1.0), torch.linalg.norm(x[m]), torch.linalg.matrix_norm(x[m], 1)),
        *(torch.linalg.norm(x[m], -torch.inf), torch.linalg.norm(x[m][:, 0], 3)),
    ),
    "contracted": lambda x, m: (
        *(torch.tensordot(x[m], x[m], ([0], [0])), torch.tensordot(THREE, x[m], ([0], [0]))),
        *(torch.linalg.multi_dot([x[m].T, x[m], x[0]]), torch.addbmm(x[:4], x[m][:, :, None], x[m][:, None])),
    ),
    "parts": lambda x, m: (
        *(x[m].select_scatter(THREE[0], 0, 1), x[m].slice_scatter(x[m][:, :2], 1, 2), torch.diagflat(x[m][:, 0])),
        *(F.prelu(x[m], x[0, :1]), x.unique(dim=1)),
    ),
}
WRITTEN = {
    "written with None": lambda x, m: written(x[m].T, (None, 0), 1.0),
    "several tensors": lambda x, m: x[m].T[None][:, FIRST, FIRST],
    "written rows": lambda x, m: written(square(x, m), slice(0, 2), torch.ones(2, 1)),
    "written by a mask": lambda x, m: written(square(x, m), square(x, m) > 0, x[0, :1] + 1),
    "index_add": lambda x, m: x[m].index_add(1, FIRST, x[m][:, :1]),
    "written by places": lambda x, m: written(x[m], FIRST, 1.0),
    "written from the end": lambda x, m: (
        written(x[m], FIRST - 1, x[0]),
        x[m][FIRST - 1],
        x[m][torch.arange(len(x[m])) - 1],
    ),
    "written by two masks": lambda x, m: written(x, (slice(None), m[:4]), x[:, m[:4]]),
    "written to columns": lambda x, m: written(x[m], (slice(None), FIRST + 1), x[m][:, :1] * 2),
    "written to one of nested": lambda x, m: written(square(x, m), (slice(None), -1), x[m][:, 0]),
    "written in a block": lambda x, m: written(square(x, m), (m.nonzero()[:2] * 0, FIRST), x[0, :1]),
    "written by a step": lambda x, m: written(square(x, m), slice(0, 2, 2), 1.0),
    "places along a later dimension": lambda x, m: x[CLASSES.expand(2, 6)[:, m], CLASSES[:2, None]],
    "nested places": lambda x, m: square(x, m)[square(x, m).long().abs().clamp(max=0), FIRST[0]],
    "index_put": lambda x, m: x.index_put((FIRST, CLASSES[m]), x[m][:, 0], accumulate=True),
    "index_add later": lambda x, m: x.index_add(1, CLASSES[m], x[:, :1].expand(6, 6)[:, m]),
    "index_copy later": lambda x, m: x.index_copy(1, torch.where(m[:4])[0], x[:, m[:4]] * 2),
    "scattered later": lambda x, m: (
        x.scatter(1, CLASSES.expand(6, 6)[:, m], 2.0),
        x[m].scatter_add(1, CLASSES[None, :4] + 0 * CLASSES[m][:, None], x[m]),
        x[m].scatter(0, CLASSES[m][:, None] * 0, x[m][:, :1]),
        x.T.scatter_reduce(0, CLASSES[None, m].expand(4, -1), x.T[:, m], "amax"),
    ),
    "into what is chosen": lambda x, m: x[m].masked_fill(x[m] > 0, 0).index_fill(1, FIRST, 3.0),
}
beside, other_writes = each_of(BESIDE), each_of(WRITTEN)
compiled, compiled_writes = (jax.jit(t2j(x), static_argnums=2) for x in (beside, other_writes))


@pytest.mark.parametrize("names", [tuple(BESIDE)[i::2] for i in range(2)])
def test_beside_a_known_size(names):
    for mask in (MASK, OTHER):
        check_each(compiled(t2j(X), t2j(mask), names), beside(X, mask, names))


@pytest.mark.parametrize("names", [tuple(WRITTEN)[i::4] for i in range(4)])
def test_written_by_indices(names):
    for mask in (MASK, OTHER):
        check_each(compiled_writes(t2j(X), t2j(mask), names), other_writes(X, mask, names))


def test_gradients():
    names = ("written rows", "written by two masks", "written to columns", "index_add later", "scattered later")
    check_gradients(beside, ("sums", "products", "losses", "of both kinds"), {"some": MASK, "other": OTHER}, X)
    check_gradients(other_writes, names, {"some": MASK, "other": OTHER}, X)


def test_one_is_as_many():
    one = torch.arange(6) == 4
    function = lambda x, m: (x[m] + THREE, x[m].T * THREE.T, x[m].expand(3, 4), torch.where(THREE > 1.5, x[m], 0))
    check(jax.jit(t2j(function))(t2j(X), t2j(one)), function(X, one), "of one")


def test_what_is_written_to_has_one_size():
    one = torch.arange(6) == 4
    found = jax.jit(t2j(lambda x, m: x[m].exp().add_(THREE)))(t2j(X), t2j(one))
    assert np.isnan(found.values).all()


@pytest.mark.parametrize("mask", [NONE, ALL, X[:, 0] > 9, torch.arange(6) < 2])
@pytest.mark.parametrize("name", ["sums", "products", "expanded"])
def test_results_tell_that_it_is_not_as_long(mask, name):
    with pytest.raises(RuntimeError):
        BESIDE[name](X, mask)
    for leaf in jax.tree.leaves(compiled(t2j(X), t2j(mask), (name,))):
        assert np.isnan(leaf).all()
