"""What one operator costs when it is called eagerly, and what it costs to trace one, against jax.numpy in the same run.

    python -m benchmarks.operators [--rounds 20] [--only operators calls]

The operands are small, so that time is what Python takes. A translated operator runs many times within one call. The
two take turns, and a time is the best of its rounds.

A second table is of calls: of a function that does nothing, of a module (two linear layers and a ReLU) beyond its
operators, the trace of a layer of a Llama, and the first `torch2jax` of a process, in seconds of the processor.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F

from torch2jax import t2j

REPEATS = 50


def _write(x, w, m):
    x[0] = 0.0
    return x


OPERATORS: dict[str, tuple[Callable, Callable]] = {
    "sin": (lambda x, w, m: torch.sin(x), lambda x, w, m: jnp.sin(x)),
    "x + w": (lambda x, w, m: x + w, lambda x, w, m: x + w),
    "x * 2": (lambda x, w, m: x * 2, lambda x, w, m: x * 2),
    "x > 0": (lambda x, w, m: x > 0, lambda x, w, m: x > 0),
    "where": (lambda x, w, m: torch.where(m, x, w), lambda x, w, m: jnp.where(m, x, w)),
    "clamp": (lambda x, w, m: x.clamp(0, 1), lambda x, w, m: jnp.clip(x, 0, 1)),
    "sum": (lambda x, w, m: x.sum(-1), lambda x, w, m: jnp.sum(x, -1)),
    "max": (lambda x, w, m: x.amax(-1), lambda x, w, m: jnp.max(x, -1)),
    "cumsum": (lambda x, w, m: x.cumsum(-1), lambda x, w, m: jnp.cumsum(x, -1)),
    "sort": (lambda x, w, m: torch.sort(x)[0], lambda x, w, m: jnp.sort(x)),
    "reshape": (lambda x, w, m: x.reshape(2, 8), lambda x, w, m: x.reshape(2, 8)),
    "transpose": (lambda x, w, m: x.mT, lambda x, w, m: x.mT),
    "x[1:3]": (lambda x, w, m: x[1:3], lambda x, w, m: x[1:3]),
    "cat": (lambda x, w, m: torch.cat([x, w]), lambda x, w, m: jnp.concatenate([x, w])),
    "matmul": (lambda x, w, m: x @ w, lambda x, w, m: x @ w),
    "einsum": (lambda x, w, m: torch.einsum("ij,jk", x, w), lambda x, w, m: jnp.einsum("ij,jk", x, w)),
    "linear": (lambda x, w, m: F.linear(x, w), lambda x, w, m: x @ w.T),
    "relu": (lambda x, w, m: F.relu(x), lambda x, w, m: jax.nn.relu(x)),
    "gelu": (lambda x, w, m: F.gelu(x), lambda x, w, m: jax.nn.gelu(x, approximate=False)),
    "softmax": (lambda x, w, m: F.softmax(x, -1), lambda x, w, m: jax.nn.softmax(x, -1)),
    "layer_norm": (lambda x, w, m: F.layer_norm(x, (4,)), lambda x, w, m: jax.nn.standardize(x, -1)),
    "y[0] = 0.": (_write, lambda x, w, m: x.at[0].set(0.0)),
}


def _repeated(operator: Callable, count: int) -> Callable:
    def run(*operands):
        for _ in range(count):
            result = operator(*operands)
        return result

    return run


def _seconds(function: Callable, *args) -> float:
    start = time.perf_counter()
    function(*args)
    return time.perf_counter() - start


def _best(functions: list[Callable], rounds: int) -> list[float]:
    """The best time of each of some functions that take turns, in microseconds for one of `REPEATS` repetitions."""
    times = [[_seconds(function) for function in functions] for _ in range(rounds)]
    return [min(column) / REPEATS * 1e6 for column in zip(*times, strict=True)]


def measure(torch_operator: Callable, jax_operator: Callable, rounds: int) -> list[float]:
    """Microseconds for one operator: translated, in JAX; then to trace it: translated, in JAX."""
    operands = jnp.eye(4) * 2, jnp.ones((4, 4)), jnp.eye(4, dtype=bool)
    translated, direct = t2j(_repeated(torch_operator, REPEATS)), _repeated(jax_operator, REPEATS)
    for function in (translated, direct):  # pays for compilation
        function(*operands)
    eager = _best([lambda: translated(*operands), lambda: direct(*operands)], rounds)
    traced = _best([lambda f=f: jax.make_jaxpr(lambda *a: f(*a))(*operands) for f in (translated, direct)], rounds)
    return eager + traced


def _best_calls(functions: list[Callable], rounds: int) -> list[float]:
    """The best time of one call of each of some functions that take turns, in milliseconds."""
    for function in functions:
        for _ in range(6):  # pays for compilation
            function()
    times = [[_seconds(function) for function in functions] for _ in range(rounds)]
    return [min(column) * 1e3 for column in zip(*times, strict=True)]


def _module_calls(rounds: int) -> Iterator[tuple[str, float, str]]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4)).eval()
    translated, x = t2j(model), jnp.eye(4)
    state = t2j(model.state_dict())

    def layers(times: int) -> Callable:
        def run(x, a, b, c, d):
            for _ in range(times):
                result = F.linear(F.relu(F.linear(x, a, b)), c, d)
            return result

        translated = t2j(run)
        return lambda: translated(x, *state.values())

    empty, few, many = t2j(lambda x: x), layers(1), layers(21)
    calls = [lambda: empty(x), lambda: translated(x, state_dict=state), lambda: translated(x), few, many]
    nothing, given, own, once, often = _best_calls(calls, 10 * rounds)
    operators = (often - once) / 20
    yield "`t2j(lambda x: x)(x)`, eager (ms)", nothing, "0.06"
    yield "`t2j(module)(x, state_dict=state)`, eager, beyond its operators (ms)", given - operators, "0.3"
    yield "`t2j(module)(x)`, eager, beyond its operators, with a copy of each weight (ms)", own - operators, ""


def _llama_trace(rounds: int, layers: int = 32) -> float:
    """Milliseconds of the processor to trace one layer of a Llama."""
    from torch2jax.tools.models import define_vision_operators

    define_vision_operators()  # transformers imports torchvision
    from transformers import LlamaConfig, LlamaForCausalLM

    def trace(count: int) -> Callable:
        config = LlamaConfig(
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=count,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=128,
            use_cache=False,
        )
        translated = t2j(LlamaForCausalLM(config).eval())
        params, buffers = translated.split()
        ids = jnp.zeros((1, 8), jnp.int32)
        return lambda: jax.make_jaxpr(
            lambda params, ids: translated(ids, state_dict=params | buffers).logits  # pyright: ignore
        )(params, ids)

    def seconds(function: Callable) -> float:
        start = time.process_time()
        function()
        return time.process_time() - start

    functions = trace(layers), trace(2)
    whole, two = map(min, zip(*[map(seconds, functions) for _ in range(max(rounds // 4, 3))], strict=True))
    return (whole - two) / (layers - 2) * 1e3


_FIRST = """
import time, torch, jax, jax.numpy as jnp
from torch2jax import torch2jax
x = jax.block_until_ready(jnp.ones((4, 4)) + 1)
start = time.process_time()
jax.block_until_ready(torch2jax(lambda x: torch.sin(x) * 2, x)(x))
print(time.process_time() - start)
"""


def _first_call() -> float:
    """Seconds of the processor for the first function whose results are inferred; the best of three processes."""
    command = [sys.executable, "-W", "ignore", "-c", _FIRST]
    return min(float(subprocess.run(command, check=True, capture_output=True, text=True).stdout) for _ in range(3))


def calls(rounds: int) -> Iterator[tuple[str, float, str]]:
    """What was measured, the figure, and its target."""
    yield from _module_calls(rounds)
    yield "trace of a layer of a Llama of 32 (ms of the processor)", _llama_trace(rounds), "8"
    yield "the first `torch2jax(f, x)(x)` of a process (s of the processor)", _first_call(), "0.5"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", nargs="+", choices=["operators", "calls"], default=["operators", "calls"])
    options = parser.parse_args()
    if "operators" in options.only:
        print("| operator | eager (us) | jax.numpy | more | trace (us) | jax.numpy | ratio |")
        print("|---|---|---|---|---|---|---|")
        for name, pair in OPERATORS.items():
            a, b, c, d = measure(*pair, options.rounds)
            print(f"| `{name}` | {a:.1f} | {b:.1f} | {a - b:.1f} | {c:.0f} | {d:.0f} | {c / d:.2f} |", flush=True)
        print()
    if "calls" in options.only:
        print("| call | figure | target |\n|---|---|---|")
        for name, figure, target in calls(options.rounds):
            print(f"| {name} | {figure:.2f} | {target} |", flush=True)


if __name__ == "__main__":
    main()
