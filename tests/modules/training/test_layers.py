"""Training steps of states whose layers are stacked, with what optimizers keep for them: one loop each way."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from tests.tracing.loops.programs import scans
from torch2jax import t2j, unstack_layers

COUNT, WIDTH = 8, 72  # wide enough that arrays of their own would keep iterations apart
X = jax.random.normal(jax.random.key(0), (4, 3))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + torch.tanh(self.up(self.norm(x))) * torch.sigmoid(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.layers = nn.Linear(3, WIDTH), nn.ModuleList(Block() for _ in range(COUNT))

    def forward(self, x):
        x = self.enter(x)
        for layer in self.layers:
            x = layer(x)
        return x


def step(net, optimizer, x):
    optimizer.zero_grad()
    loss = net(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def _groups(net):
    matrices = [p for p in net.parameters() if p.ndim > 1]
    return [{"params": matrices, "weight_decay": 0.1}, {"params": [p for p in net.parameters() if p.ndim == 1]}]


OPTIMIZERS = {
    "adamw": (lambda net: torch.optim.AdamW(net.parameters(), 0.01), "state.4::4.exp_avg", 3),
    "groups": (lambda net: torch.optim.Adam(_groups(net), 0.01, amsgrad=True), "state.1::1.max_exp_avg_sq", 3),
    "momentum": (lambda net: torch.optim.SGD(net.parameters(), 0.01, 0.9), "state.4::4.momentum_buffer", 3),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.slow("compiles a training step twice")
def test_moments_are_stacked(kind):
    make, name, loops = OPTIMIZERS[kind]
    torch.manual_seed(0)
    net = Net()
    optimizer = make(net)
    translated = t2j(step, state=(net, optimizer), loops="rolled")
    _, state = translated(translated.init(X), X)
    stacked = translated.stack_layers(state)
    assert stacked["net"]["layers.*.up.weight"].shape == stacked["optimizer"][name].shape == (COUNT, WIDTH, WIDTH)
    lengths = scans(translated, stacked, X)
    assert lengths.count(COUNT) == loops
    run = jax.jit(translated)
    for _ in range(2):
        loss, stacked = run(stacked, X)
    wanted = [step(net, optimizer, torch.tensor(np.asarray(X))) for _ in range(3)]
    np.testing.assert_allclose(loss, wanted[-1], rtol=1e-4)
    apart = unstack_layers(stacked["net"])
    for each, tensor in net.state_dict().items():
        np.testing.assert_allclose(apart[each], tensor, rtol=1e-3, atol=1e-4)

    torch.manual_seed(0)
    other = Net()
    moments = make(other)
    loaded = t2j(step, state=(other, moments), loops="rolled")
    loaded.init(X)
    loaded.load(stacked)
    mine, others = (x.state_dict()["state"] for x in (optimizer, moments))
    assert mine.keys() == others.keys()
    for place, kept in mine.items():
        for each, value in kept.items():
            np.testing.assert_allclose(others[place][each], value, rtol=1e-3, atol=1e-5)


def test_what_has_no_row_stays():
    net = nn.Sequential(*(nn.Linear(3, 3) for _ in range(4)))
    mixed = [net[2].weight, *(p for p in net.parameters() if p is not net[2].weight)]
    translated = t2j(step, state=(net, torch.optim.Adam(mixed)))
    _, state = translated(translated.init(jnp.ones((2, 3))), jnp.ones((2, 3)))
    stacked = translated.stack_layers(state)
    assert stacked["net"]["*.weight"].shape == (4, 3, 3)
    assert {name for name in stacked["optimizer"] if "::" in name} == set()
    got, want = translated(stacked, jnp.ones((2, 3))), translated(state, jnp.ones((2, 3)))
    np.testing.assert_allclose(got[0], want[0], rtol=1e-6)
    assert got[1]["optimizer"].keys() == stacked["optimizer"].keys()
