"""Draws from the Dirichlet distribution, and their derivatives for its concentrations.

A draw changes as its marginals do, which are of the beta distribution, where their cumulative probability stays what it
is. PyTorch's derivative is this one; among all that are unbiased it has a small variance.
"""

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..rules.registry import implements
from ..tensors.dtypes import FLOATS
from .arrays import where
from .creation import factory
from .random import drawn_in, sample

aten = torch.ops.aten

_DEPTH = 64  # of the continued fraction: enough for concentrations up to some thousands


@factory(aten._sample_dirichlet.default)
def _sample_dirichlet(input, generator=None):
    return sample(_draw, input.shape, input.dtype, input, generator=generator, differentiable=True)


def _draw(key, shape, dtype, concentration):
    draw = jax.random.dirichlet(key, lax.stop_gradient(concentration), shape[:-1], drawn_in(dtype)).astype(dtype)
    least, most = jnp.finfo(dtype).tiny, np.nextafter(np.ones((), dtype), np.zeros((), dtype))  # of finite logarithms
    return _with_derivative(lax.clamp(np.asarray(least, dtype), draw, most), concentration)


@jax.custom_jvp
def _with_derivative(draw, concentration):
    return draw


@_with_derivative.defjvp
def _(primals, tangents):
    draw, concentration = primals
    total = jnp.broadcast_to(concentration.sum(-1, keepdims=True), draw.shape)
    each = lax.mul(_dirichlet_grad(draw, jnp.broadcast_to(concentration, draw.shape), total), tangents[1])
    return draw, lax.sub(each, lax.mul(draw, each.sum(-1, keepdims=True)))


@implements(aten._dirichlet_grad, takes=FLOATS)
def _dirichlet_grad(x, alpha, total):
    """The derivative of a component by its concentration, as a part of what is left for the others: of ``1 - x``."""
    beta = lax.sub(total, alpha)
    is_low = x < (alpha + 1) / (total + 2)  # each fraction converges fast on its side
    low, high = _of_lower_tail(x, alpha, beta), _of_upper_tail(x, alpha, beta)
    return where(is_low, low, high)


# With I the regularised incomplete beta function and p its density, dx/da = -(dI/da) / p at what x is. By a continued
# fraction h, I(x; a, b) = x^a (1 - x)^b h(x; a, b) / (a B(a, b)), from which p and all but the derivative of h cancel.


def _of_lower_tail(x, a, b):
    fraction, change = jax.jvp(lambda a: _fraction(x, a, b), (a,), (jnp.ones_like(a),))
    change = change / fraction + lax.log(x) - lax.digamma(a + 1) + lax.digamma(a + b)
    return -x * fraction / a * change


def _of_upper_tail(x, a, b):
    rest = 1 - x
    fraction, change = jax.jvp(lambda a: _fraction(rest, b, a), (a,), (jnp.ones_like(a),))
    change = change / fraction + lax.log(x) - lax.digamma(a) + lax.digamma(a + b)
    return x * fraction / b * change


def _fraction(x, a, b):
    """The continued fraction of the incomplete beta function, from its end (DLMF 8.17.22)."""

    def step(i, rest):
        m = lax.convert_element_type(_DEPTH - i, x.dtype)
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        return 1 + even / (1 + odd / rest)

    rest = lax.fori_loop(0, _DEPTH, step, jnp.ones_like(x))
    return 1 / (1 - (a + b) * x / ((a + 1) * rest))
