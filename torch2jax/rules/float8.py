"""8-bit floating-point numbers: PyTorch's rounding and saturation, where XLA's casts differ.

The formats are those of the OCP specifications "8-bit Floating Point" and "Microscaling Formats".
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..internals.dispatch import DisableTorchFunction

_E4M3, _E8M0 = jnp.dtype(jnp.float8_e4m3fn), jnp.dtype(jnp.float8_e8m0fnu)
FLOAT8 = frozenset(
    jnp.dtype(name) for name in ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
)


def _saturates() -> bool:
    with DisableTorchFunction():
        return torch.full((1,), 1e6, device="cpu").to(torch.float8_e4m3fn).item() == 448


_IS_SATURATED = _saturates()
"""True if numbers beyond float8_e4m3fn become its greatest one, as in PyTorch 2.13; else NaN, as in XLA."""


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def to_float8(array: jax.Array, dtype: np.dtype):
    """`array`, of real numbers, in one of the dtypes in `FLOAT8`.

    What is beyond float8_e4m3fn becomes its greatest number; float8_e8m0fnu has powers of two, without a sign. The
    derivative is that of the identity, also there.
    """
    if array.dtype not in (np.float16, jnp.bfloat16):
        array = array.astype(np.float32)  # PyTorch's casts all go through it
    if dtype == _E8M0:
        return _power_of_two(array.astype(np.float32))
    if dtype == _E4M3 and _IS_SATURATED:
        greatest = np.asarray(jnp.finfo(dtype).max, array.dtype)
        array = lax.clamp(-greatest, array, greatest)  # what is no number stays none
    return lax.convert_element_type(array, dtype)


@to_float8.defjvp
def _to_float8_jvp(dtype: np.dtype, primals: tuple[jax.Array], tangents: tuple[jax.Array]):
    return to_float8(*primals, dtype), lax.convert_element_type(tangents[0], dtype)


def _power_of_two(array: jax.Array):
    """The power of two whose exponent each float32 has, or the next from half way on; zero is the smallest.

    The byte of float8_e8m0fnu is the exponent as float32 holds it. Half way to the power above the smallest is the only
    place where the smaller one is taken.
    """
    bits = lax.bitcast_convert_type(array, np.uint32)
    exponent = lax.shift_right_logical(bits, np.uint32(23)) & np.uint32(0xFF)
    fraction = bits & np.uint32(0x7FFFFF)
    half = np.uint32(0x400000)
    is_above = (fraction > half) | ((fraction == half) & (exponent > np.uint32(0)))
    exponent = lax.min(exponent + is_above.astype(np.uint32), np.uint32(0xFF))
    exponent = lax.select(jnp.isnan(array), lax.full_like(exponent, 0xFF), exponent)
    return lax.bitcast_convert_type(exponent.astype(np.uint8), jnp.float8_e8m0fnu)
