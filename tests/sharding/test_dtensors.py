"""`DTensor`s of real processes are arrays with the sharding that their placements say."""

import jax.numpy as jnp
import pytest
import torch
import torch.distributed as dist
from jax.sharding import PartitionSpec as P
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from torch2jax import t2j

from .test_distributed import expect_done

CODE = """
import sys
import jax, numpy as np, torch
import torch.distributed as dist
from jax.experimental import multihost_utils
from jax.sharding import PartitionSpec as P
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch2jax import t2j

rank, ports = int(sys.argv[1]), sys.argv[2:]
dist.init_process_group("gloo", init_method=f"tcp://localhost:{ports[0]}", rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("model",))
x = torch.arange(32.0).reshape(4, 8)
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"localhost:{ports[1]}", num_processes=2, process_id=rank)

def expect(array, spec, values):
    assert array.sharding.spec == spec, array.sharding
    assert array.sharding.mesh.axis_names == ("model",)
    np.testing.assert_array_equal(multihost_utils.process_allgather(array, tiled=True), values)

expect(t2j(distribute_tensor(x, mesh, [Shard(0)])), P("model", None), x)
expect(t2j(distribute_tensor(x, mesh, [Shard(1)])), P(None, "model"), x)
whole = t2j(distribute_tensor(x, mesh, [Replicate()]))
assert whole.sharding.spec == P(None, None) and whole.sharding.is_fully_replicated
np.testing.assert_array_equal(whole.addressable_data(0), x)
for wrong, words in (
    (DTensor.from_local(x, mesh, [Partial()]), "redistribute"),
    (distribute_tensor(torch.ones(3, 8), mesh, [Shard(0)]), "unequal parts"),
):
    try:
        t2j(wrong)
    except ValueError as error:
        assert words in str(error), error
    else:
        raise AssertionError(words)

torch.manual_seed(0)
module = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
expected, state = module(x).detach(), {name: value.clone() for name, value in module.state_dict().items()}
parallelize_module(module, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
arrays = t2j(module.state_dict())
assert {name: x.sharding for name, x in t2j(module).split()[0].items()} == {k: x.sharding for k, x in arrays.items()}
expect(arrays["0.weight"], P("model", None), state["0.weight"])
expect(arrays["2.weight"], P(None, "model"), state["2.weight"])

plain = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
y = jax.jit(lambda state: t2j(plain)(x.numpy(), state_dict=state), out_shardings=whole.sharding)(arrays)
np.testing.assert_allclose(y.addressable_data(0), expected, rtol=1e-5, atol=1e-6)
print("done")
dist.destroy_process_group()
"""


@pytest.mark.slow("starts two processes")
def test_parts_of_processes_are_one_array():
    expect_done(CODE)


@pytest.fixture
def process_of_eight():
    """The first of eight processes, without the others."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    yield init_device_mesh("cpu", (2, 4), mesh_dim_names=("data", "model"))
    dist.destroy_process_group()


@pytest.mark.usefixtures("eight_devices")
def test_one_process_knows_what_is_whole(process_of_eight):
    mesh, x = process_of_eight, torch.arange(32.0).reshape(4, 8)
    whole = t2j(distribute_tensor(x, mesh, [Replicate(), Replicate()]))
    assert whole.sharding.spec == P(None, None)
    assert dict(whole.sharding.mesh.shape) == {"data": 2, "model": 4}
    assert len(whole.addressable_shards) == 8
    assert (whole == jnp.asarray(x.numpy())).all()
    with pytest.raises(ValueError, match=r"this process has a part, .*jax.distributed.initialize"):
        t2j({"x": distribute_tensor(x, mesh, [Shard(0), Replicate()])})
    with pytest.raises(ValueError, match=r"redistribute"):
        t2j(DTensor.from_local(x, mesh, [Partial(), Replicate()]))
