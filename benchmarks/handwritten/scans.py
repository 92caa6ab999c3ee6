"""Layers and time steps as `lax.scan`, as an expert writes them by hand."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .llama import normalize, project, rotate

__all__ = ["gru", "llama"]


def llama(config) -> Callable[[Mapping[str, jax.Array], jax.Array], jax.Array]:
    """The logits of a Llama, of weights that are stacked by layers (`torch2jax.stack_layers`) and ids (count,)."""
    heads, shared = config.num_attention_heads, config.num_key_value_heads
    width, epsilon = config.hidden_size // heads, config.rms_norm_eps
    theta = config.rope_parameters["rope_theta"]
    frequencies = theta ** -(np.arange(0, width, 2, dtype=np.float32) / width)
    before = "model.layers.*."

    def run(params, ids):
        count = ids.shape[0]
        angles = jnp.arange(count)[:, None] * jnp.concatenate([frequencies, frequencies])
        cos, sin, causal = jnp.cos(angles), jnp.sin(angles), jnp.tril(jnp.ones((count, count), bool))

        def layer(x, p):
            y = normalize(x, p["input_layernorm.weight"], epsilon)
            q, k, v = (
                project(y, p[f"self_attn.{name}_proj.weight"]).reshape(count, -1, width).swapaxes(0, 1)
                for name in "qkv"
            )
            q, k = rotate(q, cos, sin).reshape(shared, heads // shared, count, width), rotate(k, cos, sin)
            scores = jnp.einsum("sgqd,skd->sgqk", q, k) * width**-0.5
            weights = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf), -1)
            y = jnp.einsum("sgqk,skd->sgqd", weights, v).reshape(heads, count, width).swapaxes(0, 1)
            x = x + project(y.reshape(count, -1), p["self_attn.o_proj.weight"])
            y = normalize(x, p["post_attention_layernorm.weight"], epsilon)
            gate = jax.nn.silu(project(y, p["mlp.gate_proj.weight"]))
            return x + project(gate * project(y, p["mlp.up_proj.weight"]), p["mlp.down_proj.weight"]), None

        stacked = {name.removeprefix(before): x for name, x in params.items() if name.startswith(before)}
        x, _ = lax.scan(layer, params["model.embed_tokens.weight"][ids], stacked)
        return project(normalize(x, params["model.norm.weight"], epsilon), params["lm_head.weight"])

    return run


def gru(params: Mapping[str, jax.Array], x: jax.Array) -> jax.Array:
    """The states of a GRU cell along the second dimension."""

    def step(h, x):
        from_x = project(x, params["cell.weight_ih"]) + params["cell.bias_ih"]
        from_h = project(h, params["cell.weight_hh"]) + params["cell.bias_hh"]
        (a, b, c), (d, e, f) = jnp.split(from_x, 3, -1), jnp.split(from_h, 3, -1)
        reset, update = jax.nn.sigmoid(a + d), jax.nn.sigmoid(b + e)
        new = jnp.tanh(c + reset * f)
        h = new + update * (h - new)
        return h, h

    start = jnp.zeros((x.shape[0], params["cell.weight_hh"].shape[1]))
    return lax.scan(step, start, x.swapaxes(0, 1))[1].swapaxes(0, 1)
