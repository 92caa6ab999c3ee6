"""Programs of `DTensor`s within `jax.shard_map` give what they give in processes that talk by gloo."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import AxisType, PartitionSpec as P

from tests.ops.distributed import tensor_cases
from tests.ops.distributed.processes import results_of
from tests.ops.distributed.tensor_cases import CASES, RANKS, given
from torch2jax import t2j

pytestmark = pytest.mark.usefixtures("eight_devices")
CHECKS = pytest.mark.parametrize("check_vma", [True, False])


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    """What each rank has, by names of programs."""
    return results_of(tensor_cases, tmp_path_factory.mktemp("processes"))


def mapped(function, check_vma):
    mesh = jax.make_mesh((RANKS,), ("ranks",), axis_types=(AxisType.Auto,), devices=jax.devices()[:RANKS])
    spec = P("ranks")
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=check_vma))


def inputs():
    return jnp.concatenate([jnp.asarray(given(rank).numpy()) for rank in range(RANKS)])


def differentiated(program):
    """What a program gives, and the gradient of each device's own loss by PyTorch's code."""

    def run(x):
        x = x.detach().requires_grad_()
        result = program(x)
        if result.requires_grad:
            result.sum().backward()
        return result.detach()[None], torch.zeros_like(x) if x.grad is None else x.grad

    return t2j(run)


@CHECKS
@pytest.mark.parametrize("name", CASES)
@pytest.mark.slow("the first of them starts the processes")
def test_values_and_gradients(name, processes, check_vma):
    values, gradients = mapped(differentiated(CASES[name]), check_vma)(inputs())
    np.testing.assert_allclose(values, processes[name], rtol=2e-5, atol=2e-5)
    wanted = processes.get(name + ".grad", np.zeros((RANKS, 8, 6)))
    np.testing.assert_allclose(gradients.reshape(RANKS, 8, 6), wanted, rtol=1e-4, atol=1e-4)


@CHECKS
@pytest.mark.parametrize(
    "name", ["pointwise", "linear", "mean of all", "sums and wholes", "local outputs", "attention"]
)
def test_gradients_by_jax(name, processes, check_vma):
    program = t2j(CASES[name])
    found = mapped(jax.grad(lambda x: program(x).sum()), check_vma)(inputs())
    np.testing.assert_allclose(found.reshape(RANKS, 8, 6), processes[name + ".grad"], rtol=1e-4, atol=1e-4)
