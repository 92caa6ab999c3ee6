"""Layers and time steps as `lax.scan`, as an expert writes them by hand."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .llama import normalize, project, rotate

__all__ = ["adapted", "ddim", "gru", "leapfrog", "llama"]


def llama(config, *, is_remat: bool = False) -> Callable[[Mapping[str, jax.Array], jax.Array], jax.Array]:
    """The logits of a Llama, of weights that are stacked by layers (`torch2jax.stack_layers`) and ids (count,).

    Args:
        is_remat: whether each layer is computed again on the way back.
    """
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
        x, _ = lax.scan(jax.checkpoint(layer) if is_remat else layer, params["model.embed_tokens.weight"][ids], stacked)
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


def leapfrog(params: Mapping[str, jax.Array], steps: int, size: float) -> jax.Array:
    """The positions after steps of a chain of pendulums."""

    def force(q):
        return -jnp.sin(q) + params["coupling"] * (jnp.roll(q, 1, -1) - 2 * q + jnp.roll(q, -1, -1))

    def step(carry, _):
        q, p = carry
        p = p + 0.5 * size * force(q)
        q = q + size * p
        p = p + 0.5 * size * force(q)
        return (q, p), None

    return lax.scan(step, (params["q"], params["p"]), None, length=steps)[0][0]


def adapted(params: Mapping[str, jax.Array], x: jax.Array, y: jax.Array, steps: int, rate: float) -> jax.Array:
    """The loss of a network of two layers after steps of gradient descent (MAML's inner loop)."""

    def loss(p):
        return jnp.square(jnp.tanh(x @ p["w"] + p["b"]) @ p["v"] - y).mean()

    def step(p, _):
        return jax.tree.map(lambda a, b: a - rate * b, p, jax.grad(loss)(p)), None

    return loss(lax.scan(step, dict(params), None, length=steps)[0])


def ddim(params: Mapping[str, jax.Array], x: jax.Array, alphas: np.ndarray) -> jax.Array:
    """The samples (B, C, H, W) that a U-Net of `benchmarks.loops.UNet` leads to, from the last of some noise levels."""

    def conv(x, name, stride=1):
        y = lax.conv_general_dilated(x, params[f"{name}.weight"], (stride, stride), ((1, 1), (1, 1)))
        return y + params[f"{name}.bias"][:, None, None]

    def unet(x, t):
        time = jax.nn.silu(params["time.weight"][:, 0] * t + params["time.bias"])[:, None, None]
        first = jax.nn.silu(conv(x, "enter")) + time
        y = jax.nn.silu(conv(first, "down", 2))
        y = jax.nn.silu(conv(y, "middle"))
        y = jnp.repeat(jnp.repeat(y, 2, 2), 2, 3)
        return conv(jax.nn.silu(conv(jnp.concatenate([first, y], 1), "up")), "leave")

    def step(x, level):
        t, a, before = level
        noise = unet(x, t)
        clean = (x - jnp.sqrt(1 - a) * noise) / jnp.sqrt(a)
        return jnp.sqrt(before) * clean + jnp.sqrt(1 - before) * noise, None

    count = len(alphas) - 1
    times = np.arange(count, 0, -1, dtype=np.float32) / count
    return lax.scan(step, x, (times, alphas[:0:-1], alphas[-2::-1]))[0]
