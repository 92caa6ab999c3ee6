"""Jits `generate` of the most used families of transformers, and compares its tokens: the table of docs/decoding.md.

    python -m scripts.generate                     # prints the table
    python -m scripts.generate --write             # and puts it into the page
    python -m scripts.generate llama gemma3        # of these families

Greedy tokens are compared with PyTorch's: without a mask, and with a traced one of a padded prompt. Sampled ones are
compared with those that `t2j(model.generate, compile=[""])` draws with the same key. Times are CPU time of the process.
"""

import argparse
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import torch

from tests.generated import FAMILIES, family
from torch2jax import t2j
from torch2jax.tools.models import define_vision_operators

_PAGE = Path(__file__).parent.parent / "docs" / "decoding.md"
_PROMPTS, _MASK = torch.tensor([[5, 7, 4, 9], [0, 0, 11, 12]]), torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])
_TOKENS, _ROUNDS = 24, 10
_CACHES = {"full": "static", "sliding": "sliding window", "hybrid": "hybrid", "encoder": "encoder and decoder"}
_HEAD = (
    "| family | cache | greedy, no mask | greedy, traced mask | sampled | trace (s) | compile (s) | a token (ms) | "
    'with `compile=[""]` (ms) |\n|---|---|---|---|---|---|---|---|---|\n'
)


class Row(NamedTuple):
    """What was found of a family."""

    name: str
    cache: str
    greedy: bool
    masked: bool
    sampled: bool
    trace: float
    compile: float
    token: float
    part: float

    def __str__(self) -> str:
        words = ["the same" if x else "DIFFERENT" for x in (self.greedy, self.masked, self.sampled)]
        times = [f"{self.trace:.1f}", f"{self.compile:.1f}", f"{self.token * 1e3:.2f}", f"{self.part * 1e3:.1f}"]
        return f"| {' | '.join((self.name, self.cache, *words, *times))} |"


def row(name: str) -> Row:
    """Generates with a model of a family in all ways."""
    model = family(name)
    params, prompts, mask = t2j(model.state_dict()), t2j(_PROMPTS), t2j(_MASK)
    generate, parts = t2j(model.generate), t2j(model.generate, compile=[""])
    greedy = {"max_new_tokens": _TOKENS, "do_sample": False}
    draws = {"max_new_tokens": _TOKENS, "do_sample": True, "temperature": 0.8, "top_k": 12, "top_p": 0.95}
    static = {"cache_implementation": "static"}

    call = jax.jit(lambda params, prompts: generate(prompts, state_dict=params, **greedy))
    begin = time.process_time()
    traced = call.trace(params, prompts)
    between = time.process_time()
    program = traced.lower().compile()
    end = time.process_time()
    wanted = model.generate(_PROMPTS, **greedy)
    is_greedy = _tokens(program(params, prompts)) == wanted.tolist()

    masked = jax.jit(lambda params, prompts, mask: generate(prompts, attention_mask=mask, state_dict=params, **greedy))
    wanted = model.generate(_PROMPTS, attention_mask=_MASK, **greedy)
    is_masked = _tokens(masked(params, prompts, mask)) == wanted.tolist()

    key = jax.random.key(0)
    sampled = jax.jit(lambda params, prompts, key: generate(prompts, state_dict=params, rng=key, **draws))
    drawn = parts(prompts, state_dict=params, rng=key, **draws, **static)
    is_sampled = _tokens(sampled(params, prompts, key)) == drawn.tolist()

    count = wanted.shape[1] - (_PROMPTS.shape[1] if not model.config.is_encoder_decoder else 1)
    token = _seconds(lambda: program(params, prompts)) / count
    part = _seconds(lambda: parts(prompts, state_dict=params, **greedy, **static)) / count
    cache = _CACHES[FAMILIES[name][3]]
    return Row(name, cache, is_greedy, is_masked, is_sampled, between - begin, end - between, token, part)


def _tokens(found: Any) -> list:
    return (found.compact() if hasattr(found, "compact") else found).tolist()


def _seconds(run: Callable[[], Any]) -> float:
    times = []
    for _ in range(_ROUNDS):
        begin = time.process_time()
        jax.block_until_ready(run())
        times.append(time.process_time() - begin)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", help=f"by default all: {', '.join(FAMILIES)}")
    parser.add_argument("--write", action="store_true", help="put the table into docs/decoding.md")
    options = parser.parse_args()
    define_vision_operators()
    rows = []
    for name in options.families or FAMILIES:
        rows.append(row(name))
        print(rows[-1], flush=True)
    if options.write:
        table = _HEAD + "".join(f"{row}\n" for row in rows)
        pattern = r"(<!-- table:generate -->\n).*?(<!-- end of table -->)"
        _PAGE.write_text(re.sub(pattern, lambda found: found[1] + table + found[2], _PAGE.read_text(), flags=re.DOTALL))
    if not all(row.greedy and row.masked and row.sampled for row in rows):
        raise SystemExit("some tokens differ")


if __name__ == "__main__":
    main()
