"""Random programs with loops: rolled they give what they give unrolled, which is what PyTorch gives.

`python -m tests.tracing.loops.test_random 2000` runs as many; `2000 500` begins with the 500th.
"""

import random
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from tests.compiling import set_flags
from tests.tracing.loops.programs import scans
from torch2jax import t2j

ITERATIONS = 14
X = np.asarray(jax.random.normal(jax.random.key(3), (2, ITERATIONS, 3)))
W = np.asarray(jax.random.normal(jax.random.key(4), (ITERATIONS, 3, 3)) * 0.3)

ONE = ["tanh({})", "sin({})", "sigmoid({})", "cos({})", "softplus({})", "atan({})"]
STATEMENTS = [
    "{a} = torch.{f} * 0.5 + {b} * 0.3",
    "{a} = {a} * 0.7 + x[:, t] * {c}",
    "{a} = torch.tanh({b} @ w[t])",
    "{a} = torch.tanh({b} @ w[0]) + x[:, {iterations} - 1 - t] * 0.1",
    "{a} = {a} * (t + 1) / {iterations}",
    "{a} = torch.where({b} > 0, {a}, {b} * 0.2)",
    "{a}, {b} = {b}, torch.{f} + {a} * 0.1",
    "found.append(torch.{f})",
    "held[:, t] = {a}",
    "{a} = {a} + held[:, {iterations} - 1] * 0.1",
    "{a} = {a} + (before if t % 2 else {b}) * 0.1",
    "before = {a} * 0.9",
    "{a} = {a} + sizes[t] * {b}",
    "{a} = {a}.clone().mul_(0.9)",
    "{a} = {a}.clone(); {a}[:, 0] += {b}[:, 1] * 0.2",
    "{a} = {a} + found[-1] * 0.1 if found else {a}",
]


def program(seed: int) -> str:
    choose = random.Random(seed)

    def statement() -> str:
        a, b = choose.sample(["h", "k", "m"], 2)
        f = choose.choice(ONE).replace("{}", choose.choice([a, b]))
        if "softplus" in f:
            f = "nn.functional." + f
        return choose.choice(STATEMENTS).format(a=a, b=b, c=choose.choice([0.1, 0.3]), f=f, iterations=ITERATIONS)

    body = [statement() for _ in range(choose.randint(6, 12))]
    lines = [
        "h, k, m = x[:, 0].clone(), torch.zeros(2, 3), x[:, 1] * 0.5",
        "held, found, before, sizes = torch.zeros_like(x), [], x[:, 2] * 1, torch.linspace(0.1, 0.2, len(w))",
        f"for t in range({ITERATIONS}):",
        *("    " + line for line in body),
        "return h, k, m, held, before, *([torch.stack(found, 1)] if found else [])",
    ]
    return "def f(x, w):\n" + "\n".join("    " + line for line in lines)


def run(seed: int) -> int:
    """How many loops a program has, which agrees with PyTorch; derivatives are JAX's, or the program's own."""
    scope: dict = {"torch": torch, "nn": torch.nn}
    exec(program(seed), scope)
    f = scope["f"]
    rolled = t2j(f, loops="rolled")
    want = f(torch.tensor(X), torch.tensor(W))
    got = jax.jit(rolled)(X, W)
    for x, y in zip(got, want, strict=True):
        assert x.shape == y.shape
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)

    x, w = torch.tensor(X, requires_grad=True), torch.tensor(W, requires_grad=True)
    total = sum(each.sin().sum() for each in f(x, w))
    if not total.requires_grad:  # the program ends with what depends on neither
        return len(scans(rolled, X, W))
    total.backward()

    def loss(x, w):
        return sum(jnp.sum(jnp.sin(each)) for each in rolled(x, w))

    def within(x, w):
        x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
        sum(each.sin().sum() for each in f(x, w)).backward()
        return x.grad, w.grad

    grads = jax.jit(t2j(within, loops="rolled") if seed % 2 else jax.grad(loss, (0, 1)))(X, W)
    for got, want in zip(grads, (x.grad, w.grad), strict=True):
        assert got is not None or want is None
        if got is not None:
            np.testing.assert_allclose(got, np.zeros_like(got) if want is None else want, rtol=1e-3, atol=1e-3)
    return len(scans(rolled, X, W))


@pytest.mark.parametrize("seed", range(3))
def test_random_programs(seed):
    run(seed)


def main(count: int, first: int = 0) -> None:
    set_flags()
    loops = 0
    for seed in range(first, first + count):
        try:
            loops += bool(run(seed))
        except Exception as error:
            print(f"{seed}: {type(error).__name__} {str(error)[:300]}\n{program(seed)}", flush=True)
    print(f"{count} programs, {loops} with loops")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:] or ["200"]))
