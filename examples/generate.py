"""Decodes with models of transformers, each way one compiled program: greedy, sampled, and by beams.

    python examples/generate.py [--model llama] [--tokens 16]

The models are small, with random weights: llama, gemma, qwen_moe, mamba, t5, whisper. A model becomes two functions,
`start` for the prompt and `step` for one more token, with a state between them that holds its cache. `decode` and
`beam_search` take these, and know nothing of models.
"""

import argparse
import inspect
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import torch
import transformers
from jax import lax
from transformers import DynamicCache, EncoderDecoderCache, StaticCache
from transformers.cache_utils import StaticLayer, StaticSlidingWindowLayer

from torch2jax import t2j


class Steps(NamedTuple):
    """A model as functions of arrays. Every array of the state has the batch first, or is a number."""

    start: Callable
    """``start(params, *inputs)`` gives the logits (batch, vocabulary) of the first token, and the state."""
    step: Callable
    """``step(params, token, state)`` gives those of the next one, for token ids (batch,), and the next state."""


def static_cache(model, length: int) -> StaticCache:
    """A cache of fixed shapes. Layers with a sliding window get all of `length` as well, and are masked.

    A window that slides counts its tokens in Python, so that each step would be another program.
    """
    cache = StaticCache(config=model.config, max_cache_len=length)
    cache.layers = [StaticLayer(length) if isinstance(x, StaticSlidingWindowLayer) else x for x in cache.layers]
    return cache


def causal(model, length: int) -> Steps:
    """The steps of a causal language model: of a prompt (batch, time), and its mask where it is padded on the left."""
    jax_model, empty = t2j(model), t2j(static_cache(model, length))
    parameters = inspect.signature(model.forward).parameters
    is_recurrent = "position_ids" not in parameters
    name = next(name for name in ("cache", "cache_params", "past_key_values") if name in parameters)

    def start(params, prompt, mask=None):
        positions = jnp.arange(prompt.shape[1])[None] if mask is None else jnp.maximum(mask.cumsum(1) - 1, 0)
        given = {"attention_mask": mask, "position_ids": positions, name: empty, "use_cache": True}
        output = jax_model(prompt, **given, logits_to_keep=1, state_dict=params)
        if mask is not None:  # what comes is no padding, and is behind a state
            mask = None if is_recurrent else jnp.pad(mask, ((0, 0), (0, length - mask.shape[1])), constant_values=1)
        return output.logits[:, -1], (output[name], mask, positions[:, -1:] + 1)

    def step(params, token, state):
        cache, mask, positions = state
        given = {"attention_mask": mask, "position_ids": positions, name: cache, "use_cache": True}
        output = jax_model(token[:, None], **given, state_dict=params)
        return output.logits[:, -1], (output[name], mask, positions + 1)

    return Steps(start, step)


def encoder_decoder(model, length: int) -> Steps:
    """The steps of a model with an encoder: of its inputs, and their mask where it takes one."""
    jax_model, first = t2j(model), model.config.decoder_start_token_id
    empty = t2j(EncoderDecoderCache(static_cache(model, length), DynamicCache()))

    def start(params, inputs, mask=None):
        token = jnp.full((len(inputs), 1), first, jnp.int32)
        given = {model.main_input_name: inputs, "attention_mask": mask, "past_key_values": empty}
        output = jax_model(**given, decoder_input_ids=token, state_dict=params)
        return output.logits[:, -1], (output.past_key_values, output.encoder_last_hidden_state, mask)

    def step(params, token, state):
        cache, encoded, mask = state
        given = {"encoder_outputs": (encoded,), "attention_mask": mask, "past_key_values": cache}
        output = jax_model(**given, decoder_input_ids=token[:, None], state_dict=params)
        return output.logits[:, -1], (output.past_key_values, encoded, mask)

    return Steps(start, step)


def greedy(logits, key):
    """The most probable token."""
    return logits.argmax(-1)


def sampled(temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None) -> Callable:
    """Draws one of the `top_k` most probable tokens, and of those that together have the probability `top_p`."""

    def choose(logits, key):
        logits = logits / temperature
        if top_k is not None:
            logits = jnp.where(logits < lax.top_k(logits, top_k)[0][..., -1:], -jnp.inf, logits)
        if top_p is not None:
            ordered = -jnp.sort(-logits)
            before = jnp.cumsum(jax.nn.softmax(ordered), -1) - jax.nn.softmax(ordered)
            least = jnp.where(before < top_p, ordered, jnp.inf).min(-1, keepdims=True)
            logits = jnp.where(logits < least, -jnp.inf, logits)
        return jax.random.categorical(key, logits)

    return choose


def decode(steps: Steps, choose: Callable, tokens: int, end: int = -1, pad: int = 0) -> Callable:
    """A function of ``(params, *inputs, key=...)`` that gives the next `tokens` tokens.

    What follows the token `end` is `pad`, and when all have ended the loop does.
    """

    def run(params, *inputs, key=None):
        key = jax.random.key(0) if key is None else key

        def pick(i, logits, ended):
            token = jnp.where(ended, pad, choose(logits, jax.random.fold_in(key, i)).astype(jnp.int32))
            return token, ended | (token == end)

        def goes_on(carry):
            i, _, ended, *_ = carry
            return (i < tokens) & ~ended.all()

        def body(carry):
            i, token, ended, found, state = carry
            logits, state = steps.step(params, token, state)
            token, ended = pick(i, logits, ended)
            return i + 1, token, ended, found.at[:, i].set(token), state

        logits, state = steps.start(params, *inputs)
        token, ended = pick(0, logits, jnp.zeros(len(logits), bool))
        found = jnp.full((len(token), tokens), pad, jnp.int32).at[:, 0].set(token)
        return lax.while_loop(goes_on, body, (1, token, ended, found, state))[3]

    return run


class Beams(NamedTuple):
    """Some sequences for each example: tokens (batch, beams, tokens), and scores (batch, beams), the best first."""

    tokens: jax.Array
    scores: jax.Array

    def best(self, count: int, among) -> tuple["Beams", jax.Array]:
        """The `count` best by the scores `among`, and which they are."""
        scores, places = lax.top_k(among, count)
        return Beams(jnp.take_along_axis(self.tokens, places[..., None], 1), scores), places


def beam_search(
    steps: Steps, beams: int, tokens: int, end: int = -1, pad: int = 0, length_penalty: float = 1.0
) -> Callable:
    """A function of ``(params, *inputs)`` that gives the most probable sequence that it finds, as `generate` does.

    A score is the sum of the logarithms of probabilities, for a finished sequence over its length to the power of
    `length_penalty`. An example is done when none of its running sequences would get among the finished, ended now.
    """
    NEVER = -1e9

    def run(params, *inputs):
        def extended(i, logits, running):
            """The best continuations, twice as many as beams, so that as many are left if those end; and from whom."""
            scores = running.scores[..., None] + jax.nn.log_softmax(logits.astype(jnp.float32))
            batch, width, words = scores.shape
            scores, places = lax.top_k(scores.reshape(batch, width * words), 2 * beams)
            origins = places // words
            found = jnp.take_along_axis(running.tokens, origins[..., None], 1).at[..., i].set(places % words)
            return Beams(found, scores), origins

        def advance(i, improves, logits, running, finished):
            """All of it after one more token, and the beam that each running sequence came from."""
            longer, origins = extended(i, logits, running)
            ended = (longer.tokens[..., i] == end) | (i + 1 == tokens)
            running, places = longer.best(beams, jnp.where(ended, NEVER + longer.scores, longer.scores))
            counts = ended & (jnp.arange(2 * beams) < beams) & improves[:, None]
            done = jnp.where(counts, longer.scores / (i + 1) ** length_penalty, NEVER)
            both = Beams(*(jnp.concatenate(pair, 1) for pair in zip(finished, (longer.tokens, done), strict=True)))
            finished = both.best(beams, both.scores)[0]
            improves &= running.scores[:, 0] / (i + 1) ** length_penalty > finished.scores[:, -1]
            return improves, running, finished, jnp.take_along_axis(origins, places, 1)

        def goes_on(carry):
            i, improves, *_ = carry
            return (i < tokens) & improves.any()

        def body(carry):
            i, improves, running, finished, state = carry
            logits, state = steps.step(params, running.tokens[..., i - 1].reshape(-1), state)
            logits = logits.reshape(batch, beams, -1)
            improves, running, finished, origins = advance(i, improves, logits, running, finished)
            rows = (origins + beams * jnp.arange(batch)[:, None]).reshape(-1)
            return i + 1, improves, running, finished, jax.tree.map(lambda x: x[rows] if x.ndim else x, state)

        logits, state = steps.start(params, *inputs)
        batch = len(logits)
        running = Beams(jnp.full((batch, beams, tokens), pad, jnp.int32), jnp.zeros((batch, beams)))
        finished = running._replace(scores=jnp.full((batch, beams), NEVER))
        alone = jnp.zeros((batch, beams)).at[:, 1:].set(NEVER)  # one beam, until its continuations are the beams
        logits = jnp.broadcast_to(logits[:, None], (batch, beams, logits.shape[-1]))
        improves, running, finished, _ = advance(
            0, jnp.ones(batch, bool), logits, running._replace(scores=alone), finished
        )
        state = jax.tree.map(lambda x: jnp.repeat(x, beams, 0) if x.ndim else x, state)
        return lax.while_loop(goes_on, body, (1, improves, running, finished, state))[3].tokens[:, 0]

    return run


TOKENS = {"vocab_size": 99, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
WIDTH = {"hidden_size": 32, "num_hidden_layers": 2, "initializer_range": 0.4, "tie_word_embeddings": False}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 64}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
WINDOW = {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]}
MODELS = {
    "llama": ("LlamaForCausalLM", WIDTH | HEADS),
    "gemma": ("Gemma3ForCausalLM", WIDTH | HEADS | WINDOW),
    "qwen_moe": ("Qwen3MoeForCausalLM", WIDTH | HEADS | EXPERTS),
    "mamba": ("MambaForCausalLM", WIDTH | {"state_size": 4}),
    "t5": (
        "T5ForConditionalGeneration",
        {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "initializer_factor": 3.0},
    ),
    "whisper": (
        "WhisperForConditionalGeneration",
        {"d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
        | {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_mel_bins": 16, "max_source_positions": 20}
        | {"suppress_tokens": None, "begin_suppress_tokens": None, "init_std": 0.4},
    ),
}


def build(name: str):
    """A small model with random weights."""
    kind, options = MODELS[name]
    model = getattr(transformers, kind)
    first = {"decoder_start_token_id": 1} if name in ("t5", "whisper") else {}
    return model(model.config_class(**options, **TOKENS, **first)).eval()


def inputs_of(name: str, time: int = 9) -> dict[str, torch.Tensor]:
    """Two examples, the second shorter: as `generate` takes them."""
    if name == "whisper":
        return {"input_features": torch.randn(2, 16, 40)}
    ids, mask = torch.randint(3, 99, (2, time)), torch.ones(2, time, dtype=torch.int64)
    mask[1, slice(6, None) if name == "t5" else slice(3)] = 0  # what a causal model goes on with is at the end
    return {"input_ids": ids * mask, "attention_mask": mask}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="llama")
    parser.add_argument("--tokens", type=int, default=16)
    options = parser.parse_args()
    torch.manual_seed(0)
    model, inputs = build(options.model), inputs_of(options.model)
    params, arrays = t2j(model.state_dict()), t2j(list(inputs.values()))
    if model.config.is_encoder_decoder:
        steps, before = encoder_decoder(model, options.tokens), 1
    else:
        before = inputs["input_ids"].shape[1]
        steps = causal(model, before + options.tokens)

    ways = {
        "greedy": (decode(steps, greedy, options.tokens, end=2), {}),
        "three beams": (beam_search(steps, 3, options.tokens, end=2), {"num_beams": 3}),
        "sampled": (decode(steps, sampled(0.8, top_k=20, top_p=0.9), options.tokens, end=2), None),
    }
    for name, (run, asked) in ways.items():
        run = jax.jit(run)
        found = run(params, *arrays)
        start = time.perf_counter()
        run(params, *arrays).block_until_ready()
        rate = found.size / (time.perf_counter() - start)
        print(f"{name}: {rate:.0f} tokens/s, {found[0].tolist()}")
        if asked is not None:
            generate = transformers.GenerationMixin.generate  # Whisper's own is for recordings of any length
            expected = generate(model, **inputs, **asked, do_sample=False, max_new_tokens=options.tokens)[:, before:]
            same = (found[:, : expected.shape[1]] == t2j(expected)) | (found[:, : expected.shape[1]] == 0)
            print(f"  {'as' if same.all() else 'NOT as'} model.generate says")


if __name__ == "__main__":
    main()
