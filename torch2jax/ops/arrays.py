"""Helpers on jax arrays for rules of every family: literals, kinds of dtypes, dimensions.

Also here: the decorators of pointwise rules, by kind of promotion, and plain bodies of these.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..internals.jax import ShardingTypeError
from ..internals.tensors import canonicalize_dim, canonicalize_dims
from ..rules.promotion import Promotion
from ..rules.registry import implements
from ..tensors.dtypes import FLOATS, number_in_dtype
from ..tensors.view_kind import entries_of, sharding_beside

_MOST_REDUCED = 64  # dimensions, of which PyTorch reduces some


def like(array, value):
    """A scalar literal of an array's dtype."""
    return number_in_dtype(value, array.dtype) if type(value) is int else np.asarray(value).astype(array.dtype)


def cast(array, dtype):
    """`array` in another dtype; nothing is emitted where it has that dtype already."""
    return array if array.dtype == dtype else lax.convert_element_type(array, dtype)


def truth(array):
    """The truth of each element: whether it differs from zero."""
    return array if array.dtype == bool else lax.ne(array, like(array, 0))


def where(condition, x, y):
    """``lax.select`` with operands that may be scalars."""
    operands, shape = [condition, x, y], getattr(x, "shape", ())
    if not getattr(condition, "shape", ()) == getattr(y, "shape", ()) == shape:
        shape = np.broadcast_shapes(*map(np.shape, operands))
        operands = [_broadcast(operand, shape) for operand in operands]
    try:
        return lax.select(*operands)
    except ShardingTypeError:  # on the explicit axes of a mesh
        split = _same_sharding(*operands)
        if split is None:
            raise
        return lax.select(*split)


def _same_sharding(*arrays):
    """Arrays of one shape, split in each dimension as those are that are split there; None if they are in two ways.

    Each device drops what is not its part: nothing is sent.
    """
    entries: list[object] = [None] * np.ndim(arrays[0])
    for array in arrays:
        for dim, entry in enumerate(entries_of(array)):
            if entry is not None and entries[dim] not in (None, entry):
                return None
            entries[dim] = entries[dim] if entry is None else entry
    split = next((array for array in arrays if any(entries_of(array))), arrays[0])
    sharding = sharding_beside(split, entries)
    return None if sharding is None else [jax.sharding.reshard(array, sharding) for array in arrays]


def looks_for_nans() -> bool:
    """Returns True if JAX raises an error at each NaN that is computed (``jax_debug_nans``), used or not."""
    config: Any = jax.config
    return config.jax_debug_nans


def _broadcast(operand, shape):
    rank = np.ndim(operand)
    if np.shape(operand) == shape:
        return operand
    return lax.broadcast_in_dim(operand, shape, range(len(shape) - rank, len(shape)))


# Kinds of dtypes.


def is_float(array) -> bool:
    return array.dtype.kind == "f" or jnp.issubdtype(array.dtype, jnp.floating)


def is_complex(array) -> bool:
    return jnp.issubdtype(array.dtype, jnp.complexfloating)


def is_inexact(array) -> bool:
    return array.dtype.kind in "fc" or jnp.issubdtype(array.dtype, jnp.inexact)


def is_integer(array) -> bool:
    """Returns True if the dtype is an integer type; bool is none."""
    return jnp.issubdtype(array.dtype, jnp.integer)


def is_unsigned(array) -> bool:
    return array.dtype == bool or jnp.issubdtype(array.dtype, jnp.unsignedinteger)


def has_sign(array):
    """The sign bit of each element; it may be set for zeros and NaNs."""
    if is_float(array):
        array = lax.bitcast_convert_type(array, f"int{8 * array.dtype.itemsize}")
    return lax.lt(array, like(array, 0))


def lowest(array):
    """The least value of an array's dtype."""
    return jnp.iinfo(array.dtype).min if is_integer(array) else -np.inf if is_inexact(array) else False


def highest(array):
    """The greatest value of an array's dtype."""
    return jnp.iinfo(array.dtype).max if is_integer(array) else np.inf if is_inexact(array) else True


def same_shape(x, y):
    """Two operands, of which one may be 0-d, broadcast against each other."""
    shape = np.broadcast_shapes(np.shape(x), np.shape(y))
    return jnp.broadcast_to(x, shape), jnp.broadcast_to(y, shape)


def is_half(array) -> bool:
    return array.dtype.itemsize == 2 and array.dtype in (np.float16, jnp.bfloat16)


def is_float8(array) -> bool:
    return array.dtype.itemsize == 1 and jnp.issubdtype(array.dtype, jnp.floating)


def real_dtype(array) -> np.dtype:
    """The dtype of the real part of a floating-point or complex array."""
    return jnp.finfo(array.dtype).dtype


def widened(array):
    """The array in the dtype that PyTorch accumulates in: half precision in float32."""
    return lax.convert_element_type(array, np.float32) if is_half(array) else array


# Dimensions.


def axes_of(array, dim) -> tuple[int, ...]:
    """The dimensions that `dim` (an int, some, or None or none for all of them) names.

    Raises:
        IndexError: a dimension is out of range.
        RuntimeError: a dimension appears twice, or there are more than PyTorch reduces.
    """
    if dim is None or (isinstance(dim, (tuple, list)) and not dim):
        return tuple(range(array.ndim))
    if array.ndim > _MOST_REDUCED:
        raise RuntimeError(f"only tensors with up to {_MOST_REDUCED} dims are supported, got {array.ndim}")
    if type(dim) is int and -array.ndim <= dim < array.ndim:
        return (dim % array.ndim,)
    axes = canonicalize_dims(array.ndim, (dim,) if isinstance(dim, int) else tuple(dim))
    for axis in axes:
        if axes.count(axis) > 1:
            raise RuntimeError(f"dim {axis} appears multiple times in the list of dims")
    return axes if array.ndim else ()


def axis_of(array, dim: int) -> int:
    """The one dimension that `dim` names; an array without dimensions is taken to have one.

    Raises:
        IndexError: it is out of range.
    """
    rank = array.ndim
    return dim % rank if type(dim) is int and -rank <= dim < rank else canonicalize_dim(rank, dim)


def spread(reduced, array, axes: tuple[int, ...]):
    """Broadcasts a reduction over `axes` of `array` back over them."""
    return lax.broadcast_in_dim(reduced, array.shape, [i for i in range(array.ndim) if i not in axes])


def kept(result, axes: tuple[int, ...], keepdim: bool):
    """A reduction's result, with its reduced dimensions kept as ones where asked for."""
    return lax.expand_dims(result, axes) if keepdim and axes else result


def at_least_1d(array):
    """`array`, with a dimension to work along if it has none."""
    return array if array.ndim else lax.reshape(array, (1,))


default = functools.partial(implements, promote=Promotion.DEFAULT)
exact = functools.partial(implements, promote=Promotion.NO_OPMATH)
floating = functools.partial(implements, promote=Promotion.INT_TO_FLOAT)
predicate = functools.partial(implements, promote=Promotion.ALWAYS_BOOL)
floating_once = functools.partial(implements, promote=Promotion.INT_TO_FLOAT_ONCE)
default_once = functools.partial(implements, promote=Promotion.DEFAULT_ONCE)
floating_real = functools.partial(floating, takes=FLOATS)
floating_real_once = functools.partial(floating_once, takes=FLOATS)


def unary(function):
    """A body that is one function of its one operand."""

    def body(input):
        return function(input)

    return body


def binary(function):
    """A body that is one function of two operands, either of which may be a scalar."""

    def body(input, other):
        return function(input, other)

    return body
