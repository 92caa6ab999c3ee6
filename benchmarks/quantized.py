"""Decoding with weights of 8 bits, against the same integer products in JAX by hand, and against floating point.

    python -m benchmarks.quantized [llama tiny] [--batch 4] [--tokens 32] [--rounds 7] [--cpu-time]

The layers of a Llama with random weights are `Int8Linear`s: they round each row of their input to 8 bits, and multiply
in integers by `torch._int_mm`. The loops are those of `benchmarks.decoding`. Memory is what the compiled program takes
beside its arguments, of which the weights are the most.
"""

import argparse
import time

import jax
import numpy as np
import torch

from examples import generate as example
from torch2jax import t2j
from torch2jax.tools.models import define_vision_operators

from .decoding import scanned
from .generate import PROMPT, small_llama
from .handwritten import llama

__all__ = ["Int8Linear", "quantize", "weights_by_hand"]


class Int8Linear(torch.nn.Module):
    """A linear layer without a bias: its weight is of integers of 8 bits with a scale for each row."""

    def __init__(self, linear: torch.nn.Linear):
        super().__init__()
        weight = linear.weight.detach()
        scale = weight.abs().amax(1) / 127
        self.register_buffer("scale", scale)
        self.register_buffer("codes", (weight / scale[:, None]).round().to(torch.int8))

    def forward(self, x):
        rows = x.flatten(0, -2)
        step = rows.abs().amax(1, keepdim=True) / 127
        product = torch._int_mm((rows / step).round().to(torch.int8), self.codes.t())
        return (product * step * self.scale).unflatten(0, x.shape[:-1])


def quantize(model: torch.nn.Module) -> torch.nn.Module:
    """The model with `Int8Linear`s in place of the linear layers within its blocks."""
    for name, layer in list(model.named_modules()):
        if isinstance(layer, torch.nn.Linear) and ".layers." in name:
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, Int8Linear(layer))
    return model


def weights_by_hand(state: dict) -> dict:
    """A state with codes and scales together, as the weights of the model by hand."""
    layers = [name.removesuffix(".codes") for name in state if name.endswith(".codes")]
    pairs = {f"{name}.weight": (state[f"{name}.codes"], state[f"{name}.scale"]) for name in layers}
    return {name: x for name, x in state.items() if not name.endswith((".codes", ".scale"))} | pairs


def beside_arguments(program) -> float:
    """What a compiled program takes beside its arguments, as a part of these."""
    memory = program.memory_analysis()
    return memory.temp_size_in_bytes / memory.argument_size_in_bytes


def compare(name: str, batch: int, tokens: int, rounds: int, clock) -> None:
    """Prints the rows of one model."""
    plain, model = small_llama(name), quantize(small_llama(name))
    ids = t2j(torch.randint(3, 100, (batch, PROMPT), generator=torch.Generator().manual_seed(0)))
    params, config, length = dict(t2j(model.state_dict())), model.config, PROMPT + tokens

    def compiled(decode, params):
        program = jax.jit(decode).lower(params, ids).compile()
        return program, lambda: np.asarray(program(params, ids))

    ours, run = compiled(scanned(example.causal(model, length), tokens), params)
    by_hand = llama.looped(config, length, tokens, llama.project_int8)
    theirs, run_by_hand = compiled(by_hand, weights_by_hand(params))
    _, run_plain = compiled(scanned(example.causal(plain, length), tokens), dict(t2j(plain.state_dict())))
    ways = {"translated": run, "by hand, int8": run_by_hand, "translated, float32": run_plain}
    # One code that is rounded to the other step changes the tokens that come later.
    np.testing.assert_array_equal(run()[:, 0], run_by_hand()[:, 0])
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, call in ways.items():
            start = clock()
            call()
            times[way].append(clock() - start)
    for way in list(ways)[1:]:
        ratio = np.median([x / y for x, y in zip(times["translated"], times[way], strict=True)])
        rates = [batch * tokens / min(times[key]) for key in ("translated", way)]
        print(f"| {name} | {batch} | {way} | {rates[0]:,.0f} | {rates[1]:,.0f} | {ratio:.3f} |", flush=True)
    size = sum(x.nbytes for x in params.values())
    parts = f"{beside_arguments(ours):.3f} | {beside_arguments(theirs):.3f}"
    print(
        f"| {name} | {batch} | memory beside {size / 1e6:,.1f} MB of weights, as a part of them | {parts} | |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="llama, tiny; both by default")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cpu-time", action="store_true", help="of the process, where other programs run")
    options = parser.parse_args()
    define_vision_operators()  # transformers imports torchvision, which need not load beside this build of PyTorch
    clock = time.process_time if options.cpu_time else time.perf_counter
    print(
        "| model | batch | other | translated (tokens/s) | other (tokens/s) | time, ratio |\n|---|---|---|---|---|---|"
    )
    for name in options.models or ("llama", "tiny"):
        compare(name, options.batch, options.tokens, options.rounds, clock)


if __name__ == "__main__":
    main()
