"""Loops that `t2j` finds in graphs, against a `lax.scan` by hand and the unrolled graph.

    python -m benchmarks.loops [llama-8 llama-32 gru-500 leapfrog-1000 maml-20 ddim-50] [--rounds 20]

For each: to trace, lower and compile a gradient, of the sampler only the values (in seconds of the processor, all
threads), and to run it. Each figure comes from the first time in a process of its own. Values and gradients are
compared.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from torch2jax import stack_layers, t2j
from torch2jax.tools.vision import define_vision_operators

from .handwritten import scans

KINDS = ("rolled", "unrolled", "by hand")


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


def _llama(layers: int, kind: str) -> tuple[Callable, Any]:
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
    model, ids = LlamaForCausalLM(config).eval(), jnp.arange(64)
    f = t2j(model, loops="unrolled" if kind == "unrolled" else "rolled")
    params, buffers = f.split()
    if kind != "unrolled":
        params = stack_layers(params)
    by_hand = scans.llama(config)

    def loss(params):
        if kind == "by hand":
            return jnp.var(by_hand(params, ids))
        return jnp.var(f(ids[None], state_dict=params | buffers).logits)

    return loss, params


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


CASES = {"llama": _llama, "gru": _gru, "leapfrog": _leapfrog, "maml": _maml, "ddim": _ddim}
_WITHOUT_GRADIENT = {"ddim"}
_DEFAULT = ["llama-8", "llama-32", "gru-500", "leapfrog-1000", "maml-20", "ddim-50"]


def measured(case: str, kind: str, rounds: int) -> None:
    """Prints the seconds to trace, lower and compile, those of a run, and two numbers to compare."""
    name, _, size = case.partition("-")
    loss, params = CASES[name](int(size), kind)
    function = (lambda params: (loss(params), params)) if name in _WITHOUT_GRADIENT else jax.value_and_grad(loss)
    jax.block_until_ready(jax.jit(jax.grad(lambda x: jnp.sin(x @ x).sum()))(jnp.ones((8, 8))))  # XLA begins
    began = time.process_time()
    compiled = jax.jit(function).lower(params).compile()
    built = time.process_time() - began
    value, grads = jax.block_until_ready(compiled(params))
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        jax.block_until_ready(compiled(params))
        times.append(time.perf_counter() - began)
    norm = float(sum(jnp.sum(jnp.square(x)) for x in jax.tree.leaves(grads)))
    print(built, min(times), float(value), norm)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "cases", nargs="*", default=["llama-8", "llama-32", "gru-500", "leapfrog-1000", "maml-20", "ddim-50"]
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--without-unrolled", action="store_true", help="which may take minutes to compile")
    options = parser.parse_args()
    if options.kind:
        return measured(options.cases[0], options.kind, options.rounds)
    print(
        "| | trace, lower, compile | of the unrolled | of the one by hand | run, of the unrolled | of the one by hand |"
    )
    print("|---|---|---|---|---|---|")
    for case in options.cases:
        found = {}
        kinds = [kind for kind in KINDS if kind != "unrolled" or not options.without_unrolled]
        for kind in kinds:
            command = [sys.executable, "-m", "benchmarks.loops", case, "--kind", kind, "--rounds", str(options.rounds)]
            output = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ}).stdout
            found[kind] = [float(word) for word in output.split()]
        rolled, row = found["rolled"], []
        for kind in kinds[1:]:
            np.testing.assert_allclose(rolled[2:], found[kind][2:], rtol=1e-3)
        for at in (0, 1):
            row += [f"{rolled[at] / found[kind][at]:.2f}" if kind in found else "" for kind in KINDS[1:]]
        print(f"| {case} | {rolled[0]:.1f} s | {' | '.join(row)} |", flush=True)
    return None


if __name__ == "__main__":
    main()
