"""What one operator costs when it is called eagerly, and what it costs to trace one, against jax.numpy in the same run.

    python -m benchmarks.operators [--rounds 20]

The operands are small, so that time is what Python takes. A translated operator runs many times within one call; the
call itself is measured as the operator that does nothing. The two take turns, and a time is the best of its rounds.
"""

import argparse
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F

from torch2jax import t2j

REPEATS = 50

OPERATORS: dict[str, tuple[Callable, Callable]] = {
    "sin": (lambda x, w, m: torch.sin(x), lambda x, w, m: jnp.sin(x)),
    "x + w": (lambda x, w, m: x + w, lambda x, w, m: x + w),
    "x * 2": (lambda x, w, m: x * 2, lambda x, w, m: x * 2),
    "x > 0": (lambda x, w, m: x > 0, lambda x, w, m: x > 0),
    "where": (lambda x, w, m: torch.where(m, x, w), lambda x, w, m: jnp.where(m, x, w)),
    "clamp": (lambda x, w, m: x.clamp(0, 1), lambda x, w, m: jnp.clip(x, 0, 1)),
    "sum": (lambda x, w, m: x.sum(-1), lambda x, w, m: jnp.sum(x, -1)),
    "max": (lambda x, w, m: x.amax(-1), lambda x, w, m: jnp.max(x, -1)),
    "cumsum": (lambda x, w, m: x.cumsum(-1), lambda x, w, m: jnp.cumsum(x, -1)),
    "sort": (lambda x, w, m: torch.sort(x)[0], lambda x, w, m: jnp.sort(x)),
    "reshape": (lambda x, w, m: x.reshape(2, 8), lambda x, w, m: x.reshape(2, 8)),
    "transpose": (lambda x, w, m: x.mT, lambda x, w, m: x.mT),
    "x[1:3]": (lambda x, w, m: x[1:3], lambda x, w, m: x[1:3]),
    "cat": (lambda x, w, m: torch.cat([x, w]), lambda x, w, m: jnp.concatenate([x, w])),
    "matmul": (lambda x, w, m: x @ w, lambda x, w, m: x @ w),
    "einsum": (lambda x, w, m: torch.einsum("ij,jk", x, w), lambda x, w, m: jnp.einsum("ij,jk", x, w)),
    "linear": (lambda x, w, m: F.linear(x, w), lambda x, w, m: x @ w.T),
    "relu": (lambda x, w, m: F.relu(x), lambda x, w, m: jax.nn.relu(x)),
    "gelu": (lambda x, w, m: F.gelu(x), lambda x, w, m: jax.nn.gelu(x, approximate=False)),
    "softmax": (lambda x, w, m: F.softmax(x, -1), lambda x, w, m: jax.nn.softmax(x, -1)),
    "layer_norm": (lambda x, w, m: F.layer_norm(x, (4,)), lambda x, w, m: jax.nn.standardize(x, -1)),
}


def _repeated(operator: Callable, count: int) -> Callable:
    def run(*operands):
        for _ in range(count):
            result = operator(*operands)
        return result

    return run


def _seconds(function: Callable, *args) -> float:
    start = time.perf_counter()
    function(*args)
    return time.perf_counter() - start


def _best(functions: list[Callable], rounds: int) -> list[float]:
    """The best time of each of some functions that take turns, in microseconds for one of `REPEATS` repetitions."""
    times = [[_seconds(function) for function in functions] for _ in range(rounds)]
    return [min(column) / REPEATS * 1e6 for column in zip(*times, strict=True)]


def measure(torch_operator: Callable, jax_operator: Callable, rounds: int) -> list[float]:
    """Microseconds for one operator: translated, in JAX; then to trace it: translated, in JAX."""
    operands = jnp.eye(4) * 2, jnp.ones((4, 4)), jnp.eye(4, dtype=bool)
    translated, direct = t2j(_repeated(torch_operator, REPEATS)), _repeated(jax_operator, REPEATS)
    for function in (translated, direct):  # pays for compilation
        function(*operands)
    eager = _best([lambda: translated(*operands), lambda: direct(*operands)], rounds)
    traced = _best([lambda f=f: jax.make_jaxpr(lambda *a: f(*a))(*operands) for f in (translated, direct)], rounds)
    return eager + traced


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    print(
        "| operator | eager (us) | jax.numpy | more | trace (us) | jax.numpy | ratio |\n|---|---|---|---|---|---|---|"
    )
    for name, pair in OPERATORS.items():
        a, b, c, d = measure(*pair, options.rounds)
        print(f"| `{name}` | {a:.1f} | {b:.1f} | {a - b:.1f} | {c:.0f} | {d:.0f} | {c / d:.2f} |", flush=True)


if __name__ == "__main__":
    main()
