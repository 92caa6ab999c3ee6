"""What docs/faq.md says beside its code."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch2jax import j2t, t2j
from torch2jax.tensors import dtypes


def _step(model, optimizer, x, y):
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def _trained(make, steps):
    """A model with a bias before batch norm: trained by PyTorch, and by translated steps."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    other = copy.deepcopy(model)
    x, y = torch.randn(64, 3), torch.randn(64, 1)
    optimizer, others = make(model.parameters()), make(other.parameters())
    step = t2j(_step, state=(other, others))
    state = step.init(t2j(x), t2j(y))
    jitted = jax.jit(step)
    for _ in range(steps):
        expected = _step(model, optimizer, x, y)
        loss, state = jitted(state, t2j(x), t2j(y))
        np.testing.assert_allclose(loss, expected.detach(), rtol=1e-4)
    step.load(state)
    differences = {
        name: (a - b).abs().max().item()
        for (name, a), b in zip(model.named_parameters(), other.parameters(), strict=True)
    }
    return differences


def test_trained_weights_after_one_step_of_sgd():
    assert max(_trained(lambda p: torch.optim.SGD(p, lr=0.1), 1).values()) < 1e-6


def test_trained_weights_after_adam_but_for_a_bias_before_batch_norm():
    differences = _trained(lambda p: torch.optim.AdamW(p, lr=1e-2), 10)
    bias = differences.pop("0.bias")
    assert max(differences.values()) < 1e-4
    assert 1e-3 < bias < 2 * 10 * 1e-2  # rounding errors, scaled up to steps


def test_a_printed_tensor_has_its_shape_and_dtype(capsys):
    f = jax.jit(t2j(lambda x: (print(x), x * 2)[1]))
    f(jnp.ones(3)), f(jnp.ones(3))
    (line,) = capsys.readouterr().out.splitlines()
    assert "float32" in line
    assert "3" in line


def test_a_logger_gets_each_value(capsys):
    seen = []
    f = jax.jit(t2j(lambda x: (j2t(jax.debug.callback)(lambda value: seen.append(float(value)), x.sum()), x)[1]))
    f(jnp.ones(3)), f(jnp.zeros(3))
    jax.effects_barrier()
    assert seen == [3.0, 0.0]


def test_what_pytorch_refuses_is_nan_under_jit():
    loss, x = t2j(torch.nn.functional.cross_entropy), jnp.ones((1, 3))
    assert jnp.isnan(jax.jit(loss)(x, jnp.array([7])))
    with pytest.raises(IndexError):
        loss(x, jnp.array([7]))
    scaled = t2j(lambda x, scale: torch.distributions.Normal(0.0, scale).log_prob(x))
    assert jnp.isnan(jax.jit(scaled)(jnp.ones(()), -1.0))
    with pytest.raises(ValueError, match="scale"):
        scaled(jnp.ones(()), -1.0)


@pytest.mark.usefixtures("eight_devices")
@pytest.mark.parametrize("kind", [jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit])
def test_batch_norm_of_a_split_batch(kind):
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)).train()
    together = torch.nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(model))
    torch.manual_seed(0)
    x = torch.randn(32, 3) * torch.arange(32)[:, None]
    mesh = jax.make_mesh((8,), ("data",), axis_types=(kind,))

    def step(module):
        f, (params, buffers) = t2j(module), t2j(module).split()
        return lambda x: f.split(f(x, state_dict=params | buffers, return_state_dict=True)[1])[1]

    with jax.set_mesh(mesh):
        batch = jax.device_put(t2j(x), jax.NamedSharding(mesh, jax.P("data")))
        found = jax.jit(step(model))(batch)
        split = {"mesh": mesh, "in_specs": jax.P("data")}
        synchronized = jax.jit(jax.shard_map(step(together), out_specs=jax.P(), **split))(batch)
        rows = lambda x: jax.tree.map(lambda buffer: buffer[None], step(model)(x))
        parts = jax.jit(jax.shard_map(rows, out_specs=jax.P("data"), **split))(batch)
    model(x)
    for name, wanted in model.named_buffers():
        np.testing.assert_allclose(found[name], wanted, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(synchronized[name], wanted, rtol=1e-4, atol=1e-5)
    assert (abs(parts["1.running_var"].mean(0) - found["1.running_var"]) > 1e-3).all()
    assert np.ptp(parts["1.running_var"], axis=0).min() > 1e-2


def test_a_module_in_float64_warns(monkeypatch):
    monkeypatch.setattr(dtypes, "_has_warned", False)  # it does so once in a process
    model = torch.nn.Linear(3, 2).double()
    with pytest.warns(UserWarning, match="float64"):
        assert t2j(model)(jnp.ones(3)).dtype == jnp.float32
