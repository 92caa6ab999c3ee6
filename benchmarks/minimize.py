"""A small PyTorch objective in `scipy.optimize.minimize`: its value and gradient through JAX, and through PyTorch.

python -m benchmarks.minimize [rosenbrock logistic network] [--seconds 2]
"""

import argparse
import math
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from scipy.optimize import minimize

from torch2jax import t2j

DIMENSIONS, SAMPLES = 10, 32
torch.manual_seed(0)
FEATURES = torch.randn(SAMPLES, DIMENSIONS, dtype=torch.float64)
LABELS = (FEATURES @ torch.randn(DIMENSIONS, dtype=torch.float64) + torch.randn(SAMPLES) > 0).double()


def rosenbrock(x: torch.Tensor) -> torch.Tensor:
    return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()


def logistic(x: torch.Tensor) -> torch.Tensor:
    loss = torch.nn.functional.binary_cross_entropy_with_logits(FEATURES @ x, LABELS)
    return loss + 1e-3 * x.square().sum()


def network(x: torch.Tensor) -> torch.Tensor:
    hidden = torch.tanh(FEATURES[:, :2] @ x[:6].view(2, 3))
    return torch.nn.functional.mse_loss(hidden @ x[6:9] + x[9], LABELS) + 1e-3 * x.square().sum()


OBJECTIVES = {"rosenbrock": rosenbrock, "logistic": logistic, "network": network}


def through_jax(objective: Callable) -> Callable:
    value_and_grad = jax.jit(jax.value_and_grad(t2j(objective)))

    def call(x: np.ndarray):
        value, gradient = value_and_grad(x)
        return value.item(), np.asarray(gradient)

    return call


def through_jax_packed(objective: Callable) -> Callable:
    """As `through_jax`, but value and gradient come in one array, which is fetched at once."""
    value_and_grad = jax.value_and_grad(t2j(objective))
    packed = jax.jit(lambda x: jnp.append(*value_and_grad(x)[::-1]))

    def call(x: np.ndarray):
        found = np.asarray(packed(x))
        return found[-1], found[:-1]

    return call


def through_autograd(objective: Callable) -> Callable:
    def call(x: np.ndarray):
        tensor = torch.from_numpy(x).requires_grad_()
        value = objective(tensor)
        value.backward()
        return value.item(), tensor.grad.numpy()

    return call


def through_compile(objective: Callable) -> Callable:
    return through_autograd(torch.compile(objective))


WAYS = {
    "torch.autograd": through_autograd,
    "torch.compile": through_compile,
    "jax.jit(value_and_grad(t2j(f)))": through_jax,
    "the same, packed in one array": through_jax_packed,
}


def rates(calls: list[Callable], seconds: float) -> list[float]:
    """The calls per second of each in its best round; they take turns, at points that differ as a minimizer's do."""
    points = np.random.default_rng(0).standard_normal((64, DIMENSIONS))
    best, end = [math.inf] * len(calls), time.perf_counter() + seconds * len(calls)
    while time.perf_counter() < end:
        for place, call in enumerate(calls):
            start = time.perf_counter()
            for point in points:
                call(point)
            best[place] = min(best[place], time.perf_counter() - start)
    return [len(points) / each for each in best]


def timed(function: Callable) -> tuple[float, Any]:
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def compare(name: str, seconds: float) -> None:
    """Prints the rows of one objective."""
    x0 = np.full(DIMENSIONS, 0.1)
    calls = {way: make(OBJECTIVES[name]) for way, make in WAYS.items()}
    first = {way: timed(lambda call=call: call(x0))[0] for way, call in calls.items()}
    found = rates(list(calls.values()), seconds)
    for (way, call), rate in zip(calls.items(), found, strict=True):
        elapsed, result = min(
            [timed(lambda call=call: minimize(call, x0, method="BFGS", jac=True)) for _ in range(5)], key=lambda x: x[0]
        )
        print(
            f"| {name} | {way} | {first[way]:.2f} | {rate:.0f} | {rate / found[0]:.1f} "
            f"| {elapsed * 1e3:.1f} | {result.nfev} | {result.fun:.6f} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("objectives", nargs="*", default=list(OBJECTIVES))
    parser.add_argument("--seconds", type=float, default=2.0, help="how long to call each function")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    torch.set_num_threads(1)
    print("| objective | way | first call (s) | calls/s | ratio | BFGS (ms) | calls | minimum |")
    print("|---|---|---|---|---|---|---|---|")
    for name in options.objectives:
        compare(name, options.seconds)


if __name__ == "__main__":
    main()
