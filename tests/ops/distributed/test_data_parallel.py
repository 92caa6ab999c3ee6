"""`DistributedDataParallel` on four devices: gradients are means over them, once."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.distributed as dist
from jax.sharding import AxisType, PartitionSpec as P
from torch.nn.parallel import DistributedDataParallel

from tests.ops.distributed.cases import RANKS, Perceptron, given
from torch2jax import t2j

pytestmark = pytest.mark.usefixtures("eight_devices")
INPUTS = P(), P("data")
CHECKS = pytest.mark.parametrize("check_vma", [True, False])


@contextlib.contextmanager
def process_group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.fixture(params=["outlives", "is gone"])
def wrapped(request):
    """A wrapper made before the call, with its process group or after the end of that."""
    with process_group():
        wrapper = DistributedDataParallel(Perceptron())
        if request.param == "outlives":
            yield wrapper
            return
    yield wrapper


def mapped(function, check_vma, in_specs=INPUTS, out_specs=INPUTS[0]):
    mesh = jax.make_mesh((RANKS,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:RANKS])
    options = {"mesh": mesh, "in_specs": in_specs, "out_specs": out_specs, "check_vma": check_vma}
    return jax.jit(jax.shard_map(function, **options))


def inputs():
    return jnp.concatenate([jnp.asarray(given(rank).numpy()) for rank in range(RANKS)])


def local_gradients():
    """Of each device's own loss, without a wrapper."""
    net = Perceptron()
    found = []
    for rank in range(RANKS):
        net.zero_grad()
        net(given(rank)).square().sum().backward()
        found.append({f"module.{name}": x.grad.numpy().copy() for name, x in net.named_parameters()})
    return {name: np.stack([grads[name] for grads in found]) for name in found[0]}


def close(found, wanted):
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


def mean(tree):
    return {name: value.mean(0) for name, value in tree.items()}


@CHECKS
@pytest.mark.parametrize("is_varying", [False, True])
def test_gradients_within_by_jax(wrapped, check_vma, is_varying):
    model = t2j(wrapped)

    def gradients(state, x):
        if is_varying and check_vma:
            state = jax.tree.map(lambda value: jax.lax.pcast(value, "data", to="varying"), state)
        found = jax.grad(lambda state: jnp.square(model(x, state_dict=state)).sum())(state)
        return jax.tree.map(lambda value: value[None], found)

    found = mapped(gradients, check_vma, out_specs=P("data"))(t2j(wrapped.state_dict()), inputs())
    wanted = mean(local_gradients())
    close(found, {name: np.stack([value] * RANKS) for name, value in wanted.items()})


def test_gradients_from_outside(wrapped):
    """Of the sum of all devices' losses: the mean of what each has, as after each process's backward pass."""
    model = t2j(wrapped)
    losses = mapped(lambda state, x: jnp.square(model(x, state_dict=state)).sum()[None], True, out_specs=P("data"))
    found = jax.grad(lambda state: losses(state, inputs()).sum())(t2j(wrapped.state_dict()))
    close(found, mean(local_gradients()))


@CHECKS
def test_steps_within(wrapped, check_vma):
    """A training step of PyTorch's; its state is the same on all devices."""
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1, momentum=0.9)

    def step(model, optimizer, x):
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss.reshape(1)

    stepped = t2j(step, state=(wrapped, optimizer))
    state = stepped.init(inputs()[:8])
    run = mapped(stepped, check_vma, out_specs=(P("data"), P()))
    alone = Perceptron()
    reference = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        losses, state = run(state, inputs())
        reference.zero_grad()
        wanted = torch.stack([alone(given(rank)).square().sum() for rank in range(RANKS)])
        wanted.mean().backward()
        reference.step()
        np.testing.assert_allclose(losses, wanted.detach(), rtol=1e-4)
    weights = {name: x for name, x in state["model"].items() if not name.endswith(".grad")}
    close(weights, {f"module.{name}": x.numpy() for name, x in alone.state_dict().items()})


def _accumulated(x, wrap, sync_last=True):
    model = wrap(Perceptron())
    with model.no_sync():
        model(x[:4]).square().sum().backward()
    context = contextlib.nullcontext() if sync_last else model.no_sync()
    with context:
        model(x[4:]).square().sum().backward()
    return {f"module.{name}": x.grad[None] for name, x in model.module.named_parameters()}


@CHECKS
def test_no_sync(check_vma):
    run = mapped(lambda x: t2j(_accumulated)(x, DistributedDataParallel), check_vma, P("data"), P("data"))
    wanted = mean(local_gradients())
    close(run(inputs()), {name: np.stack([value] * RANKS) for name, value in wanted.items()})


def test_no_sync_leaves_gradients_local():
    def run(x):
        return t2j(_accumulated)(x, DistributedDataParallel, False)

    close(mapped(run, False, P("data"), P("data"))(inputs()), local_gradients())


def test_outside_of_a_mesh():
    def made_within(x):
        model = DistributedDataParallel(Perceptron())
        with model.no_sync():
            model(x).square().sum().backward()
        return model.module.hidden.weight.grad

    x = given(0)
    wanted = local_gradients()["module.hidden.weight"][0]
    np.testing.assert_allclose(t2j(made_within)(jnp.asarray(x.numpy())), wanted, rtol=1e-4, atol=1e-5)


def ignoring():
    net = Perceptron()
    net._ddp_params_and_buffers_to_ignore = ["out.bias"]
    return DistributedDataParallel(net)


@CHECKS
def test_an_ignored_parameter(check_vma):
    """Its gradient is each device's own."""

    def gradient(x):
        model = ignoring()
        model(x).square().sum().backward()
        return model.module.out.bias.grad[None]

    found = mapped(t2j(gradient), check_vma, P("data"), P("data"))(inputs())
    np.testing.assert_allclose(found, local_gradients()["module.out.bias"], rtol=1e-4, atol=1e-5)


def test_an_ignored_parameter_by_jax():
    """Whose types do not allow such a gradient for what is the same on all devices."""
    with process_group():
        model = ignoring()
    loss = t2j(model)
    gradient = jax.grad(lambda state, x: jnp.square(loss(x, state_dict=state)).sum())
    with pytest.raises(ValueError, match="ignores a parameter"):
        mapped(gradient, True)(t2j(model.state_dict()), inputs())


def test_one_of_two_axes():
    """The wrapper averages over the axis of its group; along the other devices differ."""

    def gradient(x):
        model = DistributedDataParallel(Perceptron(), process_group=dist.new_group([0, 2]))
        model(x).square().sum().backward()
        return model.module.out.bias.grad[None]

    mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:RANKS])
    spec = P(("a", "b"))
    run = jax.jit(jax.shard_map(t2j(gradient), mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
    local = local_gradients()["module.out.bias"]
    first, second = (local[0] + local[2]) / 2, (local[1] + local[3]) / 2
    np.testing.assert_allclose(run(inputs()), [first, second] * 2, rtol=1e-4, atol=1e-5)


def test_one_collective_for_each_parameter(wrapped):
    """And none where no derivative is taken."""
    model = t2j(wrapped)

    def loss(state, x):
        return jnp.square(model(x, state_dict=state)).sum()

    arguments = t2j(wrapped.state_dict()), inputs()
    gradients = mapped(jax.grad(loss), False).lower(*arguments).as_text()
    assert gradients.count("stablehlo.all_reduce") == 4
    values = mapped(lambda *args: loss(*args)[None], False, out_specs=P("data")).lower(*arguments).as_text()
    assert values.count("stablehlo.all_reduce") == 0


@pytest.mark.parametrize(
    ("wrap", "kind", "message"),
    [
        (lambda net: DistributedDataParallel(net.requires_grad_(False)), RuntimeError, "is not needed when a module"),
        (
            lambda net: DistributedDataParallel(net, process_group=dist.group.WORLD, device_mesh=object()),
            RuntimeError,
            "Cannot specify both",
        ),
        (
            lambda net: DistributedDataParallel(net).register_comm_hook(None, print),
            NotImplementedError,
            "hooks of communication",
        ),
        (
            lambda net: DistributedDataParallel(net, mixed_precision=object()),
            NotImplementedError,
            "use torch.autocast",
        ),
    ],
)
def test_what_is_refused(wrap, kind, message):
    with pytest.raises(kind, match=message):
        mapped(t2j(lambda x: wrap(Perceptron())(x)), False, P("data"), P("data"))(inputs())


def test_a_hook_from_before_is_refused():
    with process_group():
        wrapper = DistributedDataParallel(Perceptron())
        wrapper.register_comm_hook(None, _hook)
    model = t2j(wrapper)
    with pytest.raises(NotImplementedError, match="hooks of communication"):
        mapped(model, False, P("data"), P("data"))(inputs())


def _hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    raise AssertionError


def test_a_group_that_stands_for_nothing():
    with process_group():
        group = dist.new_group([0])
        model = DistributedDataParallel(Perceptron(), process_group=group)
        run = mapped(t2j(model), False, P("data"), P("data"))
        with pytest.raises(ValueError, match="stands for no axes"):
            run(inputs())
        told = mapped(t2j(model, groups={group: "data"}), False, P("data"), P("data"))
        assert told(inputs()).shape == (8 * RANKS, 2)
