"""Devices of `jax.shard_map` have derivatives of their own, as PyTorch's processes, of inputs that are alike too."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed.nn.functional as differentiable
import torch.nn.functional as F
from jax.sharding import AxisType, PartitionSpec as P
from torch.autograd import forward_ad

from tests.ops.distributed.cases import RANKS, Perceptron, given
from torch2jax import t2j

pytestmark = pytest.mark.usefixtures("eight_devices")
CHECKS = pytest.mark.parametrize("check_vma", [True, False])


def mapped(function, check_vma, in_specs, out_specs):
    mesh = jax.make_mesh((RANKS,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:RANKS])
    options = {"mesh": mesh, "in_specs": in_specs, "out_specs": out_specs, "check_vma": check_vma}
    return jax.jit(jax.shard_map(function, **options))


def inputs():
    return jnp.concatenate([jnp.asarray(given(rank).numpy()) for rank in range(RANKS)])


def loss(w, x):
    return (x * w).tanh().sum() * w.sum()


def by_backward(w, x):
    w = w.detach().requires_grad_()
    loss(w, x).backward()
    return w.grad


def by_grad(w, x):
    w = w.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(w, x), w, create_graph=True)
    return torch.autograd.grad(gradient.square().sum(), w)[0]


def by_forward_mode(w, x):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual((forward_ad.make_dual(w, x[0]) * x).tanh().sum(0)).tangent


PROGRAMS = {
    "backward": by_backward,
    "grad": by_grad,
    "forward_mode": by_forward_mode,
    "func.grad": lambda w, x: torch.func.grad(loss)(w, x),
    "func.vjp": lambda w, x: torch.func.vjp(lambda w: (x * w).tanh().sum(0), w)[1](x[1])[0],
    "func.jvp": lambda w, x: torch.func.jvp(lambda w: loss(w, x), (w,), (x[0],))[1],
    "func.linearize": lambda w, x: torch.func.linearize(lambda w: (x * w).tanh().sum(0), w)[1](x[0]),
    "func.hessian": lambda w, x: torch.func.hessian(loss)(w, x),
    "func.vmap": lambda w, x: torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(w, x),
}


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr")  # of PyTorch's own func.linearize
@CHECKS
@pytest.mark.parametrize("name", PROGRAMS)
def test_inputs_that_are_alike(name, check_vma):
    program, w = PROGRAMS[name], torch.linspace(-1, 1, 6)
    run = mapped(lambda w, x: t2j(program)(w, x)[None], check_vma, (P(), P("data")), P("data"))
    wanted = torch.stack([program(w, given(rank)).detach() for rank in range(RANKS)])
    np.testing.assert_allclose(run(jnp.asarray(w.numpy()), inputs()), wanted, rtol=1e-4, atol=1e-4)


@CHECKS
def test_collectives_in_what_torch_func_differentiates(check_vma):
    """PyTorch's own have no derivative there. It is that of `.backward()`."""

    def shared(w, x):
        return (differentiable.all_reduce((x * w).tanh()) * x).sum()

    def by_tape(w, x):
        w = w.detach().requires_grad_()
        shared(w, x).backward()
        return w.grad

    found = [
        mapped(lambda w, x, f=f: t2j(f)(w, x)[None], check_vma, (P(), P("data")), P("data"))(jnp.ones(6), inputs())
        for f in (lambda w, x: torch.func.grad(shared)(w, x), by_tape)
    ]
    np.testing.assert_allclose(*found, rtol=1e-5)


def test_gradients_of_gradients_from_outside():
    """JAX differentiates a function of weights that are the same on all devices, whose gradients differ."""
    w, x = jnp.linspace(-1, 1, 6), inputs()

    def own(w, x):
        loss(w.requires_grad_(), x).backward()
        return w.grad[None]

    gradients = mapped(t2j(own), True, (P(), P("data")), P("data"))
    found = jax.grad(lambda w: jnp.sin(gradients(w, x)).sum())(w)

    def loss_in_jax(w, x):
        return jnp.tanh(x * w).sum() * w.sum()

    wanted = jax.grad(lambda w: sum(jnp.sin(jax.grad(loss_in_jax)(w, part)).sum() for part in x.reshape(RANKS, 8, 6)))
    np.testing.assert_allclose(found, wanted(w), rtol=1e-4, atol=1e-4)


@CHECKS
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_steps_that_average_by_hand(kind, check_vma):
    """What they leave is the same on all devices, to JAX too; a norm of gradients is taken of their mean."""

    def train_step(model, optimizer, x, y, parallel=True):
        loss = F.mse_loss(model(x), y)
        loss.backward()
        if parallel:
            for p in model.parameters():
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        loss = loss.detach()
        if parallel:
            dist.all_reduce(loss, dist.ReduceOp.AVG)
        return loss

    def options(model):
        return kind(model.parameters(), lr=0.1)

    model, alone = Perceptron(), Perceptron()
    x = inputs()
    step = t2j(train_step, state=(model, options(model)))
    state = step.init(x[:8], x[:8, :2])
    train = mapped(step, check_vma, (P(), P("data"), P("data")), P())
    optimizer, whole = options(alone), torch.from_numpy(np.array(x))
    for _ in range(3):
        value, state = train(state, x, x[:, :2])
        wanted = train_step(alone, optimizer, whole, whole[:, :2], parallel=False)
        np.testing.assert_allclose(value, wanted, rtol=1e-4)
    for name, weight in alone.state_dict().items():
        np.testing.assert_allclose(state["model"][name], weight, rtol=1e-3, atol=1e-5, err_msg=name)


def test_states_of_steps_that_know_ranks():
    """Outside of the mesh a step begins as that of a single device."""

    def train_step(model, optimizer, x):
        rank, size = dist.get_rank(), dist.get_world_size()
        x = x * 2 if rank == 1 else x
        loss = model(x).square().sum()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, group=dist.new_group([0, 1, 2, 3]))
            dist.broadcast(p.grad, src=2)
        arrived = torch.empty_like(x)
        for work in dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, x, (rank + 1) % size), dist.P2POp(dist.irecv, arrived, (rank - 1) % size)]
        ):
            work.wait()
        parts = [torch.empty_like(x) for _ in range(size)]
        dist.all_gather(parts, arrived)
        optimizer.step()
        return sum(parts).sum().detach()

    model = Perceptron()
    step = t2j(train_step, state=(model, torch.optim.Adam(model.parameters())), groups="data")
    state, x = step.init(jax.ShapeDtypeStruct((8, 6), jnp.float32)), inputs()
    total, state = mapped(step, False, (P(), P("data")), P())(state, x)
    np.testing.assert_allclose(total, x.sum() + x[8:16].sum(), rtol=1e-4)
    assert int(state["optimizer"]["state.*.step"]) == 1
    with pytest.raises(ValueError, match="has not been initialized"):
        t2j(lambda x: x + dist.get_rank())(x)


def test_parts_that_the_rank_chooses():
    """Views, which are written to as well; of a length that all devices have alike."""

    def program(x):
        rank, size = dist.get_rank(), dist.get_world_size()
        rows, columns = x.shape[0] // size, x.shape[1] // size
        start = rank * columns
        y = torch.zeros_like(x)
        y[rank * rows : (rank + 1) * rows] = x[rank * rows : (dist.get_rank() + 1) * rows]
        y[..., start : start + columns] += 1
        dist.all_reduce(y)
        leaf = x.requires_grad_()
        leaf[rank * rows : rank * rows + rows].pow(2).sum().backward()
        return y[:, start : start + columns], leaf.grad[rank * rows : (rank + 1) * rows]

    x = jnp.arange(64.0).reshape(8, 8)
    for check_vma in (True, False):
        y, gradient = mapped(t2j(program), check_vma, P(), (P(None, "data"), P("data")))(x)
        np.testing.assert_array_equal(y, x + 1)
        np.testing.assert_array_equal(gradient, 2 * x)
