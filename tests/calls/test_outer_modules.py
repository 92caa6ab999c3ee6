"""Modules from outside are, after a call, as they were before it, whatever the code did to them."""

import functools
import gc
import threading
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune, weight_norm

from torch2jax import t2j

X = torch.arange(6.0).reshape(2, 3) / 4


class Net(nn.Module):
    """Tensors in all places that a module has for them."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.linear, self.norm, self.parts = nn.Linear(3, 3), nn.BatchNorm1d(3), nn.ModuleDict({"a": nn.Tanh()})
            self.parametrized = parametrizations.weight_norm(nn.Linear(3, 3)).requires_grad_(False)
        self.register_buffer("mean", torch.ones(3))
        self.table, self.tables, self.cache = torch.ones(3), [torch.ones(3)], {"a": (torch.ones(3), [])}
        self.eval()

    def forward(self, x):
        x = self.parts["a"](self.norm(self.linear(self.parametrized(x))))
        return x * self.mean * self.table * self.tables[0] * self.cache["a"][0]


class Double(nn.Module):
    def forward(self, x):
        return 2 * x


class Adapted(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base, self.a = base, nn.Parameter(torch.full((3, 1), 0.5))

    def forward(self, x):
        return self.base(x) + x @ self.a @ self.a.T


class Tripled(Net):
    def forward(self, x):
        return super().forward(x) * 3


def look_into(module):
    """All that a module leads to, to be compared by identity, and what its tensors are."""
    found, pending, kept = {}, [("", module)], []
    while pending:
        path, value = pending.pop()
        kept.append(value)
        kind = type(value)
        found[path] = (id(value), kind)
        if isinstance(value, torch.Tensor):
            assert kind in (torch.Tensor, nn.Parameter), path
            found[f"{path} values"] = value.tolist(), value.dtype, value.requires_grad, value.data_ptr()
            pending.extend((f"{path}.{name}", x) for name, x in vars(value).items())
            pending.append((f"{path}.grad", value.grad))
        elif isinstance(value, nn.Module):
            pending.extend((f"{path}.{name}", x) for name, x in vars(value).items())
            found[f"{path} class"] = {name: id(x) for name, x in vars(kind).items()}
        elif isinstance(value, dict):
            pending.extend((f"{path}[{name!r}]", x) for name, x in value.items())
            found[f"{path} keys"] = list(value)
        elif isinstance(value, (list, tuple)):
            pending.extend((f"{path}[{i}]", x) for i, x in enumerate(value))
        elif isinstance(value, set):
            found[f"{path} items"] = sorted(value)
    return found, kept


def add_adapters(net, x):
    for module in [*net.modules()]:
        for name, part in [*module.named_children()]:
            if isinstance(part, nn.Linear) and name == "linear":
                setattr(module, name, Adapted(part))


def convert_raw(net, x):
    for module in net.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = nn.Parameter(parameter.data * 2, requires_grad=False)


def set_anew(net, name, value):
    delattr(net, name)
    setattr(net, name, value)


def prune_for_good(net, x):
    prune.l1_unstructured(net.linear, "weight", 2)
    prune.remove(net.linear, "weight")


def no_longer_parametrized(net, x):
    parametrize.remove_parametrizations(net.parametrized, "weight")
    parametrize.register_parametrization(net.parametrized, "weight", Double())


def train(net, x):
    net.train()
    net(x)


def step(net, x):
    net.linear(x).sum().backward()
    torch.optim.SGD(net.linear.parameters(), lr=0.1).step()


def back(*_):
    return None


def times_two(_module, _inputs, output):
    return output * 2


WAYS = {
    "to(device)": lambda net, x: net.to(x.device),
    "to(tensor)": lambda net, x: net.to(x),
    "to(dtype)": lambda net, x: net.to(torch.bfloat16).to(torch.float32),
    "cpu": lambda net, x: net.cpu(),
    "half": lambda net, x: net.half(),
    "double": lambda net, x: net.double().float(),
    "a part": lambda net, x: net.norm.to(x.device),
    "_apply": lambda net, x: net._apply(lambda t: t * 2),
    "apply": lambda net, x: net.apply(lambda m: isinstance(m, nn.Linear) and m.half().float()),
    "a buffer": lambda net, x: setattr(net, "mean", x.mean(0)),
    "an attribute": lambda net, x: setattr(net, "table", x.mean(0)),
    "a new attribute": lambda net, x: setattr(net, "new", (x, [x])),
    "deleted": lambda net, x: set_anew(net, "table", x[0]),
    "deleted parameter": lambda net, x: set_anew(net.linear, "weight", x[:1].repeat(3, 1)),
    "past setattr": lambda net, x: object.__setattr__(net, "table", x[0]),
    "its dictionary": lambda net, x: vars(net).update(table=x[0]),
    "its buffers": lambda net, x: net._buffers.update(mean=x[0]),
    "its parameters": convert_raw,
    "a list": lambda net, x: net.tables.__setitem__(0, x[0]),
    "a dictionary": lambda net, x: net.cache.update(a=(x[0], 3), b=x),
    "a list in a dictionary": lambda net, x: net.cache["a"][1].append(x),
    "data": lambda net, x: setattr(net.linear.weight, "data", net.linear.weight.data * 2),
    "written data": lambda net, x: net.linear.weight.data.mul_(2),
    "in place": lambda net, x: net.mean.add_(x[0]),
    "of a tensor": lambda net, x: setattr(net.linear.weight, "kept", x),
    "gradients": lambda net, x: net.linear(x).sum().backward(),
    "a gradient": lambda net, x: setattr(net.linear.weight, "grad", x[:1].repeat(3, 1)),
    "a step": step,
    "register_buffer": lambda net, x: net.register_buffer("mean", x.mean(0), persistent=False),
    "register_parameter": lambda net, x: net.register_parameter("bias", nn.Parameter(x[0])),
    "add_module": lambda net, x: net.parts.add_module("a", Double()),
    "other parts": lambda net, x: net.parts.update({"a": Double(), "b": nn.Sigmoid()}),
    "fewer parts": lambda net, x: (net.parts.clear(), net.parts.update({"a": Double()})),
    "adapters": add_adapters,
    "requires_grad_": lambda net, x: net.requires_grad_(False),
    "train": train,
    "another forward": lambda net, x: setattr(net.linear, "forward", lambda x: x * 3),
    "another class": lambda net, x: setattr(net, "__class__", Tripled),
    "load_state_dict": lambda net, x: net.load_state_dict({k: v * 2 for k, v in net.state_dict().items()}, assign=True),
    "a hook": lambda net, x: net.register_forward_hook(times_two),
    "hooks of parts": lambda net, x: net.linear.register_forward_pre_hook(lambda m, args: (args[0] * 2,)),
    "hooks on gradients": lambda net, x: net.linear.register_full_backward_hook(back),
    "hooks on states": lambda net, x: net.register_state_dict_post_hook(back),
    "a hook on a tensor": lambda net, x: net.linear.weight.register_hook(lambda g: g * 2),
    "parametrization": lambda net, x: parametrize.register_parametrization(net.linear, "weight", Double()),
    "one more": lambda net, x: parametrize.register_parametrization(net.parametrized, "weight", Double()),
    "of a bias": lambda net, x: parametrize.register_parametrization(net.parametrized, "bias", Double()),
    "no parametrization": no_longer_parametrized,
    "weight norm": lambda net, x: parametrizations.weight_norm(net.linear),
    "older weight norm": lambda net, x: weight_norm(net.linear),
    "prune": lambda net, x: prune.l1_unstructured(net.linear, "weight", 2),
    "prune for good": prune_for_good,
}


def loss(change, net, x):
    change(net, x)
    return net(x.to(net.linear.weight.dtype if hasattr(net.linear, "weight") else x.dtype)).float().square().sum()


def expected_of(change):
    x = X.clone().requires_grad_()
    value = loss(change, Net(), x)
    return value.detach(), torch.autograd.grad(value, x)[0]


@pytest.mark.filterwarnings(
    "ignore:translated code writes in place", "ignore:`torch.nn.utils.weight_norm`:FutureWarning"
)
@pytest.mark.parametrize("way", WAYS)
def test_a_module_is_as_it_was(way):
    net, change, tolerance = Net(), WAYS[way], 2e-2 if way == "half" else 1e-4
    before, expected = look_into(net), net(X)
    value, gradient = expected_of(change)
    translated = t2j(functools.partial(loss, change, net))
    for run in (jax.value_and_grad(translated), jax.jit(jax.value_and_grad(translated))):
        found = run(t2j(X))
        np.testing.assert_allclose(found[0], value, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(found[1], gradient, rtol=tolerance, atol=tolerance)
        assert look_into(net)[0] == before[0]
    np.testing.assert_array_equal(net(X).detach(), expected.detach())


class Held:
    def __init__(self, net, change):
        self.net, self.change = net, change

    def method(self, x):
        return loss(self.change, self.net, x)

    __call__ = method


def named_globally(net, change):
    global _net

    def function(x):
        return loss(change, _net, x)

    _net = net
    return function


def in_a_part(net, change):
    around: Any = nn.Sequential(net)
    return lambda x: loss(lambda around, x: change(around[0], x), Around(around, net), x)


class Around:
    """A module around a network, which has the network's parts."""

    def __init__(self, module: nn.Sequential, net: Net):
        self.module, self.linear = module, net.linear

    def __getitem__(self, i):
        return self.module[i]

    def __call__(self, x):
        return self.module(x)


HOLDERS = {
    "closure": lambda net, change: lambda x: loss(change, net, x),
    "function": lambda net, change: (lambda inner: lambda x: inner(x))(lambda x: loss(change, net, x)),
    "global": named_globally,
    "default": lambda net, change: lambda x, net=net: loss(change, net, x),
    "list": lambda net, change: (lambda nets: lambda x: loss(change, nets[0], x))([net]),
    "dictionary": lambda net, change: (lambda nets: lambda x: loss(change, nets["a"][0], x))({"a": (net,)}),
    "partial": lambda net, change: functools.partial(loss, change, net),
    "method": lambda net, change: Held(net, change).method,
    "object": Held,
    "part": in_a_part,
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_wherever_the_module_is(holder):
    for way in ("to(device)", "_apply", "a hook", "its buffers", "a list in a dictionary", "no parametrization"):
        net = Net()
        before, (value, _) = look_into(net), expected_of(WAYS[way])
        for transformed in (lambda f: f, jax.jit):
            function = transformed(t2j(HOLDERS[holder](net, WAYS[way])))
            np.testing.assert_allclose(function(t2j(X)), value, rtol=1e-5)
            assert look_into(net)[0] == before[0], way


def test_modules_that_are_arguments():
    net = Net()
    before, (value, _) = look_into(net), expected_of(WAYS["_apply"])
    for _ in range(2):
        np.testing.assert_allclose(t2j(loss)(WAYS["_apply"], net, t2j(X)), value, rtol=1e-5)
        assert look_into(net)[0] == before[0]


def test_batches_and_derivatives_within():
    def function(x):
        net._apply(lambda t: t * 2)
        return torch.func.vmap(torch.func.grad(lambda x: net(x[None]).sum()))(x)

    net = Net()
    expected, net = function(X).detach(), Net()
    before = look_into(net)
    np.testing.assert_allclose(jax.vmap(t2j(function))(t2j(X)[None])[0], expected, rtol=1e-4, atol=1e-6)
    assert look_into(net)[0] == before[0]


@pytest.mark.parametrize("jit", [False, True])
def test_code_that_runs_several_times(jit):
    def function(x):
        net.runs += 1
        net._apply(lambda t: t * 2)
        x = x.clone().requires_grad_()
        net.register_buffer("total", net(x).sum())
        net.total.backward()
        return (x.grad if net.total > 0 else x.grad * net.total).detach()

    def fresh() -> Any:
        made: Any = Net()
        made.runs = 0
        return made

    net = fresh()
    expected, net = function(X).detach(), fresh()
    before, translated = look_into(net), t2j(function)
    for _ in range(2):
        np.testing.assert_allclose((jax.jit(translated) if jit else translated)(t2j(X)), expected, rtol=1e-4)
        assert look_into(net)[0] == before[0]


@pytest.mark.filterwarnings("ignore:translated code writes in place")
@pytest.mark.parametrize("way", ["to(dtype)", "a hook", "parametrization", "a list", "train"])
def test_also_after_an_error(way):
    def failing(x):
        loss(WAYS[way], net, x)
        raise ValueError("as it says")

    net = Net()
    before = look_into(net)
    for transformed in (lambda f: f, jax.jit, jax.grad):
        with pytest.raises(ValueError, match="as it says"):
            transformed(t2j(failing))(t2j(X))
        assert look_into(net)[0] == before[0]


def test_hooks_from_outside_that_the_call_removes():
    net, log = Net(), []
    handle = net.linear.register_forward_hook(lambda *_: log.append(1))
    before = look_into(net)

    def function(x):
        handle.remove()
        added = net.linear.register_forward_hook(times_two)
        added.remove()
        return net(x)

    for run in (t2j(function), jax.jit(t2j(function))):
        np.testing.assert_allclose(run(t2j(X)), Net()(X).detach(), rtol=1e-5)
        assert look_into(net)[0] == before[0]
    assert not log
    net(X)
    assert log == [1]


def test_hooks_of_all_modules_are_gone():
    linear = nn.Linear(3, 3)

    def function(x):
        nn.modules.module.register_module_forward_hook(times_two)
        return linear(x)

    expected = 2 * linear(X).detach()
    for _ in range(2):
        np.testing.assert_allclose(t2j(function)(t2j(X)), expected, rtol=1e-5)
    np.testing.assert_allclose(2 * linear(X).detach(), expected)


OTHERS = {
    "a rate": lambda optimizer, weight, x: optimizer.param_groups[0].update(lr=x.mean()),
    "a group": lambda optimizer, weight, x: optimizer.add_param_group({"params": [nn.Parameter(x[0])]}),
    "a state": lambda optimizer, weight, x: optimizer.state[weight].update(exp_avg=x[0], more=[x]),
    "no state": lambda optimizer, weight, x: optimizer.state.clear(),
    "zero_grad": lambda optimizer, weight, x: optimizer.zero_grad(),
    "data": lambda optimizer, weight, x: setattr(weight, "data", x[0]),
    "a gradient": lambda optimizer, weight, x: setattr(weight, "grad", x[0]),
    "backward": lambda optimizer, weight, x: (weight * x).sum().backward(),
    "requires_grad_": lambda optimizer, weight, x: weight.requires_grad_(False),
    "an attribute": lambda optimizer, weight, x: setattr(weight, "kept", [x]),
    "a hook": lambda optimizer, weight, x: weight.register_hook(lambda g: g * 2),
}


@pytest.mark.parametrize("way", OTHERS)
def test_optimizers_and_tensors_are_as_they_were(way):
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([weight], lr=0.1)
    weight.square().sum().backward()
    optimizer.step()

    def function(x):
        OTHERS[way](optimizer, weight, x)
        return x * weight

    held = nn.Module()
    vars(held).update(optimizer=vars(optimizer), state=dict(optimizer.state), weight=weight)
    before = look_into(held)
    for run in (t2j(function), jax.jit(t2j(function)), jax.grad(lambda x: t2j(function)(x).sum())):
        run(t2j(X))
        assert look_into(held)[0] == before[0]


class Rotary(nn.Module):
    """A table that grows, and its length, which says when."""

    table: torch.Tensor

    def __init__(self):
        super().__init__()
        self.grow(1)

    def grow(self, length):
        self.length = length
        self.register_buffer("table", torch.arange(length).cos(), persistent=False)

    def forward(self, x):
        if len(x) > self.length:
            self.grow(len(x))
        return x * self.table[: len(x), None]


def test_flags_go_with_the_tensors_that_they_tell_of():
    rotary = Rotary()
    before = look_into(rotary)
    for run in (t2j(lambda x: rotary(x)), jax.jit(t2j(lambda x: rotary(x)))):
        for _ in range(2):
            np.testing.assert_allclose(run(t2j(X)), Rotary()(X), rtol=1e-6)
            assert look_into(rotary)[0] == before[0]


class Initialized(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.is_ready = nn.Parameter(torch.ones(3)), False

    def forward(self, x):
        if not self.is_ready:
            self.scale.data.copy_(1 / (1 + x.std(0)))
            self.is_ready = True
        return x * self.scale


@pytest.mark.filterwarnings("ignore:translated code writes in place")
def test_flags_go_with_writes_in_place():
    module, expected = Initialized(), Initialized()(X).detach()
    for _ in range(2):
        np.testing.assert_allclose(t2j(lambda x: module(x))(t2j(X)), expected, rtol=1e-6)
        assert module.is_ready is False


def test_a_count_alone_lasts():
    class Counted(nn.Linear):
        calls, log = 0, ()

        def forward(self, x):
            self.calls += 1
            self.log = (*self.log, x.shape)
            return super().forward(x)

    layer = Counted(3, 3)
    for _ in range(2):
        t2j(lambda x: layer(x))(t2j(X))
    assert layer.calls == 2
    assert len(layer.log) == 2
    jax.jit(t2j(lambda x: layer(x)))(t2j(X))
    assert layer.calls == 3


def in_threads(*functions):
    errors = []

    def run(function):
        try:
            function()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=[function]) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_threads_convert_one_module_to_what_it_is():
    net = Net()
    before, expected = look_into(net), expected_of(WAYS["to(device)"])[0]
    together = threading.Barrier(3)

    def translated():
        for _ in range(5):
            together.wait(60)
            np.testing.assert_allclose(t2j(lambda x: loss(WAYS["to(device)"], net, x))(t2j(X)), expected, rtol=1e-5)

    def pytorch():
        for _ in range(5):
            together.wait(60)
            np.testing.assert_allclose(loss(WAYS["to(device)"], net, X).detach(), expected, rtol=1e-5)

    in_threads(translated, translated, pytorch)
    assert look_into(net)[0] == before[0]


@pytest.mark.parametrize("first_ends", [True, False])
def test_calls_of_two_threads_that_write_to_one_module(first_ends):
    net, has_written, may_end = Net(), [threading.Event(), threading.Event()], [threading.Event(), threading.Event()]
    before = look_into(net)

    def call(which):
        def function(x):
            net.new = x
            net.table = x[0]
            has_written[which].set()
            assert may_end[which].wait(60)
            return x

        t2j(function)(t2j(X))
        may_end[1 - which].set()

    def second():
        assert has_written[0].wait(60)
        call(1)

    def end():
        assert has_written[1].wait(60)
        may_end[not first_ends].set()

    in_threads(lambda: call(0), second, end)
    assert look_into(net)[0] == before[0]


class Running(nn.Module):
    """A buffer that is set anew, what is made once, a parameter, and a number."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.weight = nn.Parameter(torch.ones(3))
        self.cache, self.calls = None, 0

    def forward(self, x):
        self.calls += 1
        self.mean = self.mean * 0.9 + x.mean(0) * 0.1
        if self.cache is None:
            self.cache = torch.arange(3.0)
        if not hasattr(self, "scale"):
            self.scale = x.sum()
        self.weight = nn.Parameter(self.weight.detach() * 2)
        self.bias = nn.Parameter(x[0])
        return (x - self.mean) * self.weight + self.cache * self.scale + self.bias


@pytest.mark.parametrize("jit", [False, True])
def test_what_forward_sets_is_gone(jit):
    layer = Running()
    buffer, weight, expected = layer.mean, layer.weight, Running()(X).detach()

    def call(x):
        return layer(x)

    translated = jax.jit(t2j(call)) if jit else t2j(call)
    for _ in range(2):
        np.testing.assert_allclose(translated(t2j(X)), expected, rtol=1e-6)
    assert layer.mean is buffer
    assert layer.weight is weight
    assert layer.cache is None
    assert not hasattr(layer, "scale")
    assert list(layer._parameters) == ["weight"]
    assert layer.calls == 0
    np.testing.assert_allclose(layer(X).detach(), expected, rtol=1e-6)


def test_what_forward_sets_is_gone_after_an_error():
    class Failing(nn.Module):
        def forward(self, x):
            self.seen = x * 2
            raise ValueError("as it says")

    layer = Failing()
    with pytest.raises(ValueError, match="as it says"):
        t2j(lambda x: layer(x))(t2j(X))
    assert not hasattr(layer, "seen")


def test_a_run_that_starts_anew_finds_what_was_there():
    layer = Running()

    def gradient(x):
        x = x.clone().requires_grad_()
        layer(x).sum().backward()  # which starts the run anew, with a tape
        return x.grad

    def expected() -> Any:
        x = X.clone().requires_grad_()
        Running()(x).sum().backward()
        return x.grad

    np.testing.assert_allclose(t2j(gradient)(t2j(X)), expected(), rtol=1e-6)


def test_modules_that_are_made_in_the_call_keep_what_is_set():
    def function(x):
        layer = nn.Linear(3, 2, bias=False)
        layer.weight = nn.Parameter(x[:2] + 1)
        layer.extra = x.sum()
        return layer(x) * layer.extra

    np.testing.assert_allclose(t2j(function)(t2j(X), rng=jax.random.key(0)), (X @ (X[:2] + 1).T) * X.sum())


def test_nothing_is_kept_of_modules():
    references = []

    def function(x):
        layer = Running()
        references.append(weakref.ref(layer))
        return layer(x)

    t2j(function)(jnp.asarray(X.numpy()))
    gc.collect()
    assert references[0]() is None
