"""Checks of ``torch.distributions`` on values, for which traced values have no answer.

Its checks of arguments and samples pass where values are traced, and are made where they are known.

Also here: draws from the Dirichlet distribution, and their derivatives with respect to its concentrations.

A draw changes as its marginals do, which are of the beta distribution, where their cumulative probability stays what it
is. PyTorch's derivative is this one; among all that are unbiased it has a small variance.
"""

import math
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from torch.distributions import Dirichlet, StudentT, dirichlet, von_mises

from ..rules.registry import implements, implements_tensors
from ..runtime.patches import applies, replaces
from ..runtime.translation import lift
from ..tensors.dtypes import FLOATS
from ..tensors.traced import is_traced
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
    """The derivative of a component by its concentration, divided by ``1 - x``, the share of the others."""
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


Tensor = torch.Tensor

# Checks, ``if not valid.all(): raise ...``, ``if invalid.any(): raise ...``. Most go by `torch._is_all_true`.

_PACKAGE = str(Path(__file__).parent.parent)
_CHECKING = {f"torch.distributions.{name}" for name in ("constraints", "continuous_bernoulli", "geometric", "wishart")}


def _is_unanswerable_check(tensor, args) -> bool:
    tensor = lift(tensor)
    return not args and tensor.known is None and is_traced(tensor.read()) and _calling_module() in _CHECKING


def _calling_module() -> str:
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return frame.f_globals.get("__name__", "")


def _passing(method, function, decision: bool) -> None:
    @implements_tensors(method)
    def check(self, *args, **kwargs):
        if _is_unanswerable_check(self, (*args, *kwargs)):
            return torch.full((), decision, dtype=torch.bool)
        return function(self, *args, **kwargs)


_passing(Tensor.all, torch.all, True)
_passing(Tensor.any, torch.any, False)


# Values read through a mask, ``x[mask]``, and a loop that ends when samples are accepted.


@replaces(StudentT, "variance")
def _variance(self):
    wide = self.df > 2
    variance = torch.where(wide, self.scale.square() * self.df / (torch.where(wide, self.df, 3.0) - 2), math.inf)
    return variance.masked_fill(self.df <= 1, math.nan)


@replaces(Dirichlet, "mode")
def _mode(self):
    excess = (self.concentration - 1).clamp(min=0.0)
    mode = excess / excess.sum(-1, True)
    corner = torch.nn.functional.one_hot(mode.argmax(-1), mode.shape[-1]).to(mode)
    return torch.where((self.concentration < 1).all(-1, True), corner, mode)


@applies(dirichlet, "_Dirichlet")
def _sample(concentration):
    return torch._sample_dirichlet(concentration)  # whose derivative is JAX's


@replaces(von_mises, "_rejection_sample")
def _rejection_sample(loc, concentration, proposal_r, x):
    return sample(_von_mises, x.shape, x.dtype, loc, concentration)


def _von_mises(key, shape, dtype, loc, concentration):
    """Best and Fisher, Applied Statistics 28 (1979): a wrapped Cauchy proposal, here without cancellation."""
    root = lax.sqrt(1 + lax.sqrt(1 + 4 * concentration**2))
    rho = 2 * concentration / (root * (root + math.sqrt(2)))
    r = jnp.broadcast_to((1 + rho**2) / (2 * rho), shape)

    def propose(state):
        key, angle, done = state
        key, first, second, third = jax.random.split(key, 4)
        z = lax.cos(math.pi * jax.random.uniform(first, shape, dtype))
        c = concentration * (r**2 - 1) / (r + z)
        u = jax.random.uniform(second, shape, dtype)
        accepted = (c * (2 - c) > u) | (lax.log(c / u) + 1 >= c)
        size = lax.acos(jnp.clip((1 + r * z) / (r + z), -1, 1))
        signed = jnp.where(jax.random.bernoulli(third, shape=shape), size, -size)
        return key, jnp.where(accepted & ~done, signed, angle), done | accepted

    start = key, jnp.full(shape, jnp.nan, dtype), ~jnp.isfinite(r)  # which never end otherwise
    angle = lax.while_loop(lambda state: ~state[2].all(), propose, start)[1]
    return jnp.remainder(angle + math.pi + loc, 2 * math.pi) - math.pi
