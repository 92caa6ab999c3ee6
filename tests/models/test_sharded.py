"""A training step of a Llama on eight virtual devices, by transformers' plan."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import AxisType, PartitionSpec as P

from torch2jax import sharding, t2j

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("eight_devices")
TOKENS = np.arange(32).reshape(4, 8)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=96, **sizes))


def gradients(jax_model):
    return jax.value_and_grad(lambda params, tokens: jax_model(tokens, labels=tokens, state_dict=params).loss)


@pytest.fixture(scope="module")
def expected(model):
    return jax.jit(gradients(t2j(model)))(dict(t2j(model.state_dict())), jnp.asarray(TOKENS))


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_training_step(model, expected, kind):
    with jax.set_mesh(jax.make_mesh((2, 4), ("data", "model"), axis_types=(kind,) * 2)):
        specs = sharding.specs(model, tensor="model", fsdp="data")
        params = sharding.put(dict(t2j(model.state_dict())), specs)
        step = gradients(t2j(sharding.constrained(model, tensor="model", data="data")))
        if kind is AxisType.Explicit:
            step = jax.sharding.auto_axes(step, out_sharding=(P(), specs))
        step = jax.jit(step, out_shardings=(None, sharding.shardings(params, specs)))
        loss, grads = step(params, jax.device_put(TOKENS, P("data")))
        assert all(grad.sharding.spec == params[name].sharding.spec for name, grad in grads.items())
    np.testing.assert_allclose(loss, expected[0], 1e-3)
    for name, grad in grads.items():
        np.testing.assert_allclose(grad, expected[1][name], 1e-3, 1e-3, err_msg=name)


def test_refusal_on_explicit_axes_says_what_to_do(model):
    with jax.set_mesh(jax.make_mesh((2, 4), ("data", "model"))):
        params = sharding.put(dict(t2j(model.state_dict())), sharding.specs(model, tensor="model", fsdp="data"))
        with pytest.raises(Exception, match="auto_axes"):
            jax.jit(t2j(model))(jax.device_put(TOKENS, P("data")), state_dict=params)
