"""Later dimensions whose length data decide, under jit: how they come about, what moves them, what goes along them."""

import jax
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.ops.test_lengths import MASKS, X, check_gradients, check_kinds, compact, each_of, in_groups
from torch2jax import TracedValueError, t2j

A = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
PARTS = {
    "compared with each": lambda x, m: torch.max(A[..., None, :2], x[m][..., None, :, :2]).sum(-1).amax(0),
    "differences": lambda x, m: ((A[:, None] - x[m]).square().sum(-1), (A[:, None] - x[m]).sum(-1).max(0)),
    "transposed": lambda x, m: (x[m].T, x[m].T.exp().sum(1), x[m].T.sum(0), x[m].T.mT, x[m].t().contiguous()),
    "in order": lambda x, m: (x[m].T.softmax(1), x[m].T.sort(1).values, x[m].T.cumsum(1), x[m].T.argsort(0)),
    "flipped": lambda x, m: (x[m].T.flip(0), x[m].T.flip(1), x[m].T.flip(0, 1)),
    "permuted": lambda x, m: (A[:, None] * x[m]).permute(2, 1, 0),
    "moved": lambda x, m: (A[:, None] * x[m]).movedim(1, 2).unsqueeze(0).squeeze(0),
    "by mask": lambda x, m: (x.T[:, m], x.T[None, :, m], x.T[1:, m, None], x.T[0, m]),
    "by number": lambda x, m: (x.T[:, : m.sum()], x.T.narrow(1, 0, m.sum().item())),
    "by places": lambda x, m: x.T[:, torch.where(m)[0]],
    "split": lambda x, m: x.T.split([m.sum().item(), (~m).sum().item()], 1),
    "joined": lambda x, m: ((A[:, None] * x[m]).reshape(-1, 3), (A[:, None] * x[m]).flatten(0, 1).sum(0)),
    "viewed": lambda x, m: ((A[:, None] * x[m]).view(2, 2, -1, 3), x[m].view(1, -1, 3) * 2, x[m].T.reshape(-1)),
    "columns": lambda x, m: (x[m][:, 0].view(-1, 1) * A[:, 0], x[m][:, 0].reshape(len(x[m]), 1), x[m].view(-1, 1, 3)),
    "index_select 0": lambda x, m: (
        x[m].index_select(0, (x[m][:, 0] > 0.5).nonzero().flatten()),
        x[m][(x[m] > 0)[:, 0],],
    ),
    "index_select": lambda x, m: (x.T.index_select(1, torch.where(m)[0]), x[m].index_select(1, torch.tensor([2, 0]))),
    "by later places": lambda x, m: (
        x[m.nonzero().T],
        x[m.nonzero().T, m.nonzero().T % 3],
        x[m].exp()[m.nonzero().T * 0],
    ),
    "cat": lambda x, m: (torch.cat([x[m].T, x.T], 1), torch.cat([x[m].T, x[m].T])),
    "stacked": lambda x, m: (torch.stack([x[m], x[m]]), torch.stack([x[m].T, x[m].T], 1)),
    "parts": lambda x, m: (x[m].T[0], x[m].T[:, :2], x[m].T[1:, None], x[m].T[:, torch.where(x[m][:, 1] > 0)[0]]),
    "in parts": lambda x, m: (x[m].T.unbind(), x[m].T.split(2), x[m].T.split([1, 0, 2]), *x[m].T),
    "in chunks": lambda x, m: (x[m].T.chunk(2), x[m].T.chunk(3), (x[m].T[:, None] * x[m].T[:2]).chunk(2, 1)),
    "by known places": lambda x, m: (x[m].T[torch.tensor([2, 0])], x[m].T[torch.tensor([True, False, True])]),
    "where": lambda x, m: torch.where(x[m].T > 0, x[m].T, A[:3, :1]),
    "shape": lambda x, m: torch.ones(3) * x[m].T.shape[1] + len(x[m].T) + x[m].T.numel() / (1 + x[m].T.size(-1)),
    "kept": lambda x, m: (x[m].T.sum(1, keepdim=True), x[m].T.sum(0, keepdim=True), x[m].T.norm(dim=0)),
    "in place": lambda x, m: x[m].T.clone().mul_(2).add_(x[m].T),
    "to": lambda x, m: (x[m].T.to(torch.int32), x[m].T.long().type_as(x), x.double().to(x[m]), x[m].to(x.double())),
    "made": lambda x, m: (torch.ones(2, len(x[m])) * x[m][:, 0], x.new_zeros((1, len(x[m]), 3))),
    "made by one": lambda x, m: (x[m].mT.new_ones(2, 1), x[m].mT.new_full((1, len(x[m])), 2.0)),
    "spread": lambda x, m: (x[:2, :1].expand(2, len(x[m])), x[0].expand(2, len(x[m]), 3)),
    "topk": lambda x, m: x.T.topk(m.sum().item(), 1),
    "scattered": lambda x, m: (
        torch.zeros(3, 5).scatter(1, (x[m].T.abs() * 2).long().clamp(max=4), 2.0),
        torch.ones(3, 5).scatter_(-1, (x[m].T[:2].abs() * 2).long().clamp(max=4), 3.0),
        torch.ones(3, 5).scatter_add(1, (x[m].T.abs() * 2).long().clamp(max=4), x[m].T),
        torch.ones(3, 5).scatter_reduce_(1, (x[m].T.abs() * 2).long().clamp(max=4), x[m].T.exp(), "amax"),
    ),
    "mask and places": lambda x, m: x[m, torch.where(m)[0] % 3],
    "mask and known": lambda x, m: (x[m, 1], x[m, 1:], x[m, torch.tensor(1)]),
    "merged later": lambda x, m: (x[m].T[None].flatten(1), (x[m].T @ x.T[:, m[:8]].mT).flatten(0, 1)),
    "cut parts": lambda x, m: (
        x.T.split([m.sum().item(), len(x) - m.sum().item()], 1),
        x[m].T.unbind(),
    ),
    "windows": lambda x, m: (x[m].T.unfold(0, 2, 1), x[m].T.roll(1, 0), x[m].T.index_fill(0, torch.tensor([1]), 2.0)),
    "along others": lambda x, m: (x[m].T.repeat_interleave(2, 0), x[m].T.diff(dim=0), x[m].T.diff(), x[m].T.sort(0)),
}
MORE = {  # PyTorch refuses them where nothing is chosen
    "extrema": lambda x, m: (x[m].T.argmax(1), x[m].T.argmax(0), x[m].T.argmax(), x[m].T.max(1)),
    "first": lambda x, m: (x[m].T[:, 0], x[m].T.split([1, len(x[m]) - 1], 1)),
    "quantiles": lambda x, m: (
        x[m].T.quantile(torch.tensor([0.2, 0.5, 0.9]), 1),
        x[m].quantile(torch.tensor([0.2, 0.9]), 1, keepdim=True),
        x[m].T.quantile(torch.tensor([0.2, 0.9])),
    ),
    "places": lambda x, m: (x[m].T.argmax(keepdim=True), x[m].T.median(), x[m].T.median(1), x[m].T.mode(1)),
    "resized": lambda x, m: (
        F.interpolate(x[m][None], size=5, mode="linear"),
        F.interpolate(x[m].mT[:, None].transpose(0, 2), scale_factor=2),
    ),
    "pooled": lambda x, m: (
        F.max_pool1d(x[m][None], 2, 1, return_indices=True),
        F.avg_pool1d(x[m], 2),
        F.adaptive_max_pool1d(x[m][None], 2),
    ),
}
FUNCTIONS = PARTS | MORE


of_all = each_of(FUNCTIONS)
compiled = jax.jit(t2j(of_all), static_argnums=2)


@in_groups(FUNCTIONS)
def test_values(names):
    check_kinds(compiled, of_all, names, PARTS)


SOME = ("compared with each", "transposed", "scattered", "in order", "by mask", "split", "joined", "cat", "where")


def test_gradients():
    check_gradients(of_all, SOME)


def test_code_goes_on_beside_it():
    """A later data-dependent dimension is put aside by a module, and lives through a loop on data."""

    class Keeps(torch.nn.Module):
        def forward(self, x, m):
            self.keep(x, m)
            while x.sum() > 1:
                x = x / 2
            return self.kept.sum(1) + x.sum()

        def keep(self, x, m):
            self.kept = x.T[:, m]

    module, mask = Keeps(), MASKS["some"]
    wanted = module(X.abs(), mask).numpy()
    np.testing.assert_allclose(jax.jit(t2j(module))(t2j(X.abs()), t2j(mask)), wanted, 1e-5)
    with pytest.warns(UserWarning, match="keep is not compiled .* a mask selection"):
        np.testing.assert_allclose(t2j(module, compile=["keep"])(t2j(X.abs()), t2j(mask)), wanted, 1e-5)


def test_subscripts_by_several_tensors():
    def function(x, m, i, j):
        y = x.T[:, m]
        return y[i, j], y[i[:1], -j - 1], y[i[:, None], j[None]]

    args = X, MASKS["some"], torch.tensor([0, 2, 1]), torch.tensor([1, 0, 1])
    for found, wanted in zip(jax.jit(t2j(function))(*map(t2j, args)), function(*args), strict=True):
        np.testing.assert_array_equal(found, wanted.numpy())


def test_padded_along_a_later_axis():
    masks = torch.stack(list(MASKS.values()))
    mapped = jax.jit(jax.vmap(lambda m: t2j(lambda x, m: x.T[:, m])(t2j(X), m)))(t2j(masks))
    assert mapped.axis == 1
    assert mapped.values.shape == (4, 3, 8)
    assert mapped.mask.shape == (4, 8)
    for one, mask in zip(mapped.compact(), masks, strict=True):
        np.testing.assert_array_equal(one, X.T[:, mask].numpy())
    again = jax.jit(t2j(lambda x: x.exp().sum(1)))
    chosen = jax.jit(t2j(lambda x, m: x.T[:, m]))(t2j(X), t2j(MASKS["some"]))
    np.testing.assert_allclose(again(chosen), X.T[:, MASKS["some"]].exp().sum(1).numpy(), 1e-6)
    assert compact(chosen)[0].shape == tuple(X.T[:, MASKS["some"]].shape)


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (lambda x, m: x[m].T.cos_().add_(x[m][0, 0, None, None, None]), RuntimeError, "shape of the result"),
        (lambda x, m: F.conv1d(x[m][None], torch.ones(1, 8, 2)), TracedValueError, "conv1d along a dimension"),
        (lambda x, m: F.interpolate(x[m].T[None], size=5), TracedValueError, "interpolate along a dimension"),
    ],
)
def test_refusals(function, error, message):
    with pytest.raises(error, match=message):
        jax.jit(t2j(function))(t2j(X), t2j(MASKS["some"]))
