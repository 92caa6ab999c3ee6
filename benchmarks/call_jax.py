"""What a call of a JAX function costs in PyTorch, against PyTorch's own operators and JAX on its own.

    python -m benchmarks.call_jax [--rounds 200]

The function is ``sum(sin(x) * y ** 2)`` without the sum. The ways take turns, and a time is the best of its rounds.
"""

import argparse
import math
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import torch

from torch2jax import j2t, t2j


def in_jax(x, y):
    return jnp.sin(x) * y**2


def in_torch(x, y):
    return torch.sin(x) * y**2


def forward(size: int) -> dict[str, Callable]:
    x, y = torch.randn(size), torch.randn(size)
    compiled, through, arrays = jax.jit(in_jax), j2t(in_jax), (t2j(x), t2j(y))
    return {
        "PyTorch": lambda: in_torch(x, y),
        "JAX": lambda: compiled(*arrays).block_until_ready(),
        "j2t": lambda: through(x, y),
    }


def gradients(size: int) -> dict[str, Callable]:
    x, y = torch.randn(size, requires_grad=True), torch.randn(size, requires_grad=True)
    ones, through, arrays = torch.ones(size), j2t(in_jax), (t2j(x), t2j(y), jnp.ones(size))
    compiled = jax.jit(lambda x, y, cotangent: jax.vjp(in_jax, x, y)[1](cotangent))
    return {
        "PyTorch": lambda: torch.autograd.grad(in_torch(x, y), (x, y), ones),
        "JAX": lambda: jax.block_until_ready(compiled(*arrays)),
        "j2t": lambda: torch.autograd.grad(through(x, y), (x, y), ones),
    }


def seconds_per_call(calls: list[Callable], rounds: int, repeats: int) -> list[float]:
    best = [math.inf] * len(calls)
    for _ in range(rounds):
        for place, call in enumerate(calls):
            start = time.perf_counter()
            for _ in range(repeats):
                call()
            best[place] = min(best[place], (time.perf_counter() - start) / repeats)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| elements | pass | PyTorch (µs) | JAX (µs) | j2t (µs) |")
    print("|---|---|---|---|---|")
    for size, repeats in ((16, 50), (1 << 20, 1)):
        for name, make in (("forward", forward), ("forward and backward", gradients)):
            times = seconds_per_call(list(make(size).values()), options.rounds, repeats)
            print(f"| {size} | {name} | " + " | ".join(f"{1e6 * each:.1f}" for each in times) + " |", flush=True)


if __name__ == "__main__":
    main()
