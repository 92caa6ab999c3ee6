"""Forces of atoms on those near them, as many as data decide: ``python -m benchmarks.neighbours``, and by hand.

By hand it is what jax-md does: places of pairs by ``jnp.nonzero(size=)``, of which those too many go nowhere. The
translated function says the same bound. PyTorch runs the same code.
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np
import torch

from torch2jax import t2j


def forces(x):
    distance = (x[:, None] - x).square().sum(-1)
    i, j = torch.where((distance < 1.0) & ~torch.eye(len(x), dtype=torch.bool))
    pull = x[j] - x[i]
    return torch.zeros_like(x).index_add(0, i, pull * torch.exp(-pull.square().sum(1, keepdim=True)))


def by_hand(x, bound: int):
    distance = jnp.square(x[:, None] - x).sum(-1)
    count = len(x)
    i, j = jnp.nonzero((distance < 1.0) & ~jnp.eye(count, dtype=bool), size=bound, fill_value=count)
    pull = x[jnp.minimum(j, count - 1)] - x[jnp.minimum(i, count - 1)]
    return jnp.zeros_like(x).at[i].add(pull * jnp.exp(-jnp.square(pull).sum(1, keepdims=True)), mode="drop")


def _seconds(runs: dict, rounds: int) -> dict[str, float]:
    """The least of several runs of each, which take turns, after one to warm up."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds + 1):
        for name, run in runs.items():
            begin = time.perf_counter()
            jax.block_until_ready(run())
            found[name].append(time.perf_counter() - begin)
    return {name: min(each[1:]) for name, each in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--atoms", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args()
    x = torch.rand(options.atoms, 3, generator=torch.Generator().manual_seed(0)) * options.atoms ** (1 / 3)
    bound = 8 * options.atoms
    array = t2j(x)
    translated = jax.jit(t2j(forces, bounds={"neighbours.py:forces": bound}))
    hand = jax.jit(lambda x: by_hand(x, bound))
    np.testing.assert_allclose(translated(array), forces(x).numpy(), 1e-4, 1e-4)
    np.testing.assert_allclose(hand(array), forces(x).numpy(), 1e-4, 1e-4)
    runs = {"PyTorch": lambda: forces(x), "JAX by hand": lambda: hand(array), "t2j": lambda: translated(array)}
    seconds = _seconds(runs, options.rounds)
    for name, each in seconds.items():
        print(f"{name}: {1e3 * each:.2f} ms, {each / seconds['JAX by hand']:.2f} of JAX by hand")


if __name__ == "__main__":
    main()
