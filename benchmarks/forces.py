"""Forces that translated code takes with `torch.autograd.grad`, against `jax.grad` of the same model by hand.

    python -m benchmarks.forces [pairs messages equivariant contracted] [--atoms 64] [--rounds 200]

For the energy and the forces on all atoms, and for the gradient of a loss on forces with respect to all weights: the
time to trace and lower, to compile and to run, the number of StableHLO operations, flops and bytes accessed. The two
take turns; times and ratios of times are medians over the rounds.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import nn

from torch2jax import t2j

from .equivariant import Contracted, Equivariant, equivariant_in_jax
from .models import assert_agree, compile_counted, fresh

WIDTH = 64
CENTRES = np.linspace(0, 4, 16, dtype=np.float32)


class Pairs(nn.Module):
    """An energy of each pair of atoms, by a network of its distance."""

    def __init__(self):
        super().__init__()
        self.register_buffer("centres", torch.tensor(CENTRES))
        self.net = nn.Sequential(
            nn.Linear(16, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, 1)
        )

    def radial(self, positions, first, second):
        distances = (positions[first] - positions[second]).square().sum(-1).sqrt()
        return torch.exp(-((distances[:, None] - self.centres) ** 2))

    def energy(self, positions, first, second):
        return self.net(self.radial(positions, first, second)).sum()

    def forward(self, positions, first, second):
        positions.requires_grad_()
        energy = self.energy(positions, first, second)
        (slope,) = torch.autograd.grad(energy, positions)
        return energy, -slope


class Messages(Pairs):
    """A graph network: atoms send their features along pairs, weighted by the distance."""

    def __init__(self):
        super().__init__()
        del self.net
        self.start = nn.Parameter(torch.randn(WIDTH))
        self.filters = nn.ModuleList(nn.Linear(16, WIDTH) for _ in range(3))
        self.updates = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.readout = nn.Linear(WIDTH, 1)

    def energy(self, positions, first, second):
        radial = self.radial(positions, first, second)
        features = self.start.expand(positions.shape[0], WIDTH)
        for weigh, update in zip(self.filters, self.updates, strict=True):
            messages = weigh(radial) * features[second]
            received = torch.zeros_like(features).index_add(0, first, messages)
            features = features + nn.functional.silu(update(received))
        return self.readout(features).sum()


def _linear(params, name, x):
    return x @ params[f"{name}.weight"].T + params[f"{name}.bias"]


def _radial_in_jax(positions, first, second):
    distances = jnp.sqrt(jnp.sum((positions[first] - positions[second]) ** 2, axis=-1))
    return jnp.exp(-((distances[:, None] - CENTRES) ** 2))


def pairs_in_jax(params, positions, first, second):
    x = _radial_in_jax(positions, first, second)
    x = jax.nn.silu(_linear(params, "net.0", x))
    x = jax.nn.silu(_linear(params, "net.2", x))
    return jnp.sum(_linear(params, "net.4", x))


def messages_in_jax(params, positions, first, second):
    radial = _radial_in_jax(positions, first, second)
    features = jnp.broadcast_to(params["start"], (positions.shape[0], WIDTH))
    for i in range(3):
        messages = _linear(params, f"filters.{i}", radial) * features[second]
        received = jnp.zeros_like(features).at[first].add(messages)
        features = features + jax.nn.silu(_linear(params, f"updates.{i}", received))
    return jnp.sum(_linear(params, "readout", features))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module], Callable]]] = {
    "pairs": (Pairs, lambda _: pairs_in_jax),
    "messages": (Messages, lambda _: messages_in_jax),
    "equivariant": (Equivariant, equivariant_in_jax),
    "contracted": (Contracted, equivariant_in_jax),
}


def _forces_by_hand(energy_of):
    def forces(params, *inputs):
        energy, slope = jax.value_and_grad(energy_of, argnums=1)(params, *inputs)
        return energy, -slope

    return forces


def _training(forces_of):
    def loss(params, *inputs):
        energy, forces = forces_of(params, *inputs)
        return jnp.mean(forces**2) + energy**2

    return jax.value_and_grad(loss)


def measure(name: str, atoms: int, rounds: int) -> dict[str, dict[str, tuple[float, float, float]]]:
    """For each pass and figure, what the translated and the hand-written forces take."""
    module, by_hand = MODELS[name]
    model: Any = module()
    energy_of = by_hand(model)
    translated = t2j(model)
    params, _ = translated.split()
    positions = 2 * jax.random.normal(jax.random.key(0), (atoms, 3))
    first, second = jnp.nonzero(~jnp.eye(atoms, dtype=bool))
    args = (params, positions, first, second)
    both = [lambda p, *inputs: translated(*inputs, state_dict=p), _forces_by_hand(energy_of)]
    results = {}
    for label, functions in {"forces": both, "training": [_training(f) for f in both]}.items():
        programs = [compile_counted(function, *args) for function in functions]
        assert_agree(*[program.run(*args) for program in programs])
        # What was traced above has paid for imports and caches.
        lowering = [lambda f=f: jax.jit(fresh(f)).lower(*args) for f in functions]
        running = [lambda p=p: jax.block_until_ready(p.run(*args)) for p in programs]
        a, b = programs
        results[label] = {
            "trace + lower (s)": _in_turns(lowering, max(rounds // 10, 5)),
            "compile (s)": _compared(a.compile_s, b.compile_s),
            "run (s)": _in_turns(running, rounds),
            "StableHLO operations": _compared(a.operations, b.operations),
            "Mflop": _compared(a.flops / 1e6, b.flops / 1e6),
            "MB accessed": _compared(a.bytes / 1e6, b.bytes / 1e6),
        }
    return results


def _in_turns(functions: list[Callable], rounds: int) -> tuple[float, float, float]:
    """The median times of two functions that take turns, in seconds, and the median of their ratios."""
    seconds = []
    for number in range(rounds):
        times = {}
        for which in (0, 1) if number % 2 else (1, 0):
            start = time.perf_counter()
            functions[which]()
            times[which] = time.perf_counter() - start
        seconds.append((times[0], times[1]))
    first, second = zip(*seconds, strict=True)
    return statistics.median(first), statistics.median(second), statistics.median(a / b for a, b in seconds)


def _compared(a: float, b: float) -> tuple[float, float, float]:
    return a, b, a / b


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--atoms", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    print("| model | pass | figure | translated | hand-written | ratio |\n|---|---|---|---|---|---|")
    for model in options.models:
        torch.manual_seed(0)
        for name, figures in measure(model, options.atoms, options.rounds).items():
            for figure, (a, b, ratio) in figures.items():
                print(f"| {model} | {name} | {figure} | {a:.4g} | {b:.4g} | {ratio:.3f} |", flush=True)


if __name__ == "__main__":
    main()
