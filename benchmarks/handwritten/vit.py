"""ViT-B/16 in evaluation mode."""

import jax
import jax.numpy as jnp
from jax import lax

from .layers import attention, layer_norm, linear, merge_heads, split_heads

LAYERS, HEADS, PATCH = 12, 12, 16
EPSILON = 1e-6


def block(p, prefix, x):
    y = layer_norm(x, p[prefix + "ln_1.weight"], p[prefix + "ln_1.bias"], EPSILON)
    name = prefix + "self_attention."
    qkv = linear(y, p[name + "in_proj_weight"], p[name + "in_proj_bias"])
    q, k, v = (split_heads(part, HEADS) for part in jnp.split(qkv, 3, -1))
    y = merge_heads(attention(q, k, v))
    x = x + linear(y, p[name + "out_proj.weight"], p[name + "out_proj.bias"])
    y = layer_norm(x, p[prefix + "ln_2.weight"], p[prefix + "ln_2.bias"], EPSILON)
    y = jax.nn.gelu(linear(y, p[prefix + "mlp.0.weight"], p[prefix + "mlp.0.bias"]), approximate=False)
    return x + linear(y, p[prefix + "mlp.3.weight"], p[prefix + "mlp.3.bias"])


def apply(p, images):
    """Logits (batch, 1000) of images (batch, 3, height, width)."""
    weight = p["conv_proj.weight"]
    x = lax.conv_general_dilated(images, weight, (PATCH, PATCH), "VALID", dimension_numbers=("NCHW", "OIHW", "NHWC"))
    x = x.reshape(x.shape[0], -1, weight.shape[0]) + p["conv_proj.bias"]
    token = jnp.broadcast_to(p["class_token"], (x.shape[0], 1, x.shape[2]))
    x = jnp.concatenate([token, x], 1) + p["encoder.pos_embedding"]
    for i in range(LAYERS):
        x = block(p, f"encoder.layers.encoder_layer_{i}.", x)
    x = layer_norm(x[:, 0], p["encoder.ln.weight"], p["encoder.ln.bias"], EPSILON)
    return linear(x, p["heads.head.weight"], p["heads.head.bias"])
