"""Products with packed 8-bit and 4-bit integer matrices, as in quantized models.

A weight goes into a product as it is held, and its scales are beside that: no copy of it in floating point is made. On
the CPU XLA's own product would make one of all of it, so there a part of it is copied at a time.

What is packed has the bytes that PyTorch's kernels have on the CPU of the machine.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from jax.custom_derivatives import SymbolicZero

from ..rules.registry import implements
from ..rules.rule import of_metadata
from ..tensors.dtypes import HALF, Takes
from .arrays import cast, like

aten = torch.ops.aten
_TAKEN: Takes = HALF | {torch.float32}
_PART = 2**18  # elements of a weight that are copied at a time: what a core's cache holds
_GROUPS = (32, 64, 128, 256)


def _on_platforms(cpu: Callable, default: Callable) -> Callable:
    """A function that is computed one way on the CPU and another way elsewhere, which has the derivatives."""

    @jax.custom_jvp
    def run(*operands):
        return lax.platform_dependent(*operands, cpu=cpu, default=default)

    def jvp(primals, tangents):
        moving = [i for i, tangent in enumerate(tangents) if not isinstance(tangent, SymbolicZero)]

        def of_moving(*tangents):
            operands = list(primals)
            for i, x in zip(moving, tangents, strict=True):
                operands[i] = x
            return default(*operands)

        given = [[values[i] for i in moving] for values in (primals, tangents)]
        return run(*primals), jax.jvp(of_moving, *given)[1]

    run.defjvp(jvp, symbolic_zeros=True)
    return run


def _part_by_part(product: Callable, weight: tuple, width: int):
    """The columns of `product` for parts of a weight, one part after the other.

    Args:
        product: gives ``(rows, columns)`` for some of the first indices of each array of the weight.
        weight: arrays of one first dimension.
        width: how many elements in floating point an index of that dimension becomes.
    """
    count = weight[0].shape[0]
    most = max(_PART // max(width, 1), 1)
    size = next((n for n in range(min(most, count), 0, -1) if count % n == 0), count)
    if size == count:
        return product(*weight)
    parts = tuple(lax.reshape(x, (count // size, size, *x.shape[1:])) for x in weight)
    columns = lax.map(lambda part: product(*part), parts)
    return lax.reshape(lax.transpose(columns, (1, 0, 2)), (columns.shape[1], columns.shape[0] * columns.shape[2]))


# Integers with integers.


@of_metadata
def _oriented(input, mat2):
    """The second matrix with the dimensions as they are in memory, and whether its columns are the rows there."""
    is_turned = mat2.ndim == 2 and mat2.stride(0) == 1 and mat2.stride(1) != 1
    return (input, mat2.t() if is_turned else mat2, is_turned), {}


@implements(torch._int_mm, dtype=torch.int32, exact_out=True, prepare=_oriented)
def _int_mm(input, mat2, is_turned):
    for name, x, known in (("self", input, ("int8", "uint8")), ("mat2", mat2, ("int8",))):
        if x.ndim != 2:
            raise RuntimeError(f"_int_mm: Expected {name} to be of dimension 2 but got {x.ndim}")
        if x.dtype.name not in known:
            raise RuntimeError(f"_int_mm: Expected {name} dtype to be {' or '.join(known)} but got {x.dtype}")
    inner = 1 if is_turned else 0
    if input.shape[1] != mat2.shape[inner]:
        raise RuntimeError(
            f"_int_mm: self.size(1) needs to match mat2.size(0), got {input.shape[1]} and {mat2.shape[inner]}"
        )
    return _of_integers(input, mat2, (((1,), (inner,)), ((), ())))


def _of_integers(left, right, dims):
    """The product of integers of 8 bits, in 32.

    Unsigned ones on the left are taken 128 less, and 128 times the sums of the right are added, which a row of ones
    gives: JAX brings operands of two dtypes to one of 32 bits, and so does XLA what it sums.

    A row alone gets one of zeros beside it. Of a product with a vector XLA makes one in 32 bits on the CPU, with a copy
    of the matrix, which takes 38 times as long.
    """
    if left.dtype == np.uint8:
        signed = lax.bitcast_convert_type(lax.bitwise_xor(left, np.uint8(128)), np.int8)
        with_ones = lax.pad(signed, np.int8(1), [(0, 1, 0), (0, 0, 0)])
        products = lax.dot_general(with_ones, right, dims, preferred_element_type=np.int32)
        return products[:-1] + np.int32(128) * products[-1:]
    if left.shape[0] != 1:
        return lax.dot_general(left, right, dims, preferred_element_type=np.int32)
    two = lax.pad(left, like(left, 0), [(0, 1, 0), (0, 0, 0)])
    return lax.dot_general(two, right, dims, preferred_element_type=np.int32)[:1]


def _expect_matrix(name: str, array) -> None:
    if array.ndim != 2:
        raise IndexError(f"{name}: got an input of {array.ndim} dimensions; wanted a matrix")


def _expect_dtype(name: str, scales, dtype) -> None:
    if scales.dtype != dtype:
        raise RuntimeError(f"{name}: expected scales of {dtype}, the dtype of the input, but found {scales.dtype}")


# Floating point with integers of 4 bits, which have a scale and a zero point for each group of a row.


def _blocks() -> tuple[int, bool]:
    """The number of rows that PyTorch's kernels pack together on this machine, and whether rows half of that apart
    share a byte; neighbours share one otherwise.
    """
    capability = torch.backends.cpu.get_cpu_capability()
    return 64 if capability == "AVX512" else 32, capability in ("AVX512", "AVX2")


def _parts(rows: int) -> list[tuple[slice, bool]]:
    """The rows that are packed together, and whether those half of that apart share bytes; some at the end do not."""
    block, are_halves = _blocks()
    full = rows - rows % block
    parts = [(slice(0, full), are_halves), (slice(full, rows), False)]
    return [(part, are_halves) for part, are_halves in parts if part.start < part.stop]


@implements(aten._convert_weight_to_int4pack_for_cpu, dtype=torch.uint8)
def _convert_weight_to_int4pack_for_cpu(self, innerKTiles):
    name = "_convert_weight_to_int4pack_cpu"
    if self.ndim != 2 or self.dtype != np.int32:
        raise RuntimeError(f"{name} : expect weight to be a kInt matrix, got {self.dtype}{list(self.shape)}.")
    rows, inner = self.shape
    if rows % 16 or inner % 2:
        raise RuntimeError(f"{name} : expect N to be dividable by 16, and K by 2, got N={rows} and K={inner}")
    packed = []
    for part, are_halves in _parts(rows):
        numbers = self[part]
        size = min(_blocks()[0], numbers.shape[0])
        blocks = lax.reshape(numbers, (numbers.shape[0] // size, size, inner))
        low, high = (
            (blocks[:, : size // 2], blocks[:, size // 2 :]) if are_halves else (blocks[:, ::2], blocks[:, 1::2])
        )
        shifted = lax.shift_left(high, like(high, 4))
        packed.append(lax.transpose(lax.bitwise_or(low, shifted), (0, 2, 1)).reshape(-1))
    return lax.reshape(cast(lax.concatenate(packed, 0), np.uint8), (rows, inner // 2))


def _unpacked(packed, are_halves: bool):
    """Numbers from -8 to 7 in 8 bits, ``(blocks, inner, rows)``, of bytes ``(blocks, inner, half of the rows)``."""
    low, high = lax.bitwise_and(packed, like(packed, 15)), lax.shift_right_logical(packed, like(packed, 4))
    if are_halves:
        numbers = lax.concatenate([low, high], 2)
    else:
        numbers = lax.reshape(jnp.stack([low, high], 3), (*packed.shape[:2], 2 * packed.shape[2]))
    return lax.sub(cast(numbers, np.int8), np.int8(8))


def _int4_at_once(x, packed, scales, zeros, *, are_halves: bool):
    """Each group's product with integers, times its scale; its zero point is added times the sum of the group."""
    blocks, inner, _ = packed.shape
    groups, rows = scales.shape[1:]
    grouped = lax.reshape(cast(x, np.float32), (x.shape[0], groups, inner // groups))
    numbers = lax.reshape(_unpacked(packed, are_halves), (blocks, groups, inner // groups, rows))
    products = lax.dot_general(grouped, numbers, (((2,), (2,)), ((1,), (1,))), preferred_element_type=np.float32)
    scaled = products * jnp.moveaxis(scales, 1, 0)[:, None]  # (groups, rows of x, blocks, rows)
    result = scaled.sum(0) + jnp.einsum("xg,bgr->xbr", grouped.sum(2), zeros)
    return lax.reshape(result, (x.shape[0], blocks * rows))


def _int4_on_cpu(x, packed, scales, zeros, *, are_halves: bool):
    """The product with the weight in floating point, some blocks of rows at a time."""
    inner, (groups, rows) = packed.shape[1], scales.shape[1:]
    x = cast(x, np.float32)

    def product(packed, scales, zeros):
        blocks = packed.shape[0]
        numbers = cast(_unpacked(packed, are_halves), np.float32)
        grouped = lax.reshape(numbers, (blocks, groups, inner // groups, rows))
        weight = lax.reshape(grouped * scales[:, :, None] + zeros[:, :, None], (blocks, inner, rows))
        columns = lax.dot_general(x, weight, (((1,), (1,)), ((), ())), preferred_element_type=np.float32)
        return lax.reshape(columns, (x.shape[0], blocks * rows))

    return _part_by_part(product, (packed, scales, zeros), inner * rows)


_with_int4 = {
    are_halves: _on_platforms(
        functools.partial(_int4_on_cpu, are_halves=are_halves), functools.partial(_int4_at_once, are_halves=are_halves)
    )
    for are_halves in (True, False)
}


@implements(aten._weight_int4pack_mm_for_cpu, takes=_TAKEN)
def _weight_int4pack_mm_for_cpu(self, mat2, qGroupSize, qScaleAndZeros):
    name = "_weight_int4pack_mm_cpu"
    _expect_matrix(name, self)
    if mat2.dtype != np.uint8 or mat2.ndim != 2:
        raise RuntimeError(f"{name} : expect B to be uint8 tensor, a matrix, got {mat2.dtype}{list(mat2.shape)}.")
    (rows, half), inner = mat2.shape, self.shape[1]
    if inner != 2 * half:
        raise RuntimeError(
            f"{name} : expect A to have {2 * half} columns, for B of shape {list(mat2.shape)}; got {inner}"
        )
    if qGroupSize not in _GROUPS:
        raise RuntimeError(f"{name}: expect qGroupSize to be 32, 64, 128 or 256, got {qGroupSize}")
    if inner % qGroupSize:
        raise RuntimeError(f"{name}: expect K to be divisible by qGroupSize, got K:{inner}, qGroupSize:{qGroupSize}")
    groups = inner // qGroupSize
    if qScaleAndZeros.ndim != 3 or qScaleAndZeros.shape[0] < groups or qScaleAndZeros.shape[1:] != (rows, 2):
        raise RuntimeError(
            f"{name}: expect qScaleAndZeros to be 3d tensor with sizes [{groups}, {rows}, 2], got "
            f"{list(qScaleAndZeros.shape)}"
        )
    _expect_dtype(name, qScaleAndZeros, self.dtype)
    packed, numbers = lax.reshape(mat2, (rows * half,)), cast(qScaleAndZeros[:groups], np.float32)
    columns = []
    for part, are_halves in _parts(rows):
        count = part.stop - part.start
        size = min(_blocks()[0], count)
        blocks = lax.reshape(packed[part.start * half : part.stop * half], (count // size, inner, size // 2))
        both = [jnp.moveaxis(numbers[:, part, i].reshape(groups, -1, size), 1, 0) for i in (0, 1)]
        columns.append(_with_int4[are_halves](self, blocks, *both))
    return cast(columns[0] if len(columns) == 1 else lax.concatenate(columns, 1), self.dtype)
