"""Programs on eight devices: `torch.distributed` within `jax.shard_map`, and tensors that XLA splits."""

import contextlib

import jax
import jax.numpy as jnp
import torch
import torch.distributed as dist
import torch.nn.functional as F
from jax.sharding import AxisType, PartitionSpec as P
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from tests.ops.distributed import cases, tensor_cases
from torch2jax import sharding, t2j

from .program import Graph, Program, of_jax

__all__ = ["distributed", "dtensors"]

_GRADIENTS = ("differentiated_all_reduce", "tensor_parallel", "sequence_parallel")


def _mesh(count: int, name: str = "ranks") -> jax.sharding.Mesh:
    return jax.make_mesh((count,), (name,), axis_types=(AxisType.Auto,), devices=jax.devices()[:count])


def _mapped(function, mesh):
    spec = P(*mesh.axis_names)
    return jax.shard_map(lambda x: t2j(function)(x)[None], mesh=mesh, in_specs=spec, out_specs=spec)


@contextlib.contextmanager
def _one_process():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield init_device_mesh("cpu", (1,), mesh_dim_names=("ranks",))
    finally:
        dist.destroy_process_group()


def _step(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach().reshape(1)


def _data_parallel() -> Graph:
    with _one_process():
        model = DistributedDataParallel(nn.Linear(3, 2))
    step = t2j(_step, state=(model, torch.optim.SGD(model.parameters(), lr=0.1)))
    x, y = jnp.ones((16, 3)), jnp.ones((16, 2))
    state = step.init(x[:2], y[:2])
    specs = {"in_specs": (P(), P("ranks"), P("ranks")), "out_specs": (P("ranks"), P())}
    return of_jax(jax.shard_map(step, mesh=_mesh(8), **specs), state, x, y)()


def distributed() -> dict[str, Program]:
    x = jnp.ones((8 * cases.RANKS, 6))
    programs = {}
    for name, (program, has_gradient) in cases.CASES.items():
        mapped = _mapped(program, _mesh(cases.RANKS))
        programs[name] = of_jax(mapped, x)
        if has_gradient:
            programs[f"{name}, gradient"] = of_jax(jax.grad(lambda x, mapped=mapped: mapped(x).sum()), x)
    return programs | {"data parallel": _data_parallel}


def _parallelized() -> Graph:
    with _one_process() as mesh:
        module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
        split = parallelize_module(module, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    state = {name: jnp.ones(x.shape) for name, x in module.state_dict().items()}
    with jax.set_mesh(_mesh(8)):
        return of_jax(lambda s, x: t2j(split)(x, state_dict=s), state, jnp.ones((4, 8)))()


def _whole() -> Graph:
    with _one_process() as mesh:

        def function(x, w):
            x, w = distribute_tensor(x, mesh, [Replicate()]), distribute_tensor(w, mesh, [Shard(-1)])
            rows = (x @ w).redistribute(placements=[Shard(0)])
            return rows, rows.full_tensor() * 2

        with jax.set_mesh(_mesh(8)):
            return of_jax(t2j(function), jnp.ones((16, 8)), jnp.ones((8, 16)))()


def _fully_sharded() -> Graph:
    module = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 8))
    with _one_process() as mesh:
        for part in (module[0], module):
            fully_shard(part, mesh=mesh)
    state = {name: jnp.ones(x.shape) for name, x in module.state_dict().items()}
    with jax.set_mesh(_mesh(8)):
        loss = lambda s, x: jnp.square(t2j(module)(x, state_dict=s)).mean()
        return of_jax(jax.grad(loss), state, jnp.ones((32, 6)))()


def _constrained() -> Graph:
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto, AxisType.Auto))
    module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    state = {name: jnp.ones(x.shape) for name, x in module.state_dict().items()}
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    split = sharding.constrained(module, mesh, data="data", tensor="model", plan=plan)
    return of_jax(lambda s, x: t2j(split)(x, state_dict=s), state, jnp.ones((4, 8)))()


def _explicit() -> Graph:
    with jax.set_mesh(jax.make_mesh((2, 4), ("data", "model"))):
        table = jax.device_put(jnp.ones((16, 4)), P(None, "model"))
        ids = jax.device_put(jnp.zeros((8, 4), int), P("data"))
        return of_jax(t2j(lambda i, w: F.embedding(i, w).softmax(-1)), ids, table)()


def dtensors() -> dict[str, Program]:
    x = jnp.ones((8 * tensor_cases.RANKS, 6))
    programs = {
        name: of_jax(_mapped(program, _mesh(tensor_cases.RANKS)), x) for name, program in tensor_cases.CASES.items()
    }
    return programs | {
        "outside: a parallel module": _parallelized,
        "outside: whole tensors": _whole,
        "outside: fully sharded, gradient": _fully_sharded,
        "outside: constrained": _constrained,
        "outside: explicit axes": _explicit,
    }
