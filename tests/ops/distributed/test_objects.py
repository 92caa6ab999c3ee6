"""Collectives of Python objects: all devices have the same, but for tensors and traced numbers in them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.distributed as dist
from jax.sharding import AxisType, PartitionSpec as P

from torch2jax import t2j

pytestmark = pytest.mark.usefixtures("eight_devices")
CHECKS = pytest.mark.parametrize("check_vma", [True, False])


def over(function, x, check_vma=True):
    mesh = jax.make_mesh((4,), ("ranks",), axis_types=(AxisType.Auto,), devices=jax.devices()[:4])
    spec = P("ranks")
    mapped = jax.shard_map(t2j(function), mesh=mesh, in_specs=spec, out_specs=spec, check_vma=check_vma)
    return np.asarray(jax.jit(mapped)(x))


@CHECKS
def test_objects_of_all(check_vma):
    def function(x):
        mine = {"rank": dist.get_rank(), "shape": tuple(x.shape), "sum": x.sum(), "names": ["a", "b"]}
        found: list = [None] * 4
        dist.all_gather_object(found, mine)
        assert all(each["shape"] == (2,) and each["names"] == ["a", "b"] for each in found)
        assert found[0]["names"] is not mine["names"]
        other: list = [None] * 4
        dist.gather_object(mine["sum"].item(), other, dst=1)
        sums = torch.stack([each["sum"] * each["rank"] for each in found])
        return (sums.sum() + other[2] * 100).reshape(1)

    x = jnp.arange(8.0)
    sums = x.reshape(4, 2).sum(1)
    assert over(function, x, check_vma).tolist() == [float((sums * jnp.arange(4)).sum() + 100 * sums[2])] * 4


@CHECKS
def test_objects_of_one(check_vma):
    def function(x):
        objects = ["a", {"value": x[0] * 2, "rank": dist.get_rank()}, (3, None)]
        dist.broadcast_object_list(objects, src=2)
        assert objects[0] == "a"
        assert objects[2] == (3, None)
        mine: list = [None]
        dist.scatter_object_list(mine, [(i * 10, "same", x * i) for i in range(4)], src=3)
        number, word, tensor = mine[0]
        assert word == "same"
        return objects[1]["value"] + objects[1]["rank"] + torch.stack([number + x[:1] * 0, tensor[:1]])[:, 0]

    found = over(function, jnp.arange(8.0), check_vma)
    assert found.tolist() == [10.0 + value for i in range(4) for value in (10 * i, 6 * i)]


def test_what_is_refused():
    class Holder:
        def __init__(self, tensor):
            self.tensor = tensor

    def uneven(x):
        dist.scatter_object_list([None], ["a", "b", "c", "d"], src=0)
        return x

    for program, kind, message in (
        (lambda x: dist.all_gather_object([None] * 3, 1), ValueError, "wanted a list of 4"),
        (lambda x: dist.all_gather_object([None] * 4, Holder(x)), TypeError, "a Holder with tensors"),
        (lambda x: dist.broadcast_object_list([1], src=9), ValueError, "rank 9 is not part"),
        (uneven, ValueError, "differ between ranks"),
    ):
        with pytest.raises(kind, match=message):
            over(program, jnp.ones(4))
