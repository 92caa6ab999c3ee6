"""`fully_shard`: the module that it wraps, whole under `jax.jit`, with averaged gradients within `jax.shard_map`."""

import contextlib
import re
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.distributed as dist
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FSDPModule,
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.ops.distributed.cases import RANKS, Perceptron, given
from torch2jax import t2j

pytestmark = pytest.mark.usefixtures("eight_devices")
CHECKS = pytest.mark.parametrize("check_vma", [True, False])


@contextlib.contextmanager
def process_group(size=1):
    if size == 1:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    else:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def wrapped(size=1, **options):
    mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("data",))
    net = Perceptron()
    fully_shard(net.hidden, mesh=mesh, **options)
    return fully_shard(net, mesh=mesh, **options)


@pytest.fixture
def net():
    with process_group():
        yield wrapped()


def mesh_of():
    return jax.make_mesh((RANKS,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:RANKS])


def inputs():
    return jnp.concatenate([jnp.asarray(given(rank).numpy()) for rank in range(RANKS)])


def state_of(module):
    return dict(t2j(module.state_dict()))


def loss_of(module):
    model = t2j(module)
    return lambda state, x: jnp.square(model(x, state_dict=state)).mean()


def close(found, wanted):
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


def wanted_gradients():
    return jax.grad(loss_of(Perceptron()))(state_of(Perceptron()), inputs())


def attributes(net):
    return [(dict(vars(part)), dict(part._parameters), list(part._forward_hooks.values())) for part in net.modules()]


def test_values_and_gradients(net):
    before, weights = attributes(net), {name: id(x) for name, x in net.named_parameters()}
    x, plain = inputs(), t2j(Perceptron())
    for run in (t2j(net), jax.jit(t2j(net)), t2j(lambda x: net(x)), jax.vmap(t2j(net))):
        np.testing.assert_allclose(run(x), plain(x), rtol=1e-5, atol=1e-6)
    close(jax.jit(jax.grad(loss_of(net)))(state_of(net), x), wanted_gradients())
    assert attributes(net) == before
    assert {name: id(x) for name, x in net.named_parameters()} == weights


def test_states(net):
    """They are those of the module below, in and out."""
    plain = Perceptron()
    with torch.no_grad():
        plain.hidden.weight.mul_(2)
    close(state_of(net), state_of(Perceptron()))
    t2j(net).load(state_of(plain))
    close(state_of(net), state_of(plain))
    assert isinstance(net.hidden.weight, DTensor)
    _, state = t2j(net)(inputs(), return_state_dict=True)
    close(state, state_of(plain))


def even():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))


def test_parameters_are_gathered_by_xla():
    """Each by one all-gather, and all gradients by one reduction, which stay split as the parameters are."""
    mesh, x = mesh_of(), inputs()
    wanted = jax.grad(loss_of(even()))(state_of(even()), x)
    with process_group(), jax.set_mesh(mesh):
        net = even()
        fully_shard(net[0], mesh=init_device_mesh("cpu", (1,), mesh_dim_names=("data",)))
        fully_shard(net, mesh=init_device_mesh("cpu", (1,), mesh_dim_names=("data",)))
        state, x = jax.device_put((state_of(net), x), NamedSharding(mesh, P("data")))
        program = jax.jit(jax.grad(loss_of(net))).lower(state, x).compile()
        found = program(state, x)
    close(found, wanted)
    assert {x.sharding.spec[0] for x in found.values()} == {"data"}
    names = r"\s(all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
    assert Counter(re.findall(names, program.as_text())) == {"all-gather": 4, "all-reduce": 1}


def mapped(function, check_vma, in_specs, out_specs):
    options = {"mesh": mesh_of(), "in_specs": in_specs, "out_specs": out_specs, "check_vma": check_vma}
    return jax.jit(jax.shard_map(function, **options))


@CHECKS
@pytest.mark.parametrize("gone", [False, True])
def test_gradients_within_shard_map(check_vma, gone):
    with process_group():
        net = wrapped()
        state = state_of(net)
        if gone:
            dist.destroy_process_group()
        run = mapped(jax.grad(loss_of(net)), check_vma, (P(), P("data")), P())
        close(run(state, inputs()), wanted_gradients())
        if gone:
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def step(model, optimizer, x):
    optimizer.zero_grad()
    for i, part in enumerate(x.chunk(2)):
        if isinstance(model, FSDPModule):
            model.set_requires_gradient_sync(i == 1)
            model.set_is_last_backward(i == 1)
        model(part).square().mean().backward()
    optimizer.step()
    return model.out.weight.grad.mean().reshape(1)


@CHECKS
def test_steps_within_shard_map(net, check_vma):
    """A training step of PyTorch's that accumulates gradients; its state is the same on all devices."""
    alone, x = Perceptron(), inputs()
    reference = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
    stepped = t2j(step, state=(net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)))
    state = stepped.init(x[:8])
    run = mapped(stepped, check_vma, (P(), P("data")), (P("data"), P()))
    for _ in range(2):
        _, state = run(state, x)
        reference.zero_grad()
        for part in (given(rank).chunk(2)[i] for rank in range(RANKS) for i in range(2)):
            (alone(part).square().mean() / RANKS).backward()
        reference.step()
    weights = {name: x for name, x in state["model"].items() if not name.endswith(".grad")}
    close(weights, state_of(alone))
    stepped.load(state)
    close(state_of(net), state_of(alone))


def test_steps_under_jit(net):
    alone, x = Perceptron(), inputs()
    wanted = step(alone, torch.optim.SGD(alone.parameters(), lr=0.1), torch.from_numpy(np.array(x)))
    stepped = t2j(step, state=(net, torch.optim.SGD(net.parameters(), lr=0.1)))
    found, state = jax.jit(stepped)(stepped.init(x), x)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
    close({name: x for name, x in state["model"].items() if not name.endswith(".grad")}, state_of(alone))


def test_parts_of_other_processes():
    """The whole arrays are given; the part that this process has is an error."""
    with process_group(8):
        net = wrapped(8)
        close(jax.grad(loss_of(net))(state_of(Perceptron()), inputs()), wanted_gradients())
        with pytest.raises(RuntimeError, match="this process has a part"):
            t2j(net)(inputs())


@CHECKS
def test_code_that_wraps(check_vma):
    """No process group has to exist."""

    def gradient(x):
        net = Perceptron()
        fully_shard(net.hidden)
        net = fully_shard(net)
        assert isinstance(net, FSDPModule)
        assert net.unshard() is None
        net(x).square().mean().backward()
        return {name: x.grad[None] for name, x in net.named_parameters()}

    found = mapped(t2j(gradient), check_vma, P("data"), P("data"))(inputs())
    close(found, {name: np.stack([x] * RANKS) for name, x in wanted_gradients().items()})
    close(t2j(gradient)(inputs()), {name: x[None] for name, x in wanted_gradients().items()})


def test_precision():
    with process_group():
        policy = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32
        )
        net = fully_shard(Perceptron(), mp_policy=policy)
        x = given(0)
        x.requires_grad_()
        wanted = net(x)
        wanted.square().mean().backward()
        model = t2j(net)
        found = model(jnp.asarray(x.detach().numpy()))
        np.testing.assert_allclose(found, wanted.detach(), rtol=1e-2, atol=1e-2)
        text = jax.jit(model).lower(inputs()).as_text()
        assert "bf16" in text
        assert found.dtype == jnp.float32
        gradient = mapped(jax.grad(loss_of(net)), True, (P(), P("data")), P())(state_of(net), inputs())
        close(
            {name: np.asarray(x, np.float32) // 0.1 for name, x in gradient.items()},
            {name: np.asarray(x, np.float32) // 0.1 for name, x in wanted_gradients().items()},
        )
        assert {x.dtype for x in gradient.values()} == {jnp.dtype("float32")}


class Two(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.head = torch.nn.Linear(6, 6), torch.nn.LayerNorm(6), torch.nn.Linear(6, 6)
        self.head.weight = self.first.weight

    def forward(self, x):
        return self.head(self.norm(self.first(x)))

    def twice(self, x):
        return self.head(self.head(x))


def test_modules_that_are_wrapped_together():
    """With a tied weight, a method that is a forward pass too, and a state dict that PyTorch has hooked."""
    with process_group():
        net, plain, x = Two(), t2j(Two()), given(0)
        fully_shard([net.first, net.norm, net.head])
        fully_shard(net)
        register_fsdp_forward_method(net, "twice")
        np.testing.assert_allclose(net(x).detach(), plain(jnp.asarray(x.numpy())), rtol=1e-5, atol=1e-6)
        for run, wanted in ((t2j(net), plain), (t2j(net.twice), t2j(Two().twice))):
            np.testing.assert_allclose(run(inputs()), wanted(inputs()), rtol=1e-5, atol=1e-6)
        with pytest.raises(NotImplementedError, match="of a list of modules"):
            t2j(lambda x: net(x))(inputs())
        state = t2j(Two().state_dict())
        doubled = {name: 2 * value for name, value in state.items()}
        found = t2j(net.twice)(inputs(), state_dict=doubled)
        np.testing.assert_allclose(found, t2j(Two().twice)(inputs(), state_dict=doubled), rtol=1e-5, atol=1e-6)


def test_two_dimensions():
    """Replicas of split parameters: gradients are means over all devices."""
    with process_group(4):
        net = fully_shard(Perceptron(), mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns")))
        mesh = jax.make_mesh((2, 2), ("rows", "columns"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:4])
        both = P(("rows", "columns"))
        run = jax.shard_map(jax.grad(loss_of(net)), mesh=mesh, in_specs=(P(), both), out_specs=P())
        close(jax.jit(run)(state_of(Perceptron()), inputs()), wanted_gradients())


def test_groups_that_are_told():
    with process_group(4):
        mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("other",))
        net = fully_shard(Perceptron(), mesh=mesh)
        model = t2j(net, groups={mesh: "data"})
        loss = lambda state, x: jnp.square(model(x, state_dict=state)).mean()
        close(mapped(jax.grad(loss), True, (P(), P("data")), P())(state_of(Perceptron()), inputs()), wanted_gradients())
        with pytest.raises(ValueError, match="stands for the axes 'other'"):
            mapped(jax.grad(loss_of(net)), True, (P(), P("data")), P())(state_of(Perceptron()), inputs())
        net = wrapped(2) if dist.get_world_size() == 2 else fully_shard(Perceptron(), mesh=mesh)
        assert net.out.weight.placements == (Shard(0),)


def test_what_is_refused(net):
    net.set_gradient_divide_factor(3.0)
    with pytest.raises(NotImplementedError, match="a divisor of code's own"):
        t2j(net)(inputs())
    with pytest.raises(NotImplementedError, match=r"FullyShardedDataParallel keeps.*fully_shard"):
        t2j(lambda x: FullyShardedDataParallel(torch.nn.Identity())(x))(inputs())
