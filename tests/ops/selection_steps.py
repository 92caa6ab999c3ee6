"""Steps of random programs of tensors whose length data decide: where they start, how they go on, what they give.

Each is a function of rows ``s`` of three numbers, of a matrix ``x`` with eight, of a mask ``m`` over these, and of a
number ``k`` that is no greater than five.
"""

import importlib

import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

__all__ = ["ENDS", "ROWS", "STARTS"]

Tensor = torch.Tensor
A = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))

# Steps on rows ``(n, 3)``, where data decide n: each gives such rows again.
ROWS = {
    "positive": lambda s, x, m, k: s[s[:, 0] > 0],
    "places": lambda s, x, m, k: s[torch.where(s[:, 1] < 0.5)[0]],
    "sorted": lambda s, x, m, k: s.sort(0).values,
    "ordered": lambda s, x, m, k: s[s[:, 2].argsort(descending=True, stable=True)],
    "head": lambda s, x, m, k: s[:3],
    "tail": lambda s, x, m, k: s[1:],
    "most": lambda s, x, m, k: s[: min(len(s), 4)],
    "by number": lambda s, x, m, k: s[: k.item()],
    "stride": lambda s, x, m, k: s[::2],
    "last": lambda s, x, m, k: s[-2:],
    "flipped": lambda s, x, m, k: s.flip(0),
    "elementwise": lambda s, x, m, k: s.sin() * 2 + s[:, :1],
    "joined": lambda s, x, m, k: torch.cat([s, x[m]]),
    "before": lambda s, x, m, k: torch.cat([x[:2], s]),
    "running": lambda s, x, m, k: s.cumsum(0),
    "softmax": lambda s, x, m, k: s.softmax(0),
    "product": lambda s, x, m, k: s @ A[:3],
    "centred": lambda s, x, m, k: s - s.sum(0) / max(1, len(s)),
    "nearest": lambda s, x, m, k: A[torch.cdist(s, A).argmin(1)] + s,
    "transposed": lambda s, x, m, k: (s.T * A[:3, :1]).T,
    "compared": lambda s, x, m, k: (s[None] - A[:, None]).abs().sum(0),
    "where": lambda s, x, m, k: torch.where(s > 0, s, -0.5 * s),
    "gathered": lambda s, x, m, k: x[(s[:, 0] * 3 + 0.07).long().clamp(0, 7)] * s,
    "first of each": lambda s, x, m, k: s[torch.arange(len(s)) // 2],
    "written": lambda s, x, m, k: _changed(s, lambda y: y.__setitem__(y > 1, 0.5)),
    "column": lambda s, x, m, k: _changed(s, lambda y: y.__setitem__((slice(None), 0), y[:, 1] * 2)),
    "front": lambda s, x, m, k: _changed(s, lambda y: y.__setitem__(slice(0, 2), 1.5)),
    "in place": lambda s, x, m, k: s.clone().mul_(2).clamp_(-1, 2),
    "part in place": lambda s, x, m, k: _changed(s, lambda y: y[1:].mul_(2)),
    "parts in place": lambda s, x, m, k: _changed(torch.cat([s, x[:1]]), lambda y: (y[:2].add_(1), y[:-1, 0].neg_())),
    "repeated": lambda s, x, m, k: s.unsqueeze(1).expand(-1, 2, 3).reshape(-1, 3),
    "split": lambda s, x, m, k: torch.cat(torch.cat([s, x[m]]).split([len(s), len(x[m])])[::-1]),
}
# The same, by what else makes lengths, and goes on with them.
ROWS |= {
    "nonzero": lambda s, x, m, k: s[(s[:, 0] > 0).nonzero().squeeze(1)],
    "nonzero of all": lambda s, x, m, k: s[(s > 0.5).nonzero(as_tuple=True)[0]],
    "argwhere": lambda s, x, m, k: s.index_select(0, torch.argwhere(s[:, 2] < 0.5)[:, 0]),
    "masked_select": lambda s, x, m, k: s.masked_select((s[:, 1] < 1)[:, None]).view(-1, 3),
    "unique": lambda s, x, m, k: (s.detach() * 2).round().unique(dim=0) * 0.5 + x[0],
    "runs": lambda s, x, m, k: x[torch.unique_consecutive(_places(s))] * 2,
    "groups": lambda s, x, m, k: _groups(s, *torch.unique(_places(s), return_inverse=True)),
    "counts": lambda s, x, m, k: s * torch.unique(_places(s), return_inverse=True, return_counts=True)[2].sum() / 4,
    "repeat_interleave": lambda s, x, m, k: s.repeat_interleave(_places(s) % 3, dim=0)[:12],
    "repeated twice": lambda s, x, m, k: s.repeat_interleave(2, 0)[:10],
    "bincount": lambda s, x, m, k: s * torch.bincount(_places(s), minlength=8)[:3],
    "nms": lambda s, x, m, k: s[_vision().nms(_boxes(s), s[:, 2].detach(), 0.3)],
    "batched_nms": lambda s, x, m, k: s[_vision().batched_nms(_boxes(s), s[:, 2].detach(), _places(s) % 2, 0.2)],
    "large boxes": lambda s, x, m, k: s[_vision().remove_small_boxes(_boxes(s), 0.3)],
    "narrow": lambda s, x, m, k: s.narrow(0, 0, min(len(s), 2)),
    "narrow by number": lambda s, x, m, k: torch.cat([x, s]).narrow(0, k.item(), 4),
    "split by number": lambda s, x, m, k: torch.cat([x[:6], s]).split([k.item(), len(s) + 6 - k.item()])[1],
    "from number": lambda s, x, m, k: s[k.item() :],
    "topk": lambda s, x, m, k: s[s[:, 0].topk(min(3, len(s))).indices],
    "topk by number": lambda s, x, m, k: torch.cat([s, x]).topk(k.item(), 0).values,
    "stack": lambda s, x, m, k: torch.stack([s, s.cos()]).sum(0),
    "stack along": lambda s, x, m, k: torch.stack([s, s.sin()], 1).mean(1),
    "argmax": lambda s, x, m, k: torch.cat([s, x[:1]])[torch.cat([s, x[:1]])[:, 1].argmax()] + s,
    "gather": lambda s, x, m, k: s.gather(1, _places(s)[:, None].expand(-1, 3) % 3),
    "gather of all": lambda s, x, m, k: s.gather(0, s.argsort(dim=0, stable=True)),
    "take_along_dim": lambda s, x, m, k: s.take_along_dim(s.argsort(dim=1, descending=True, stable=True), 1),
    "ranks": lambda s, x, m, k: s + s[:, 0].argsort(stable=True).argsort(stable=True)[:, None],
    "cumprod": lambda s, x, m, k: s.tanh().cumprod(0),
    "cummax": lambda s, x, m, k: s.cummax(0).values,
    "logcumsumexp": lambda s, x, m, k: s.logcumsumexp(0),
    "diff": lambda s, x, m, k: s.diff(dim=0),
    "rolled": lambda s, x, m, k: s.roll(1, 1),
    "log_softmax": lambda s, x, m, k: s.log_softmax(1) + s,
    "normalized": lambda s, x, m, k: F.normalize(s + 2, dim=1) + F.layer_norm(s, (3,)),
    "linear": lambda s, x, m, k: F.linear(s, A[:3], A[0]).relu() + s * 0.1,
    "one_hot": lambda s, x, m, k: F.one_hot(_places(s), 8).float() @ x,
    "embedding": lambda s, x, m, k: F.embedding(_places(s), x) - s,
    "bmm": lambda s, x, m, k: torch.bmm(s[:, None], A[:3].expand(len(s), 3, 3)).squeeze(1),
    "lerp": lambda s, x, m, k: torch.lerp(s, s.flip(1), 0.3).clamp(-2, 2),
    "no nan": lambda s, x, m, k: s if not s.isnan().any() else x,
    "nan to number": lambda s, x, m, k: torch.where(s > 0.2, torch.nan, s).nan_to_num(0.1),
    "index_put": lambda s, x, m, k: _changed(s, lambda y: y.__setitem__(torch.where(y[:, 0] > 0)[0], 0.25)),
    "masked_fill": lambda s, x, m, k: s.masked_fill(s > 1, 0.5),
    "masked_fill_": lambda s, x, m, k: s.clone().masked_fill_((s[:, :1] < -0.5), -1),
    "last row in place": lambda s, x, m, k: _changed(torch.cat([x[:1], s]), lambda y: y[-1].mul_(3)),
    "sorted write": lambda s, x, m, k: _changed(s, lambda y: y.__setitem__(y[:, 0].argsort(stable=True), s)),
    "index_add": lambda s, x, m, k: torch.zeros_like(s).index_add(0, torch.arange(len(s)) // 2, s),
    "scatter": lambda s, x, m, k: torch.zeros_like(s).scatter_add(0, s.argsort(dim=0, stable=True), s),
    "of a longer": lambda s, x, m, k: s if len(s) > len(x[m]) else x[m],
    "if as long": lambda s, x, m, k: s + x[m] if len(s) == len(x[m]) else s * 0.5,
    "if some": lambda s, x, m, k: s[1:] if s.shape[0] > k.item() else s,
    "numbers": lambda s, x, m, k: s * (s.numel() - 2 * len(s) + 1) / (1 + s.shape[0]),
    "zeros": lambda s, x, m, k: torch.cat([s.new_zeros(s.shape[0], 1), s[:, 1:]], 1) + torch.full((len(s), 1), 0.5),
    "chunks": lambda s, x, m, k: torch.cat(s.chunk(3, 1)[::-1], 1),
    "unbound": lambda s, x, m, k: torch.stack(s.unbind(1)[::-1], 1),
    "outer": lambda s, x, m, k: torch.outer(s[:, 0], x[:3, 0]) + s,
    "meshgrid": lambda s, x, m, k: torch.meshgrid(s[:, 0], x[:3, 1], indexing="ij")[0] - s,
    "variance": lambda s, x, m, k: s * s.var(1, correction=0, keepdim=True) + s.norm(dim=1, keepdim=True).detach(),
    "each row": lambda s, x, m, k: _rows_in_turn(s),
    "each number": lambda s, x, m, k: s * sum([torch.tensor(1.0 + i) for i in range(len(s[:2]))], torch.tensor(0.5)),
}
# The same, by tensors of which data decide several lengths, and by branches.
ROWS |= {
    "chosen of chosen": lambda s, x, m, k: (lambda y: y[y[:, 1] < 1])(s[s[:, 0] > -0.5]),
    "attention": lambda s, x, m, k: (s @ x[m].T).softmax(1) @ x[m] + s,
    "of each other": lambda s, x, m, k: torch.exp(-torch.cdist(s, s)) @ s,
    "differences": lambda s, x, m, k: (s[:, None] - s).tanh().sum(1),
    "neighbours": lambda s, x, m, k: _of_pairs(s, torch.where((s[:, None] - s).square().sum(-1) < 4)),
    "triangle": lambda s, x, m, k: (s @ s.T).triu(1).cos() @ s,
    "without itself": lambda s, x, m, k: (s @ s.T).masked_fill(torch.eye(len(s)).bool(), 0) @ s * 0.1,
    "nearest of chosen": lambda s, x, m, k: torch.cat([s, x[:1]])[torch.cdist(s, torch.cat([s, x[:1]])).argmin(1)],
    "in order of pairs": lambda s, x, m, k: s[(s @ s.T).square().sum(1).argsort(stable=True)],
    "einsum": lambda s, x, m, k: torch.einsum("ik,jk,jl->il", s, x[m], x[m].tanh()),
    "padded": lambda s, x, m, k: F.pad(s, (0, 0, 1, 1), value=0.5),
    "numbered": lambda s, x, m, k: s * torch.arange(len(s), 0, -1)[:, None] + torch.linspace(0, 1, len(s))[:, None],
    "if many": lambda s, x, m, k: s if len(s) > 2 else x[:2],
    "if any": lambda s, x, m, k: s[s[:, 0] > 0] if (s[:, 0] > 0).any() else s[:0],
    "if positive": lambda s, x, m, k: s[:3] if s.sum() > 0.05 else torch.cat([s, x[:1]]),
    "if empty": lambda s, x, m, k: torch.zeros(0, 3) if s.shape[0] == 0 else s * 0.5,
}
# What is given of rows.
ENDS = {
    "rows": lambda s, x, m, k: s,
    "sum": lambda s, x, m, k: s.sum(),
    "mean": lambda s, x, m, k: s.sum(0) / max(1, s.shape[0]),
    "norm": lambda s, x, m, k: (s.square().sum(1) + 1).sqrt(),
    "largest": lambda s, x, m, k: s.max(0).values,
    "gram": lambda s, x, m, k: s.T @ s,
    "columns": lambda s, x, m, k: s.T,
    "scattered": lambda s, x, m, k: torch.zeros(8, 3).index_add(0, (s[:, 0] * 3 + 0.07).long().clamp(0, 7), s),
    "scattered columns": lambda s, x, m, k: torch.ones(8, 3).scatter_add(0, (s * 3 + 0.07).long().clamp(0, 7), s),
    "scattered extrema": lambda s, x, m, k: torch.ones(8).scatter_reduce(
        0, (s[:, 1] * 3 + 0.07).long().clamp(0, 7), s[:, 0], "amax", include_self=False
    ),
    "unique": lambda s, x, m, k: (s.detach()[:, 0] * 2).round().unique(),
    "topk": lambda s, x, m, k: s[:, 0].topk(min(2, len(s))).values,
    "logsumexp": lambda s, x, m, k: torch.cat([s, x[:1]]).logsumexp(0),
    "count": lambda s, x, m, k: s.sum() + len(s) * 2 + s.numel(),
    "flat": lambda s, x, m, k: s.reshape(-1),
    "places": lambda s, x, m, k: (s > 0).nonzero(),
    "median": lambda s, x, m, k: torch.cat([s, x[:1]]).median(0).values,
    "branch": lambda s, x, m, k: s.sum() if len(s) > 2 else x.sum(),
    "row": lambda s, x, m, k: torch.cat([x[:1], s])[-1],
    "products": lambda s, x, m, k: s @ s.T,
    "distances": lambda s, x, m, k: torch.cdist(s, x[m]).square(),
    "kernel": lambda s, x, m, k: (s @ x[m].T).sigmoid().sum(0),
    "pairs": lambda s, x, m, k: ((s @ s.T) > 0).nonzero(),
    "chosen pairs": lambda s, x, m, k: (lambda d: d[d > 0.2])(s @ x[m].T),
    "combinations": lambda s, x, m, k: torch.combinations(s[:, 0]),
    "grid": lambda s, x, m, k: (s[:, None] * x[m]).sum(-1).cumsum(1),
    "of one size": lambda s, x, m, k: F.pad(s, (0, 0, 0, 20 - len(s))),
    "sequences": lambda s, x, m, k: pad_sequence([s, x[m]], batch_first=True),
    "either": lambda s, x, m, k: s if len(s) > 1 else s.T,
    "some or all": lambda s, x, m, k: s[:2] if s.shape[0] > 4 else x,
}
ENDS |= {
    "prod": lambda s, x, m, k: s.tanh().prod(0),
    "spread": lambda s, x, m, k: torch.cat([s, x[:2]]).std(0) + torch.cat([s, x[:2]]).var(),
    "norms": lambda s, x, m, k: s.norm(dim=0) + torch.linalg.vector_norm(s, 1, 0),
    "smallest": lambda s, x, m, k: torch.cat([s, x[:1]]).aminmax(dim=0),
    "argmin": lambda s, x, m, k: s.argmin(0),
    "order": lambda s, x, m, k: s.argsort(dim=0, descending=True, stable=True),
    "bincount": lambda s, x, m, k: torch.bincount(_places(s)),
    "unique counts": lambda s, x, m, k: torch.unique(_places(s), return_counts=True),
    "two places": lambda s, x, m, k: torch.where(s > s.mean(1, keepdim=True)),
    "truths": lambda s, x, m, k: ((s > 0).any(0), (s > 0).all(1), (s > 0).sum(0)),
    "kthvalue": lambda s, x, m, k: torch.cat([s, x[:2]]).kthvalue(2, 0),
    "quantile": lambda s, x, m, k: torch.cat([s, x[:1]]).quantile(0.3, 0),
    "losses": lambda s, x, m, k: (F.mse_loss(s, s.detach() + 1, reduction="sum"), F.cross_entropy(s, _places(s) % 3)),
    "a dict": lambda s, x, m, k: {"boxes": s[:, :2], "labels": _places(s), "scores": s[:, 2].sigmoid()},
    "a list": lambda s, x, m, k: [s[:2], s[2:], len(s[1:]) + s.sum()],
    "covariance": lambda s, x, m, k: torch.cat([s, x[:2]]).T.cov(),
    "interpolated": lambda s, x, m, k: s.unflatten(1, (3, 1)).mean(2),
    "histogram": lambda s, x, m, k: torch.bucketize(s.detach(), torch.linspace(-2, 2, 5)),
    "lengths": lambda s, x, m, k: torch.tensor(len(s) * 2 + s.shape[1]) + s.numel(),
}
STARTS = {
    "mask": lambda x, m, k: x[m],
    "places": lambda x, m, k: x[m.nonzero()[:, 0]],
    "number": lambda x, m, k: x[: k.item()],
    "both": lambda x, m, k: x[m & (x[:, 1] > -1)],
    "selected": lambda x, m, k: x.masked_select(m[:, None]).reshape(-1, 3),
    "column": lambda x, m, k: x.T[:, m].T,
    "where": lambda x, m, k: x[torch.where(m)[0]],
    "argwhere": lambda x, m, k: x.index_select(0, torch.argwhere(m)[:, 0]),
    "narrow": lambda x, m, k: x.narrow(0, 1, k.item()),
    "behind": lambda x, m, k: x.split([k.item(), 8 - k.item()])[1],
    "repeated": lambda x, m, k: x.repeat_interleave(m.int() * k, 0),
    "best": lambda x, m, k: x.topk(k.item(), 0).values,
    "unique": lambda x, m, k: x[torch.unique(m.long().cumsum(0).clamp(max=7))],
    "indexed": lambda x, m, k: x[torch.arange(k.item()) * 2 % 8],
    "boxes": lambda x, m, k: x[m][_vision().nms(_boxes(x[m]), x[m][:, 2].detach(), 0.5)],
}


def _of_pairs(s: Tensor, places: tuple[Tensor, ...]) -> Tensor:
    i, j = places
    return torch.zeros_like(s).index_add(0, i, s[j] - 0.5 * s[i])


def _changed(s: Tensor, change) -> Tensor:
    s = s.clone()
    change(s)
    return s


def _vision():
    """torchvision's operators, once their library stands (see `tests.torchvision_library`)."""
    return importlib.import_module("torchvision.ops")


def _places(s: Tensor) -> Tensor:
    return (s[:, 0].detach() * 3 + 0.07).long().clamp(0, 7)


def _boxes(s: Tensor) -> Tensor:
    return torch.cat([s[:, :2], s[:, :2] + s[:, 1:].abs() + 0.05], 1).detach()


def _groups(s: Tensor, names: Tensor, group: Tensor) -> Tensor:
    return torch.zeros(len(names), 3).index_add(0, group, s)[group] - names[group][:, None]


def _rows_in_turn(s: Tensor) -> Tensor:
    total = torch.zeros(3)
    for row in s[:6]:
        total = total * 0.5 + row
    return s + total
