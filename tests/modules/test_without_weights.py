"""Modules on the meta device: what a program needs is given, as arrays or as shapes, or told by name."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from torch2jax import t2j

X = jax.ShapeDtypeStruct((8, 4), jnp.float32)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Linear(4, 4)
        self.head = nn.Linear(4, 4, bias=False)
        self.head.weight = self.table.weight
        self.register_buffer("scale", torch.full((4,), 2.0), persistent=False)
        self.unused = nn.Linear(4, 4)

    def forward(self, x):
        assert self.unused.weight.shape == (4, 4)
        assert self.unused.weight.T.is_floating_point()
        assert x.device == self.table.weight.device
        return self.head(torch.relu(self.table(x))) * self.scale


@pytest.fixture
def net() -> Net:
    with torch.device("meta"):
        return Net()


def needed(net: Net) -> dict:
    return {name: x for name, x in t2j(net.state_dict()).items() if "unused" not in name}


def test_shapes_in_place_of_arrays(net):
    state = {**needed(net), **t2j(dict(net.named_buffers()))}

    def loss(state, x):
        return t2j(net)(x, state_dict=state).sum()

    assert jax.eval_shape(loss, state, X) == jax.ShapeDtypeStruct((), jnp.float32)
    assert jax.eval_shape(jax.grad(loss), state, X) == state
    lowered = jax.jit(jax.grad(loss)).lower(state, X)
    assert "dot_general" in lowered.as_text()
    assert lowered.compile().memory_analysis().argument_size_in_bytes == 4 * (16 + 4 + 4 + 8 * 4)
    assert net.table.weight.is_meta


@pytest.mark.parametrize("mode", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_state_with_values(net, mode):
    here = Net()
    here.head.weight = here.table.weight
    state = {name: t2j(x) for name, x in here.named_parameters()} | {"scale": t2j(here.scale)}
    x = torch.randn(8, 4)
    result, new = mode(lambda state, x: t2j(net)(x, state_dict=state, return_state_dict=True))(state, t2j(x))
    np.testing.assert_allclose(result, here(x).detach(), rtol=1e-5, atol=1e-6)
    assert set(new) == {*net.state_dict(), "scale"} - {"head.weight"}
    _, new = mode(lambda s, x: t2j(net)(x, state_dict=s, return_state_dict=True))(
        {name: x for name, x in state.items() if "unused" not in name}, t2j(x)
    )
    assert set(new) == {"table.weight", "table.bias", "scale"}  # what was not given does not come out


@pytest.mark.parametrize("mode", [lambda f, x: f(jnp.ones(x.shape)), jax.eval_shape], ids=["eager", "abstract"])
def test_what_is_needed_and_missing_is_named(net, mode):
    state = {"table.weight": jnp.ones((4, 4)), "table.bias": jnp.ones(4), "scale": jnp.ones(4)}
    assert mode(lambda x: t2j(net)(x, state_dict=state), X).shape == (8, 4)
    for name, words in (
        ("table.bias", "the parameter 'table.bias' is on the meta device, and state_dict does not have it"),
        ("table.weight", "the parameter 'table.weight' is on the meta device"),
        ("scale", r"the buffer 'scale' is on the meta device.*t2j\(dict\(module.named_buffers\(\)\)\)"),
    ):
        lacking = {key: value for key, value in state.items() if key != name}
        with pytest.raises(RuntimeError, match=words):
            mode(lambda x, lacking=lacking: t2j(net)(x, state_dict=lacking), X)


def test_shapes_where_values_are_wanted(net):
    with pytest.raises(TypeError, match=r"ShapeDtypeStruct of shape \(4, 4\) without values.*jax.eval_shape"):
        t2j(net)(jnp.ones((8, 4)), state_dict=needed(net))
    with pytest.raises(TypeError, match="without values"):
        t2j(net)(jnp.ones((8, 4)), state_dict=net.state_dict())


def test_weights_alone_on_meta():
    """As accelerate's `init_empty_weights` leaves a module: its buffers have values."""
    net = Net()
    for part in net.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                part._parameters[name] = nn.Parameter(parameter.to("meta"))
    state = {name: jnp.ones(x.shape) for name, x in net.named_parameters() if "unused" not in name}
    assert (t2j(net)(jnp.ones((8, 4)), state_dict=state) == 5 * 4 * 2).all()


def test_a_method_and_a_module_within_a_function(net):
    state = needed(net) | t2j({"scale": net.scale})
    assert jax.eval_shape(lambda s, x: t2j(net.forward)(x, state_dict=s), state, X).shape == (8, 4)
    with pytest.raises(RuntimeError, match="meta"):
        t2j(lambda x: net.table(x))(jnp.ones((8, 4)))


def test_a_step_whose_module_has_no_values(net):
    step = t2j(lambda model, x: model(x).sum(), state=net)
    with pytest.raises(RuntimeError, match=r"model\.[a-z.]+ is on the meta device, and init"):
        step.init(X)
