"""Translated modules: state in, state out, and the user's module untouched."""

import copy
import inspect
import pickle
import threading
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from torch2jax import t2j


def assert_close(actual, expected, rtol=1e-5, atol=1e-6):
    np.testing.assert_allclose(np.asarray(actual), expected.detach().numpy(), rtol=rtol, atol=atol)


class Net(nn.Module):
    """Tied weights, a plain tensor attribute, a non-persistent buffer and a counter."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.alias = [self.first.weight]
        self.view = self.first.weight.detach()[:2]
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("offset", torch.ones(4), persistent=False)
        self.calls = 0
        self.lock = threading.Lock()

    def forward(self, x):
        self.calls += 1
        self.count += 1
        return self.second(self.first(x)) + self.offset + self.alias[0].sum() + self.view.sum()

    def double(self, x):
        return self.forward(x) * 2


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net()


def snapshot(module):
    return {name: tensor.clone() for name, tensor in module.state_dict(keep_vars=True).items()}


def test_values_state_and_an_untouched_module(net):
    before, x = snapshot(net), torch.randn(3, 4)
    expected = copy.deepcopy(net.state_dict())
    result, state = t2j(net)(t2j(x), state_dict=t2j(net.state_dict()), return_state_dict=True)
    assert net.calls == 0
    for name, tensor in net.state_dict(keep_vars=True).items():
        assert torch.equal(tensor, before[name])
    assert state["count"] == 1
    assert set(state) == {*expected} - {"second.weight"}  # which is tied to the first
    assert_close(result, net(x))


def test_keyword_arguments_of_translation_are_in_the_signature():
    net = nn.BatchNorm1d(2).train()
    x, state = jnp.arange(8.0).reshape(4, 2), t2j(net.state_dict())
    assert list(inspect.signature(t2j(net)).parameters) == ["input", "state_dict", "rng", "return_state_dict"]
    assert list(inspect.signature(t2j(lambda x, **options: x)).parameters) == ["x", "rng", "options"]
    _, new = jax.jit(t2j(net), static_argnames="return_state_dict")(x, state_dict=state, return_state_dict=True)
    np.testing.assert_allclose(new["running_mean"], 0.1 * x.mean(0), rtol=1e-6)
    with pytest.raises(TypeError, match="static_argnames"):
        jax.jit(t2j(net))(x, return_state_dict=True)


def test_tied_weights_are_one(net):
    params = t2j(net.state_dict())
    x = torch.randn(3, 4)

    def loss(params):
        return t2j(net)(t2j(x), state_dict=params).sum()

    floats = {name: value for name, value in params.items() if name != "count"}
    grads = jax.grad(lambda p: loss({**params, **p}))(floats)
    net(x).sum().backward()
    # The buffer `view` is a detached view of the weight: PyTorch's gradient does not flow through it.
    assert_close(grads["first.weight"], net.first.weight.grad, rtol=1e-4, atol=1e-5)


def test_plain_attributes_and_their_views_follow_the_state(net):
    params = t2j(net.state_dict())
    zeros = {name: jnp.zeros_like(value) for name, value in params.items()}
    np.testing.assert_array_equal(t2j(net)(jnp.ones((1, 4)), state_dict=zeros), np.ones((1, 4)))


def test_partial_state_and_non_persistent_buffers(net):
    x = torch.randn(2, 4)
    result = t2j(net)(t2j(x), state_dict={"offset": jnp.full(4, 5.0)})
    assert_close(result, net(x) + 4)


def test_unknown_names_list_the_nearest():
    with pytest.raises(RuntimeError, match=r"'wieght' \(nearest: 'weight'"):
        t2j(nn.Linear(2, 2))(jnp.ones(2), state_dict={"wieght": jnp.ones((2, 2))})


def test_wrong_shapes_are_named():
    with pytest.raises(RuntimeError, match=r"size mismatch for weight: got an array of shape \(3, 2\)"):
        t2j(nn.Linear(2, 2))(jnp.ones(2), state_dict={"weight": jnp.ones((3, 2))})


@pytest.mark.parametrize("as_given", [torch.tensor, np.asarray, jnp.asarray], ids=["tensor", "numpy", "jax"])
def test_a_list_of_one_number_is_a_number_in_a_state(as_given):
    """As `torch.nn.Module.load_state_dict` takes those of old checkpoints."""
    norm = nn.BatchNorm1d(2)
    state = {**norm.state_dict(), "num_batches_tracked": as_given([7])}

    def run(x, state):
        return t2j(norm)(x, state_dict=state, return_state_dict=True)[1]

    assert run(jnp.ones((3, 2)), state)["num_batches_tracked"] == 8
    new = jax.jit(run)(jnp.ones((3, 2)), t2j(state))["num_batches_tracked"]
    assert new == 8
    assert new.shape == ()
    with pytest.raises(RuntimeError, match="size mismatch for num_batches_tracked"):
        run(jnp.ones((3, 2)), {"num_batches_tracked": as_given([7, 8])})


def test_bound_methods(net):
    x = torch.randn(2, 4)
    result = t2j(net.double)(t2j(x), state_dict=t2j(net.state_dict()))
    assert_close(result, net.double(x))


def test_keyword_arguments_and_jit():
    layer = nn.Bilinear(2, 3, 4)
    a, b = torch.randn(5, 2), torch.randn(5, 3)
    run = jax.jit(lambda params, **kwargs: t2j(layer)(state_dict=params, **kwargs))
    assert_close(run(t2j(layer.state_dict()), input1=t2j(a), input2=t2j(b)), layer(a, b))


def test_hooks_and_parametrizations():
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))
    layer.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    layer.register_forward_hook(lambda module, args, output: output + 1)
    x = torch.randn(2, 3)
    assert_close(t2j(layer)(t2j(x), state_dict=t2j(layer.state_dict())), layer(x))


def test_train_and_eval_follow_the_module():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    x = torch.randn(8, 3)
    translated = t2j(model)
    expected = copy.deepcopy(model)
    result, state = translated(t2j(x), state_dict=t2j(model.state_dict()), return_state_dict=True)
    assert_close(result, expected(x), rtol=1e-4, atol=1e-5)
    for name, tensor in expected.state_dict().items():
        assert_close(state[name], tensor, rtol=1e-4)
    model.eval()
    assert_close(translated(t2j(x)), model(x), rtol=1e-4, atol=1e-5)


def test_other_dtypes_for_the_weights():
    layer = nn.Linear(3, 3)
    params = jax.tree.map(lambda p: p.astype(jnp.bfloat16), t2j(layer.state_dict()))
    assert t2j(layer)(jnp.ones((2, 3), jnp.bfloat16), state_dict=params).dtype == jnp.bfloat16


def test_scopes_name_the_modules():
    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(3, 3)])

        def forward(self, x):
            return self.layers[0](x)

    model = nn.Sequential()
    model.add_module("encoder", Inner())
    text = jax.jit(t2j(model)).lower(jnp.ones((1, 3))).as_text(debug_info=True)
    assert "encoder/layers.0/linear" in text


def test_translated_modules_and_functions_pickle():
    layer = nn.Linear(3, 2)
    for translated in (t2j(layer), t2j(layer.forward)):
        again = pickle.loads(pickle.dumps(translated))
        np.testing.assert_array_equal(again(jnp.ones(3)), translated(jnp.ones(3)))
    again = pickle.loads(pickle.dumps(t2j(torch.sin)))
    np.testing.assert_array_equal(again(jnp.ones(3)), t2j(torch.sin)(jnp.ones(3)))


def test_a_jitted_step_compiles_once():
    norm = nn.BatchNorm1d(4).train()
    traces = []

    @jax.jit
    def step(state, x):
        traces.append(None)
        return t2j(norm)(x, state_dict=state, return_state_dict=True)[1]

    state = t2j(norm.state_dict())
    for _ in range(3):
        state = step(state, jnp.ones((8, 4)))
    assert len(traces) == 1
    assert state["num_batches_tracked"] == 3


def test_a_module_with_the_attributes_of_another_is_itself():
    """As copies of libraries are, which take over what a module has and put their own weights there."""

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x):
            twin = nn.Linear(3, 2, device="meta")
            twin.__dict__.update(self.layer.__dict__, _parameters={k: 2 * v for k, v in self.layer.named_parameters()})
            return twin(x)

    module, x = Twice(), torch.randn(4, 3)
    np.testing.assert_allclose(t2j(module)(t2j(x)), module(x).detach(), rtol=1e-5)


class Counting(nn.Module):
    """A module that replaces its buffer, where batch norm writes to it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x):
        self.steps = self.steps + 1
        return x * self.steps


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("module", [nn.Sequential(nn.BatchNorm1d(3)), Counting()], ids=["writes", "replaces"])
def test_buffers_whose_new_values_are_lost_are_warned_of(module, jit):
    x = jnp.arange(12.0).reshape(4, 3)
    run = (jax.jit if jit else lambda f: f)(lambda x: t2j(module)(x))
    with pytest.warns(UserWarning, match="what it writes is lost: give return_state_dict=True"):
        run(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        t2j(module)(x, return_state_dict=True)


def test_nothing_is_warned_of_in_evaluation():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        t2j(nn.BatchNorm1d(3).eval())(jnp.ones((4, 3)))


def test_lazy_modules_are_made_before_the_call():
    for make in (lambda: nn.LazyLinear(2), nn.LazyBatchNorm1d):
        with pytest.raises(RuntimeError, match=r"made within a translated call.*wanted a module of known sizes"):
            t2j(lambda make=make: make())()
    lazy = nn.LazyLinear(2)
    lazy(torch.ones(1, 3))
    assert t2j(lazy)(jnp.ones((4, 3))).shape == (4, 2)
