"""Training with optax, against PyTorch where nothing is random."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from torch import nn

from torch2jax import t2j

pytest.importorskip("torchvision")

from torchvision.models.resnet import BasicBlock


def batches(steps: int, shape: tuple[int, ...], classes: int):
    generator = np.random.default_rng(0)
    for _ in range(steps):
        labels = generator.integers(0, classes, shape[0])
        yield generator.standard_normal(shape) + 4 * labels.reshape(-1, *[1] * (len(shape) - 1)) / classes, labels


def split(model):
    return t2j(model).split()


def cross_entropy(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def trainer(model, optimizer):
    translated = t2j(model)

    @jax.jit
    def step(params, buffers, opt_state, x, y, rng):
        def loss_fn(params):
            logits, state = translated(x, state_dict={**buffers, **params}, rng=rng, return_state_dict=True)
            return cross_entropy(logits, y), {name: state[name] for name in buffers}

        (loss, buffers), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
        updates, opt_state = optimizer.update(grads, opt_state)
        return optax.apply_updates(params, updates), buffers, opt_state, loss

    return step


def small_resnet():
    shortcut = nn.Sequential(nn.Conv2d(16, 32, 1, 2, bias=False), nn.BatchNorm2d(32))
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        BasicBlock(16, 16),
        BasicBlock(16, 32, 2, shortcut),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


def test_a_resnet_follows_pytorch_sgd():
    # In float64: batch norms over a few values amplify rounding in PyTorch as here.
    torch.manual_seed(0)
    model = small_resnet().double().train()
    reference = copy.deepcopy(model)
    sgd = torch.optim.SGD(reference.parameters(), lr=1e-3)
    optimizer = optax.sgd(1e-3)
    actual, expected = [], []
    with jax.enable_x64(True):
        params, buffers = split(model)
        step, opt_state = trainer(model, optimizer), optimizer.init(params)
        for x, y in batches(20, (8, 3, 8, 8), 10):
            params, buffers, opt_state, loss = step(params, buffers, opt_state, jnp.asarray(x), jnp.asarray(y), None)
            actual.append(float(loss))
            sgd.zero_grad()
            want = nn.functional.cross_entropy(reference(torch.from_numpy(x)), torch.from_numpy(y))
            want.backward()
            sgd.step()
            expected.append(want.item())
        assert buffers["1.num_batches_tracked"] == 20
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
    assert np.mean(actual[-5:]) < np.mean(actual[:5])


def test_a_model_with_dropout_learns():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 4)).train()
    params, buffers = split(model)
    optimizer = optax.adam(1e-2)
    step, opt_state = trainer(model, optimizer), optimizer.init(params)
    losses = []
    for i, (x, y) in enumerate(batches(100, (64, 8), 4)):
        key = jax.random.key(i)
        params, buffers, opt_state, loss = step(
            params, buffers, opt_state, jnp.asarray(x, jnp.float32), jnp.asarray(y), key
        )
        losses.append(float(loss))
    assert np.mean(losses[-10:]) < 0.8 * np.mean(losses[:10])
