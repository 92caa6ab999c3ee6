"""Collectives on arrays, by `jax.lax`, over axes of the current mesh."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from ...internals.jax_traces import varying_axes
from ...tracing.manual_axes import varying

__all__ = ["all_gather", "all_reduce", "all_to_all", "broadcast", "index_along", "permute", "reduce", "reduce_scatter"]

Axes = tuple[str, ...]


def index_along(axes: Axes) -> jax.Array:
    """The number of the device along some axes."""
    return lax.axis_index(axes[0] if len(axes) == 1 else axes)  # of several JAX computes it, also of one


def all_reduce(x: jax.Array, axes: Axes, op: str) -> jax.Array:
    """What a reduction of the arrays of all devices along some axes gives, on each.

    Args:
        op: ``"sum"``, ``"avg"``, ``"min"``, ``"max"``, ``"product"``, ``"band"``, ``"bor"`` or ``"bxor"``.
    """
    return _REDUCTIONS[op](x, axes)


def _on_bools(reduce: Callable[[jax.Array, Axes], jax.Array]) -> Callable[[jax.Array, Axes], jax.Array]:
    """A reduction of numbers, for bools too."""

    def reduced(x: jax.Array, axes: Axes) -> jax.Array:
        return reduce(x.astype(jnp.int32), axes).astype(bool) if x.dtype == bool else reduce(x, axes)

    return reduced


def _mean(x: jax.Array, axes: Axes) -> jax.Array:
    return _divided(lax.psum(x, axes), lax.axis_size(axes))


def _divided(x: jax.Array, count: int) -> jax.Array:
    return lax.div(x, lax.full_like(x, count))


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _extreme(x: jax.Array, axes: Axes, is_largest: bool) -> jax.Array:
    return (lax.pmax if is_largest else lax.pmin)(x, axes)


@_extreme.defjvp
def _(axes, is_largest, primals, tangents):
    """Those that are the extreme have equal parts of the derivative, as in `torch.amax`."""
    (x,), (tangent,) = primals, tangents
    found = _extreme(x, axes, is_largest)
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return found, tangent
    part = lax.convert_element_type(lax.eq(x, found), x.dtype)
    return found, lax.psum(tangent * (part / lax.psum(part, axes)), axes)


def _by_gathering(reduce: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array, Axes], jax.Array]:
    """A reduction that JAX has no collective for."""
    return lambda x, axes: reduce(lax.all_gather(x, axes))


def _bitwise(operation: Callable, start: int) -> Callable[[jax.Array], jax.Array]:
    def reduced(x: jax.Array) -> jax.Array:
        return lax.reduce(x, x.dtype.type(start), operation, (0,))

    return reduced


_PRODUCT = functools.partial(jnp.prod, axis=0, promote_integers=False)
_AND, _OR = _bitwise(lax.bitwise_and, -1), _bitwise(lax.bitwise_or, 0)
_XOR = _bitwise(lax.bitwise_xor, 0)

_REDUCTIONS: dict[str, Callable[[jax.Array, Axes], jax.Array]] = {
    "sum": _on_bools(lax.psum),
    "avg": _on_bools(_mean),
    "max": _on_bools(lambda x, axes: _extreme(x, axes, True)),
    "min": _on_bools(lambda x, axes: _extreme(x, axes, False)),
    "product": _on_bools(_by_gathering(_PRODUCT)),
    "band": _on_bools(_by_gathering(_AND)),
    "bor": _on_bools(_by_gathering(_OR)),
    "bxor": _on_bools(_by_gathering(_XOR)),
}
_OF_PARTS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "max": lambda x: jnp.max(x, 0),
    "min": lambda x: jnp.min(x, 0),
    "product": _PRODUCT,
    "band": _AND,
    "bor": _OR,
    "bxor": _XOR,
}


def reduce(x: jax.Array, axes: Axes, op: str, target: int) -> jax.Array:
    """What `all_reduce` gives, on one device; the others have what they had."""
    found = all_reduce(x, axes, op)
    x = lax.stop_gradient(x)  # PyTorch leaves open what they have
    return lax.select_n(lax.eq(index_along(axes), target), *_alike(x, found))


def _alike(*arrays: jax.Array) -> list[jax.Array]:
    """The arrays as JAX's types have them together: those that are the same on all devices as if they were not."""
    axes = frozenset().union(*(varying_axes(x) for x in arrays))
    return [varying(x, axes) for x in arrays]


def broadcast(x: jax.Array, axes: Axes, source: int) -> jax.Array:
    """The array of one device, on all."""
    mine = lax.eq(index_along(axes), source)
    chosen = lax.select(lax.broadcast(mine, x.shape), *_alike(x, lax.full_like(x, 0)))
    return all_reduce(chosen, axes, "sum")


def all_gather(x: jax.Array, axes: Axes, is_fixed: bool) -> jax.Array:
    """The arrays of all devices, one after the other along the first dimension.

    Args:
        is_fixed: nobody takes the derivative; an autograd function around it has its own.
    """
    if is_fixed and varying_axes(x):  # JAX notes what is the same on all devices (``check_vma``)
        return lax.all_gather(x, axes, axis=0, tiled=True, to="invarying")
    return lax.all_gather(x, axes, axis=0, tiled=True)


def reduce_scatter(x: jax.Array, axes: Axes, op: str) -> jax.Array:
    """The part of each device, along the first dimension, of a reduction of the arrays of all."""
    if op in ("sum", "avg"):
        found = lax.psum_scatter(x, axes, scatter_dimension=0, tiled=True)
        return _divided(found, lax.axis_size(axes)) if op == "avg" else found
    count = lax.axis_size(axes)
    parts = lax.reshape(x, (count, x.shape[0] // count, *x.shape[1:]))
    return _OF_PARTS[op](lax.all_to_all(parts, axes, 0, 0))


def all_to_all(x: jax.Array, axes: Axes) -> jax.Array:
    """Part after part along the first dimension, what each device has for this one."""
    return lax.all_to_all(x, axes, 0, 0, tiled=True)


def permute(x: jax.Array, axes: Axes, targets: tuple[int, ...]) -> jax.Array:
    """What the device has sent whose target this one is; zeros where there is none."""
    return lax.ppermute(x, axes, [(source, target) for source, target in enumerate(targets) if target >= 0])
