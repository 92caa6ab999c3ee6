"""Loops on data within `jax.shard_map`, where each device takes its own number of iterations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.distributed as dist
from jax.sharding import PartitionSpec

from tests.control.test_conditions import QUICK
from torch2jax import t2j
from torch2jax.runtime.errors import BranchError

pytestmark = pytest.mark.usefixtures("eight_devices")
X = np.array([[30, 40], [3, 4], [0.3, 0.4]], np.float32)


def summed(x):
    """The sum begins alike on all devices, and ends otherwise."""
    n, total = 0, torch.zeros(2)
    while x.norm() > 1:
        x = x / 2
        total = total + x
        n += 1
    return total, n


def shifted(x):
    """What differs comes to the first of three two iterations later."""
    one, two = torch.zeros(2), torch.ones(2)
    while x.norm() > 1:
        one, two, x = two, x, x / 2
    return one, two, x


def counted(x):
    total = torch.zeros(2)
    for n in range(40):
        total = total + x * n
        if total.norm() > 100:
            break
    return total, n


def on_devices(function, **options):
    mesh = jax.make_mesh((3,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = PartitionSpec("d")

    def one(x):
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], t2j(function, **options)(x[0]))

    return jax.shard_map(one, mesh=mesh, in_specs=spec, out_specs=spec)


@pytest.mark.parametrize("function", [summed, shifted, counted])
def test_each_device_has_its_own_iterations(function):
    found = jax.jit(on_devices(function), compiler_options=QUICK)(X)
    wanted = [function(torch.from_numpy(x)) for x in X]
    for leaf, *each in zip(found, *wanted, strict=True):
        np.testing.assert_allclose(leaf, np.stack([np.asarray(x) for x in each]), 1e-5)
    assert " while[" in str(jax.make_jaxpr(on_devices(function))(X))


def test_derivatives():
    def slope(x):
        x = torch.from_numpy(x.copy()).requires_grad_()
        return torch.autograd.grad(summed(x)[0].sum(), x)[0] if np.linalg.norm(x.detach()) > 1 else torch.zeros(2)

    found = jax.jit(jax.grad(lambda x: on_devices(summed, max_steps=16)(x)[0].sum()), compiler_options=QUICK)(X)
    np.testing.assert_allclose(found, [slope(x) for x in X], 1e-5)


def normalised(x):
    while x.norm() > 1:
        total = x.norm()
        dist.all_reduce(total)
        x = x / total
    return x


def normalised_together(x):
    total = x.norm()
    dist.all_reduce(total)
    while total > 1.5:
        x = x / total
        total = x.norm()
        dist.all_reduce(total)
    return x


def test_devices_do_not_wait_for_iterations_of_others():
    with pytest.raises(BranchError, match="different numbers of iterations"):
        jax.make_jaxpr(on_devices(normalised))(X)
    found = jax.jit(on_devices(normalised_together), compiler_options=QUICK)(X)
    np.testing.assert_allclose(found, X / np.linalg.norm(X, axis=1).sum(), 1e-5)
