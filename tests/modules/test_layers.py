"""States whose layers are stacked."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
import torch
import torch.nn.functional as F
from jax.sharding import NamedSharding, PartitionSpec as P
from torch import nn

from tests.tracing.loops.programs import scans
from torch2jax import export, load_state, stack_layers, t2j, unstack_layers

COUNT = 8


class Block(nn.Module):
    def __init__(self, shared=None):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(4), nn.Linear(4, 6), shared or nn.Linear(6, 4)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen.add_(x.detach().mean())
        hidden = F.silu(self.up(self.norm(x))) + torch.tanh(self.up(x)) * 0.1
        return x + self.down(hidden) * torch.sigmoid(x) + F.softplus(x).cos()


class Net(nn.Module):
    def __init__(self, is_tied=False):
        super().__init__()
        shared = nn.Linear(6, 4) if is_tied else None
        self.enter, self.layers = nn.Linear(3, 4), nn.ModuleList(Block(shared) for _ in range(COUNT))

    def forward(self, x):
        x = self.enter(x)
        for layer in self.layers:
            x = layer(x)
        return x


X = jax.random.normal(jax.random.key(0), (5, 3))


def _net(**kwargs):
    torch.manual_seed(0)
    return Net(**kwargs)


def _close(got, want, tolerance=2e-5):
    assert got.keys() == want.keys()
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=tolerance, atol=tolerance)


def test_there_and_back():
    state = t2j(_net().state_dict())
    stacked = stack_layers(state)
    assert stacked["layers.*.up.weight"].shape == (COUNT, 6, 4)
    assert stacked["enter.weight"] is state["enter.weight"]
    assert len(stacked) == 2 + 7
    _close(unstack_layers(stacked), state, 0)


def test_of_tensors_files_and_shapes(tmp_path):
    module = _net()
    state = t2j(module.state_dict())
    _close(t2j(stack_layers(module.state_dict())), stack_layers(state), 0)
    torch.save(module.state_dict(), tmp_path / "net.pt")
    _close(stack_layers(load_state(tmp_path / "net.pt")), stack_layers(state), 0)
    shapes = stack_layers(jax.eval_shape(lambda: state))
    assert shapes["layers.*.up.weight"].shape == (COUNT, 6, 4)
    assert unstack_layers(shapes)["layers.3.up.weight"].shape == (6, 4)
    specs = stack_layers({name: P("model") if name.endswith("up.weight") else P() for name in state})
    assert specs["layers.*.up.weight"] == P(None, "model")
    assert specs["enter.weight"] == P()
    mesh = jax.make_mesh((2,), ("model",))
    array = jax.device_put(jnp.ones((6, 4)), NamedSharding(mesh, P("model")))
    assert stack_layers({"a.0.w": array, "a.1.w": array})["a.*.w"].sharding.spec == P(None, "model")


def test_only_what_all_layers_have_alike_is_stacked():
    state = {f"blocks.{i}.{name}": jnp.zeros(2) for i in range(4) for name in ("a", "b", "c")}
    state["blocks.2.b"] = jnp.zeros(3)
    del state["blocks.3.c"]
    state["only.1.a"] = state["one.0.a"] = jnp.zeros(2)
    stacked = stack_layers(state)
    assert {name for name in stacked if "*" in name} == {"blocks.*.a"}
    _close(unstack_layers(stacked), state, 0)


@pytest.mark.parametrize("is_tied", [False, True])
def test_layers_are_one_loop(is_tied):
    module = _net(is_tied=is_tied)
    f, unrolled = t2j(module, loops="rolled"), t2j(module, loops="unrolled")
    params, buffers = f.split()
    stacked = f.split(stack_layers(params | buffers))
    assert stacked[0].keys() == stack_layers(params).keys()

    def loss(f, params, buffers):
        result, state = f(X, state_dict=params | buffers, return_state_dict=True)
        return (result**2).sum(), state

    want, grads = jax.value_and_grad(lambda *x: loss(unrolled, *x), has_aux=True)(params, buffers)
    step = jax.value_and_grad(lambda *x: loss(f, *x), has_aux=True)
    got, stacked_grads = jax.jit(step)(*stacked)
    np.testing.assert_allclose(got[0], want[0], rtol=1e-4)
    _close(unstack_layers(stacked_grads), grads, 2e-3)
    assert got[1].keys() == (stacked[0] | stacked[1]).keys()
    _close(unstack_layers(got[1]), want[1], 1e-4)
    assert scans(lambda *x: loss(f, *x), *stacked) == [COUNT]
    assert set(scans(step, *stacked)) == {COUNT}
    eager = f(X, state_dict=stacked[0] | stacked[1])
    np.testing.assert_allclose(eager, unrolled(X, state_dict=params | buffers), rtol=1e-4)


class Experts(nn.Module):
    """Every second layer has two experts in place of what the others have."""

    def __init__(self):
        super().__init__()
        self.norm, self.router, self.experts = nn.LayerNorm(4), nn.Linear(4, 2), nn.ModuleList()
        self.experts.extend(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x):
        x = self.norm(x)
        shares = self.router(x).softmax(-1)
        return x + sum(shares[..., i : i + 1] * torch.tanh(expert(x)) for i, expert in enumerate(self.experts))


class Attention(nn.Module):
    """Every second layer sees a few neighbours only."""

    def __init__(self, window):
        super().__init__()
        self.window, self.norm, self.qkv = window, nn.LayerNorm(4), nn.Linear(4, 12)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        mask = torch.ones(len(x), len(x)).tril().bool()
        if self.window:
            mask = mask & torch.ones(len(x), len(x)).triu(-self.window).bool()
        y = F.scaled_dot_product_attention(q[None], k[None], v[None], mask)[0]
        return x + (y.tanh() if self.window else y.sin())  # else a layer is a turn: masks may differ


ALTERNATING = {
    "experts": lambda i: Experts() if i % 2 else Block(),
    "attention": lambda i: Attention(window=0 if i % 3 == 2 else 2),
}


@pytest.mark.parametrize(("kind", "period"), [("experts", 2), ("attention", 3)])
@pytest.mark.slow("compiles a loop of layers, and the layers without it")
def test_layers_that_alternate_are_one_loop(kind, period):
    torch.manual_seed(0)
    module = nn.Sequential(*map(ALTERNATING[kind], range(6 * period)))
    f, unrolled = t2j(module, loops="rolled"), t2j(module, loops="unrolled")
    state = t2j(module.state_dict())
    stacked, x = stack_layers(state), jax.random.normal(jax.random.key(1), (5, 4))
    names = {name for name in stacked if "norm" not in name}
    if kind == "experts":
        assert stacked["1::2.experts.0.weight"].shape == (6, 4, 4)
        assert stacked["0::2.up.weight"].shape == (6, 6, 4)
    assert all(name.split(".")[0] in ("*", "0::2", "1::2") for name in names)
    _close(unstack_layers(stacked), state, 0)

    def loss(f):
        return lambda params: (f(x, state_dict=params) ** 2).sum()

    assert scans(loss(f), stacked) == [6]
    want, grads = jax.jit(jax.value_and_grad(loss(unrolled)))(state)
    got, stacked_grads = jax.jit(jax.value_and_grad(loss(f)))(stacked)
    np.testing.assert_allclose(got, want, rtol=1e-4)
    _close(unstack_layers(stacked_grads), grads, 2e-3)
    copied = [step for step in jax.make_jaxpr(loss(f))(stacked).eqns if step.primitive.name == "slice"]
    assert not copied  # blocks of the array itself are scanned over


@pytest.mark.slow("compiles training steps of several states")
def test_layers_in_the_state_of_a_training_step():
    def step(net, optimizer, x):
        loss = net(x).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    net = _net()
    translated = t2j(step, state=(net, torch.optim.SGD(net.parameters(), 0.01)))
    state = translated.init(X)
    stacked = {**state, "net": stack_layers(state["net"])}
    (loss, after), (want, apart) = jax.jit(translated)(stacked, X), jax.jit(translated)(state, X)
    np.testing.assert_allclose(loss, want, rtol=1e-4)
    assert after["net"].keys() == stacked["net"].keys()
    _close(unstack_layers(after["net"]), apart["net"], 1e-4)
    assert scans(translated, stacked, X).count(COUNT) >= 2
    translated.load(after)
    np.testing.assert_allclose(net.layers[3].up.weight.detach(), after["net"]["layers.*.up.weight"][3])


def test_optax_and_orbax_take_a_state_of_layers(tmp_path):
    module = _net()
    f, unrolled = t2j(module, loops="rolled"), t2j(module, loops="unrolled")
    optimizer = optax.adamw(1e-2)

    def step(f, state, moments, buffers):
        grads = jax.grad(lambda state: (f(X, state_dict=state | buffers) ** 2).sum())(state)
        updates, moments = optimizer.update(grads, moments, state)
        return optax.apply_updates(state, updates), moments

    def trained(f, state, buffers):
        moments = optimizer.init(state)
        for _ in range(2):
            state, moments = jax.jit(lambda *x: step(f, *x, buffers))(state, moments)
        return state, moments

    params, buffers = f.split()
    want, _ = trained(unrolled, params, buffers)
    state, moments = trained(f, *f.split(stack_layers(params | buffers)))
    _close(unstack_layers(state), want, 1e-3)
    assert moments[0].mu["layers.*.up.weight"].shape == (COUNT, 6, 4)
    whole = {"params": state, "moments": moments}
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", whole)
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(tmp_path / "state", jax.eval_shape(lambda: whole))
    _close(restored["params"], state, 0)
    _close(restored["moments"][0].nu, moments[0].nu, 0)
    f.load(restored["params"], strict=False)
    np.testing.assert_array_equal(module.layers[3].up.weight.detach(), state["layers.*.up.weight"][3])


def test_a_state_of_layers_is_exported():
    f = t2j(_net(), loops="rolled")
    state = stack_layers(t2j(_net().state_dict()))
    exported = export(f, platforms=["cpu", "tpu"])(X, state_dict=jax.eval_shape(lambda: state))
    assert exported.mlir_module().count("stablehlo.while") == 1
    np.testing.assert_allclose(exported.call(X, state_dict=state), f(X, state_dict=state), rtol=1e-5)


def test_a_state_of_layers_is_loaded():
    module, other = _net(), Net()
    f = t2j(other, loops="rolled")
    f.load(stack_layers(t2j(module.state_dict())))
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name])


def test_refusals():
    f, state = t2j(_net(), loops="rolled"), stack_layers(t2j(_net().state_dict()))
    with pytest.raises(RuntimeError, match=r"'layers.8.up.weight'"):
        f(X, state_dict=state | {"layers.*.up.weight": jnp.zeros((9, 6, 4))})
    with pytest.raises(ValueError, match=r"two entries for 'layers\.0\.up\.weight'"):
        f(X, state_dict=state | {"layers.0.up.weight": jnp.zeros((6, 4))})
    with pytest.raises(TypeError, match="first dimension is the layers"):
        unstack_layers({"layers.*.up.weight": P("model")})
