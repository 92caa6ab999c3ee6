"""JAX's programs and derivatives, where `jax.extend` and `jax.interpreters` have nothing for what is wanted of them."""

from typing import Any

from jax._src import ad_checkpoint, config, core, linear_util
from jax._src.interpreters import ad, partial_eval

__all__ = [
    "EqualStore",
    "NullAccum",
    "Store",
    "VJPNode",
    "ValAccum",
    "backward_pass3",
    "checks_manual_axes",
    "convert_constvars_jaxpr",
    "fallback_linearize_rule",
    "join_effects",
    "primitive_linearizations",
    "remat_p",
]

join_effects = core.join_effects
"""The effects of several sets of them."""

convert_constvars_jaxpr = partial_eval.convert_constvars_jaxpr
"""A jaxpr with its constants as its first inputs."""

primitive_linearizations = ad.primitive_linearizations
"""The rules of primitives for `jax.linearize`, by primitive."""

fallback_linearize_rule = ad.fallback_linearize_rule
"""Such a rule from a primitive's rule for `jax.jvp`."""

backward_pass3 = ad.backward_pass3
"""Transposes a jaxpr: gradients of its results go to accumulators, one for each of its inputs."""

ValAccum = ad.ValAccum
"""An accumulator that adds up what it is given, for ``freeze()`` to give."""

NullAccum = ad.NullAccum
"""One that wants nothing, for an input without a gradient."""

Store = linear_util.Store
"""What a transformed function leaves for who called it, once; ``_val`` is that."""

EqualStore = linear_util.EqualStore
"""The same, as often as it is equal."""

VJPNode: Any = getattr(ad, "VJPNode", ())
"""What JAX has had since 0.11 around a step that it will only ever transpose, as a call of what was jitted."""

remat_p = ad_checkpoint.remat_p
"""The primitive of `jax.checkpoint`, whose ``jaxpr`` takes its operands, and has no constants."""


def checks_manual_axes() -> bool:
    """Whether `jax.shard_map` notes in types over which axes values differ (``check_vma``), where code is."""
    return config._check_vma.value
