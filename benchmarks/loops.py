"""Loops that `t2j` finds in graphs, against a `lax.scan` by hand and the unrolled graph.

    python -m benchmarks.loops [llama-8 llama-32 llama-80 remat-32 gru-500 leapfrog-1000 maml-20 ddim-50]
        [--rounds 20] [--kinds rolled "by hand" unrolled]

For each, of a loss with its gradient, of the sampler only the values: seconds of the processor (all threads) to trace
and lower, and to compile, each the first time in a process of its own; the best of some runs, in which the kinds take
turns in one process; the bytes of what a run needs beside its arguments and results; the operations of StableHLO.
Ratios are those of the translated one to each. Values and gradients are compared.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch

from torch2jax import stack_layers, t2j
from torch2jax.tools.models import define_vision_operators

from .handwritten import scans

KINDS = ("rolled", "by hand", "unrolled")


class Cells(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.cell = torch.nn.GRUCell(width, width)

    def forward(self, x):
        h, found = x.new_zeros(x.shape[0], x.shape[2]), []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            found.append(h)
        return torch.stack(found, 1)


def _llama(layers: int, kind: str, *, is_remat: bool = False) -> tuple[Callable, Any]:
    define_vision_operators()  # transformers imports torchvision
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=512,
        use_cache=False,
    )
    torch.manual_seed(0)
    model, ids = LlamaForCausalLM(config).train(is_remat), jnp.arange(64)
    if is_remat:
        model.gradient_checkpointing_enable()
    f = t2j(model, loops="unrolled" if kind == "unrolled" else "rolled")
    params, buffers = f.split()
    if kind != "unrolled":
        params = stack_layers(params)
    by_hand = scans.llama(config, is_remat=is_remat)

    def loss(params):
        if kind == "by hand":
            return jnp.var(by_hand(params, ids))
        return jnp.var(f(ids[None], state_dict=params | buffers).logits)

    return loss, params


def _remat(layers: int, kind: str) -> tuple[Callable, Any]:
    """As `_llama`, each layer of which is computed again on the way back."""
    return _llama(layers, kind, is_remat=True)


def _gru(steps: int, kind: str) -> tuple[Callable, Any]:
    torch.manual_seed(0)
    f = t2j(Cells(64), loops="unrolled" if kind == "unrolled" else "rolled")
    x = jax.random.normal(jax.random.key(0), (8, steps, 64))

    def loss(params):
        return jnp.var(scans.gru(params, x) if kind == "by hand" else f(x, state_dict=params))

    return loss, f.split()[0]


class UNet(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.time, self.enter = torch.nn.Linear(1, width), torch.nn.Conv2d(3, width, 3, padding=1)
        self.down = torch.nn.Conv2d(width, 2 * width, 3, 2, padding=1)
        self.middle = torch.nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.up, self.leave = torch.nn.Conv2d(3 * width, width, 3, padding=1), torch.nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x, t):
        silu = torch.nn.functional.silu
        first = silu(self.enter(x)) + silu(self.time(t.reshape(1, 1)))[..., None, None]
        y = silu(self.middle(silu(self.down(first))))
        y = torch.nn.functional.interpolate(y, scale_factor=2.0)
        return self.leave(silu(self.up(torch.cat([first, y], 1))))


class Sampler(torch.nn.Module):
    """DDIM's steps from noise to samples."""

    def __init__(self, net: torch.nn.Module, alphas: torch.Tensor):
        super().__init__()
        self.net, self.alphas = net, alphas

    def forward(self, x):
        count = len(self.alphas) - 1
        for i in range(count, 0, -1):
            a, before = self.alphas[i], self.alphas[i - 1]
            noise = self.net(x, torch.tensor(i / count))
            clean = (x - (1 - a).sqrt() * noise) / a.sqrt()
            x = before.sqrt() * clean + (1 - before).sqrt() * noise
        return x


def _ddim(steps: int, kind: str) -> tuple[Callable, Any]:
    torch.manual_seed(0)
    alphas = torch.linspace(0.999, 0.02, steps + 1)
    f = t2j(Sampler(UNet(16), alphas), loops="unrolled" if kind == "unrolled" else "rolled")
    x = jax.random.normal(jax.random.key(0), (2, 3, 16, 16))

    def mean(params):
        if kind == "by hand":
            params = {name.removeprefix("net."): value for name, value in params.items()}
            return jnp.mean(scans.ddim(params, x, alphas.numpy()) ** 2)
        return jnp.mean(f(x, state_dict=params) ** 2)

    return mean, f.split()[0]


def _leapfrog(steps: int, kind: str) -> tuple[Callable, Any]:
    def pendulums(q, p, coupling):
        def force(q):
            return -torch.sin(q) + coupling * (q.roll(1, -1) - 2 * q + q.roll(-1, -1))

        for _ in range(steps):
            p = p + 0.005 * force(q)
            q = q + 0.01 * p
            p = p + 0.005 * force(q)
        return q

    f = t2j(pendulums, loops="unrolled" if kind == "unrolled" else "auto")
    params = {"q": jax.random.normal(jax.random.key(0), (64, 16)), "p": jnp.zeros((64, 16)), "coupling": jnp.ones(16)}

    def loss(params):
        return jnp.var(scans.leapfrog(params, steps, 0.01) if kind == "by hand" else f(**params))

    return loss, params


def _maml(steps: int, kind: str) -> tuple[Callable, Any]:
    x, y = jax.random.normal(jax.random.key(0), (2, 32, 16))

    def adapted(params, x, y):
        def loss(p):
            return (torch.tanh(x @ p["w"] + p["b"]) @ p["v"] - y).square().mean()

        for _ in range(steps):
            grads = torch.func.grad(loss)(params)
            params = {name: value - 0.1 * grads[name] for name, value in params.items()}
        return loss(params)

    f = t2j(adapted, loops="unrolled" if kind == "unrolled" else "auto")
    keys = jax.random.split(jax.random.key(1))
    params = {
        "w": jax.random.normal(keys[0], (16, 64)) / 4,
        "b": jnp.zeros(64),
        "v": jax.random.normal(keys[1], (64, 16)) / 8,
    }
    return lambda params: scans.adapted(params, x, y, steps, 0.1) if kind == "by hand" else f(params, x, y), params


CASES = {"llama": _llama, "remat": _remat, "gru": _gru, "leapfrog": _leapfrog, "maml": _maml, "ddim": _ddim}
_WITHOUT_GRADIENT = {"ddim"}
_DEFAULT = ["llama-8", "llama-32", "llama-80", "remat-32", "gru-500", "leapfrog-1000", "maml-20", "ddim-50"]


def _program(case: str, kind: str) -> tuple[Any, Any]:
    """A jitted function of a case, and what it takes."""
    name, _, size = case.partition("-")
    loss, params = CASES[name](int(size), kind)
    gives_value = name in _WITHOUT_GRADIENT
    return jax.jit((lambda params: (loss(params), params)) if gives_value else jax.value_and_grad(loss)), params


def built(case: str, kind: str) -> None:
    """Prints the seconds to trace and lower, and those to compile."""
    function, params = _program(case, kind)
    jax.block_until_ready(jax.jit(jax.grad(lambda x: jnp.sin(x @ x).sum()))(jnp.ones((8, 8))))  # XLA begins
    began = time.process_time()
    lowered = function.lower(params)
    middle = time.process_time()
    lowered.compile()
    print(middle - began, time.process_time() - middle)


def run(case: str, kinds: Sequence[str], rounds: int) -> None:
    """Prints for each kind the seconds of its best run, its bytes beside arguments and results, and its operations.

    Raises:
        AssertionError: values or gradients differ.
    """
    found = {}
    for kind in kinds:
        function, params = _program(case, kind)
        lowered = function.lower(params)
        compiled = lowered.compile()
        operations = lowered.as_text().count(" = stablehlo.")
        found[kind] = compiled, params, compiled.memory_analysis().temp_size_in_bytes, operations
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    results = {kind: jax.block_until_ready(compiled(params)) for kind, (compiled, params, *_) in found.items()}
    for _ in range(rounds):
        for kind, (compiled, params, *_) in found.items():
            began = time.perf_counter()
            jax.block_until_ready(compiled(params))
            times[kind].append(time.perf_counter() - began)
    numbers = [(float(value), float(optax.global_norm(grads))) for value, grads in results.values()]
    np.testing.assert_allclose(numbers, numbers[:1] * len(numbers), rtol=1e-3)
    for kind in kinds:
        print(min(times[kind]), *found[kind][2:])


def _rows(*options: str) -> list[list[float]]:
    command = [sys.executable, "-m", "benchmarks.loops", *options]
    output = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ}).stdout
    return [[float(word) for word in line.split()] for line in output.splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*", default=_DEFAULT)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument(
        "--kinds", nargs="*", choices=KINDS, default=list(KINDS), help="unrolled may compile for minutes"
    )
    parser.add_argument("--do", choices=["build", "run"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.do == "build":
        return built(options.cases[0], options.kinds[0])
    if options.do == "run":
        return run(options.cases[0], options.kinds, options.rounds)
    print("| | | trace, lower (s) | compile (s) | both, ratio | run (ms) | ratio | bytes | operations |")
    print("|---|---|---|---|---|---|---|---|---|")
    for case in options.cases:
        rows = _rows(case, "--do", "run", "--rounds", str(options.rounds), "--kinds", *options.kinds)
        base = None
        for kind, (seconds, size, operations) in zip(options.kinds, rows, strict=True):
            trace, compilation = _rows(case, "--do", "build", "--kinds", kind)[0]
            base = base or (trace + compilation, seconds)
            ratios = base[0] / (trace + compilation), base[1] / seconds
            cells = [case, kind, f"{trace:.2f}", f"{compilation:.2f}", f"{ratios[0]:.2f}"]
            cells += [f"{1e3 * seconds:.2f}", f"{ratios[1]:.2f}", f"{size:,.0f}", f"{operations:,.0f}"]
            print(f"| {' | '.join(cells)} |", flush=True)
    return None


if __name__ == "__main__":
    main()
