"""Loops that `t2j` finds in graphs, against a `lax.scan` by hand and the unrolled graph.

    python -m benchmarks.loops [llama-8 llama-32 gru-200 gru-500] [--rounds 20]

For each: to trace, lower and compile a gradient (in seconds of the processor, all threads), and to run it. Each figure
comes from the first time in a process of its own. Values and gradients are compared.
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


def measured(case: str, kind: str, rounds: int) -> None:
    """Prints the seconds to trace, lower and compile, those of a run, and two numbers to compare."""
    name, _, size = case.partition("-")
    loss, params = {"llama": _llama, "gru": _gru}[name](int(size), kind)
    jax.block_until_ready(jax.jit(jax.grad(lambda x: jnp.sin(x @ x).sum()))(jnp.ones((8, 8))))  # XLA begins
    began = time.process_time()
    compiled = jax.jit(jax.value_and_grad(loss)).lower(params).compile()
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
    parser.add_argument("cases", nargs="*", default=["llama-8", "llama-32", "gru-200", "gru-500"])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--kind", choices=KINDS)
    options = parser.parse_args()
    if options.kind:
        return measured(options.cases[0], options.kind, options.rounds)
    print(
        "| | trace, lower, compile | of the unrolled | of the one by hand | run, of the unrolled | of the one by hand |"
    )
    print("|---|---|---|---|---|---|")
    for case in options.cases:
        found = {}
        for kind in KINDS:
            command = [sys.executable, "-m", "benchmarks.loops", case, "--kind", kind, "--rounds", str(options.rounds)]
            output = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ}).stdout
            found[kind] = [float(word) for word in output.split()]
        rolled, unrolled, by_hand = (np.asarray(found[kind]) for kind in KINDS)
        np.testing.assert_allclose(rolled[2:], unrolled[2:], rtol=1e-4)
        np.testing.assert_allclose(rolled[2:], by_hand[2:], rtol=1e-3)
        ratios = [rolled[0] / unrolled[0], rolled[0] / by_hand[0], rolled[1] / unrolled[1], rolled[1] / by_hand[1]]
        print(f"| {case} | {rolled[0]:.1f} s | " + " | ".join(f"{ratio:.2f}" for ratio in ratios) + " |", flush=True)
    return None


if __name__ == "__main__":
    main()
