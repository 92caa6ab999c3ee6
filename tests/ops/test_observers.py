"""Observers and fake quantizers of ``torch.ao.quantization``, and training with them, as in PyTorch."""

import copy
import warnings

import jax
import numpy as np
import pytest
import torch
import torch.ao.quantization as quantization

from torch2jax import TracedValueError, j2t, t2j

GENERATOR = torch.Generator().manual_seed(0)
X, BEFORE = torch.randn(4, 6, generator=GENERATOR), torch.randn(4, 6, generator=GENERATOR) * 2
CHANNELS = {"dtype": torch.qint8, "qscheme": torch.per_channel_affine, "quant_min": -128, "quant_max": 127}

pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch's: must run observer first, reduce_range, being moved


MODULES = {
    "MinMaxObserver": quantization.MinMaxObserver,
    "symmetric": lambda: quantization.MinMaxObserver(qscheme=torch.per_tensor_symmetric, dtype=torch.qint8),
    "MovingAverageMinMaxObserver": quantization.MovingAverageMinMaxObserver,
    "PerChannelMinMaxObserver": quantization.PerChannelMinMaxObserver,
    "MovingAveragePerChannelMinMaxObserver": lambda: quantization.MovingAveragePerChannelMinMaxObserver(ch_axis=1),
    "PlaceholderObserver": lambda: quantization.PlaceholderObserver(dtype=torch.qint8),
    "FixedQParamsObserver": lambda: quantization.FixedQParamsObserver(0.1, 3),
    "NoopObserver": quantization.NoopObserver,
    "FakeQuantize": quantization.default_fake_quant,
    "of weights": quantization.default_weight_fake_quant,
    "of channels": quantization.default_per_channel_weight_fake_quant,
    "of embeddings": quantization.default_embedding_fake_quant,
    "fixed": quantization.default_fixed_qparams_range_0to1_fake_quant,
    "dynamic": quantization.default_dynamic_fake_quant,
    "fused": quantization.default_fused_act_fake_quant,
    "fused, of weights": quantization.default_fused_wt_fake_quant,
    "fused, of channels": quantization.default_fused_per_channel_wt_fake_quant,
}
HAS_NO_SHAPES_YET = ("of channels", "of embeddings")  # whether they get some is traced


def state_of(module):
    return t2j(module.state_dict())


def check(got, state, wanted, module) -> None:
    torch.testing.assert_close(j2t(got), wanted, rtol=1e-6, atol=1e-6)
    expected = module.state_dict()
    assert state.keys() == state_of(module).keys()
    for name, array in state.items():
        torch.testing.assert_close(j2t(array), expected[name].detach(), rtol=1e-6, atol=1e-6, check_dtype=False)


@pytest.mark.parametrize("has_seen", [False, True])
@pytest.mark.parametrize("name", MODULES)
def test_modules(name, has_seen):
    module = MODULES[name]()
    if has_seen:
        module(BEFORE)
    ours = copy.deepcopy(module)
    translated, state = t2j(ours), state_of(ours)
    wanted = module(X)
    check(*translated(t2j(X), state_dict=state, return_state_dict=True), wanted, module)
    traced = jax.jit(lambda x, state: translated(x, state_dict=state, return_state_dict=True))
    if has_seen or name not in HAS_NO_SHAPES_YET:
        check(*traced(t2j(X), state), wanted, module)
    else:
        with pytest.raises(RuntimeError, match="has seen no channels yet"):
            traced(t2j(X), state)


@pytest.mark.parametrize("name", ["MinMaxObserver", "symmetric", "PerChannelMinMaxObserver", "FixedQParamsObserver"])
def test_what_observers_calculate(name):
    def calculated(observer, x):
        observer(x)
        return observer.calculate_qparams()

    observer = MODULES[name]()
    wanted = calculated(copy.deepcopy(observer), X)
    for got in (t2j(calculated)(observer, t2j(X)), jax.jit(lambda x: t2j(calculated)(observer, x))(t2j(X))):
        for ours, theirs in zip(got, wanted, strict=True):
            torch.testing.assert_close(j2t(ours), theirs, check_dtype=False)


def test_switches_that_are_traced():
    module = quantization.default_fake_quant()
    module(BEFORE)
    translated = t2j(copy.deepcopy(module))
    traces = []

    @jax.jit
    def traced(x, state):
        traces.append(None)
        return translated(x, state_dict=state, return_state_dict=True)

    for observes, quantizes in ((True, True), (False, True), (True, False), (False, False)):
        module.enable_observer(observes)
        module.enable_fake_quant(quantizes)
        got = traced(t2j(X), state_of(module))
        check(*got, module(X), module)
    assert len(traces) == 1
    graph = str(jax.make_jaxpr(lambda x, s: translated(x, state_dict=s))(t2j(X), state_of(module)))
    assert "cond" not in graph


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.quant, self.dequant = quantization.QuantStub(), quantization.DeQuantStub()
        self.conv, self.bn, self.relu = torch.nn.Conv2d(2, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x):
        x = self.relu(self.bn(self.conv(self.quant(x))))
        return self.dequant(self.linear(x.mean((2, 3))))


def prepared(config):
    torch.manual_seed(0)
    model = Net().train()
    quantization.fuse_modules_qat(model, [["conv", "bn", "relu"]], inplace=True)
    model.qconfig = config
    return quantization.prepare_qat(model)


CONFIGS = {
    "default": lambda: quantization.get_default_qat_qconfig("x86"),
    "not fused": lambda: quantization.QConfig(quantization.default_fake_quant, quantization.default_weight_fake_quant),
}


@pytest.mark.parametrize("config", CONFIGS)
def test_training_that_is_aware_of_quantization(config):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = prepared(CONFIGS[config]())
    translated = t2j(copy.deepcopy(model))
    params = {name: t2j(tensor.detach()) for name, tensor in model.named_parameters()}
    buffers = {name: t2j(tensor) for name, tensor in model.named_buffers()}

    def loss(params, buffers, x):
        result, new = translated(x, state_dict={**params, **buffers}, return_state_dict=True)
        return (result**2).mean(), {name: new[name] for name in buffers}

    step = jax.jit(jax.value_and_grad(loss, has_aux=True))
    for turn in range(4):
        if turn == 2:
            model.apply(quantization.disable_observer)
            on = {name: array * 0 for name, array in buffers.items() if name.endswith("observer_enabled")}
            buffers = {**buffers, **on}
        x = torch.randn(8, 2, 6, 6, generator=GENERATOR)
        model.zero_grad()
        wanted = (model(x) ** 2).mean()
        wanted.backward()
        (value, buffers), gradients = step(params, buffers, t2j(x))
        torch.testing.assert_close(j2t(value), wanted.detach(), rtol=1e-5, atol=1e-6)
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(j2t(gradients[name]), parameter.grad, rtol=1e-4, atol=1e-5)
        for name, buffer in model.named_buffers():
            torch.testing.assert_close(j2t(buffers[name]), buffer, rtol=1e-5, atol=1e-5, check_dtype=False)
    model.load_state_dict(j2t({**params, **buffers}))


def test_a_training_step_of_pytorch():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = prepared(CONFIGS["default"]())
    ours = copy.deepcopy(model)

    def train(model, optimizer, x):
        loss = (model(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    step = t2j(train, state=(ours, torch.optim.SGD(ours.parameters(), 0.1)))
    x = torch.randn(8, 2, 6, 6, generator=GENERATOR)
    optimizer, state = torch.optim.SGD(model.parameters(), 0.1), step.init(t2j(x))
    run = jax.jit(step)
    for _ in range(3):
        value, state = run(state, t2j(x))
        torch.testing.assert_close(j2t(value), train(model, optimizer, x).detach(), rtol=1e-4, atol=1e-5)
    step.load(state)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], tensor, rtol=1e-4, atol=1e-4)


def test_a_histogram_observer_observes_outside_of_jit():
    observer = quantization.HistogramObserver(bins=32)
    wanted = copy.deepcopy(observer)
    _, state = t2j(observer)(t2j(X), state_dict=state_of(observer), return_state_dict=True)
    wanted(X)
    np.testing.assert_allclose(state["histogram"], wanted.histogram)
    with pytest.raises(TracedValueError):
        jax.jit(lambda x: t2j(observer)(x))(t2j(X))


def test_a_histogram_between_traced_bounds():
    x = torch.tensor([0.5, 1.5, 2.0, -3.0, 7.0])
    histogram = jax.jit(t2j(lambda x, low, high: torch.histc(x, 4, low, high)))
    for low, high in ((0.0, 2.0), (-4.0, 8.0), (1.0, 1.0)):
        np.testing.assert_array_equal(histogram(t2j(x), low, high), torch.histc(x, 4, low, high))
