"""Checks of ``torch.distributions`` on values, for which traced values have no answer.

Its checks of arguments and samples pass where values are traced, and are made where they are known.
"""

import math
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import torch
from jax import lax
from torch.distributions import Dirichlet, StudentT, dirichlet, von_mises

from ..patches import applies, stands_in
from ..rules.registry import implements_tensors
from ..tensors.traced import is_traced
from ..translation import current
from .random import sample

Tensor = torch.Tensor

# Checks, ``if not valid.all(): raise ...``, ``if invalid.any(): raise ...``. Most go by `torch._is_all_true`.

_PACKAGE = str(Path(__file__).parent.parent)
_CHECKING = {f"torch.distributions.{name}" for name in ("constraints", "continuous_bernoulli", "geometric", "wishart")}


def _is_unanswerable_check(tensor, args) -> bool:
    tensor = current().lift(tensor)
    return not args and tensor.known is None and is_traced(tensor.read()) and _calling_module() in _CHECKING


def _calling_module() -> str:
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return frame.f_globals.get("__name__", "")


def _passing(method, function, answer: bool) -> None:
    @implements_tensors(method)
    def check(self, *args, **kwargs):
        if _is_unanswerable_check(self, (*args, *kwargs)):
            return torch.full((), answer, dtype=torch.bool)
        return function(self, *args, **kwargs)


_passing(Tensor.all, torch.all, True)
_passing(Tensor.any, torch.any, False)


# Values read through a mask, ``x[mask]``, and a loop that ends when samples are accepted.


@stands_in(StudentT, "variance")
def _variance(self):
    wide = self.df > 2
    variance = torch.where(wide, self.scale.square() * self.df / (torch.where(wide, self.df, 3.0) - 2), math.inf)
    return variance.masked_fill(self.df <= 1, math.nan)


@stands_in(Dirichlet, "mode")
def _mode(self):
    excess = (self.concentration - 1).clamp(min=0.0)
    mode = excess / excess.sum(-1, True)
    corner = torch.nn.functional.one_hot(mode.argmax(-1), mode.shape[-1]).to(mode)
    return torch.where((self.concentration < 1).all(-1, True), corner, mode)


@applies(dirichlet, "_Dirichlet")
def _sample(concentration):
    return torch._sample_dirichlet(concentration)  # whose derivative is JAX's


@stands_in(von_mises, "_rejection_sample")
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
