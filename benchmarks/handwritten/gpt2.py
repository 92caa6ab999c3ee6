"""GPT-2 (124M) in evaluation mode, with the weights' names of transformers."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .layers import attention, layer_norm, merge_heads, split_heads

LAYERS, HEADS = 12, 12
EPSILON = 1e-5


def project(x, weight, bias):
    """As `linear`, for a weight laid out as (in, out)."""
    y = lax.dot_general(x.reshape(-1, x.shape[-1]), weight, (((1,), (0,)), ((), ()))) + bias
    return y.reshape(*x.shape[:-1], weight.shape[1])


def block(p, prefix, x, mask):
    y = layer_norm(x, p[prefix + "ln_1.weight"], p[prefix + "ln_1.bias"], EPSILON)
    qkv = project(y, p[prefix + "attn.c_attn.weight"], p[prefix + "attn.c_attn.bias"])
    q, k, v = (split_heads(part, HEADS) for part in jnp.split(qkv, 3, -1))
    y = merge_heads(attention(q, k, v, mask))
    x = x + project(y, p[prefix + "attn.c_proj.weight"], p[prefix + "attn.c_proj.bias"])
    y = layer_norm(x, p[prefix + "ln_2.weight"], p[prefix + "ln_2.bias"], EPSILON)
    y = jax.nn.gelu(project(y, p[prefix + "mlp.c_fc.weight"], p[prefix + "mlp.c_fc.bias"]), approximate=True)
    return x + project(y, p[prefix + "mlp.c_proj.weight"], p[prefix + "mlp.c_proj.bias"])


def apply(p, ids):
    """Logits (batch, length, vocabulary) of token ids (batch, length)."""
    length = ids.shape[1]
    x = p["transformer.wte.weight"][ids] + p["transformer.wpe.weight"][:length]
    mask = np.tril(np.ones((length, length), bool))
    for i in range(LAYERS):
        x = block(p, f"transformer.h.{i}.", x, mask)
    x = layer_norm(x, p["transformer.ln_f.weight"], p["transformer.ln_f.bias"], EPSILON)
    flat = x.reshape(-1, x.shape[-1])
    logits = lax.dot_general(flat, p["transformer.wte.weight"], (((1,), (1,)), ((), ())))
    return logits.reshape(*ids.shape, -1)
