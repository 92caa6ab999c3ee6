"""A Whisper that decodes one token after another, with the weights' names of transformers."""

import jax
import jax.numpy as jnp
from jax import lax

from .layers import attention, layer_norm, linear, merge_heads, split_heads

__all__ = ["empty", "listener", "stepper"]

EPSILON = 1e-5


class Weights:
    """The weights below a prefix."""

    def __init__(self, params, prefix):
        self.params, self.prefix = params, prefix

    def __call__(self, name):
        return self.params[f"{self.prefix}.{name}"]

    def linear(self, name, x):
        bias = self.params.get(f"{self.prefix}.{name}.bias", 0)  # keys have none
        return linear(x, self(f"{name}.weight"), bias)

    def norm(self, name, x):
        return layer_norm(x, self(f"{name}.weight"), self(f"{name}.bias"), EPSILON)

    def heads(self, name, x, heads):
        return split_heads(self.linear(name, x), heads)

    def feed_forward(self, x):
        y = jax.nn.gelu(self.linear("fc1", self.norm("final_layer_norm", x)), approximate=False)
        return x + self.linear("fc2", y)

    def attend(self, name, x, keys, values, heads, mask=None):
        q = self.heads(f"{name}.q_proj", x, heads)
        return self.linear(f"{name}.out_proj", merge_heads(attention(q, keys, values, mask)))


def listener(config):
    """A function of weights and features (1, bins, frames): what the decoder attends to, keys and values by layer."""
    heads = config.encoder_attention_heads

    def listen(params, features):
        at = Weights(params, "model.encoder")
        x = features
        for name, stride in (("conv1", 1), ("conv2", 2)):
            layout = ("NCH", "OIH", "NCH")
            y = lax.conv_general_dilated(x, at(f"{name}.weight"), (stride,), [(1, 1)], dimension_numbers=layout)
            x = jax.nn.gelu(y + at(f"{name}.bias")[:, None], approximate=False)
        x = x.swapaxes(1, 2) + at("embed_positions.weight")
        for i in range(config.encoder_layers):
            p = Weights(params, f"model.encoder.layers.{i}")
            y = p.norm("self_attn_layer_norm", x)
            keys, values = (p.heads(f"self_attn.{name}_proj", y, heads) for name in "kv")
            x = p.feed_forward(x + p.attend("self_attn", y, keys, values, heads))
        x = at.norm("layer_norm", x)
        layers = [Weights(params, f"model.decoder.layers.{i}.encoder_attn") for i in range(config.decoder_layers)]
        return [tuple(p.heads(f"{name}_proj", x, config.decoder_attention_heads) for name in "kv") for p in layers]

    return listen


def stepper(config, length: int):
    """A function of (weights, what is attended to), caches, the next token ids (count,) and their place.

    It gives the logits of the last one, and the caches.
    """
    heads = config.decoder_attention_heads

    def step(given, caches, ids, position):
        (params, memory), count, new = given, ids.shape[0], []
        at = Weights(params, "model.decoder")
        places = lax.dynamic_slice_in_dim(at("embed_positions.weight"), position, count)
        x = (at("embed_tokens.weight")[ids] + places)[None]
        mask = jnp.arange(length) <= position + jnp.arange(count)[:, None]
        for i, (cache, heard) in enumerate(zip(caches, memory, strict=True)):
            p = Weights(params, f"model.decoder.layers.{i}")
            y = p.norm("self_attn_layer_norm", x)
            keys, values = (
                lax.dynamic_update_slice(old, p.heads(f"self_attn.{name}_proj", y, heads), (0, 0, position, 0))
                for name, old in zip("kv", cache, strict=True)
            )
            new.append((keys, values))
            x = x + p.attend("self_attn", y, keys, values, heads, mask)
            x = x + p.attend("encoder_attn", p.norm("encoder_attn_layer_norm", x), *heard, heads)
            x = p.feed_forward(x)
        x = at.norm("layer_norm", x[:, -1])
        return (x @ at("embed_tokens.weight").T)[0], new

    return step


def empty(config, length: int):
    """The caches before the first token."""
    heads = config.decoder_attention_heads
    shape = (1, heads, length, config.d_model // heads)
    return [tuple(jnp.zeros(shape) for _ in range(2)) for _ in range(config.decoder_layers)]
