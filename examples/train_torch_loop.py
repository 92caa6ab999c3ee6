"""A training loop of PyTorch, as one would write it there, jitted by JAX: optimizer, scheduler, clipping and average.

python examples/train_torch_loop.py [--steps 200]
"""

import argparse
import time

import jax
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from torch2jax import t2j


def train_step(model, optimizer, scheduler, average, x, y):
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    average.update_parameters(model)
    return loss


def batch(key):
    """Points of a spiral with two arms, and the arm of each."""
    radius, arm, noise = (jax.random.fold_in(key, i) for i in range(3))
    r = jax.random.uniform(radius, (64,), minval=0.1)
    label = jax.random.bernoulli(arm, 0.5, (64,)).astype(int)
    angle = 6 * r + jax.numpy.pi * label
    points = jax.numpy.stack([r * jax.numpy.cos(angle), r * jax.numpy.sin(angle)], axis=1)
    return points + 0.02 * jax.random.normal(noise, points.shape), label


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(2, 64), torch.nn.BatchNorm1d(64), torch.nn.GELU(), torch.nn.Linear(64, 64), torch.nn.GELU(),
        torch.nn.Linear(64, 2),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.02, total_steps=steps + 1)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.95), use_buffers=True)

    step = t2j(train_step, state=(model, optimizer, scheduler, average))
    state = step.init(*batch(jax.random.key(0)))
    jitted = jax.jit(step, donate_argnums=0)
    for i in range(steps):
        loss, state = jitted(state, *batch(jax.random.key(i)))
        if i == 1:  # the first step makes what later ones find: two programs are compiled
            loss.block_until_ready()
            start = time.perf_counter()
        if i % 50 == 0 or i == steps - 1:
            rate = state["optimizer"]["param_groups.0.lr"]
            print(f"step {i}: loss {loss:.4f}, next learning rate {rate:.5f}")
    print(f"{(time.perf_counter() - start) / max(steps - 2, 1) * 1e3:.2f} ms a step")

    step.load(state)  # the modules, the optimizer and the scheduler are where training has left them
    x, y = batch(jax.random.key(steps))
    accuracy = (t2j(average.eval())(x).argmax(-1) == y).mean()
    print(f"accuracy of the averaged model: {accuracy:.3f}")


if __name__ == "__main__":
    main()
