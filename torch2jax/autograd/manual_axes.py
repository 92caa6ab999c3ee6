"""Derivatives inside the code within `jax.shard_map`, where JAX notes over which axes an array's values differ.

What is the same on all devices of an axis has one cotangent, the same on all of them. What differs has one on each.
Where a value that is the same meets others that differ, JAX sums the cotangents that the devices have for it. A custom
function says itself what is summed, so that types have to be what its backward means: where it sums cotangents over an
axis, each device has its own part of them, and the result counts as one that differs.

In PyTorch each process has derivatives of its own, of what it computes itself. So has each device where code takes them
by `.backward()` and the like: what such a derivative comes by counts as different on all devices, from the leaves on,
and JAX sums nothing. What code reduces is the same on all devices again.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import torch
from jax import lax

from ..internals.jax_traces import varying_axes
from ..tensors.tensor import Torchish
from ..tracing.manual_axes import axes_in_types, varying
from .call import this_call

__all__ = ["matched", "own_axes", "reduced_axes"]

Axes = frozenset[str]


def own_axes(operands: Iterable[Torchish]) -> Axes:
    """The axes over which devices have derivatives of their own of what is computed of some tensors.

    There are none where the code itself differentiates none of these.
    """
    call = this_call()
    differentiates = call.tape is not None or any(level.takes_gradients for level in call.transformations)
    if not differentiates or not torch.is_grad_enabled() or all(x.history is None for x in operands):
        return frozenset()
    return axes_in_types()


def matched(cotangent: Any, axes: Axes) -> Any:
    """The cotangent of an array whose values differ over some axes."""
    if cotangent is None or not hasattr(cotangent, "dtype") or cotangent.dtype == jax.dtypes.float0:
        return cotangent
    more = tuple(sorted(varying_axes(cotangent) - axes))
    return varying(lax.psum(cotangent, more) if more else cotangent, axes)


def reduced_axes(function: Callable[[], Any]) -> Axes:
    """The axes over which a function reduces arrays."""
    return frozenset(_reduced(jax.make_jaxpr(function)().jaxpr))


def _reduced(jaxpr: Any) -> Iterator[str]:
    for step in jaxpr.eqns:
        if step.primitive.name.startswith(("psum", "reduce_scatter", "pmax", "pmin")):
            axes = step.params.get("axes", step.params.get("axis_name"))
            yield from axes if isinstance(axes, tuple) else (axes,)
        for inner in jax.tree.leaves(list(step.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            if hasattr(inner, "eqns"):
                yield from _reduced(inner)
