"""Translated models against the same models written in JAX by hand, on the same weights, in the same run.

    python -m benchmarks.models [resnet50 vit_b_16 gpt2] [--batch 4] [--rounds 10]

For the forward pass, and for a loss with the gradients of all weights: the time to trace and lower, to compile and to
run; the number of StableHLO operations; XLA's count of flops and of bytes accessed. Every figure is printed with its
ratio to the hand-written one. The two take turns, and a time is the best of its rounds.
"""

import argparse
import re
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch

from torch2jax import t2j
from torch2jax.tools.models import define_vision_operators

from .handwritten import gpt2, resnet, vit


class Case(NamedTuple):
    """One model: its translation, its hand-written counterpart, the weights, and an input."""

    translated: Callable
    handwritten: Callable
    params: dict
    input: jax.Array


def resnet50(batch: int) -> Case:
    model = _torchvision().models.resnet50().eval()
    return _case(model, resnet, jnp.asarray(_noise(batch, 3, 160, 160)))


def vit_b_16(batch: int) -> Case:
    model = _torchvision().models.vit_b_16().eval()
    torch.nn.init.normal_(model.heads.head.weight)  # zero as made: it would hide every error
    return _case(model, vit, jnp.asarray(_noise(batch, 3, 224, 224)))


def gpt2_124m(batch: int) -> Case:
    define_vision_operators()  # transformers looks for torchvision
    import transformers

    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False)).eval()
    ids = np.random.default_rng(0).integers(0, 50257, (batch, 128))
    case = _case(model, gpt2, jnp.asarray(ids, jnp.int32))
    return case._replace(translated=lambda p, x: t2j(model)(x, state_dict=p).logits)


CASES = {"resnet50": resnet50, "vit_b_16": vit_b_16, "gpt2": gpt2_124m}


def _torchvision():
    define_vision_operators()
    import torchvision

    return torchvision


def _noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def _case(model, handwritten, x) -> Case:
    translated = t2j(model)
    params = {name: x for name, x in t2j(model.state_dict()).items() if jnp.issubdtype(x.dtype, jnp.floating)}
    return Case(lambda p, x: translated(x, state_dict=p), handwritten.apply, params, x)


class Program(NamedTuple):
    """A compiled function with what it took and what it holds."""

    run: Callable
    compile_s: float
    operations: int
    flops: float
    bytes: float


def compile_counted(function, *args) -> Program:
    lowered = jax.jit(function).lower(*args)
    start = time.perf_counter()
    compiled = lowered.compile()
    seconds = time.perf_counter() - start
    operations = len(re.findall(r"= \"?(?:stablehlo|chlo)\.|= call ", lowered.as_text()))
    cost = compiled.cost_analysis()
    return Program(compiled, seconds, operations, cost["flops"], cost["bytes accessed"])


def _loss_and_gradients(apply):
    def loss(params, x):
        return jnp.mean(jnp.square(apply(params, x)))

    return jax.value_and_grad(loss)


def measure(case: Case, rounds: int) -> dict[str, dict[str, tuple[float, float]]]:
    """For each pass and figure, what the translated and the hand-written model take."""
    results = {}
    for name, wrap in (("forward", lambda apply: apply), ("gradients", _loss_and_gradients)):
        functions = [wrap(case.translated), wrap(case.handwritten)]
        programs = [compile_counted(function, case.params, case.input) for function in functions]
        outputs = [program.run(case.params, case.input) for program in programs]
        assert_agree(*outputs)
        # What was traced above has paid for imports and caches.
        lowering = [lambda f=f: jax.jit(fresh(f)).lower(case.params, case.input) for f in functions]
        running = [lambda p=p: jax.block_until_ready(p.run(case.params, case.input)) for p in programs]
        a, b = programs
        results[name] = {
            "trace + lower (s)": in_turns(lowering, rounds),
            "compile (s)": (a.compile_s, b.compile_s),
            "run (s)": in_turns(running, rounds),
            "StableHLO operations": (a.operations, b.operations),
            "Gflop": (a.flops / 1e9, b.flops / 1e9),
            "GB accessed": (a.bytes / 1e9, b.bytes / 1e9),
        }
    return results


def in_turns(functions: list[Callable], rounds: int, clock: Callable = time.perf_counter) -> tuple[float, ...]:
    """The best time of each of some functions that take turns, in seconds."""
    seconds = [[] for _ in functions]
    for _ in range(rounds):
        for times, function in zip(seconds, functions, strict=True):
            start = clock()
            function()
            times.append(clock() - start)
    return tuple(min(times) for times in seconds)


def fresh(function):
    return lambda *args: function(*args)  # another function, so that JAX traces it again


def assert_agree(actual, expected) -> None:
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        scale = float(jnp.max(jnp.abs(e))) + 1e-6
        np.testing.assert_allclose(np.asarray(a) / scale, np.asarray(e) / scale, atol=2e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(CASES))
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    print("| model | pass | figure | translated | hand-written | ratio |\n|---|---|---|---|---|---|")
    for model in options.models:
        torch.manual_seed(0)
        for name, figures in measure(CASES[model](options.batch), options.rounds).items():
            for figure, (a, b) in figures.items():
                print(f"| {model} | {name} | {figure} | {a:.4g} | {b:.4g} | {a / b:.3f} |", flush=True)


if __name__ == "__main__":
    main()
