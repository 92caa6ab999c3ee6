"""TorchScript modules: their state goes in and comes out by name, and they are left as they were."""

import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from torch2jax import t2j

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

X = jnp.arange(6.0).reshape(2, 3) / 4


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("offset", torch.ones(3), persistent=False)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.table = {"twice": torch.full((3,), 2.0)}
        self.seen = [1]

    def forward(self, x):
        self.calls += 1
        self.seen.append(len(self.seen))
        return self.norm(self.body(x) * self.table["twice"]) + self.offset, len(self.seen)

    @torch.jit.export
    def encode(self, x):
        return self.body(x)


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net()


def loaded(module):
    buffer = io.BytesIO()
    torch.jit.save(module, buffer)
    buffer.seek(0)
    return torch.jit.load(buffer)


@pytest.mark.parametrize("of", [torch.jit.script, lambda net: loaded(torch.jit.script(net))], ids=["script", "file"])
def test_state_in_and_out(net, of):
    scripted = of(net)
    params = {
        name: 0.5 * value if value.dtype == np.float32 else value for name, value in t2j(net.state_dict()).items()
    }
    (result, length), state = t2j(scripted)(X, state_dict=params, return_state_dict=True)
    for module in (net, scripted):
        assert module.calls == 0
        assert module.seen == [1]
    net.load_state_dict({name: torch.tensor(np.asarray(value)) for name, value in params.items()})
    expected, expected_length = net(torch.tensor(np.asarray(X)))
    np.testing.assert_allclose(result, expected.detach(), rtol=1e-4, atol=1e-5)
    assert length == expected_length == 2
    assert set(state) == set(scripted.state_dict())  # which has what Python does not keep, too
    for name, value in net.state_dict().items():
        np.testing.assert_allclose(state[name], value, rtol=1e-5)


def test_traced_modules_and_methods(net):
    net.eval()
    traced, x = torch.jit.trace(net.body, torch.ones(2, 3)), torch.tensor(np.asarray(X))
    np.testing.assert_allclose(t2j(traced)(X, state_dict=t2j(traced.state_dict())), net.body(x).detach(), rtol=1e-5)
    method = torch.jit.script(net).encode
    result = jax.jit(t2j(method))(X, state_dict={"body.0.bias": jnp.full(3, 2.0)})
    np.testing.assert_allclose(result, torch.relu(x @ net.body[0].weight.T + 2).detach(), rtol=1e-5)


def test_parts_of_python_modules(net):
    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = torch.jit.script(net.body)

        def forward(self, x):
            return self.part(x) * 2

    around = Around()
    params, x = t2j(around.state_dict()), torch.tensor(np.asarray(X))
    assert set(params) == {"part.0.weight", "part.0.bias"}
    np.testing.assert_allclose(jax.jit(lambda p: t2j(around)(X, state_dict=p))(params), around(x).detach(), rtol=1e-5)
    gradient = jax.grad(lambda p: t2j(around)(X, state_dict=p).sum())(params)
    around(x).sum().backward()
    np.testing.assert_allclose(gradient["part.0.weight"], getattr(around.part, "0").weight.grad, rtol=1e-5)


def test_operations_bear_the_names_of_the_parts(net):
    text = jax.jit(t2j(torch.jit.script(net.eval()))).lower(X).as_text(debug_info=True)
    assert "body.0" in text


def test_saved_and_loaded_within_the_call(net):
    def function(x):
        copied = loaded(torch.jit.script(net.body))
        with torch.no_grad():
            getattr(copied, "0").bias.add_(1)
        return copied(x) - net.body(x), copied

    for run in (t2j(lambda x: function(x)[0]), jax.jit(t2j(lambda x: function(x)[0]))):
        difference = run(X + 5)
        assert (difference >= 0).all()
        assert (difference > 0).any()
    with pytest.raises(RuntimeError, match=r"torch.jit.save got a module.*return its state_dict\(\)"):
        jax.jit(t2j(lambda x: loaded(function(x)[1])))(X)


def test_tensors_in_attributes_are_loaded():
    kinds = {"alone": torch.Tensor, "maybe": torch.Tensor | None, "many": list[torch.Tensor]}
    kinds |= {"named": dict[str, torch.Tensor], "pair": tuple[torch.Tensor, int]}

    class Holding(torch.jit.ScriptModule):
        def __init__(self, x):
            super().__init__()
            values = {"alone": x, "maybe": x + 1, "many": [x, x + 2], "named": {"a": x}, "pair": (x + 3, 4)}
            for name, kind in kinds.items():
                setattr(self, name, torch.jit.Attribute(values[name], kind))

        @torch.jit.script_method
        def forward(self):
            return self.alone, self.maybe, self.many, self.named, self.pair

    file, x = io.BytesIO(), jnp.arange(3.0)
    torch.jit.save(Holding(torch.arange(3.0)), file)

    def function():
        file.seek(0)
        return torch.jit.load(file)()

    expected = x, x + 1, [x, x + 2], {"a": x}, (x + 3, 4)
    for result in (t2j(function)(), jax.jit(t2j(function))()):
        jax.tree.map(np.testing.assert_allclose, result, expected)


def test_losses_and_activations_of_scripts():
    @torch.jit.script
    def function(x, y):
        signs = torch.sign(x - y)
        return (
            torch.margin_ranking_loss(x, y, signs, 0.5, 2),
            torch.hinge_embedding_loss(x, signs, 1.0, 1),
            torch.rrelu(x, 0.1, 0.3, False),
        )

    x, y = torch.tensor([1.0, -2.0, 3.0]), torch.tensor([0.5, -1.0, 4.0])
    for actual, each in zip(t2j(function)(x.numpy(), y.numpy()), function(x, y), strict=True):
        np.testing.assert_allclose(actual, each, rtol=1e-6)


@pytest.mark.parametrize(("activation", "norm_first"), [("relu", False), ("gelu", True)])
@pytest.mark.parametrize("training", [False, True])
def test_modules_that_are_scripted_within_the_call(training, activation, norm_first):
    options = {"dropout": 0.0, "batch_first": True, "activation": activation, "norm_first": norm_first}
    layer = nn.TransformerEncoderLayer(4, 2, 8, **options)  # its functions warn: scripts know `warnings.warn`
    layer.train(training).requires_grad_(training)  # evaluated without gradients, it is one operator of PyTorch
    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))

    def function(x):
        return torch.jit.script(layer)(x)

    np.testing.assert_allclose(t2j(function)(t2j(x)), layer(x).detach(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(jax.jit(t2j(function))(t2j(x)), layer(x).detach(), rtol=1e-4, atol=1e-5)


def test_encoders_that_are_scripted_within_the_call():
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), 2).eval()
    encoder.requires_grad_(False)
    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    scripted = t2j(lambda x: torch.jit.script(encoder)(x))
    np.testing.assert_allclose(scripted(t2j(x)), encoder(x), rtol=1e-4, atol=1e-5)
