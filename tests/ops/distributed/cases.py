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
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import skip_init
from torch.utils.checkpoint import checkpoint

__all__ = ["CASES", "RANKS", "Perceptron", "given", "with_gradient"]

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


# Each process differentiates what it computes itself.


class Perceptron(torch.nn.Module):
    """With the same weights wherever it is made."""

    def __init__(self):
        super().__init__()
        self.hidden, self.out = (skip_init(torch.nn.Linear, *sizes) for sizes in ((6, 5), (5, 2)))
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.cos(torch.arange(float(parameter.numel()))).reshape(parameter.shape) / 2)

    def forward(self, x):
        return self.out(torch.tanh(self.hidden(x)))


def _flat(tensors):
    return torch.cat([x.detach().reshape(-1) for x in tensors])


@value
def own_gradients(x):
    net = Perceptron()
    net(x).square().sum().backward()
    return _flat(p.grad for p in net.parameters())


@value
def gradients_summed_by_hand(x):
    """After two passes, then steps of an optimizer with what is the same on all ranks."""
    net = Perceptron()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        for part in x.chunk(2):
            net(part).square().sum().backward()
        for p in net.parameters():
            dist.all_reduce(p.grad)
        optimizer.step()
    return _flat([*net.parameters(), *(p.grad for p in net.parameters())])


@value
def gradients_of_some_tensors(x):
    net, scale = Perceptron(), torch.full((6,), 1.5, requires_grad=True)
    loss = net(x * scale).square().sum() + net.out.bias.exp().sum()
    gradients = torch.autograd.grad(loss, [scale, *net.parameters()], retain_graph=True)
    total = torch.autograd.grad(loss, net.out.bias)[0]
    dist.all_reduce(total)
    return torch.cat([_flat(gradients), total])


@value
def gradients_by_collectives_with_derivatives(x):
    """Of a loss on this rank that comes by what all ranks have."""
    w = torch.linspace(-1, 1, 6).requires_grad_()
    shared = differentiable.all_reduce((x * w).tanh())
    gathered = torch.stack(differentiable.all_gather(w * x[0]))
    ((shared * x).sum() + (gathered.cos() * dist.get_rank()).sum() + w.sum()).backward()
    return w.grad


@value
def gradients_of_parallel_layers(x):
    """What all ranks have alike goes around the layers too; the loss differs."""
    x = torch.linspace(-1, 1, 48).reshape(8, 6) + x[0].mean() * 0
    first = torch.cos(torch.arange(24.0) + dist.get_rank()).reshape(6, 4)
    leaves = [w.clone().requires_grad_() for w in (x, first, first.T * 2)]
    y = tensor_parallel(*leaves) + leaves[0]
    (y * (1.0 + dist.get_rank())).sin().sum().backward()
    return _flat(leaf.grad for leaf in leaves)


@value
def gradients_of_recomputed_layers(x):
    def layer(x, first, second):
        return ReduceFromRegion.apply(torch.tanh(CopyToRegion.apply(x) @ first) @ second) + x

    first = torch.cos(torch.arange(24.0)).reshape(6, 4)
    leaves = [w.clone().requires_grad_() for w in (x, first, first.T / 8)]
    y = checkpoint(layer, *leaves, use_reentrant=False)
    y = checkpoint(layer, y, *leaves[1:], use_reentrant=False)
    y.sin().sum().backward()
    return _flat(leaf.grad for leaf in leaves)


@value
def gradients_of_gradients(x):
    net = Perceptron()
    y = net(x)
    gradients = torch.autograd.grad(y.square().sum(), list(net.parameters()), create_graph=True)
    (y.sum() + sum(gradient.square().sum() for gradient in gradients)).backward()
    for p in net.parameters():
        dist.all_reduce(p.grad, dist.ReduceOp.MAX)
    return _flat(p.grad for p in net.parameters())


@value
def gradients_summed_by_hooks(x):
    net = Perceptron()

    def reduce(gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient

    def reduce_left(parameter):
        dist.all_reduce(parameter.grad)

    net.hidden.weight.register_hook(reduce)
    net.out.weight.register_post_accumulate_grad_hook(reduce_left)
    net(x).square().sum().backward()
    return _flat(p.grad for p in net.parameters())


@value
def gradients_by_rank(x):
    """Ranks that go different ways, and one that has nothing to differentiate."""
    net = Perceptron()
    y = net(x)
    y = y.square() if dist.get_rank() % 2 else y.sin() * 0.5
    (y.sum() * float(2)).backward()
    with torch.no_grad():
        for p in net.parameters():
            p -= 0.1 * p.grad
    net.zero_grad()
    net(x).sum().backward()
    return _flat([*net.parameters(), *(p.grad for p in net.parameters())])


@value
def data_parallel_steps(x):
    """The losses of three steps, and the weights after them."""
    model = DistributedDataParallel(Perceptron())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), x[:, :2].sin())
        loss.backward()
        optimizer.step()
        losses.append(loss)
    return _flat([*losses, *model.parameters()])


@value
def data_parallel_accumulates(x):
    """Gradients of passes of which one alone is averaged at once, and of another after that."""
    model = DistributedDataParallel(Perceptron())
    with model.no_sync():
        model(x[:2]).square().sum().backward()
        model(x[2:5]).square().sum().backward()
    model(x[5:]).square().sum().backward()
    model(x.cos()).square().sum().backward()
    return _flat(p.grad for p in model.parameters())


@value
def data_parallel_with_buffers(x):
    """The buffers of the first rank are everybody's before each pass."""
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.BatchNorm1d(6), Perceptron()))
    for turn in range(2):
        model(x + turn).square().sum().backward()
    return _flat([*(p.grad for p in model.parameters()), *(b.float() for b in model.buffers())])


@value
def data_parallel_of_shared_parts(x):
    """Weights that are tied, a part that is frozen, and more than one pass before going back."""
    net = Perceptron()
    net.again = net.hidden
    net.hidden.bias.requires_grad_(False)
    model = DistributedDataParallel(net, process_group=dist.new_group([0, 1, 2, 3]))
    (model(x).square().sum() * model(-x).sum()).backward()
    return _flat(p.grad for p in model.parameters() if p.requires_grad)


@value
def data_parallel_of_recurrent_layers(x):
    """Which hold their weights in a list too."""
    net = torch.nn.LSTM(6, 3, device="meta").to_empty(device="cpu")
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.cos(torch.arange(float(parameter.numel()))).reshape(parameter.shape))
    model = DistributedDataParallel(net)
    for turn in range(2):
        model(x * (turn + 1))[0].square().sum().backward()
    return _flat(p.grad for p in model.parameters())
