"""Programs of `DTensor`s, for processes that talk by gloo and for devices within `jax.shard_map`."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.nn.attention import SDPBackend, sdpa_kernel

__all__ = ["CASES", "RANKS", "given"]

RANKS = 2
F = torch.nn.functional


def given(rank: int) -> torch.Tensor:
    return torch.sin(torch.arange(48.0).reshape(8, 6) * (rank + 1) / 7)


def devices():
    return init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("ranks",))


def rows(x):
    return DTensor.from_local(x, devices(), [Shard(0)])


def columns(x):
    return rows(x).redistribute(placements=[Shard(1)])


def sums(x):
    return DTensor.from_local(x, devices(), [Partial()])


def whole(x):
    return rows(x).redistribute(placements=[Replicate()])


def weights(*shape, placement=None):
    values = torch.cos(torch.arange(float(torch.Size(shape).numel())).reshape(shape))
    return distribute_tensor(values, devices(), [placement or Replicate()])


def local(x):
    """What a rank has of a result, with a cotangent that is not the same everywhere."""
    part = x.to_local() if isinstance(x, DTensor) else x
    return part * torch.cos(torch.arange(float(part.numel())).reshape(part.shape))


def full(x):
    return local(x.full_tensor())


def linear(size, other):
    made = torch.nn.Linear(size, other, device="meta")
    for name, parameter in list(made.named_parameters()):
        values = torch.cos(torch.arange(float(parameter.numel()))).reshape(parameter.shape)
        setattr(made, name, torch.nn.Parameter(values))
    return made


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = torch.nn.LayerNorm(6), linear(6, 8), linear(8, 6)

    def forward(self, x):
        return self.down(F.gelu(self.up(self.norm(x)), approximate="tanh"))


def parallel(x, plan):
    block = parallelize_module(Block(), devices(), plan)
    result = block(x if plan is SEQUENCE else whole(x).to_local())
    return full(result) if isinstance(result, DTensor) else local(result)


WHOLE = {"up": ColwiseParallel(use_local_output=False), "down": RowwiseParallel(use_local_output=False)}
LOCAL = {"up": ColwiseParallel(), "down": RowwiseParallel()}
SEQUENCE = {
    "norm": SequenceParallel(sequence_dim=0),
    "up": ColwiseParallel(input_layouts=Shard(0)),
    "down": RowwiseParallel(output_layouts=Shard(0), use_local_output=False),
}


def attention(x):
    heads = columns(x).view(1, 16, 2, 3).transpose(1, 2)
    with sdpa_kernel(SDPBackend.MATH):
        return local(F.scaled_dot_product_attention(heads, heads.cos(), heads.sin()))


def written(x):
    y = rows(x) * 1
    y += 2
    y.mul_(rows(x))
    y[:, 1:3] = y[:, 1:3] * 2
    return local(y)


def trained(x):
    """Weights after a step; `x` has no gradient of them."""
    block = parallelize_module(Block(), devices(), WHOLE)
    optimizer = torch.optim.AdamW(block.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        loss = (block(whole(x.detach()).to_local()) ** 2).mean()
        loss.backward()
        optimizer.step()
    found = [p.full_tensor() if isinstance(p, DTensor) else p for p in block.parameters()]
    return torch.cat([p.detach().flatten() for p in found])


CASES = {
    "gather": lambda x: full(rows(x).sin()),
    "exchange": lambda x: local(columns(x)),
    "exchange back": lambda x: local(columns(x).redistribute(placements=[Shard(0)])),
    "reduce": lambda x: full(sums(x)),
    "reduce scatter": lambda x: local(sums(x).redistribute(placements=[Shard(1)])),
    "own part": lambda x: local(whole(x).redistribute(placements=[Shard(1)])),
    "pointwise": lambda x: local(torch.where(rows(x) > 0, rows(x) * whole(x), 1 - columns(x)) + 2),
    "sums and wholes": lambda x: full((sums(x) * 2 + sums(x)) / 3 + rows(x).sum()),
    "column": lambda x: local(whole(x) @ weights(6, 8, placement=Shard(1))),
    "row": lambda x: full(columns(x) @ weights(6, 8, placement=Shard(0))),
    "rows by rows": lambda x: local(rows(x).mT @ rows(x)),
    "products": lambda x: full(torch.einsum("ij,ik->jk", rows(x), rows(x).cos())),
    "linear": lambda x: full(F.linear(columns(x), weights(8, 6, placement=Shard(1)), weights(8))),
    "batches": lambda x: local(torch.bmm(rows(x).view(4, 4, 6), rows(x).view(4, 4, 6).mT)),
    "sum": lambda x: full(rows(x).sum(0)),
    "mean": lambda x: full(rows(x).mean(0) * 3),
    "mean of all": lambda x: full(rows(x).mean() * rows(x).sum()),
    "variance": lambda x: full(rows(x).var(0)),
    "largest": lambda x: full(rows(x).amax(0) + rows(x).amax(1).sum()),
    "places": lambda x: full(rows(x).sum(1) * rows(x).argmax(0).sum()),
    "norm": lambda x: full(torch.linalg.vector_norm(rows(x)) * 2),
    "softmax": lambda x: local(rows(x).softmax(1) + rows(x).softmax(0)),
    "layer norm": lambda x: local(F.layer_norm(rows(x), (6,), whole(x)[0], whole(x)[1])),
    "shapes": lambda x: local(rows(x).view(4, 4, 6).transpose(1, 2).flatten(1).unsqueeze(1).expand(4, 2, 24)),
    "pieces": lambda x: local(torch.cat([*rows(x).split(2, 1), rows(x)[:, 1:3]], 1)),
    "embedding": lambda x: full(F.embedding(weights(4).long().abs(), rows(x))),
    "attention": attention,
    "cross entropy": lambda x: full(F.cross_entropy(rows(x), weights(16).abs().mul(5).long())),
    "images": lambda x: local(F.conv2d(rows(x).view(4, 1, 4, 6), whole(x)[:3, :3].reshape(1, 1, 3, 3), padding=1)),
    "writes": written,
    "column and row": lambda x: parallel(x, WHOLE),
    "local outputs": lambda x: parallel(x, LOCAL),
    "sequence": lambda x: parallel(x, SEQUENCE),
    "training": trained,
}
