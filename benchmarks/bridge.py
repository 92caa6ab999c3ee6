"""What calling PyTorch from a jitted JAX program costs.

``python -m benchmarks.bridge [--rounds 25] [--cpu-time]`` prints the time of the first call, and of calls at 16, 1M and
16M elements, of `torch2jax`, of ``jax.pure_callback`` around the same function, and of PyTorch on its own.
"""

import argparse
import time
import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import torch

from torch2jax import torch2jax

SIZES = {"16": 16, "1M": 1 << 20, "16M": 1 << 24}


def add(a, b):
    return a + b


def by_callback(a, b):
    def on_host(a, b):
        return add(torch.from_numpy(np.asarray(a)), torch.from_numpy(np.asarray(b))).numpy()

    return jax.pure_callback(on_host, jax.ShapeDtypeStruct(a.shape, a.dtype), a, b)


def first_calls() -> list[tuple[str, float]]:
    """Seconds from wrapping to the first result: in a fresh process, and again for another function."""
    a = jnp.ones(16)
    jax.jit(jnp.add)(a, a).block_until_ready()
    shapes = {"with output_shapes": {"output_shapes": (16,)}, "with shapes inferred": {}}
    rows = []
    for label, options in shapes.items():
        for which in ("first", "second"):
            start = time.perf_counter()
            torch2jax(lambda a, b: a + b, a, a, **options)(a, a).block_until_ready()
            rows.append((f"{label}, {which} function", time.perf_counter() - start))
    return rows


def best_of(rounds: int, clock: Callable[[], float], **calls: Callable[[], object]) -> dict[str, float]:
    """Seconds of each call: the best of rounds in which they take turns."""
    best = dict.fromkeys(calls, float("inf"))
    count = {}
    for name, call in calls.items():
        call()
        start = time.perf_counter()
        call()
        count[name] = max(1, int(0.02 / (time.perf_counter() - start)))
    for _ in range(rounds):
        for name, call in calls.items():
            start = clock()
            for _ in range(count[name]):
                call()
            best[name] = min(best[name], (clock() - start) / count[name])
    return best


def calls(size: int, rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    a, b = jnp.arange(size, dtype=jnp.float32), jnp.ones(size)
    tensors = torch.arange(size, dtype=torch.float32), torch.ones(size)
    raw = torch2jax(add, a, b)
    square = jnp.ones((64, 64))  # its product makes XLA run the program on a thread of its own
    on_pool = jax.jit(lambda a, b, square: raw(a, b) + (square @ square)[0, 0])
    off_pool = jax.jit(lambda a, b, square: a + b + (square @ square)[0, 0])
    jitted, callback, native = jax.jit(raw), jax.jit(by_callback), jax.jit(jnp.add)

    def plain():
        add(*tensors)

    def plain_and_copy():
        add(*tensors).clone()

    return best_of(
        rounds,
        clock,
        plain=plain,
        plain_and_copy=plain_and_copy,
        raw=lambda: raw(a, b).block_until_ready(),
        jitted=lambda: jitted(a, b).block_until_ready(),
        callback=lambda: callback(a, b).block_until_ready(),
        native=lambda: native(a, b).block_until_ready(),
        on_pool=lambda: on_pool(a, b, square).block_until_ready(),
        off_pool=lambda: off_pool(a, b, square).block_until_ready(),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--cpu-time", action="store_true", help="measure processor time, on a busy machine")
    options = parser.parse_args()
    clock = time.process_time if options.cpu_time else time.perf_counter
    warnings.simplefilter("ignore")

    print("| first call | seconds |\n|---|---|")
    for label, seconds in first_calls():
        print(f"| {label} | {seconds:.3f} |")
    table = {label: calls(size, options.rounds, clock) for label, size in SIZES.items()}
    print("\n| microseconds a call | " + " | ".join(SIZES) + " |\n" + "|---" * (len(SIZES) + 1) + "|")
    titles = {
        "plain": "PyTorch on its own",
        "plain_and_copy": "PyTorch, and a copy of the result to new memory, as JAX's results are",
        "raw": "`torch2jax`, called directly",
        "jitted": "`torch2jax` in `jax.jit`",
        "callback": "`jax.pure_callback` in `jax.jit`",
        "native": "JAX's own addition in `jax.jit`",
        "on_pool": "`torch2jax` in a program that XLA runs on its thread pool",
        "off_pool": "that program with JAX's own addition",
    }
    for name, title in titles.items():
        print(f"| {title} | " + " | ".join(f"{table[size][name] * 1e6:,.1f}" for size in SIZES) + " |")


if __name__ == "__main__":
    main()
