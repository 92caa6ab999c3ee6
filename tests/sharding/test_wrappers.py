"""The wrappers of data parallelism train in two processes of JAX as in two of PyTorch's that talk by gloo."""

import pytest

from .test_distributed import expect_done

CODE = """
import faulthandler, sys
faulthandler.dump_traceback_later(120, exit=True)  # where the other process has failed
import jax, jax.numpy as jnp, numpy as np, torch
import torch.distributed as dist
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch2jax import t2j

rank, ports = int(sys.argv[1]), sys.argv[2:]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"tcp://localhost:{ports[0]}", rank=rank, world_size=2)
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"localhost:{ports[1]}", num_processes=2, process_id=rank)
mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
mine = slice(rank * 4, rank * 4 + 4)
x = np.sin(np.arange(24, dtype=np.float32)).reshape(8, 3)
y = np.cos(np.arange(16, dtype=np.float32)).reshape(8, 2)

def on_devices(values, spec):
    values = np.asarray(values)
    return jax.make_array_from_callback(values.shape, NamedSharding(mesh, spec), lambda index: values[index])

given = on_devices(x, P("data")), on_devices(y, P("data"))

def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))

def step(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach().reshape(1)

model = DistributedDataParallel(make())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
stepped = t2j(step, state=(model, optimizer))
state = jax.tree.map(lambda value: on_devices(value, P()), stepped.init(x[mine], y[mine]))
specs = {"in_specs": (P(), P("data"), P("data")), "out_specs": (P("data"), P())}
run = jax.jit(jax.shard_map(stepped, mesh=mesh, **specs))
losses = []
for _ in range(4):
    found, state = run(state, *given)
    losses.append(float(found.addressable_data(0)[0]))
    wanted = step(model, optimizer, torch.from_numpy(x[mine]), torch.from_numpy(y[mine]))
    np.testing.assert_allclose(losses[-1], wanted.item(), rtol=1e-5)
assert losses[-1] < losses[0], losses

model = make()
for part in (model[0], model):
    fully_shard(part, mesh=init_device_mesh("cpu", (2,), mesh_dim_names=("data",)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
params, function = dict(t2j(model.state_dict())), t2j(model)
assert params["0.weight"].sharding.spec == P("data", None)
assert params["0.weight"].addressable_data(0).shape == (4, 3)

@jax.jit
def train(params, x, y):
    loss, slopes = jax.value_and_grad(lambda params: jnp.square(function(x, state_dict=params) - y).mean())(params)
    return loss, {name: value - 0.5 * slopes[name] for name, value in params.items()}

with jax.set_mesh(mesh):
    for _ in range(4):
        loss, params = train(params, *given)
        wanted = step(model, optimizer, torch.from_numpy(x[mine]), torch.from_numpy(y[mine]))
        dist.all_reduce(wanted)
        np.testing.assert_allclose(float(loss.addressable_data(0)), wanted.item() / 2, rtol=1e-5)
assert params["0.weight"].sharding.spec[0] == "data"
for name, value in t2j(model.state_dict()).items():
    np.testing.assert_allclose(params[name].addressable_data(0), value.addressable_data(0), rtol=1e-4, atol=1e-6)
print("done")
dist.destroy_process_group()
"""


@pytest.mark.slow("starts two processes")
def test_two_processes_train_as_pytorchs_do():
    expect_done(CODE)
