"""Programs of `torch.distributed` give what they give in processes that talk by gloo, and the same gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec as P

from tests.ops.distributed import cases
from tests.ops.distributed.cases import CASES, RANKS, given
from tests.ops.distributed.processes import results_of
from torch2jax import t2j

pytestmark = pytest.mark.usefixtures("eight_devices")
CHECKS = pytest.mark.parametrize("check_vma", [True, False])
GRADIENTS = [name for name, (_, has_gradient) in CASES.items() if has_gradient]


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    """What each rank has, by names of programs."""
    return results_of(cases, tmp_path_factory.mktemp("processes"))


def mesh_of(count):
    return jax.make_mesh((count,), ("ranks",), axis_types=(AxisType.Auto,), devices=jax.devices()[:count])


def mapped(function, check_vma):
    spec = P("ranks")
    return jax.shard_map(function, mesh=mesh_of(RANKS), in_specs=spec, out_specs=spec, check_vma=check_vma)


def inputs():
    return jnp.concatenate([jnp.asarray(given(rank).numpy()) for rank in range(RANKS)])


@CHECKS
@pytest.mark.parametrize("name", CASES)
@pytest.mark.slow("the first of them starts the processes")
def test_values(name, processes, check_vma):
    wanted = processes[name]
    found = jax.jit(mapped(lambda x: t2j(CASES[name][0])(x)[None], check_vma))(inputs())
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_within(name, processes):
    program = t2j(CASES[name][0])
    found = jax.jit(mapped(jax.grad(lambda x: program(x).sum()), False))(inputs())
    np.testing.assert_allclose(found.reshape(RANKS, 8, 6), processes[name + ".grad"], rtol=1e-4, atol=1e-4)


@CHECKS
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_from_outside(name, processes, check_vma):
    """Of the sum of all ranks' losses."""
    program = t2j(CASES[name][0])
    losses = mapped(lambda x: program(x).sum()[None], check_vma)
    found = jax.jit(jax.grad(lambda x: losses(x).sum()))(inputs())
    np.testing.assert_allclose(found.reshape(RANKS, 8, 6), processes[name + ".grad"], rtol=1e-4, atol=1e-4)
