"""Programs that data decide: selections, lengths, conditions, loops, and PyTorch's operators of control flow."""

import jax.numpy as jnp
import torch
import torch.nn.functional as F
from torch import nn
from torch._higher_order_ops import associative_scan, map as map_, scan, while_loop
from torch.nn.utils.rnn import pad_sequence

from tests.ops.test_graphs import LABELS, MASK, M, S, V
from torch2jax import t2j
from torch2jax.tools.models import define_vision_operators

from .program import Program, drawing, gradient, of, of_jax

__all__ = ["conditions", "control_flow", "lengths", "loops", "rolled", "selections"]

_EIGHT = jnp.linspace(-1, 1, 8)
_BOXES = jnp.array([[0.0, 0, 2, 2], [0, 0, 2, 1], [3, 3, 4, 4]])


def _doubled(x):
    y = x + 1
    y[y > 0] = y[y > 0] * 2
    return y


def _two_masks(x, m):
    y = x.clone()
    y[m] = x[m] + torch.where(x[m] > 0, x[m], 0)
    return y


def _rows(x):
    keep = x[:, 0] > 0
    return x[keep] @ x.T, x[keep].mean(0), keep.sum()


def _sorted(x):
    chosen = x[x > 0].sort(descending=True).values
    return chosen[:2], chosen[-1], len(chosen)


def _positive_loss(x, y):
    mask = y > 0
    return F.mse_loss(x[mask], y[mask])


def _standardised(x, m):
    values = x[m]
    return (values - values.mean()) / (values.std() + 1e-6)


def _written(x):
    chosen = x[x > 0]
    chosen[:1].mul_(2)
    chosen[-1] = 0
    return chosen


def _scattered(x, m):
    found = torch.zeros_like(x)
    found[m] = x[m].softmax(0)
    return found


def _neighbours(x):
    i, j = torch.where((torch.cdist(x, x) < 1) & ~torch.eye(len(x), dtype=torch.bool))
    pull = x[j] - x[i]
    return torch.zeros(x.shape).index_add(0, i, pull / pull.norm(dim=1, keepdim=True))


def selections() -> dict[str, Program]:
    return {
        "x[m]": of(lambda x, m: x[m], V, V > 0),
        "x[m].sum()": of(lambda x: x[x > 0].sum(), M),
        "x[m].mean(), max and std": of(lambda x, m: (x[m].mean(), x[m].max(), x[m].std()), M, MASK),
        "x[m] of rows": of(_rows, M),
        "x[:, m]": of(lambda x: x[:, x.sum(0) > 0], M),
        "x[m] = x[m] * 2": of(_doubled, M),
        "x[m] = f(x[m])": of(_two_masks, M, MASK),
        "x[m] in sum with another": of(lambda x, y, m: x[m] + y[m], V, V, V > 0),
        "x[m][k]": of(lambda x: x[x > 0][x[x > 0] < 0.5], V),
        "x[m] through a network": of(lambda x, w: F.linear(x[x[:, 0] > 0], w).relu(), M, S),
        "x[m], linear and written back": of(_scattered, V, V > 0),
        "x[m] standardised": of(_standardised, M, MASK),
        "x[m].sort()": of(_sorted, _EIGHT),
        "x[m].topk(2)": of(lambda x: x[x > 0].topk(2), _EIGHT),
        "x[m].cumsum(0)": of(lambda x: x[x > 0].cumsum(0), V),
        "x[m] written": of(_written, _EIGHT),
        "masked_select": of(lambda x: x.masked_select(x > 0), M),
        "nonzero": of(lambda x: x.nonzero(), M),
        "where of one": of(lambda x: torch.where(x > 0), M),
        "a masked loss": of(_positive_loss, M, M),
        "a masked loss, gradient": gradient(_positive_loss, M, M),
        "cross entropy of the chosen": of(lambda x, y: F.cross_entropy(x[y > 0], y[y > 0]), M, LABELS),
        "x[m] and cat": of(lambda x, y: torch.cat([x[x > 0], y]), V, V),
        "x[m] and stack": of(lambda x, m: torch.stack([x[m], x[m] * 2], 1), V, V > 0),
        "pairs": of(lambda x: torch.cdist(x[x[:, 0] > 0], x[x[:, 0] > 0]).sum(), M),
        "neighbours": of(_neighbours, M),
        "neighbours, gradient": gradient(_neighbours, M),
        "neighbours of a bound": of(_neighbours, M, bounds={"control.py:_neighbours": 5}),
        "x[m] of a known mask": of(lambda x: x[torch.arange(4) > 1], V),
        "x[m].view": of(lambda x: x[x > 0].view(-1, 2).sum(1), _EIGHT),
        "matrix by rows and columns": of(lambda x, m: x[m][:, m], S, V > 0),
        "einsum": of(lambda x, m: torch.einsum("ij,jk->ik", x[m], x[m].T), M, MASK[:, 0]),
        "dropped nan": of(lambda x: x[~x.isnan()].mean(), V),
        "index_add of the chosen": of(
            lambda x, i, m: torch.zeros(4).index_add(0, i[m], x[m]), V[:3], LABELS, V[:3] > 0
        ),
        "attention of the chosen": of(
            lambda x, m: F.scaled_dot_product_attention(x[m][None], x[m][None], x[m][None]), M, MASK[:, 0]
        ),
        "x[m] in a batch": of(lambda x: torch.vmap(lambda row: row[row > 0].sum())(x), M),
        "x[m], gradient": gradient(lambda x: x[x > 0] ** 2, M),
        "x[m] = f(x[m]), gradient": gradient(_doubled, M),
    }


def _apart(points):
    left = points[points[:, 0].argsort()]
    mean, count = torch.zeros(2), 0
    while len(left) > 0:
        mean, count = mean + left[0], count + 1
        left = left[(left - left[0]).norm(dim=1) > 0.5]
    return mean / count


def _over_chosen(x):
    total = x.sum() * 0
    for i, row in enumerate(x[x > 0]):
        total = total + row * i
    return total


def _boxes_or_none(x):
    keep = x[:, 2] > 0.5
    return x[keep, :2] if keep.any() else torch.zeros(0, 2)


def lengths() -> dict[str, Program]:
    define_vision_operators()
    return {
        "x[:n]": of(lambda x, n: x[: n.clamp(0, 3).item()], V, jnp.int32(2)),
        "x[n:]": of(lambda x, n: x[n.item() :], V, jnp.int32(2)),
        "zeros(n), arange(n)": of(lambda m: torch.zeros(n := m.sum().item()) + torch.arange(n), V > 0),
        "len of a selection": of(lambda x: x.sum() / max(1, len(x[x > 0])), V),
        "a comparison of lengths": of(lambda x: x[x > 0].mean() if len(x[x > 0]) > 1 else x.sum(), V),
        "unique": of(lambda i: i.unique(), LABELS),
        "unique with counts": of(lambda i: i.unique(return_inverse=True, return_counts=True), LABELS),
        "unique_consecutive": of(lambda i: i.unique_consecutive(), LABELS),
        "repeat_interleave": of(lambda x, n: x.repeat_interleave(n.clamp(0, 2)), V[:3], LABELS),
        "bincount": of(lambda i: torch.bincount(i.clamp(0, 5)), LABELS),
        "pad of a selection": of(lambda x: F.pad(x[x > 0], (0, 4 - len(x[x > 0]))), V),
        "pad_sequence": of(lambda x, m: pad_sequence([x[m], x[~m]]), V, V > 0),
        "split": of(lambda x, n: x.split([n.item(), 4 - n.item()]), V, jnp.int32(1)),
        "topk(n)": of(lambda x, n: x.topk(n.clamp(1, 3).item()).values, V, jnp.int32(2)),
        "a list of selections": of(lambda x: [x[x > 0], x[x < 0]], V),
        "a condition that selects": of(_boxes_or_none, M),
        "boxes": of(_suppressed, _BOXES, V[:3]),
        "for row in x[m]": of(_over_chosen, V),
        "while len(x) > 0": of(_apart, M[:, :2]),
        "for i in range(n)": of(lambda x, n: sum(x[i] for i in range(n.clamp(0, 3).item())), V, jnp.int32(2)),
        "randperm of a length": drawing(lambda x: x[x > 0][torch.randperm(len(x[x > 0]))], V),
    }


def _suppressed(boxes, scores):
    from torchvision.ops import nms

    return boxes[nms(boxes, scores, 0.5)]


def _clipped(x):
    if x.norm() > 1:
        x = x / x.norm()
    return x + 1


def _elif(x):
    if x.sum() > 1:
        return x * 2
    elif x.sum() < -1:
        return x - 1
    return x.sin()


def _one_after_another(x):
    count = 0
    for i in range(4):
        if x[i] > 0:
            x = x.roll(i) * 0.5
            count += 1
        else:
            x = x + 0.1
    return x, count


def _checked(x):
    if x.min() < 0:
        raise ValueError(f"negative: {x}")
    assert not torch.isnan(x).any(), "nan"
    return x.sqrt()


def _in_place(x):
    y = x.clone()
    if x[0] > 0:
        y[1:] *= 2
    else:
        y[0] = 5
    return y


def _attributes(x):
    class State:
        best = None

    state = State()
    state.best = x
    if x.sum() > 0:
        state.best = x * 2
    return state.best


def _returned(x):
    if x.norm() > 1:
        return x / x.norm()
    return x if x.min() > 0 else x.abs()


def _function_in_a_loop(x):
    for i in range(3):
        x = _returned(x + i)
    return x


def _and_or(x):
    return x * 2 if (x[0] > 0 and x[1] > 0) or not x[2] > 0 else x


def _backward_on_one_side(x):
    x = x.detach().requires_grad_()
    y = x * 3 if x.sum() > 0 else x.exp()
    y.sin().sum().backward()
    return x.grad


def _with_numbers(x):
    scale = 1.0
    if x.max().item() > 0.5:
        scale = 0.5
    return x * scale + min(x[0].item(), 2.0)


def _early(x):
    found = x.sum()
    for i in range(3):
        if x[i] > 0:
            return found + i
        found = found * 2
    return found


def _try(x):
    try:
        return _checked(x)
    except ValueError:
        return x.abs()


class _Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.tensor(0.0))

    def forward(self, x):
        if x.sum() > 0:
            self.count += 1
        return x * self.count


def conditions() -> dict[str, Program]:
    return {
        "if": of(_clipped, V),
        "if, gradient": gradient(_clipped, V),
        "an expression": of(lambda x: x * 2 if x.sum() > 0 else x - 1, V),
        "elif": of(_elif, V),
        "four, one after another": of(_one_after_another, V),
        "assumed checks": of(_checked, V),
        "raised checks": of(_checked, V, checks="raise"),
        "one branch": of(_checked_or_not, V, branches={"control.py:_checked_or_not": True}),
        "writes on one side": of(_in_place, V),
        "attributes": of(_attributes, V),
        "returns": of(_returned, V),
        "a function in a loop": of(_function_in_a_loop, V),
        "and, or, not": of(_and_or, V),
        "any": of(lambda x: x.nan_to_num() if x.isnan().any() else x, V),
        "allclose": of(lambda x, y: x if torch.allclose(x, y) else y, V, V),
        "numbers": of(_with_numbers, V),
        "early return": of(_early, V),
        "except": of(_try, V),
        "backward after it": of(_backward_on_one_side, V),
        "a buffer": of_jax(_stateful, {"count": jnp.float32(0)}, V),
        "dropout on one side": drawing(lambda x: F.dropout(x) if x.sum() > 0 else x, V),
        "in a batch": of(lambda x: torch.stack([_clipped(row) for row in x]), M[:2]),
        "an integer of two": of(lambda x: x + (1 if x[0] > 0 else 2), V),
        "a tuple of three": of(lambda x: (x, x * 2, 3) if x[0] > 0 else (x.sin(), x, 4), V),
        "of known values": of(lambda x: x * 2 if torch.arange(3).sum() > 2 else x, V),
    }


def _stateful(state, x):
    return t2j(_Stateful())(x, state_dict=state, return_state_dict=True)


def _checked_or_not(x):
    if x.sum() > 0:
        return x * 2
    return x


def _halved(x):
    count = 0
    while x.norm() > 1:
        x = x / 2
        count += 1
    return x, count


def _power(a):
    v = torch.ones(a.shape[0])
    for step in range(20):  # noqa: B007
        before, v = v, a @ v / (a @ v).norm()
        if (v - before).norm() < 1e-5:
            break
    return v, step


def _newton(a):
    x = a.clone()
    while ((x * x - a).abs() > 1e-4).any():
        x = 0.5 * (x + a / x)
    return x


def _conjugate_gradients(a, b):
    x, r = torch.zeros_like(b), b.clone()
    p, before = r.clone(), torch.dot(r, r)
    for n in range(12):
        step = before / (p @ (a @ p))
        x += step * p
        r -= step * (a @ p)
        now = torch.dot(r, r)
        if now.sqrt() < 1e-3:
            return x, n
        p, before = r + now / before * p, now
    return x, 12


def _with_a_flag(x):
    done, i = False, 0
    while not done and i < 10:
        x = x * 0.9
        done = bool(x.abs().max() < 0.1)
        i += 1
    return x


def _nested(x):
    total = x.sum() * 0
    while x.sum() > 1:
        y = x
        while y.max() > 0.5:
            y = y / 3
        x, total = x / 2 + y, total + 1
    return total


def _greedy(weights, token):
    tokens = torch.zeros(6, dtype=torch.int64)
    for i in range(6):
        tokens[i] = token
        if token == 0:
            break
        token = weights[token].argmax()
    return tokens


def _condition_within(x):
    while x.abs().max() > 0.1:
        x = x * 0.5 if x.sum() > 0 else x * 0.25
    return x


def loops() -> dict[str, Program]:
    return {
        "while": of(_halved, V),
        "while, counted": of(_halved, V, max_steps=8),
        "while, gradient": gradient(lambda x: _halved(x)[0], V, max_steps=8),
        "break": of(_power, S),
        "newton": of(_newton, jnp.abs(V)),
        "conjugate gradients": of(_conjugate_gradients, S, V),
        "a flag": of(_with_a_flag, V),
        "a loop in a loop": of(_nested, V),
        "greedy": of(_greedy, S, jnp.int32(1)),
        "a condition within": of(_condition_within, V),
        "raises": of(lambda x: _raising(x), V),
    }


def _raising(x):
    for _ in range(10):
        if x.norm() < 0.1:
            return x
        x = x / 2
    raise RuntimeError("no convergence")


def _damped(x):
    return torch.cond(x.norm() > 1, lambda x: x / x.norm(), lambda x: x.clone(), (x,))


def _halvings(x):
    return while_loop(lambda count, x: x.max() > 1, lambda count, x: (count + 1, x / 2), (0, x))


def _four_times(x):
    return while_loop(lambda count, x: count < 4, lambda count, x: (count + 1, x.sin()), (0, x))[1]


def _running(x):
    return scan(lambda carry, x: (carry * 0.9 + x, carry.clone()), torch.zeros(4), x)


def control_flow() -> dict[str, Program]:
    weight = torch.ones(4)
    return {
        "cond": of(_damped, V),
        "cond, gradient": gradient(_damped, V),
        "cond of known": of(lambda x: torch.cond(torch.tensor(True), torch.sin, torch.cos, (x,)), V),
        "cond that closes over": of(lambda x: torch.cond(x[0] > 0, lambda: x * weight, lambda: x - 1), V),
        "cond of two results": of(
            lambda x, y: torch.cond(x[0] > 0, lambda x, y: (x, y), lambda x, y: (y, x), (x, y)), V, V
        ),
        "while_loop": of(_halvings, V),
        "while_loop that counts": of(_four_times, V),
        "while_loop, gradient": gradient(_four_times, V),
        "scan": of(_running, M),
        "scan, gradient": gradient(lambda x: _running(x)[0], M),
        "map": of(lambda x: map_(lambda row: row.norm(), x), M),
        "map with dropout": drawing(lambda x: map_(lambda row: F.dropout(row), x), M),
        "associative_scan": of(lambda x: associative_scan(torch.add, x, 0), M),
        "a condition in a scan": of(
            lambda x: scan(lambda c, x: (c + x if x.sum() > 0 else c - x, x * 2), torch.zeros(4), x), M
        ),
    }


def _cells(x, w):
    h, found = torch.zeros(x.shape[0], 3), []
    for t in range(x.shape[1]):
        h = torch.tanh(x[:, t] + h @ w) * 0.9 + h.sigmoid() * 0.1
        found.append(h)
    return torch.stack(found, 1)


def _rows_written(x, w):
    found = torch.zeros_like(x)
    for t in range(x.shape[1]):
        found[:, t] = torch.tanh(x[:, t] @ w).exp().cos() + x[:, t].sin() * x[:, t].abs().sqrt()
    return found


def _alternating(x, w):
    for t in range(80):
        x = torch.tanh(x @ w) + x.cos() if t % 2 else torch.sigmoid(x) * x.sin()
    return x


def _in_loops(x, w):
    for _ in range(6):
        for _ in range(40):
            x = torch.tanh(x @ w) + x.sin() * x.cos() - x.abs().sqrt()
        x = x - x.mean()
    return x


def _adapted(w, x, y):
    for _ in range(40):
        w = w - 0.1 * torch.func.grad(lambda w: ((x @ w).tanh() - y).square().mean())(w)
    return w


def _through_time(x, w):
    x = x.clone().requires_grad_()
    _cells(x, w).square().sum().backward()
    return x.grad


def rolled() -> dict[str, Program]:
    x, w = jnp.ones((2, 40, 3)), jnp.eye(3)
    dropping = lambda x: [x := F.dropout(x * 2).sin().cos() + 1 - x.exp() for _ in range(40)][-1]
    return {
        "cells": of(_cells, x, w),
        "cells, gradient": gradient(_cells, x, w),
        "rows written": of(_rows_written, x, w),
        "alternating": of(_alternating, x[:, 0], w),
        "loops in loops": of(_in_loops, x[:, 0], w),
        "inner steps": of(_adapted, w, x[0], x[1]),
        "through time": of(_through_time, x, w),
        "dropout": drawing(dropping, V),
    }
