"""Layers that the hand-written transformers share."""

import jax.numpy as jnp
from jax import lax


def linear(x, weight, bias):
    """One two-dimensional product, the bias added before the reshape: XLA reads far less so. `weight` is (out, in)."""
    flat = x.reshape(-1, x.shape[-1])
    y = lax.dot_general(flat, weight, (((1,), (1,)), ((), ()))) + bias
    return y.reshape(*x.shape[:-1], weight.shape[0])


def layer_norm(x, weight, bias, epsilon):
    """Normalizes the last dimension."""
    mean = jnp.mean(x, -1, keepdims=True)
    centered = x - mean
    variance = jnp.mean(lax.square(centered), -1, keepdims=True)
    return centered * lax.rsqrt(variance + epsilon) * weight + bias


def attention(q, k, v, mask=None):
    """Softmax attention of (batch, heads, length, size) arrays."""
    scores = lax.dot_general(q * q.shape[-1] ** -0.5, k, (((3,), (3,)), ((0, 1), (0, 1))))
    if mask is not None:
        scores = jnp.where(mask, scores, -jnp.inf)
    weights = jnp.exp(scores - lax.stop_gradient(jnp.max(scores, -1, keepdims=True)))
    weights = weights / jnp.sum(weights, -1, keepdims=True)
    return lax.dot_general(weights, v, (((3,), (2,)), ((0, 1), (0, 1))))


def split_heads(x, heads):
    """(batch, length, width) to (batch, heads, length, width / heads)."""
    batch, length, width = x.shape
    return x.reshape(batch, length, heads, width // heads).transpose(0, 2, 1, 3)


def merge_heads(x):
    """The inverse of `split_heads`."""
    batch, heads, length, size = x.shape
    return x.transpose(0, 2, 1, 3).reshape(batch, length, heads * size)
