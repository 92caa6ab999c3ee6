"""Dimensions of a `DeviceMesh` are axes of JAX's mesh, by their names or as `groups=` says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.distributed as dist
from jax.sharding import AxisType, PartitionSpec as P
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from torch2jax import t2j

pytestmark = pytest.mark.usefixtures("eight_devices")
BOTH = P(("dp", "tp"))
NAMES = ("dp", "tp")


def over(function, x, check_vma=True, axes=NAMES, **options):
    mesh = jax.make_mesh((2, 4), axes, axis_types=(AxisType.Auto,) * 2)
    mapped = jax.shard_map(
        t2j(function, **options), mesh=mesh, in_specs=P(axes), out_specs=P(axes), check_vma=check_vma
    )
    return np.asarray(jax.jit(mapped)(x))


@pytest.fixture
def process_of_eight():
    """The first of eight processes, without the others."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    yield
    dist.destroy_process_group()


def summed(x, group):
    x = x.clone()
    dist.all_reduce(x, group=group)
    return x


def program(mesh, x):
    row, column = mesh.get_coordinate()
    assert mesh["tp"].size() == 4
    assert len(mesh.get_all_groups()) == 2
    return torch.stack(
        [
            summed(x, mesh.get_group("tp")),
            summed(x, mesh["dp"].get_group()),
            (row * 10 + column + mesh.get_local_rank("dp") * 100 + mesh["tp"].get_local_rank() * 1000) + x * 0,
        ],
        1,
    )


WANTED = [
    [[6.0, 22.0][i // 4], [4.0, 6.0, 8.0, 10.0][i % 4], i // 4 * 10 + i % 4 + i // 4 * 100 + i % 4 * 1000]
    for i in range(8)
]


@pytest.mark.parametrize("names", [NAMES, None])
@pytest.mark.parametrize("check_vma", [True, False])
def test_meshes_that_code_makes(check_vma, names):
    def function(x):
        mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=names)
        return program(mesh, x)

    assert over(function, jnp.arange(8.0), check_vma).tolist() == WANTED
    assert not dist.is_initialized()


def test_meshes_of_processes(process_of_eight):
    mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=NAMES)
    assert over(lambda x: program(mesh, x), jnp.arange(8.0)).tolist() == WANTED
    assert mesh["tp"].get_local_rank() == 0
    told = {mesh: ("a", "b")}
    sums = over(lambda x: summed(x, mesh.get_group("tp")), jnp.arange(8.0), axes=("a", "b"), groups=told)
    assert sums.tolist() == [6.0] * 4 + [22.0] * 4
    rows = mesh["dp"]
    sums = over(lambda x: summed(x, rows.get_group()), jnp.arange(8.0), axes=("a", "b"), groups={rows: "a"})
    assert sums.tolist() == [4.0, 6.0, 8.0, 10.0] * 2
    with pytest.raises(ValueError, match="take the part of it before the call"):
        over(lambda x: summed(x, mesh["dp"].get_group()), jnp.arange(8.0), axes=("a", "b"), groups=told)
    with pytest.raises(TypeError, match="2 dimensions; wanted an axis for each"):
        t2j(summed, groups={mesh: "a"})


def test_other_sizes_and_names():
    for shape, names, kind, message in (
        ((4, 2), NAMES, ValueError, "'dp' of size 4; the axis"),
        ((8,), None, RuntimeError, "wanted a name for each dimension"),
        ((2, 4), ("dp", "other"), ValueError, "stands for the axes 'other'"),
    ):
        with pytest.raises(kind, match=message):
            over(lambda x: x * init_device_mesh("cpu", shape, mesh_dim_names=names).size(), jnp.ones(8))  # noqa: B023
    with pytest.raises(KeyError, match="the dimension 'pp'"):
        over(lambda x: x * init_device_mesh("cpu", (2, 4), mesh_dim_names=NAMES)["pp"].size(), jnp.ones(8))


def test_meshes_of_jax(process_of_eight):
    mesh = t2j(init_device_mesh("cpu", (2, 4), mesh_dim_names=NAMES))
    assert mesh == jax.make_mesh((2, 4), NAMES, axis_types=(AxisType.Auto,) * 2)
    assert t2j(init_device_mesh("cpu", (8,))).axis_names == ("dim_0",)


def test_operators_of_groups_of_cpp():
    def reduced(x):
        return torch.ops.c10d.allreduce_([x], dist.group.WORLD.boxed(), None, None)[0][0]

    with pytest.raises(NotImplementedError, match="take process groups of PyTorch's C"):
        over(reduced, jnp.ones(8))
