"""Values that depend on no input: what an operation on them costs, and what a first trace costs beside a second one.

    python -m benchmarks.known [operations scheduler gpt2 t5 detection] [--rounds 3]

Each row comes from a process of its own, which has imported what it needs and traced something else before. Beside it
stands what the same takes without translation, in the same run: PyTorch's own operation; the same sampler by hand,
traced by JAX; the operations of the graph, traced again. Targets: at most 20 µs from condition to answer for an
operation, at most 2 s for 1,000 steps of a scheduler, and a first trace of at most 1.3 times a second one.
"""

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.core import eval_jaxpr

from torch2jax import t2j
from torch2jax.tools.models import define_vision_operators

from .handwritten import ddim

Row = tuple[str, str, str]
"""A figure, its value, and what the same takes without translation."""

STEPS, COUNT = 1000, 1000


def operations(rounds: int) -> list[Row]:
    """Operations on known values, with a condition at the end of each chain, in µs for each operation."""
    chains: dict[str, Callable] = {
        "x + 1": lambda x, i: x + 1,
        "x * x": lambda x, i: x * x,
        "torch.where": lambda x, i: torch.where(x > 0, x, 1.0),
        "vector.clamp": lambda x, i: x.clamp(0, 1),
        "x.to(dtype)": lambda x, i: x.to(torch.float64 if i % 2 else torch.float32),
        "x.add_(1)": lambda x, i: x.add_(1),
        "vector.sum()": lambda x, i: x.sum(),
        "vector[i]": lambda x, i: x[i % 8],
        "vector[tensor]": lambda x, i: x[INDICES[i % 8]],
        "vector[i] = number": _write,
        "torch.tensor(number)": lambda x, i: torch.tensor(1.0),
        "tensor.item()": lambda x, i: x.sum().item() and x,
    }
    rows = []
    for name, step in chains.items():
        seconds: list[float] = []
        restarts = name in ("vector.sum()", "vector[i]", "vector[tensor]")  # what they give is no vector

        def chain(x, step=step, restarts=restarts, is_vector="vector" in name, seconds=seconds):
            start = value = torch.full((8,) if is_vector else (), 0.5)
            began = time.process_time()
            for i in range(COUNT):
                value = step(start if restarts else value, i)
            value.sum().item()
            seconds.append(time.process_time() - began)
            return x

        best = []
        for run in (lambda chain=chain: jax.jit(fresh(t2j(chain))).trace(jnp.zeros(())), lambda chain=chain: chain(0)):
            seconds.clear()
            for _ in range(rounds + 1):
                run()
            best.append(f"{min(seconds[1:]) / COUNT * 1e6:.1f}")
        rows.append((f"{name} (µs)", *best))
    return rows


INDICES = [torch.tensor(i) for i in range(8)]


def _write(x, i):
    x[i % 8] = 2.0
    return x


def scheduler(rounds: int) -> list[Row]:
    """A sampler of diffusers: its steps are Python over the scalars of a schedule."""
    from diffusers import DDIMScheduler

    def sampler(steps: int) -> Callable:
        def sample(x):
            schedule = DDIMScheduler(num_train_timesteps=steps)
            schedule.set_timesteps(steps)
            for t in schedule.timesteps:
                x = schedule.step(0.1 * x, t, x).prev_sample
            return x

        return t2j(sample)

    x = jnp.ones((1, 3, 8, 8))
    np.testing.assert_allclose(jax.jit(sampler(10))(x), jax.jit(ddim.sampler(10))(x), 1e-4, 1e-4)
    return _traces(sampler(STEPS), x, by_hand=ddim.sampler(STEPS))


def gpt2(rounds: int) -> list[Row]:
    define_vision_operators()  # transformers looks for torchvision
    import transformers

    config = transformers.GPT2Config(n_embd=64, n_head=4, use_cache=False)
    model = transformers.GPT2LMHeadModel(config).eval()
    ids = torch.zeros(4, 128, dtype=torch.int64)
    return _of_module(model, lambda f, p, x: f(x, state_dict=p).logits, ids)


def t5(rounds: int) -> list[Row]:
    define_vision_operators()
    import transformers

    config = transformers.T5Config(d_model=64, d_kv=16, d_ff=128, num_heads=4, use_cache=False)
    model = transformers.T5ForConditionalGeneration(config).eval()
    ids = torch.zeros(4, 64, dtype=torch.int64)
    return _of_module(model, lambda f, p, x: f(input_ids=x, decoder_input_ids=x, state_dict=p).logits, ids)


def detection(rounds: int) -> list[Row]:
    """RetinaNet's features, heads and anchors; how many boxes are left is for eager code."""
    define_vision_operators()
    from torchvision.models.detection import retinanet_resnet50_fpn

    class Detector(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = retinanet_resnet50_fpn(weights=None, weights_backbone=None).eval()

        def forward(self, image):
            images, _ = self.model.transform([image])
            features = list(self.model.backbone(images.tensors).values())
            anchors = self.model.anchor_generator(images, features)
            return self.model.head(features), anchors

    return _of_module(Detector().eval(), lambda f, p, x: f(x, state_dict=p), torch.rand(3, 160, 160))


CASES = {f.__name__: f for f in (operations, scheduler, gpt2, t5, detection)}


def fresh(function: Callable) -> Callable:
    return lambda *args: function(*args)  # another function, so that JAX traces it again


def _of_module(model: Any, apply: Callable, example: torch.Tensor) -> list[Row]:
    with torch.no_grad():  # what PyTorch and the model import while they run
        apply(lambda *args, state_dict, **kwargs: model(*args, **kwargs), {}, example)
    params = {name: x for name, x in t2j(model.state_dict()).items() if jnp.issubdtype(x.dtype, jnp.floating)}
    translated = t2j(model)
    return _traces(lambda p, x: apply(translated, p, x), params, t2j(example))


def _traces(function: Callable, *args, by_hand: Callable | None = None) -> list[Row]:
    jax.jit(t2j(lambda x: torch.nn.functional.linear(x, x)[0].softmax(-1))).trace(jnp.ones((2, 2)))
    (first, second), traced = _first_and_second(function, *args)
    closed, leaves = traced.jaxpr, jax.tree.leaves(args)
    others = _first_and_second(by_hand or (lambda *leaves: eval_jaxpr(closed.jaxpr, closed.consts, *leaves)), *leaves)
    return [
        ("first trace (s)", f"{first:.3f}", f"{others[0][0]:.3f}"),
        ("second trace (s)", f"{second:.3f}", f"{others[0][1]:.3f}"),
        ("first / second", f"{first / second:.2f}", ""),
        ("StableHLO operations", str(_operations(traced)), str(_operations(others[1])) if by_hand else ""),
    ]


def _first_and_second(function: Callable, *args) -> tuple[tuple[float, float], Any]:
    """The seconds of a first trace, and of the faster of two more, with what was traced."""
    seconds, traced = [], None
    for _ in range(3):
        began = time.process_time()
        traced = jax.jit(fresh(function)).trace(*args)
        seconds.append(time.process_time() - began)
    return (seconds[0], min(seconds[1:])), traced


def _operations(traced: Any) -> int:
    return len(re.findall(r"= \"?(?:stablehlo|chlo)\.|= call ", traced.lower().as_text()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--here", action="store_true", help="in this process, without the heading")
    options = parser.parse_args()
    if not options.here:
        print("| case | figure | value | without translation |\n|---|---|---|---|", flush=True)
        for case in options.cases:
            command = [sys.executable, "-m", "benchmarks.known", case, "--rounds", str(options.rounds), "--here"]
            subprocess.run(command, check=True)
        return
    torch.manual_seed(0)
    for case in options.cases:
        for row in CASES[case](options.rounds):
            print("|", " | ".join((case, *row)), "|", flush=True)


if __name__ == "__main__":
    main()
