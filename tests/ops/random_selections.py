"""Random programs of tensors whose length data decide, against PyTorch: ``python -m tests.ops.random_selections``.

A program takes a matrix, a mask and a number, and goes on with what these choose: masks, places, gathers, sorts, parts,
joins, writes, products, reductions, pairs, branches. Each is compiled once, and compared, with its gradient, for masks
that choose some, one, all and none. Where PyTorch refuses a mask, as a maximum of nothing, that mask is left out.

    python -m tests.ops.random_selections                      # 200 programs
    python -m tests.ops.random_selections --seeds 2000 --first 0
"""

import argparse
import collections
import random
import sys

import jax
import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

from tests.compiling import keep_context, set_flags
from tests.ops.test_lengths import MASKS, X
from torch2jax import Padded, TracedValueError, t2j

Tensor = torch.Tensor
A = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))

# Steps on rows ``(n, 3)``, where data decide n: each gives such rows again.
ROWS = {
    "positive": lambda s, x, m, k: s[s[:, 0] > 0],
    "places": lambda s, x, m, k: s[torch.where(s[:, 1] < 0.5)[0]],
    "sorted": lambda s, x, m, k: s.sort(0).values,
    "ordered": lambda s, x, m, k: s[s[:, 2].argsort(descending=True)],
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
    "in order of pairs": lambda s, x, m, k: s[(s @ s.T).square().sum(1).argsort()],
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
STARTS = {
    "mask": lambda x, m, k: x[m],
    "places": lambda x, m, k: x[m.nonzero()[:, 0]],
    "number": lambda x, m, k: x[: k.item()],
    "both": lambda x, m, k: x[m & (x[:, 1] > -1)],
    "selected": lambda x, m, k: x.masked_select(m[:, None]).reshape(-1, 3),
    "column": lambda x, m, k: x.T[:, m].T,
}


def _of_pairs(s: Tensor, places: tuple[Tensor, ...]) -> Tensor:
    i, j = places
    return torch.zeros_like(s).index_add(0, i, s[j] - 0.5 * s[i])


def _changed(s: Tensor, change) -> Tensor:
    s = s.clone()
    change(s)
    return s


class Program:
    """One program: where it starts, the steps that it goes, and what it gives."""

    def __init__(self, seed: int):
        draw = random.Random(seed)
        self.start, self.end = draw.choice(list(STARTS)), draw.choice(list(ENDS))
        self.steps = draw.choices(list(ROWS), k=draw.randint(1, 5))
        self.names = [self.start, *self.steps, self.end]

    def __call__(self, x, m, k):
        s = STARTS[self.start](x, m, k)
        for name in self.steps:
            s = ROWS[name](s, x, m, k)
        return ENDS[self.end](s, x, m, k)


def _array(found) -> np.ndarray:
    return np.asarray(found.compact() if isinstance(found, Padded) else found)


def run(seed: int) -> str:
    """What is wrong with a program: nothing, where the text is empty; or that it is refused."""
    program = Program(seed)

    def loss(x, m, k):
        found = t2j(program)(x, m, k)
        values = found.values if isinstance(found, Padded) else found
        return (values * 1.0).sum(), found

    compiled = jax.jit(jax.value_and_grad(loss, has_aux=True))
    for name, mask in MASKS.items():
        for number in (2, 0) if name == "some" else (3,):
            x = X.clone().requires_grad_()
            k = torch.tensor(number)
            try:
                wanted = program(x, mask, k.clamp(0, 5))
            except (RuntimeError, IndexError):
                continue  # of nothing there is none
            grad = torch.zeros_like(x)
            if wanted.requires_grad:
                (found_grad,) = torch.autograd.grad(wanted.sum(), x, allow_unused=True)
                grad = grad if found_grad is None else found_grad
            try:
                (_, found), gradient = compiled(t2j(X), t2j(mask), jax.numpy.clip(number, 0, 5))
            except TracedValueError as error:
                return f"refused: {str(error)[:600]}"
            found = _array(found)
            if found.shape != tuple(wanted.shape):
                return f"{program.names} of {name}: got the shape {found.shape}; wanted {tuple(wanted.shape)}"
            for what, one, other in (("values", found, wanted), ("gradient", gradient, grad)):
                other = other.detach().numpy()
                scale = max(1.0, np.nanmax(np.abs(other), initial=0.0)) / 50  # sums of large numbers are rounded alike
                if not np.allclose(one, other, 1e-3, 1e-4 * max(1.0, scale), equal_nan=True):
                    return f"{program.names} of {name}: {what} {one}; wanted {other}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=200, help="how many programs")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    options = parser.parse_args()
    set_flags()
    keep_context()
    kinds: collections.Counter[str] = collections.Counter()
    for seed in range(options.first, options.first + options.seeds):
        try:
            wrong = run(seed)
        except Exception as error:
            wrong = f"{Program(seed).names}: {type(error).__name__}: {str(error)[:300]}"
        kinds["agree" if not wrong else "refused" if wrong.startswith("refused") else "differ"] += 1
        if wrong:
            print(seed, wrong, flush=True)
        if seed % 50 == 49:
            print(f"up to {seed}: {dict(kinds)}", flush=True)
            jax.clear_caches()
    print(dict(kinds))
    return int(kinds["differ"] > 0)


if __name__ == "__main__":
    sys.exit(main())
