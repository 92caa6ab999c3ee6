"""Random numbers from a key that the code holds (``torch.func._random``): equal keys give equal numbers.

A key is a seed and an offset, from which PyTorch's kernels go on in a stream of Philox's. Here the two make a key of
JAX's, as all random numbers are JAX's. Where JAX has no types of 64 bits, a key from outside is one of uint32.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..internals.guards import DisableTorchDispatch, DisableTorchFunction
from ..rules.array_rule import InnerRule
from ..rules.inplace import write_in_place
from ..rules.registry import implements_tensors
from ..tensors.dtypes import canonical

__all__ = []

aten = torch.ops.aten


def _halves(numbers):
    """The upper and the lower 32 bits; JAX may hold no more than the lower ones."""
    low = lax.convert_element_type(numbers, np.uint32)
    if numbers.dtype.itemsize < 8:
        return lax.full_like(low, 0), low
    return lax.convert_element_type(lax.shift_right_logical(numbers, np.uint64(32)), np.uint32), low


def _folded(key, high, low):
    return jax.random.fold_in(jax.random.fold_in(key, high), low)


def _key(pair):
    """JAX's key of a seed and an offset."""
    high, low = _halves(pair)
    seed = jax.random.wrap_key_data(jnp.stack([high[0], low[0]]), impl="threefry2x32")
    return _folded(seed, high[1], low[1])


def _child(pair, high, low):
    """The seed and the offset that follow from others and a number: 32 bits each, which all arrays hold."""
    return lax.convert_element_type(jax.random.key_data(_folded(_key(pair), high, low)), pair.dtype)


def _for_each(function: Callable, pairs) -> Callable:
    """`function` of a pair, for pairs in an array."""
    for _ in range(pairs.ndim - 1):
        function = jax.vmap(function)
    return function


def _split(pairs, count: int):
    return jax.vmap(lambda i: _for_each(lambda pair: _child(pair, np.uint32(0), i), pairs)(pairs))(
        lax.iota(np.uint32, count)
    )


def _fold_in(pairs, data):
    if isinstance(data, int):
        high, low = map(np.uint32, divmod(data % 2**64, 2**32))
    else:
        high, low = _halves(lax.reshape(data, ()))
    return _for_each(lambda pair: _child(pair, high, low), pairs)(pairs)


def _drawn(pairs, draw: Callable, shape: tuple[int, ...]):
    """``draw(key, shape)``, or for many keys the draw of each in its part of the shape.

    The keys have a dimension for each of the shape, of its size or of one.
    """
    if pairs.ndim == 1:
        return draw(_key(pairs), shape)
    sizes = pairs.shape[:-1]
    parts = tuple(whole if size == 1 else 1 for size, whole in zip(sizes, shape, strict=True))
    draws = _for_each(lambda pair: draw(_key(pair), parts), pairs)(pairs)
    order = [dim for i in range(len(sizes)) for dim in (i, len(sizes) + i)]
    return lax.reshape(lax.transpose(draws, order), shape)


def _uniform(pairs, shape, kind: torch.dtype, low: float, high: float):
    return _drawn(pairs, lambda key, part: jax.random.uniform(key, part, canonical(kind), low, high), shape)


def _normal(pairs, shape, kind: torch.dtype, mean: float, std: float):
    return _drawn(pairs, lambda key, part: mean + std * jax.random.normal(key, part, canonical(kind)), shape)


def _integers(pairs, shape, kind: torch.dtype, low: int | None, high: int | None):
    """A random number of 32 or 64 bits, taken modulo the width of the range, which may be that of all such numbers."""
    bits = canonical(torch.uint64 if kind.itemsize == 8 else torch.uint32)
    count = 8 * bits.itemsize
    info = torch.iinfo(kind)
    start, end = info.min if low is None else low, info.max + 1 if high is None else high
    width = (end - start) % 2**64 % 2**count

    def draw(key, part):
        drawn = jax.random.bits(key, part, bits)
        if (start, end) == (info.min, info.max + 1):
            return drawn
        if width:
            drawn = lax.rem(drawn, lax.full_like(drawn, width))
        return lax.add(drawn, lax.full_like(drawn, start % 2**count))

    return lax.convert_element_type(_drawn(pairs, draw, shape), canonical(kind))


def _expect(operator: str, *args) -> None:
    """Lets PyTorch refuse what its operator does not take."""
    with DisableTorchFunction(), DisableTorchDispatch():
        getattr(aten, operator)(*map(_without_data, args))


def _without_data(value):
    if not isinstance(value, torch.Tensor):
        return value
    dtype = torch.uint64 if value.dtype == torch.uint32 else value.dtype
    return torch.empty(value.shape, dtype=dtype, device="meta")


def _derives(name: str, body: Callable) -> None:
    """Registers what gives keys of a key and a number."""
    rule = InnerRule(body, name)

    @implements_tensors(f"aten::{name}")
    def derive(key, number):
        _expect(name, key, number)
        return rule((key, number), {})


def _fills(name: str, body: Callable, low: float | None = None, high: float | None = None) -> None:
    """Registers what fills a tensor with the numbers of a key, in place, and what gives another such tensor."""
    rule = InnerRule(body, name, dtype=lambda key, shape, kind, low, high: kind)

    @implements_tensors(f"aten::{name}")
    def fill(self, key, low=low, high=high):
        _expect(f"{name}_", self, key, low, high)
        return rule((key, tuple(self.shape), self.dtype, low, high), {})

    @implements_tensors(f"aten::{name}_")
    def fill_in_place(self, key, low=low, high=high):
        return write_in_place(self, fill(self, key, low, high))


if hasattr(aten, "_philox_uniform"):  # since PyTorch 2.12 or 2.13
    _derives("_philox_key_split", _split)
    _derives("_philox_key_fold_in", _fold_in)
    _fills("_philox_uniform", _uniform, 0.0, 1.0)
    _fills("_philox_normal", _normal, 0.0, 1.0)
if hasattr(aten, "_philox_randint"):  # since PyTorch 2.15
    _fills("_philox_randint", _integers)
