"""transformers' caches as pytrees of JAX's: decoding in one compiled loop gives the tokens of `generate`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch2jax import t2j

from .test_transformers import ids, llama, t5

transformers = pytest.importorskip("transformers")

STEPS = 5
GREEDY = {"max_new_tokens": STEPS, "min_new_tokens": STEPS, "do_sample": False}


def scanned(decode, logits, cache):
    """The most probable tokens, one after the other in a `lax.scan` whose carry is the cache."""

    def best(logits):
        return logits[:, -1:].argmax(-1).astype(jnp.int32)

    def step(carry, _):
        token, cache = carry
        output = decode(token, cache)
        return (best(output.logits), output.past_key_values), token[:, 0]

    token = best(logits)
    return jax.lax.scan(step, (token, cache), None, length=STEPS)[1].T


def test_causal_language_model():
    model = llama()[0].eval()
    jax_model, params, prompt = t2j(model), t2j(model.state_dict()), ids(2, 7)

    @jax.jit
    def decode(params, prompt, cache):
        output = jax_model(prompt, past_key_values=cache, state_dict=params)

        def one(token, cache):
            return jax_model(token, past_key_values=cache, state_dict=params)

        return scanned(one, output.logits, output.past_key_values)

    expected = model.generate(prompt, attention_mask=torch.ones_like(prompt), **GREEDY)
    cache = t2j(transformers.StaticCache(config=model.config, max_cache_len=16))
    np.testing.assert_array_equal(decode(params, t2j(prompt), cache), expected[:, 7:])


def test_encoder_decoder():
    model = t5()[0].eval()
    jax_model, params, prompt = t2j(model), t2j(model.state_dict()), ids(2, 7)
    static = transformers.StaticCache(config=model.config.get_text_config(decoder=True), max_cache_len=16)
    cache = transformers.EncoderDecoderCache(static, transformers.DynamicCache())

    @jax.jit
    def decode(params, prompt, cache):
        start = jnp.zeros((len(prompt), 1), jnp.int32)
        output = jax_model(prompt, decoder_input_ids=start, past_key_values=cache, state_dict=params)
        encoded = (output.encoder_last_hidden_state,)

        def one(token, cache):
            given = {"encoder_outputs": encoded, "decoder_input_ids": token, "past_key_values": cache}
            return jax_model(**given, state_dict=params)

        return scanned(one, output.logits, output.past_key_values)

    expected = model.generate(prompt, **GREEDY)
    np.testing.assert_array_equal(decode(params, t2j(prompt), t2j(cache)), expected[:, 1:])
    assert not cache.is_updated
