"""A whole decoding as one compiled program, against the same loop in JAX by hand, and PyTorch's `generate`.

    python -m benchmarks.decoding [llama tiny] [--batch 4] [--tokens 64] [--rounds 5] [--cpu-time] [--show] [--generate]

The steps are those of `examples/generate.py`, in a greedy `lax.scan`, of a Llama of eight layers of width 512 with
random weights (`tiny`: two of width 64), for prompts without padding. The loop by hand is a `lax.scan` over the step of
`handwritten/llama.py` with a cache of the same shapes. All start from the same weights and give the same tokens. The
ways take turns; a rate is that of the best round, and the ratio of times the median of those of the rounds.

With `--generate`, the greedy `generate` of transformers as one program is compared with `decode` of the example: both
end when all sequences have ended.
"""

import argparse
import collections
import re
import time

import jax
import numpy as np
import torch

from examples import generate as example
from torch2jax import t2j
from torch2jax.tools.models import define_vision_operators

from .generate import PROMPT, small_llama
from .handwritten import llama


def scanned(steps, tokens: int):
    """Greedy decoding that does not stop, as that by hand."""

    def decode(params, ids):
        def body(carry, _):
            logits, state = steps.step(params, *carry)
            token = logits.argmax(-1).astype(np.int32)
            return (token, state), token

        logits, state = steps.start(params, ids)
        token = logits.argmax(-1).astype(np.int32)
        _, found = jax.lax.scan(body, (token, state), length=tokens - 1)
        return jax.numpy.concatenate([token[None], found]).T

    return decode


def operations(program) -> collections.Counter:
    """How often a compiled program has each operation, in its loops and fusions too."""
    free = {"parameter", "constant", "bitcast", "tuple", "get-tuple-element", "copy", "fusion", "call"}
    found = re.findall(r"= \S+ ([a-z\-]+)\(", program.as_text())
    return collections.Counter(name for name in found if name not in free)


def compare(name: str, batch: int, tokens: int, rounds: int, clock, show: bool) -> None:
    """Prints the rows of one model."""
    model = small_llama(name)
    ids = torch.randint(3, 100, (batch, PROMPT), generator=torch.Generator().manual_seed(0))
    params = dict(t2j(model.state_dict()))
    steps = example.causal(model, PROMPT + tokens)
    ours = jax.jit(scanned(steps, tokens)).lower(params, t2j(ids)).compile()
    theirs = jax.jit(llama.looped(model.config, PROMPT + tokens, tokens)).lower(params, t2j(ids)).compile()
    given = {"attention_mask": torch.ones_like(ids), "pad_token_id": 0}
    options = {**given, "do_sample": False, "max_new_tokens": tokens, "min_new_tokens": tokens}
    ways = {
        "translated": lambda: np.asarray(ours(params, t2j(ids))),
        "by hand": lambda: np.asarray(theirs(params, t2j(ids))),
        "PyTorch": lambda: model.generate(ids, **options)[:, PROMPT:].numpy(),
        "PyTorch, static": lambda: model.generate(ids, **options, cache_implementation="static", disable_compile=True)[
            :, PROMPT:
        ].numpy(),
    }
    expected = ways["by hand"]()
    times: dict[str, list[float]] = {way: [] for way in ways}
    for way, run in ways.items():
        np.testing.assert_array_equal(run(), expected, way)
    for _ in range(rounds):
        for way, run in ways.items():
            start = clock()
            run()
            times[way].append(clock() - start)
    a, b = operations(ours), operations(theirs)
    if show:
        for operation in sorted(a | b, key=lambda key: b[key] - a[key]):
            print(f"  {operation:24} {a[operation]:5} {b[operation]:5}")
    for way in list(ways)[1:]:
        ratio = np.median([x / y for x, y in zip(times["translated"], times[way], strict=True)])
        rates = [batch * tokens / min(times[key]) for key in ("translated", way)]
        print(f"| {name} | {way} | {rates[0]:.0f} | {rates[1]:.0f} | {ratio:.3f} |", flush=True)
    print(f"| {name} | operations by hand | {a.total()} | {b.total()} | {a.total() / b.total():.3f} |", flush=True)


def compare_generate(name: str, batch: int, tokens: int, rounds: int, clock) -> None:
    """Prints the row of one model: `generate` of transformers, jitted whole, and the loop of the example."""
    model = small_llama(name)
    end = model.config.vocab_size - 1
    ids = torch.randint(3, 99, (batch, PROMPT), generator=torch.Generator().manual_seed(0))
    params, mask = dict(t2j(model.state_dict())), torch.ones_like(ids)
    options = {"max_new_tokens": tokens, "do_sample": False, "cache_implementation": "static"}
    options |= {"eos_token_id": end, "pad_token_id": 0}
    generate = t2j(model.generate)
    functions = {
        "generate": lambda params, ids: generate(ids, attention_mask=mask, state_dict=params, **options),
        "example": example.decode(example.causal(model, PROMPT + tokens), example.greedy, tokens, end=end),
    }
    programs, built = {}, {}
    for way, function in functions.items():
        start = clock()
        programs[way] = jax.jit(function).lower(params, t2j(ids)).compile()
        built[way] = clock() - start
    wanted = np.asarray(programs["example"](params, t2j(ids)))
    found = np.asarray(programs["generate"](params, t2j(ids)).compact())[:, PROMPT:]
    np.testing.assert_array_equal(found, wanted[:, : found.shape[1]])
    times: dict[str, list[float]] = {way: [] for way in programs}
    for _ in range(rounds):
        for way, run in programs.items():
            start = clock()
            jax.block_until_ready(run(params, t2j(ids)))
            times[way].append(clock() - start)
    ratio = np.median([x / y for x, y in zip(times["generate"], times["example"], strict=True)])
    each = [1e3 * min(times[way]) / found.shape[1] for way in functions]
    seconds = [built[way] for way in functions]
    print(f"| {name} | {seconds[0]:.1f} | {seconds[1]:.1f} | {each[0]:.3g} | {each[1]:.3g} | {ratio:.3f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="llama, tiny; both by default")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cpu-time", action="store_true", help="of the process, where other programs run")
    parser.add_argument("--show", action="store_true", help="print the number of each operation")
    parser.add_argument("--generate", action="store_true", help="compare `generate` as one program with the example")
    options = parser.parse_args()
    torch.set_num_threads(1)
    define_vision_operators()
    clock = time.process_time if options.cpu_time else time.perf_counter
    if options.generate:
        print("| model | generate, to compile (s) | example (s) | generate (ms/token) | example (ms/token) | ratio |")
        print("|---|---|---|---|---|---|")
        for name in options.models or ("llama", "tiny"):
            compare_generate(name, options.batch, options.tokens, options.rounds, clock)
        return
    print("| model | other | translated (tokens/s) | other (tokens/s) | time, ratio |\n|---|---|---|---|---|")
    for name in options.models or ("llama", "tiny"):
        compare(name, options.batch, options.tokens, options.rounds, clock, options.show)


if __name__ == "__main__":
    main()
