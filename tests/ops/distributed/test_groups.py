"""Process groups as axes of a mesh: which stands for which, and what there is without one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed.nn.functional as differentiable
from jax.sharding import AxisType, PartitionSpec as P

from torch2jax import t2j

pytestmark = pytest.mark.usefixtures("eight_devices")
CHECKS = pytest.mark.parametrize("check_vma", [True, False])
BOTH = P(("a", "b"))


def over(function, x, out=BOTH, check_vma=True, **options):
    """What a function gives on eight devices, of which each has one part of x."""
    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    mapped = jax.shard_map(t2j(function, **options), mesh=mesh, in_specs=BOTH, out_specs=out, check_vma=check_vma)
    return np.asarray(jax.jit(mapped)(x))


def summed(x, group=None):
    x = x.clone()
    dist.all_reduce(x, group=group)
    return x


@CHECKS
@pytest.mark.parametrize(
    ("groups", "wanted"),
    [
        (None, [28.0] * 8),
        ("a", [4.0, 6, 8, 10] * 2),
        ("b", [6.0] * 4 + [22.0] * 4),
        (("a", "b"), [28.0] * 8),
        ({None: "b"}, [6.0] * 4 + [22.0] * 4),
    ],
)
def test_default_group(groups, wanted, check_vma):
    assert over(summed, jnp.arange(8.0), groups=groups, check_vma=check_vma).tolist() == wanted


def test_groups_by_name_and_by_ranks():
    def function(x):
        rows = dist.new_group([4, 5, 6, 7])  # as each of them, by its own ranks
        assert dist.get_world_size(rows) == 4
        assert dist.get_process_group_ranks(rows) == [0, 1, 2, 3]
        return torch.stack([summed(x, rows), x + dist.get_rank(rows), summed(x, dist.group.WORLD)], 1)

    found = over(function, jnp.arange(8.0), out=P(("a", "b")))
    assert found[:, 0].tolist() == [6.0] * 4 + [22.0] * 4
    assert found[:, 1].tolist() == [0.0, 2, 4, 6, 4, 6, 8, 10]
    assert found[:, 2].tolist() == [28.0] * 8
    with pytest.raises(ValueError, match="along whole axes of the mesh"):
        over(lambda x: summed(x, dist.new_group([0, 3])), jnp.arange(8.0))


def test_rank_and_size():
    def function(x):
        assert dist.is_initialized()
        assert dist.get_world_size() == 8
        assert dist.get_backend() == "gloo"
        assert dist.barrier() is None
        return x * 0 + dist.get_rank()

    assert over(function, jnp.zeros(8)).tolist() == list(range(8))
    assert over(lambda x: x * dist.get_world_size(), jnp.ones(8), groups="a").tolist() == [2] * 8


def test_no_mesh():
    for function in (summed, lambda x: x + dist.get_rank(), lambda x: x * dist.get_world_size()):
        with pytest.raises(ValueError, match=r"Default process group has not been initialized.*shard_map.*groups="):
            t2j(function)(jnp.ones(2))
    assert not t2j(lambda x: x + dist.is_initialized())(jnp.zeros(2)).any()
    with pytest.raises(ValueError, match="stands for the axes 'c'"):
        over(summed, jnp.ones(8), groups="c")
    assert not dist.is_initialized()


@pytest.mark.parametrize("groups", [3, {None: ()}, {None: ("a", "a")}, {4: "a"}])
def test_wrong_groups(groups):
    with pytest.raises(TypeError, match="groups got"):
        t2j(summed, groups=groups)


def test_axis_of_vmap():
    x = jnp.arange(4.0)
    assert jax.vmap(t2j(summed, groups="v"), axis_name="v")(x).tolist() == [6.0] * 4


def test_a_process_group_that_exists_is_not_touched():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        real = dist.group.WORLD
        assert over(summed, jnp.arange(8.0)).tolist() == [28.0] * 8
        assert over(lambda x: summed(x, real), jnp.arange(8.0), groups={real: "b"})[0] == 6
        assert dist.group.WORLD is real
        assert dist.get_world_size() == 1
        assert dist.distributed_c10d._world.default_pg is real
        with pytest.raises(ValueError, match=r"which stands for no axes.*shard_map"):
            t2j(summed)(jnp.ones(2))
        assert t2j(lambda x: x + dist.get_rank())(jnp.ones(2)).tolist() == [1, 1]  # of processes, as JAX's own
    finally:
        dist.destroy_process_group()


@CHECKS
def test_lists_of_all_ranks(check_vma):
    """Those that in PyTorch one rank alone gives or gets are there on all."""

    def function(x):
        rank, size = dist.get_rank(), dist.get_world_size()
        gathered = [torch.empty_like(x) for _ in range(size)]
        dist.gather(x, gathered, dst=3)
        part = torch.empty_like(x)
        dist.scatter(part, [x * 10 + i for i in range(size)], src=2)
        chosen = differentiable.gather(x, 1)
        total = differentiable.reduce(x, 5)
        spread = differentiable.scatter([x * 100 + i for i in range(size)], 4)
        return torch.stack(
            [gathered[6], part, torch.stack(list(chosen)).sum(0), torch.where(rank == 5, total, 0), spread], 1
        )

    found = over(function, jnp.arange(8.0), check_vma=check_vma)
    assert found[:, 0].tolist() == [6.0] * 8
    assert found[:, 1].tolist() == [20.0 + i for i in range(8)]
    assert found[:, 2].tolist() == [0.0, 28, 0, 0, 0, 0, 0, 0]
    assert found[:, 3].tolist() == [0.0] * 5 + [28, 0, 0]
    assert found[:, 4].tolist() == [400.0 + i for i in range(8)]


def test_batches_of_collectives():
    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    x = jnp.arange(24.0).reshape(3, 8)

    def each(x):
        return jax.vmap(t2j(summed, groups="b"))(x)

    found = jax.jit(jax.shard_map(each, mesh=mesh, in_specs=P(None, ("a", "b")), out_specs=P(None, ("a", "b"))))(x)
    wanted = jnp.repeat(x.reshape(3, 2, 4).sum(-1), 4, -1)
    assert jnp.array_equal(found, wanted)


def test_parameters_are_written_as_in_pytorch():
    def function(x):
        weight = torch.nn.Parameter(torch.ones(1)) * 1
        leaf = torch.nn.Parameter(x.detach().clone())
        dist.broadcast(leaf, src=3)
        return (leaf * weight).detach()

    assert over(function, jnp.arange(8.0)).tolist() == [3.0] * 8
