"""`DTensor`s within `jax.shard_map`: their parts, moved by the collectives that PyTorch would run."""

import re
from collections import Counter

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec as P
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from torch2jax import t2j

pytestmark = pytest.mark.usefixtures("eight_devices")
WHOLE = np.sin(np.arange(128, dtype=np.float32)).reshape(16, 8)
WEIGHTS = np.cos(np.arange(128, dtype=np.float32)).reshape(16, 8)
SUMS = WHOLE.reshape(8, 2, 8).sum(0)
ROWS, COLUMNS = P("tp"), P(None, "tp")


def devices():
    return init_device_mesh("cpu", (8,), mesh_dim_names=("tp",))


def moved(old, new):
    return lambda x: DTensor.from_local(x, devices(), [old]).redistribute(placements=[new]).to_local()


def mapped(function, given, wanted, check_vma):
    mesh = jax.make_mesh((8,), ("tp",), axis_types=(AxisType.Auto,))
    return jax.jit(jax.shard_map(t2j(function), mesh=mesh, in_specs=given, out_specs=wanted, check_vma=check_vma))


def collectives(function, *args):
    names = r"\s(all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
    return Counter(re.findall(names, function.lower(*args).compile().as_text()))


def gathered(x):
    made = DTensor.from_local(x, devices(), [Shard(0)])
    assert isinstance(made, DTensor)
    assert made.shape == (16, 8)
    assert made.placements == (Shard(0),)
    return made.full_tensor()


MOVES = {
    "gather": (gathered, ROWS, ROWS, np.tile(WHOLE, (8, 1)), {"all-gather": 1}),
    "exchange": (moved(Shard(0), Shard(1)), ROWS, COLUMNS, WHOLE, {"all-to-all": 1}),
    "exchange back": (moved(Shard(-1), Shard(0)), COLUMNS, ROWS, WHOLE, {"all-to-all": 1}),
    "sum": (moved(Partial(), Replicate()), ROWS, ROWS, np.tile(SUMS, (8, 1)), {"all-reduce": 1}),
    "sum of parts": (moved(Partial(), Shard(1)), ROWS, COLUMNS, SUMS, {"reduce-scatter": 1}),
    "own part": (moved(Replicate(), Shard(0)), P(), ROWS, WHOLE, {}),
}


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("name", MOVES)
def test_parts_move_by_one_collective(name, check_vma):
    function, given, wanted, values, counts = MOVES[name]
    run = mapped(function, given, wanted, check_vma)
    np.testing.assert_allclose(run(WHOLE), values, rtol=1e-6, atol=1e-6)  # sums in another order
    assert collectives(run, WHOLE) == counts


@pytest.mark.parametrize("check_vma", [True, False])
def test_a_whole_is_split(check_vma):
    def split(x):
        return distribute_tensor(x, devices(), [Shard(1)]).to_local()

    np.testing.assert_array_equal(mapped(split, P(), COLUMNS, check_vma)(WHOLE), WHOLE)


@pytest.mark.parametrize("check_vma", [True, False])
def test_gradients_go_the_way_back(check_vma):
    run = mapped(moved(Shard(0), Shard(1)), ROWS, COLUMNS, check_vma)
    gradient = jax.jit(jax.grad(lambda x: (run(x) * WEIGHTS).sum()))
    np.testing.assert_array_equal(gradient(WHOLE), WEIGHTS)
    assert collectives(gradient, WHOLE) == {"all-to-all": 1}


def test_parts_of_parts():
    def program(x):
        mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))
        made = DTensor.from_local(x, mesh, [Shard(0), Shard(0)])
        return made.redistribute(placements=[Shard(1), Shard(0)]).to_local()

    mesh = jax.make_mesh((2, 4), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)
    run = jax.shard_map(t2j(program), mesh=mesh, in_specs=P(("dp", "tp")), out_specs=P("tp", "dp"))
    np.testing.assert_array_equal(jax.jit(run)(WHOLE), WHOLE)


def test_errors():
    for function, kind, words in (
        (moved(Shard(0), Partial()), RuntimeError, "internal use only"),
        (moved(Shard(2), Shard(0)), ValueError, "2 dimensions"),
        (moved(Replicate(), Shard(0)), ValueError, "wanted a multiple of that number"),
    ):
        with pytest.raises(kind, match=words):
            mapped(function, ROWS, ROWS, True)(WHOLE)
