"""Programs of `torch.distributed` as PyTorch's users write them; `processes` runs them in processes, with gloo.

Each takes what its rank has, and gives a tensor; where derivatives are wanted, its rank's loss is the sum of that.
"""

import math
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as compiled
import torch.distributed.nn.functional as differentiable
import torch.nn.functional as F
from torch.autograd import Function

__all__ = ["CASES", "RANKS", "given", "with_gradient"]

RANKS = 4
CASES: dict[str, tuple[Callable, bool]] = {}
"""By name: the program, and whether its gradient is wanted."""


def given(rank: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """What a rank has: (8, 6)."""
    place = torch.arange(48.0).reshape(8, 6) + 48 * rank
    return torch.sin(place).to(dtype)


def value(program: Callable) -> Callable:
    CASES[program.__name__] = (program, False)
    return program


def with_gradient(program: Callable) -> Callable:
    CASES[program.__name__] = (program, True)
    return program


def _reduction(name: str, op, change: Callable) -> None:
    def program(x):
        y = change(x)
        dist.all_reduce(y, op=op)
        return y.float()

    program.__name__ = f"all_reduce_{name}"
    value(program)


def _whole(x):
    return (x * 7).round().to(torch.int32)


for _name in ("SUM", "MIN", "MAX", "PRODUCT"):
    _reduction(_name.lower(), getattr(dist.ReduceOp, _name), lambda x: x * 2)
for _name in ("BAND", "BOR", "BXOR", "SUM"):
    _reduction(_name.lower() + "_of_integers", getattr(dist.ReduceOp, _name), _whole)


@value
def reduce_on_two(x):
    y = x.clone()
    dist.reduce(y, dst=2)
    return torch.where(torch.tensor(dist.get_rank()) == 2, y, torch.zeros(()))


@value
def broadcast_of_one(x):
    y = x * 3
    dist.broadcast(y, src=1)
    return y


@value
def gathered_list(x):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x)
    return torch.cat(parts, 1)


@value
def gathered_into(x):
    out = torch.empty(8 * dist.get_world_size(), 6)
    work = dist.all_gather_into_tensor(out, x, async_op=True)
    work.wait()
    return out


@value
def scattered_sums(x):
    out = torch.empty(2, 6)
    dist.reduce_scatter_tensor(out, x)
    parts = torch.empty(2, 6)
    dist.reduce_scatter(parts, list(x.chunk(4)))
    return out + parts * 2


@value
def exchanged(x):
    out = torch.empty_like(x)
    dist.all_to_all_single(out, x)
    other = torch.empty_like(x)
    dist.all_to_all_single(other, x + 1, [2] * 4, [2] * 4)
    return out * other


@value
def ring_of_messages(x):
    rank, size = dist.get_rank(), dist.get_world_size()
    total, block = x.clone(), x
    for _ in range(size - 1):
        arrived = torch.empty_like(block)
        ops = [
            dist.P2POp(dist.isend, block.contiguous(), (rank + 1) % size),
            dist.P2POp(dist.irecv, arrived, (rank - 1) % size),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        block = arrived
        total = total * 0.5 + block
    return total


@value
def pairs_swap(x):
    rank = dist.get_rank()
    partner = rank + 1 - rank % 2 * 2
    y = torch.empty_like(x)
    works = [dist.irecv(y, partner), dist.isend(x, partner)]
    for work in works[::-1]:
        work.wait()
    return y


@value
def by_rank(x):
    rank = dist.get_rank()
    x = x * 10 if rank == 0 else x + rank
    dist.all_reduce(x)
    return x[:1] * rank


# Derivatives of collectives.


@with_gradient
def differentiated_all_reduce(x):
    return torch.tanh(differentiable.all_reduce(x * x)) * x


@with_gradient
def differentiated_gather(x):
    return torch.stack(differentiable.all_gather(x)).pow(2).sum(0) * x


@with_gradient
def differentiated_exchange(x):
    parts = [part.contiguous() for part in (x * x).chunk(4)]
    return torch.cat(differentiable.all_to_all([torch.empty_like(part) for part in parts], parts)) * x


@with_gradient
def differentiated_broadcast(x):
    return differentiable.broadcast(x.sin(), 1) * x


@with_gradient
def compiled_all_reduce(x):
    return compiled.wait_tensor(compiled.all_reduce(x * x, "sum", dist.group.WORLD)) * x


@with_gradient
def compiled_gather(x):
    gather = getattr(compiled, "all_gather_single", compiled.all_gather_tensor)
    return gather(x.sin(), 0, dist.group.WORLD)[4:12] * x


@with_gradient
def compiled_scatter(x):
    scatter = getattr(compiled, "reduce_scatter_single", compiled.reduce_scatter_tensor)
    return scatter(x.sin(), "sum", 0, dist.group.WORLD) * x[:2]


@with_gradient
def compiled_exchange(x):
    return compiled.all_to_all_single(x.sin(), None, None, dist.group.WORLD) * x


@with_gradient
def normalized(x):
    """The statistics of SyncBatchNorm, as its function computes them."""
    count = torch.tensor([float(x.shape[0])])
    sums = differentiable.all_reduce(torch.cat([x.sum(0), (x * x).sum(0), count]))
    mean, square = sums[:6] / sums[-1], sums[6:12] / sums[-1]
    return ((x - mean) * torch.rsqrt(square - mean * mean + 1e-5)) ** 3


# Functions with derivatives of their own. Their loss is the same on all ranks.


class CopyToRegion(Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient


class ReduceFromRegion(Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class GatherFromRegion(Function):
    """Along the last dimension."""

    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, -1)

    @staticmethod
    def backward(ctx, gradient):
        width = gradient.shape[-1] // dist.get_world_size()
        return gradient.narrow(-1, dist.get_rank() * width, width).contiguous()


class GatherSequence(Function):
    """Along the first dimension; what comes back is summed and scattered."""

    @staticmethod
    def forward(ctx, x):
        out = torch.empty(x.shape[0] * dist.get_world_size(), *x.shape[1:])
        dist.all_gather_into_tensor(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx, gradient):
        out = torch.empty(gradient.shape[0] // dist.get_world_size(), *gradient.shape[1:])
        dist.reduce_scatter_tensor(out, gradient.contiguous())
        return out


class ScatterSequence(Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.empty(x.shape[0] // dist.get_world_size(), *x.shape[1:])
        dist.reduce_scatter_tensor(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx, gradient):
        out = torch.empty(gradient.shape[0] * dist.get_world_size(), *gradient.shape[1:])
        dist.all_gather_into_tensor(out, gradient.contiguous())
        return out


class Exchange(Function):
    """Rows of experts: what each rank has for each other one."""

    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx, gradient):
        return Exchange.apply(gradient)


def tensor_parallel(x, column, row):
    """A Megatron layer: x is the same on all ranks, the weights are parts."""
    return ReduceFromRegion.apply(F.silu(CopyToRegion.apply(x) @ column) @ row)


def tensor_parallel_gathered(x, column, row):
    hidden = GatherFromRegion.apply(F.silu(CopyToRegion.apply(x) @ column))
    width = row.shape[0]
    mine = hidden.narrow(-1, dist.get_rank() * width, width)
    return ReduceFromRegion.apply(mine @ row)


def sequence_parallel(x, column, row):
    """x is a part of the sequence."""
    return ScatterSequence.apply(F.silu(GatherSequence.apply(x) @ column) @ row)


@with_gradient
def experts(x):
    """Each rank has one expert; the tokens go to it and come back."""
    sent = Exchange.apply(x.sin())
    done = torch.tanh(sent * (1.0 + dist.get_rank()))
    return Exchange.apply(done) * x


class RingPass(Function):
    """The block of the rank before, and its gradient to the rank before."""

    @staticmethod
    def forward(ctx, x):
        return _passed(x, 1)

    @staticmethod
    def backward(ctx, gradient):
        return _passed(gradient, -1)


def _passed(x, step):
    rank, size = dist.get_rank(), dist.get_world_size()
    out = torch.empty_like(x)
    ops = [
        dist.P2POp(dist.isend, x.contiguous(), (rank + step) % size),
        dist.P2POp(dist.irecv, out, (rank - step) % size),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return out


@with_gradient
def ring_attention(x):
    """Attention over the sequences of all ranks, block after block."""
    q, k, v = x, x.cos(), x.sin()
    best = torch.full((x.shape[0], 1), -math.inf)
    total, out = torch.zeros(x.shape[0], 1), torch.zeros_like(x)
    size = dist.get_world_size()
    for step in range(size):
        scores = q @ k.T / math.sqrt(x.shape[-1])
        new = torch.maximum(best, scores.amax(-1, keepdim=True))
        weights = torch.exp(scores - new)
        scale = torch.exp(best - new)
        total, out, best = total * scale + weights.sum(-1, keepdim=True), out * scale + weights @ v, new
        if step < size - 1:
            k, v = RingPass.apply(torch.stack([k, v])).unbind(0)
    return out / total
