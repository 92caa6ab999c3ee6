"""Layers that the hand-written transformers share."""

import functools

import jax
import jax.numpy as jnp
from jax import lax


def linear(x, weight, bias):
    """One two-dimensional product, the bias added before the reshape: XLA reads far less so. `weight` is (out, in)."""
    flat = x.reshape(-1, x.shape[-1])
    y = lax.dot_general(flat, weight, (((1,), (1,)), ((), ()))) + bias
    return y.reshape(*x.shape[:-1], weight.shape[0])


def layer_norm(x, weight, bias, epsilon):
    """Normalizes the last dimension."""
    return standardize(x, epsilon)[0] * weight + bias


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def standardize(x, epsilon):
    """``(x - mean) / sqrt(variance + epsilon)``, and what it was scaled by."""
    centered = x - jnp.mean(x, -1, keepdims=True)
    scale = lax.rsqrt(jnp.mean(lax.square(centered), -1, keepdims=True) + epsilon)
    return centered * scale, scale


@standardize.defjvp
def _(epsilon, primals, tangents):
    # Two reductions, and one use of the tangent: without this a training step reads a fifth more bytes.
    y, scale = standardize(*primals, epsilon)
    t = tangents[0] * scale
    slope = jnp.mean(t * y, -1, keepdims=True)
    return (y, scale), (t - jnp.mean(t, -1, keepdims=True) - y * slope, -scale * slope)


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
