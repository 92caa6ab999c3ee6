"""`DTensor`s are whole arrays that XLA splits, and within `jax.shard_map` the parts of devices."""

import re
import sys
import types
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.distributed as dist
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.ops.distributed.cases import Perceptron
from torch2jax import t2j
from torch2jax.tensors.distributed import is_split

pytestmark = pytest.mark.usefixtures("eight_devices")


def mesh_of_eight():
    return jax.make_mesh((8,), ("tp",), axis_types=(AxisType.Auto,))


@pytest.fixture
def one():
    """The mesh of one process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
    dist.destroy_process_group()


@pytest.fixture
def eight():
    """That of the first of eight processes, without the others."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    yield init_device_mesh("cpu", (8,), mesh_dim_names=("tp",))
    dist.destroy_process_group()


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = torch.nn.LayerNorm(16), torch.nn.Linear(16, 64), torch.nn.Linear(64, 16)

    def forward(self, x):
        return self.down(torch.relu(self.up(self.norm(x))))


PLANS = {
    "local": ({"up": ColwiseParallel(), "down": RowwiseParallel()}, {"all-reduce": 1}),
    "whole": (
        {"up": ColwiseParallel(use_local_output=False), "down": RowwiseParallel(use_local_output=False)},
        {"all-reduce": 1},
    ),
    "sequence": (
        {
            "norm": SequenceParallel(),
            "up": ColwiseParallel(input_layouts=Shard(1)),
            "down": RowwiseParallel(output_layouts=Shard(1)),
        },
        {"all-gather": 1, "all-reduce": 1},  # which XLA for the CPU has in the place of a reduce-scatter
    ),
}


def collectives(function, *args):
    text = jax.jit(function).lower(*args).compile().as_text()
    return Counter(
        re.findall(r"\s(all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(", text)
    )


def inputs():
    return np.sin(np.arange(4 * 8 * 16, dtype=np.float32)).reshape(4, 8, 16)


def replicated(tree):
    return jax.device_put(tree, NamedSharding(mesh_of_eight(), P()))


def close(found, wanted):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4), found, wanted)


@pytest.mark.parametrize("name", PLANS)
def test_parallelized_modules(name, one):
    plan, wanted = PLANS[name]
    torch.manual_seed(0)
    module = Block()
    state, x = t2j(module.state_dict()), inputs()

    def loss(function):
        return lambda state, x: (function(x, state_dict=state) ** 2).sum()

    values, slopes = t2j(module)(x), jax.grad(loss(t2j(Block())))(state, x)
    parallel = t2j(parallelize_module(module, one, plan))
    close(jax.jit(parallel)(x), values)
    with jax.set_mesh(mesh_of_eight()):
        given = replicated(dict(state)), replicated(x)
        run = lambda state, x: parallel(x, state_dict=state)
        close(jax.jit(run)(*given), values)
        assert collectives(run, *given) == wanted
        close(jax.jit(jax.grad(loss(parallel)))(*given), dict(slopes))


def test_a_training_step(one):
    def step(model, optimizer, x):
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach(), norm

    plain, split = Perceptron(), Perceptron()
    x = np.sin(np.arange(48, dtype=np.float32)).reshape(8, 6)
    parallelize_module(split, one, {"hidden": ColwiseParallel(), "out": RowwiseParallel()})
    wanted = step(plain, torch.optim.SGD(plain.parameters(), 0.1), torch.from_numpy(x))
    stepped = t2j(step, state=(split, torch.optim.SGD(split.parameters(), 0.1)))
    found, state = jax.jit(stepped)(stepped.init(x), x)
    np.testing.assert_allclose(found, [float(each) for each in wanted], rtol=1e-5)
    for key, value in plain.state_dict().items():
        np.testing.assert_allclose(state["model"][key], value, rtol=1e-4, atol=1e-5)


def test_functions_of_whole_tensors(one):
    def function(x, w):
        x, w = distribute_tensor(x, one, [Replicate()]), distribute_tensor(w, one, [Shard(-1)])
        y = x @ w
        assert isinstance(y, DTensor)
        assert torch.relu(w).placements == (Shard(1),)
        rows = y.redistribute(placements=[Shard(0)])
        assert rows.placements == (Shard(0),)
        return rows, rows.full_tensor() * 2

    x, w = jnp.arange(128.0).reshape(16, 8) / 64, jnp.ones((8, 16))
    close(t2j(function)(x, w), (x @ w, x @ w * 2))
    with jax.set_mesh(mesh_of_eight()):
        rows, _ = jax.jit(t2j(function))(x, w)
        assert rows.sharding.spec[0] == "tp"
        slope = jax.jit(jax.grad(lambda x: t2j(function)(x, w)[1].sum()))(x)
    close(slope, jnp.full((16, 8), 32.0))


def test_leaves_have_gradients(one):
    def function(x):
        w = distribute_tensor(torch.ones(8, requires_grad=True), one, [Shard(0)])
        (w * x).sum().backward()
        assert w.grad.placements == (Shard(0),)
        return w.grad.full_tensor()

    assert t2j(function)(jnp.arange(8.0)).tolist() == list(range(8))


def test_parts_of_other_processes(eight):
    """A module of which this process has a part takes the whole arrays; the part alone is an error."""
    torch.manual_seed(0)
    module = Block()
    state, values = t2j(module.state_dict()), t2j(module)(inputs())
    parallelize_module(module, eight, PLANS["whole"][0])
    close(jax.jit(lambda state, x: t2j(module)(x, state_dict=state))(state, inputs()), values)
    with pytest.raises(RuntimeError, match="this process has a part"):
        t2j(module)(inputs())
    parallelize_module(other := Block(), eight, PLANS["local"][0])
    with pytest.raises(NotImplementedError, match=r"use_local_output=False"):
        t2j(other)(inputs(), state_dict=state)
    with pytest.raises(NotImplementedError, match=r"from_local is about each device's own part"):
        t2j(lambda x: DTensor.from_local(x, eight, [Shard(0)]).full_tensor())(jnp.ones(8))


def test_a_module_that_is_being_imported(monkeypatch):
    """Has no `DTensor` yet, and other classes are asked about meanwhile."""
    monkeypatch.setitem(sys.modules, "torch.distributed.tensor", types.ModuleType("torch.distributed.tensor"))
    assert not is_split(torch.Tensor)


def test_loading(one):
    split, other = parallelize_module(Block(), one, PLANS["local"][0]), Block()
    t2j(split).load(t2j(other.state_dict()))
    close(t2j(split)(inputs()), t2j(other)(inputs()))


def _moves(x):
    mesh = init_device_mesh("cpu", (8,), mesh_dim_names=("tp",))
    rows = distribute_tensor(x, mesh, [Shard(0)])
    assert rows.shape == x.shape
    doubled = DTensor.from_local(rows.to_local() * 2, mesh, [Shard(0)])
    columns = doubled.redistribute(placements=[Shard(1)])
    sums = DTensor.from_local(rows.to_local(), mesh, [Partial()])
    back = columns.redistribute(placements=[Shard(0)])
    return columns.to_local(), doubled.full_tensor(), sums.full_tensor(), sums.redistribute(placements=[Shard(1)]), back


@pytest.mark.parametrize("check_vma", [True, False])
def test_parts_within_shard_map(check_vma):
    x = jnp.arange(128.0).reshape(16, 8)
    specs = P(None, "tp"), P(), P(), P(None, "tp"), P("tp")
    mapped = jax.shard_map(t2j(_moves), mesh=mesh_of_eight(), in_specs=P(), out_specs=specs, check_vma=check_vma)
    sums = x.reshape(8, 2, 8).sum(0)
    close(jax.jit(mapped)(x), (2 * x, 2 * x, sums, sums, 2 * x))


@pytest.mark.parametrize("check_vma", [True, False])
def test_derivatives_of_moved_parts(check_vma):
    """A loss that is the same on all devices is one, as in PyTorch."""

    def loss(x):
        mesh = init_device_mesh("cpu", (8,), mesh_dim_names=("tp",))
        whole = DTensor.from_local(x, mesh, [Shard(0)]).redistribute(placements=[Shard(1)]).full_tensor()
        return (whole**3).sum()

    gradient = jax.shard_map(
        jax.grad(t2j(loss)), mesh=mesh_of_eight(), in_specs=P("tp"), out_specs=P("tp"), check_vma=check_vma
    )
    x = jnp.arange(128.0).reshape(16, 8) / 64
    close(jax.jit(gradient)(x), 3 * x**2)


def test_what_parts_refuse():
    def over(program, x):
        return jax.jit(jax.shard_map(t2j(program), mesh=mesh_of_eight(), in_specs=P(), out_specs=P("tp")))(x)

    def split(x):
        return distribute_tensor(x, init_device_mesh("cpu", (8,), mesh_dim_names=("tp",)), [Shard(0)])

    with pytest.raises(RuntimeError, match=r"add: got mixed torch.Tensor and DTensor.*distribute_tensor"):
        over(lambda x: split(x) + x, jnp.ones(8))
    with pytest.raises(NotImplementedError, match=r"native_dropout: got random numbers for a DTensor with S"):
        over(lambda x: torch.nn.functional.dropout(split(x)), jnp.ones(8))
    with pytest.raises(NotImplementedError, match="bincount: got DTensors, for which PyTorch has no rule"):
        over(lambda x: torch.bincount(split(x).long()), jnp.ones(8))
    with pytest.raises(ValueError, match="wanted a multiple of that number"):
        over(split, jnp.ones(9))
    with pytest.raises(ValueError, match="`placements` must have the same length"):
        over(lambda x: distribute_tensor(x, split(x).device_mesh, []), jnp.ones(8))


def test_states_lie_on_the_mesh_in_force(one):
    """As the placements say; without a mesh they are as any other arrays."""
    split = parallelize_module(Block(), one, PLANS["local"][0])
    state = t2j(split.state_dict())
    close(jax.jit(t2j(split))(inputs(), state_dict=replicated(dict(state))), t2j(split)(inputs()))
    assert not state["up.weight"].committed
    with jax.set_mesh(mesh_of_eight()):
        state = t2j(split.state_dict())
        assert state["up.weight"].sharding.spec == P("tp", None)
        assert state["down.weight"].sharding.spec == P(None, "tp")
        assert state["down.bias"].sharding.is_fully_replicated
        close(jax.jit(t2j(split))(inputs(), state_dict=state), t2j(split)(inputs()))


@pytest.mark.parametrize("check_vma", [True, False])
def test_whole_parameters_of_a_module_within_shard_map(eight, check_vma):
    """Each device computes with its part of them; their gradients are whole."""
    module, x = Block(), inputs()
    state = dict(t2j(module.state_dict()))
    wanted = jax.grad(lambda state: (t2j(Block())(x, state_dict=state) ** 2).sum())(state)
    parallel = t2j(parallelize_module(module, eight, PLANS["local"][0]))
    gradient = jax.grad(lambda state, x: (parallel(x, state_dict=state) ** 2).sum())
    mapped = jax.shard_map(gradient, mesh=mesh_of_eight(), in_specs=P(), out_specs=P(), check_vma=check_vma)
    close(jax.jit(mapped)(state, x), wanted)
