"""`generate` of transformers with a compiled forward pass, against a jitted step by hand in a loop, and PyTorch itself.

    python -m benchmarks.generate [greedy sampled beams smollm-greedy smollm-sampled smollm-beams whisper tiny-greedy]
                                  [--tokens 64] [--rounds 5] [--cpu-time]

A Llama of eight layers of width 512 with random weights (`smollm`: 30 layers of width 576, the sizes of SmolLM-135M;
`tiny`: two of width 64), and a Whisper of the sizes of whisper-tiny, with static caches. The steps by hand are those of
`handwritten/`, in the loops of `handwritten/loops.py`: caches donated, each token read, as `generate` does to know when
to stop. All start from the same weights, and give the same tokens where these are not drawn. The loop of `generate` is
PyTorch's own around a model that gives scores at no cost: a token takes at least that and a step by hand. A time is
that of a whole call over the number of tokens; the ways take turns, and it is the best of its rounds.
"""

import argparse
import functools
import time
import types
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import torch

from torch2jax import t2j
from torch2jax.tools.models import define_vision_operators

from .handwritten import llama, loops, whisper
from .models import in_turns

PROMPT, BEAMS = 8, 3
WARMUP = 10  # calls, until the memory of one is used again by the next
LLAMAS = tuple(size + way for size in ("", "smollm-") for way in ("greedy", "sampled", "beams"))
WAYS = (*LLAMAS, "whisper", "tiny-greedy")
SIZES = {"tiny": (64, 128, 2, 4, 2, 100), "smollm": (576, 1536, 30, 9, 3, 49152)}


def small_llama(name: str = ""):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = SIZES.get(name.partition("-")[0], (512, 1376, 8, 8, 4, 8000))
    names = (
        *("hidden_size", "intermediate_size", "num_hidden_layers"),
        *("num_attention_heads", "num_key_value_heads", "vocab_size"),
    )
    config = LlamaConfig(**dict(zip(names, sizes, strict=True)), max_position_embeddings=256, attention_bias=False)
    return LlamaForCausalLM(config).eval()


def whisper_tiny():
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    torch.manual_seed(0)
    sizes = {"d_model": 384, "encoder_layers": 4, "decoder_layers": 4, "encoder_ffn_dim": 1536, "decoder_ffn_dim": 1536}
    heads = {"encoder_attention_heads": 6, "decoder_attention_heads": 6, "num_mel_bins": 80, "vocab_size": 51865}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    none = {"begin_suppress_tokens": None, "suppress_tokens": None}
    config = WhisperConfig(**sizes, **heads, **tokens, **none, init_std=0.1)  # so that tokens differ
    return WhisperForConditionalGeneration(config).eval()


def without_cost(model):
    """A model that gives the same scores for each token, at no cost."""
    from transformers.modeling_outputs import CausalLMOutputWithPast

    scores = torch.zeros(1, 1, model.config.vocab_size)

    @functools.wraps(type(model).forward)  # whose parameters `generate` looks at
    def forward(self, *args, **kwargs):
        return CausalLMOutputWithPast(logits=scores, past_key_values=kwargs.get("past_key_values"))

    model.forward = types.MethodType(forward, model)
    return model


def llama_by_hand(way: str, model, state: dict, ids: jax.Array, tokens: int) -> Callable:
    config, length = model.config, ids.shape[1] + tokens
    step = llama.stepper(config, length)
    decode = {
        "sampled": lambda: loops.sampled(step, config.vocab_size, jax.random.key(0)),
        "beams": lambda: loops.beams(step, BEAMS),
    }.get(way, lambda: loops.greedy(step, config.vocab_size))()
    return lambda: decode(state, llama.empty(config, length), ids[0], tokens)


def whisper_by_hand(model, state: dict, features: jax.Array, tokens: int) -> Callable:
    config = model.config
    listen, decode = jax.jit(whisper.listener(config)), loops.greedy(whisper.stepper(config, tokens + 1), 2)
    start = jnp.full(1, config.decoder_start_token_id)
    return lambda: decode((state, listen(state, features)), whisper.empty(config, tokens + 1), start, tokens)[1:]


def compare(name: str, tokens: int, rounds: int, clock) -> None:
    """Prints the rows of one way to decode."""
    way = name.rpartition("-")[2]
    options = {"max_new_tokens": tokens, "cache_implementation": "static"}
    if name == "whisper":
        model, arguments, parts = whisper_tiny(), {"input_features": torch.randn(1, 80, 3000)}, ["", "model.encoder"]
    else:
        model, parts = small_llama(name), [""]
        arguments = {"input_ids": torch.randint(3, 100, (1, PROMPT))}
        options |= {"pad_token_id": 0, "eos_token_id": model.config.vocab_size - 1, "do_sample": way == "sampled"}
        options |= {"num_beams": BEAMS if way == "beams" else 1}
    state = dict(t2j(model.state_dict()))
    rng = {"rng": jax.random.key(0)} if way == "sampled" else {}
    generate, arrays = t2j(model.generate, compile=parts), {key: t2j(x) for key, x in arguments.items()}
    (given,) = arrays.values()
    by_hand = (
        whisper_by_hand(model, state, given, tokens)
        if name == "whisper"
        else llama_by_hand(way, model, state, given, tokens)
    )
    ways = {
        "translated": lambda: np.asarray(generate(**arrays, state_dict=state, **rng, **options)),
        "PyTorch": lambda: model.generate(**arguments, **options).numpy(),
        "by hand": by_hand,
    }
    found = {other: np.ravel(run()) for other, run in ways.items()}
    assert len(found["translated"]) >= tokens, "it ended before: choose another seed"
    if way != "sampled":
        for other, ids in found.items():
            np.testing.assert_array_equal(ids, found["PyTorch"], other)
    if way == "greedy":
        empty = without_cost(small_llama(name))
        ways["the loop of generate"] = lambda: empty.generate(**arguments, **options)
    for _ in range(WARMUP):
        for run in ways.values():
            run()
    each = [1e3 * seconds / tokens for seconds in in_turns(list(ways.values()), rounds, clock)]
    times = dict(zip(ways, each, strict=True))
    if way == "greedy":
        times["both of these"] = times["by hand"] + times["the loop of generate"]
    mine = times.pop("translated")
    for other, theirs in times.items():
        print(f"| {name} | {other} | {mine:.3g} | {theirs:.3g} | {mine / theirs:.3f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ways", nargs="*", metavar="WAY", help=f"{', '.join(WAYS)}; all by default")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cpu-time", action="store_true", help="processor time, where other programs run")
    options = parser.parse_args()
    define_vision_operators()
    torch.set_num_threads(1)
    print("| way | other | translated (ms/token) | other (ms/token) | ratio |\n|---|---|---|---|---|")
    for name in options.ways or WAYS:
        compare(name, options.tokens, options.rounds, time.process_time if options.cpu_time else time.perf_counter)


if __name__ == "__main__":
    main()
