"""The statistics of `torch.nn.SyncBatchNorm` are those of a whole batch, of which each device has a part."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import AxisType, PartitionSpec as P

from torch2jax import t2j

pytestmark = pytest.mark.usefixtures("eight_devices")


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("check_vma", [True, False])
def test_statistics_of_all_devices(momentum, check_vma):
    options = {"momentum": momentum, "eps": 1e-3}
    alone, together = torch.nn.BatchNorm2d(3, **options), torch.nn.SyncBatchNorm(3, **options)
    torch.nn.init.normal_(alone.weight)
    together.load_state_dict(alone.state_dict())
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:4])
    x = torch.randn(8, 3, 2, 2) * 3 + 1
    state, model = t2j(together.state_dict()), t2j(together)

    def run(state, x):
        return model(x, state_dict=state, return_state_dict=True)

    mapped = jax.shard_map(run, mesh=mesh, in_specs=(P(), P("data")), out_specs=(P("data"), P()), check_vma=check_vma)
    result, left = jax.jit(mapped)(state, jnp.asarray(x.numpy()))
    gradients = jax.jit(jax.grad(lambda *args: jnp.sum(jnp.sin(mapped(*args)[0])), (0, 1), allow_int=True))(
        state, jnp.asarray(x.numpy())
    )
    x.requires_grad_()
    wanted = alone(x)
    wanted.sin().sum().backward()
    np.testing.assert_allclose(result, wanted.detach(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(gradients[1], x.grad, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(gradients[0]["weight"], alone.weight.grad, rtol=1e-3, atol=1e-5)
    for name, value in alone.state_dict().items():
        np.testing.assert_allclose(left[name], value.detach(), rtol=1e-4, atol=1e-5, err_msg=name)
