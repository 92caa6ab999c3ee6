"""A Llama that decodes one token after another, with the weights' names of transformers."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

__all__ = ["empty", "looped", "project", "project_int8", "stepper"]


def project(x, weight):
    return lax.dot_general(x, weight, (((x.ndim - 1,), (1,)), ((), ())))


def project_int8(x, weight):
    """As `project`, in integers: `weight` is its codes and their scales, and each row of `x` is rounded to 8 bits."""
    codes, scale = weight
    step = jnp.max(jnp.abs(x), -1, keepdims=True) / 127
    dims = ((x.ndim - 1,), (1,)), ((), ())
    product = lax.dot_general(jnp.round(x / step).astype(jnp.int8), codes, dims, preferred_element_type=jnp.int32)
    return product * step * scale


def normalize(x, weight, epsilon):
    return weight * (x * lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + epsilon))


def rotate(x, cos, sin):
    left, right = jnp.split(x, 2, -1)
    return x * cos + jnp.concatenate([-right, left], -1) * sin


def stepper(config, length: int, project=project):
    """A function of weights, caches, the next token ids (count,) and their place: the last logits, and the caches.

    Args:
        project: the product of rows and a weight of the layers.
    """
    heads, shared = config.num_attention_heads, config.num_key_value_heads
    width, epsilon = config.hidden_size // heads, config.rms_norm_eps
    theta = config.rope_parameters["rope_theta"]
    frequencies = theta ** -(np.arange(0, width, 2, dtype=np.float32) / width)

    def attend(p, x, cache, position, cos, sin):
        count = x.shape[0]
        q = rotate(project(x, p("q_proj")).reshape(count, heads, width).swapaxes(0, 1), cos, sin)
        k = rotate(project(x, p("k_proj")).reshape(count, shared, width).swapaxes(0, 1), cos, sin)
        v = project(x, p("v_proj")).reshape(count, shared, width).swapaxes(0, 1)
        keys, values = (
            lax.dynamic_update_slice(old, new, (0, position, 0)) for old, new in zip(cache, (k, v), strict=True)
        )
        q = q.reshape(shared, heads // shared, count, width)
        scores = jnp.einsum("sgqd,skd->sgqk", q, keys) * width**-0.5
        mask = jnp.arange(length) <= position + jnp.arange(count)[:, None]
        weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), -1)
        y = jnp.einsum("sgqk,skd->sgqd", weights, values).reshape(heads, count, width)
        return project(y.swapaxes(0, 1).reshape(count, -1), p("o_proj")), (keys, values)

    def step(params, caches, ids, position):
        angles = (position + jnp.arange(ids.shape[0]))[:, None] * jnp.concatenate([frequencies, frequencies])
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        x, new = params["model.embed_tokens.weight"][ids], []
        for i, cache in enumerate(caches):
            at = f"model.layers.{i}."
            y = normalize(x, params[at + "input_layernorm.weight"], epsilon)
            y, cache = attend(lambda name, at=at: params[f"{at}self_attn.{name}.weight"], y, cache, position, cos, sin)
            new.append(cache)
            x = x + y
            y = normalize(x, params[at + "post_attention_layernorm.weight"], epsilon)
            gate = jax.nn.silu(project(y, params[at + "mlp.gate_proj.weight"]))
            x = x + project(gate * project(y, params[at + "mlp.up_proj.weight"]), params[at + "mlp.down_proj.weight"])
        x = normalize(x[-1], params["model.norm.weight"], epsilon)
        return x @ params["lm_head.weight"].T, new

    return step


def empty(config, length: int):
    """The caches before the first token."""
    shape = (config.num_key_value_heads, length, config.hidden_size // config.num_attention_heads)
    return [tuple(jnp.zeros(shape) for _ in range(2)) for _ in range(config.num_hidden_layers)]


def looped(config, length: int, tokens: int, project=project):
    """A function of weights and token ids (batch, prompt) that gives the next (batch, tokens), in one compiled loop."""
    step = jax.vmap(stepper(config, length, project), (None, 0, 0, None))

    def decode(params, ids):
        def body(carry, position):
            token, caches = carry
            logits, caches = step(params, caches, token[:, None], position)
            following = jnp.argmax(logits, -1)
            return (following, caches), following

        batch, prompt = ids.shape
        caches = jax.tree.map(lambda x: jnp.broadcast_to(x, (batch, *x.shape)), empty(config, length))
        logits, caches = step(params, caches, ids, np.int32(0))
        token = jnp.argmax(logits, -1)
        _, found = lax.scan(body, (token, caches), prompt + jnp.arange(tokens - 1))
        return jnp.concatenate([token[None], found]).T

    return decode
