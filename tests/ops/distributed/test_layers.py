"""Layers whose parts are on several devices, as PyTorch's libraries write them, and which collectives they become."""

import re
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.distributed as dist
from jax.sharding import AxisType, PartitionSpec as P

from tests.ops.distributed import cases
from torch2jax import BranchError, t2j

pytestmark = pytest.mark.usefixtures("eight_devices")
COLUMN, ROW = P(None, "model"), P("model")
LAYERS = {
    "tensor": (cases.tensor_parallel, P()),
    "gathered": (cases.tensor_parallel_gathered, P()),
    "sequence": (cases.sequence_parallel, P("model")),
}


def mesh():
    return jax.make_mesh((4,), ("model",), axis_types=(AxisType.Auto,), devices=jax.devices()[:4])


def given():
    x, column, row = (np.random.RandomState(0).randn(*shape) for shape in ((8, 6), (6, 16), (16, 6)))
    return tuple(jnp.asarray(value / 2, jnp.float32) for value in (x, column, row))


def whole(x, column, row):
    return jax.nn.silu(x @ column) @ row


def loss_of(function):
    return lambda *args: jnp.sum(jnp.sin(function(*args)))


def parallel(name, check_vma=True):
    layer, spec = LAYERS[name]
    return jax.shard_map(t2j(layer), mesh=mesh(), in_specs=(spec, COLUMN, ROW), out_specs=spec, check_vma=check_vma)


def close(found, wanted):
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_values(name, check_vma):
    close(jax.jit(parallel(name, check_vma and name != "gathered"))(*given()), whole(*given()))


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_from_outside(name):
    found = jax.jit(jax.grad(loss_of(parallel(name)), (0, 1, 2)))(*given())
    close(found, jax.grad(loss_of(whole), (0, 1, 2))(*given()))


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_gradients_within(name, check_vma):
    """Each device takes the gradient of what it has of the loss, as each process does in PyTorch."""
    layer, spec = LAYERS[name]
    gradients = jax.grad(loss_of(t2j(layer)), (0, 1, 2))
    specs = (spec, COLUMN, ROW)
    found = jax.shard_map(gradients, mesh=mesh(), in_specs=specs, out_specs=specs, check_vma=check_vma)
    close(jax.jit(found)(*given()), jax.grad(loss_of(whole), (0, 1, 2))(*given()))


def collectives(function, *args):
    """How often each collective is in what XLA compiles."""
    text = jax.jit(function).lower(*args).compile().as_text()
    names = r"\s(all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
    return Counter(re.findall(names, text))


@pytest.mark.parametrize(
    ("name", "forward", "both"),
    [
        ("tensor", {"all-reduce": 1}, {"all-reduce": 2}),
        ("sequence", {"all-gather": 1, "reduce-scatter": 1}, {"all-gather": 2, "reduce-scatter": 2}),
    ],
)
def test_collectives_are_those_of_the_code(name, forward, both):
    def with_gradients(*args):
        result, pull = jax.vjp(parallel(name), *args)
        return pull(jnp.cos(result))

    assert collectives(parallel(name), *given()) == forward
    assert collectives(with_gradients, *given()) == both


def over(function, x, **options):
    mapped = jax.shard_map(t2j(function, **options), mesh=mesh(), in_specs=P("model"), out_specs=P("model"))
    return jax.jit(mapped)(x)


def test_collectives_of_a_ring():
    mapped = jax.shard_map(t2j(cases.ring_of_messages), mesh=mesh(), in_specs=P("model"), out_specs=P("model"))
    assert collectives(mapped, jnp.ones((32, 6))) == {"collective-permute": 3}


def test_messages_that_do_not_meet():
    def lost(x):
        dist.isend(x, (dist.get_rank() + 1) % 4)
        return x

    def early(x):
        dist.recv(torch.empty_like(x), (dist.get_rank() + 1) % 4)
        return x

    def to_one(x):
        dist.isend(x, 0)
        dist.irecv(torch.empty_like(x)).wait()
        return x

    def by_data(x):
        dist.isend(x, x.sum().int().item())
        return x

    def outside(x):
        dist.isend(x, dist.get_rank() + 1)
        return x

    x, world = jnp.ones((4, 2)), dist.distributed_c10d._world
    for program, kind, message in (
        (lost, RuntimeError, "no device receives"),
        (early, RuntimeError, "that no device has sent yet"),
        (to_one, ValueError, "a different target for each"),
        (by_data, ValueError, "a data-dependent number"),
        (outside, ValueError, "dst is 4 for the device 3"),
    ):
        with pytest.raises(kind, match=message):
            over(program, x)
        assert dist.distributed_c10d._world is world  # nothing stays exchanged


def test_wrong_sizes():
    x = jnp.ones((4, 2))
    for program, message in (
        (lambda x: dist.all_gather([x], x), "wanted a list of 4"),
        (lambda x: dist.all_gather_into_tensor(torch.empty(3, 2), x), "4 times as many elements"),
        (lambda x: dist.all_to_all_single(torch.empty_like(x), x), "a multiple of 4"),
        (lambda x: dist.all_to_all_single(x, x.expand(8, 2), [5, 1, 1, 1], [2] * 4), "wanted equal ones"),
        (lambda x: dist.all_to_all([x, x, x, x], [x, x, x, x[:0]]), "wanted one shape"),
        (lambda x: dist.all_gather([x, x, x, x[:0]], x), "wanted one shape"),
        (lambda x: dist.reduce_scatter(x, [x, x[:0], x, x]), "wanted one shape"),
        (lambda x: dist.all_reduce(x.double()) or dist.broadcast(x, src=7), "rank 7 is not part"),
    ):
        with pytest.raises(ValueError, match=message):
            over(program, x)


@pytest.mark.parametrize("check_vma", [True, False])
def test_a_collective_on_one_side_of_a_branch(check_vma):
    def alone(x):
        if dist.get_rank() == 0:
            x = x.clone()
            dist.all_reduce(x)
            x = x.sin()
        return x

    def behind(x):
        if dist.get_rank() == 0:
            x = x * 2
        x = x.clone()
        dist.all_reduce(x)
        return x

    def agreed(x):
        total = x.sum()
        dist.all_reduce(total)
        if total > 0:
            x = x.clone()
            dist.all_reduce(x)
        return x

    def run(program):
        spec = P("model")
        return jax.jit(jax.shard_map(t2j(program), mesh=mesh(), in_specs=spec, out_specs=spec, check_vma=check_vma))(x)

    x = jnp.ones(4)
    with pytest.raises(BranchError, match="on one side of a branch"):
        run(alone)
    assert run(behind).tolist() == [5.0] * 4
    assert run(agreed).tolist() == [4.0] * 4


def test_parts_by_rank():
    def function(x):
        rank = dist.get_rank()
        return torch.stack(x.chunk(4, -1))[rank] + x.narrow(1, rank * 2, 2)

    x = jnp.arange(64.0).reshape(8, 8)
    mapped = jax.shard_map(t2j(function), mesh=mesh(), in_specs=P(), out_specs=P(None, "model"))
    assert jnp.array_equal(jax.jit(mapped)(x), 2 * x)
