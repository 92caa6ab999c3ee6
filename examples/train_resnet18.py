"""Trains torchvision's resnet18 in JAX with optax, on images that it makes up: bars at one of four angles.

Batch norm's running statistics come back from each step as new state, and the trained weights go back into the PyTorch
model at the end, which then tells the angles as well.

    python examples/train_resnet18.py --steps 30
"""

import argparse
import time

import jax
import jax.numpy as jnp
import optax
import torch
from torchvision.models import resnet18

from torch2jax import j2t, t2j

ANGLES = 4
SIZE = 64


def batch(key, count):
    """Noisy images of a bar each, and the numbers of the bars' angles."""
    of_labels, of_offsets, of_noise = jax.random.split(key, 3)
    labels = jax.random.randint(of_labels, (count,), 0, ANGLES)
    angles = (labels * jnp.pi / ANGLES)[:, None, None]
    offsets = jax.random.uniform(of_offsets, (count, 1, 1), minval=-0.4, maxval=0.4)
    y, x = jnp.mgrid[-1 : 1 : SIZE * 1j, -1 : 1 : SIZE * 1j]
    bars = jnp.abs(x * jnp.sin(angles) - y * jnp.cos(angles) - offsets) < 0.15
    images = jnp.broadcast_to(bars[:, None], (count, 3, SIZE, SIZE)).astype(jnp.float32)
    return images + 0.3 * jax.random.normal(of_noise, images.shape), labels


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch", type=int, default=16)
    options = parser.parse_args()

    torch.manual_seed(0)
    model = resnet18(num_classes=ANGLES).train()
    jax_model = t2j(model)
    params, buffers = jax_model.split()
    optimizer = optax.adam(1e-3)
    opt_state = optimizer.init(params)

    def loss(params, buffers, images, labels):
        logits, state = jax_model(images, state_dict=params | buffers, return_state_dict=True)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), state

    @jax.jit(donate_argnums=(0, 1, 2))
    def step(params, buffers, opt_state, key):
        images, labels = batch(key, options.batch)
        (value, state), grads = jax.value_and_grad(loss, has_aux=True)(params, buffers, images, labels)
        _, buffers = jax_model.split(state)
        updates, opt_state = optimizer.update(grads, opt_state)
        return optax.apply_updates(params, updates), buffers, opt_state, value

    for i, key in enumerate(jax.random.split(jax.random.key(0), options.steps)):
        started = time.perf_counter()
        params, buffers, opt_state, value = step(params, buffers, opt_state, key)
        print(f"step {i:3}: loss {float(value):.3f} in {time.perf_counter() - started:.2f} s")

    jax_model.load(params, buffers)
    images, labels = j2t(batch(jax.random.key(1), 64))
    with torch.no_grad():
        accuracy = (model.eval()(images.clone()).argmax(-1) == labels).float().mean()
    print(f"accuracy of the PyTorch model with the trained weights: {accuracy:.0%}")


if __name__ == "__main__":
    main()
