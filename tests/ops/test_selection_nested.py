"""Tensors with several data-dependent dimensions, under jit: products, distances, comparisons, pairs."""

import jax
import numpy as np
import torch
import torch.nn.functional as F

from tests.ops.test_lengths import MASKS, X, check_gradients, check_kinds, compact, each_of, in_groups
from torch2jax import Padded, t2j


def changed(x, change):
    change(x)
    return x


def products(x, m):
    return x[m] @ x[x[:, 1] > 0].T


def squares(x, m):
    return x[m] @ x[m].T


def write(index, value):
    return lambda x: x.__setitem__(index, value)


def hardest(x, m):
    """The triplet loss of anchors and others of the same and of another label, three dimensions at once."""
    y, labels = x[m], x[m][:, 2].round()
    distances = (y[:, None] - y).square().sum(-1)
    same = labels[:, None] == labels
    is_triplet = (same & ~torch.eye(len(y)).bool())[:, :, None] & ~same[:, None]
    losses = (distances[:, :, None] - distances[:, None] + 1).clamp(min=0)
    return losses[is_triplet].sum(), losses.masked_fill(~is_triplet, 0).sum((1, 2)), is_triplet.nonzero()


PARTS = {
    "pairs": lambda x, m: (products(x, m), squares(x, m).T.exp(), x[m][:, None] - x[x[:, 1] > 0]),
    "distances": lambda x, m: (torch.cdist(x[m], x[x[:, 1] > 0]).sum(1), torch.cdist(x[m], x[m] + 1).square()),
    "compared": lambda x, m: (x[m][:, 0, None] > x[m][:, 1]).sum(0),
    "reduced": lambda x, m: (products(x, m).sum(), products(x, m).sum(0), squares(x, m).logsumexp(1), hardest(x, m)),
    "any": lambda x, m: ((squares(x, m) > 1).any(1), (products(x, m) > 0).all(0), products(x, m).norm()),
    "attention": lambda x, m: products(x, m).softmax(-1) @ x[x[:, 1] > 0],
    "in order": lambda x, m: (products(x, m).sort(1), squares(x, m).argsort(0), products(x, m).cumsum(1).flip(0)),
    "gathered": lambda x, m: products(x, m).gather(1, products(x, m).argsort(1, descending=True)),
    "nearest": lambda x, m: torch.cdist(x[m], x[m]).topk(min(2, len(x[m])), largest=False)[0],
    "places": lambda x, m: (torch.where(products(x, m) > 0), (squares(x, m) > 0).nonzero()),
    "by mask": lambda x, m: (products(x, m)[products(x, m) > 0], (x @ x.T)[m][:, m]),
    "parts": lambda x, m: (products(x, m)[1:, :2], products(x, m)[:, None], squares(x, m)[:, torch.where(m)[0] * 0]),
    "triangles": lambda x, m: (squares(x, m).triu(1), products(x, m).tril(), squares(x, m).trace()),
    "diagonals": lambda x, m: (squares(x, m).diagonal(), products(x, m).diagonal(1), x[m][:, 0].diag()),
    "filled": lambda x, m: (squares(x, m).fill_diagonal_(9), squares(x, m).masked_fill(torch.eye(len(x[m])).bool(), 0)),
    "made": lambda x, m: (torch.eye(len(x[m])), torch.zeros(len(x[m]), 2, x[x[:, 1] > 0].shape[0])),
    "indices": lambda x, m: torch.triu_indices(len(x[m]), len(x[m]), 1),
    "of two": lambda x, m: (lambda y, at: y[at[0]] * y[at[1]])(x[m], torch.tril_indices(len(x[m]), len(x[m]), -1)),
    "elements": lambda x, m: (lambda d, at: d[at[0], at[1]])(squares(x, m), torch.triu_indices(len(x[m]), len(x[m]))),
    "combinations": lambda x, m: (torch.combinations(x[m][:, 0]), F.pdist(x[m])),
    "grids": lambda x, m: (
        torch.meshgrid(x[m][:, 0], x[m][:, 1], indexing="xy"),
        torch.cartesian_prod(x[m][:, 0], x[0]),
    ),
    "spread": lambda x, m: (x[m].repeat(len(x[m]), 1), x[m].repeat(2, 1), torch.broadcast_tensors(x[m][:, None], x[m])),
    "shapes": lambda x, m: (
        products(x, m).reshape(-1),
        (x[m][:, None] - x[m]).flatten(0, 1),
        squares(x, m).view(-1, 1),
    ),
    "kept shapes": lambda x, m: squares(x, m).unsqueeze(1).view(len(x[m]), len(x[m]), 1),
    "sizes": lambda x, m: x.sum() + products(x, m).numel() + products(x, m).shape[1] + len(products(x, m).T),
    "joined": lambda x, m: (torch.cat([products(x, m), squares(x, m)], 1), torch.cat([squares(x, m), x @ x[m].T])),
    "stacked": lambda x, m: torch.stack([squares(x, m), squares(x, m).T], 2),
    "written": lambda x, m: (
        changed(products(x, m), write(slice(1), 2.0)),
        changed(products(x, m), write((slice(None), slice(0, 1)), x[m][:, :1])),
        changed(squares(x, m), lambda d: (d.__setitem__(d > 0.5, 0.0), d.mul_(2), d.add_(x[m][:, 0]))),
        changed(squares(x, m), write((torch.arange(len(x[m])), torch.arange(len(x[m]))), 3.0)),
    ),
    "permuted": lambda x, m: ((x[m][:, None] - x[m]).permute(2, 1, 0), (x[m][:, None] * x[m]).movedim(-1, 0).sum(1)),
    "einsum": lambda x, m: torch.einsum("ik,jk,il->jl", x[m], x[x[:, 1] > 0], x[m]),
    "losses": lambda x, m: F.mse_loss(products(x, m), torch.cdist(x[m], x[x[:, 1] > 0]), reduction="sum"),
    "median": lambda x, m: torch.cat([products(x, m), x @ x[x[:, 1] > 0].T]).median(0),
}
MORE = {  # PyTorch refuses them, or gives nan, where nothing is chosen
    "extrema": lambda x, m: (squares(x, m).max(1), products(x, m).argmin(0), squares(x, m).amax(), squares(x, m).max()),
    "means": lambda x, m: (products(x, m).mean(), torch.cat([squares(x, m), x @ x[m].T]).var(0), squares(x, m).mean(1)),
    "element": lambda x, m: (squares(x, m)[0], squares(x, m)[:, -1], squares(x, m)[-1, 0]),
    "classes": lambda x, m: F.cross_entropy(squares(x, m), torch.arange(len(x[m]))),
}
FUNCTIONS = PARTS | MORE


of_all = each_of(FUNCTIONS)
compiled = jax.jit(t2j(of_all), static_argnums=2)


@in_groups(FUNCTIONS)
def test_values(names):
    check_kinds(compiled, of_all, names, PARTS)


def test_gradients():
    check_gradients(of_all, ("pairs", "distances", "reduced", "attention", "in order", "elements", "written"))


def test_gradients_from_inside():
    def gradient(x, m):
        x = x.clone().requires_grad_()
        (found,) = torch.autograd.grad(hardest(x, m)[0] + torch.combinations(x[m][:, 0]).prod(1).sum(), x)
        return found

    function = jax.jit(t2j(gradient))
    for mask in MASKS.values():
        np.testing.assert_allclose(function(t2j(X), t2j(mask)), gradient(X, mask).numpy(), 1e-4, 1e-5)


def test_padded_of_two_lengths():
    masks = torch.stack(list(MASKS.values()))
    mapped = jax.jit(jax.vmap(t2j(products), (None, 0)))(t2j(X), t2j(masks))
    assert mapped.axis == (0, 1)
    assert mapped.values.shape == (4, 8, 8)
    assert mapped.mask.shape == (4, 8, 8)
    np.testing.assert_array_equal(mapped.mask.sum((1, 2)), [products(X, mask).numel() for mask in masks])
    assert not np.asarray(mapped.values)[~np.asarray(mapped.mask)].any()
    for one, mask in zip(mapped.compact(), masks, strict=True):
        np.testing.assert_allclose(one, products(X, mask).numpy(), 1e-6, 1e-6)


def test_a_padded_of_two_lengths_is_taken():
    found = jax.jit(t2j(products))(t2j(X), t2j(MASKS["some"]))
    again = jax.jit(t2j(lambda d: (d.exp().sum(1), d.T)))
    wanted = products(X, MASKS["some"])
    sums, transposed = again(found)
    np.testing.assert_allclose(compact(sums)[0], wanted.exp().sum(1).numpy(), 1e-6)
    assert isinstance(transposed, Padded)
    np.testing.assert_allclose(compact(transposed)[0], wanted.T.numpy(), 1e-6)
    np.testing.assert_allclose(t2j(lambda d: d.sum(0))(found), wanted.sum(0).numpy(), 1e-5)


def test_what_is_not_chosen_is_in_nothing():
    """Not in values, and not in gradients, though it is nan."""

    def loss(x, m):
        y = x[m]
        distances = torch.cdist(y, y + 1)
        return distances.softmax(1).square().sum() + distances.amin() + distances.sqrt().log().sum()

    x, mask = X.clone(), MASKS["some"]
    x[~mask] = float("nan")
    value, gradient = jax.jit(jax.value_and_grad(t2j(loss)))(t2j(x), t2j(mask))
    leaf = X.clone().requires_grad_()
    wanted = loss(leaf, mask)
    wanted.backward()
    np.testing.assert_allclose(value, wanted.item(), 1e-5)
    np.testing.assert_allclose(gradient, leaf.grad.numpy(), 1e-4, 1e-5)
