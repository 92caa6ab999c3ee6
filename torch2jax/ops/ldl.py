"""LDLᵀ and LDLᴴ factorisations of symmetric and Hermitian matrices that need not be definite.

The diagonal pivoting of Bunch and Kaufman (Mathematics of Computation 31, 1977; Golub and Van Loan, Matrix
Computations, 4th edition, section 4.4), with the conventions of LAPACK's ``xSYTRF`` and ``xHETRF`` for the lower
triangle, which PyTorch calls: what is stored where, and how ``pivots`` tells of interchanges.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from .arrays import is_complex
from .bounds import outside
from .linalg import broadcast_matrices, check_matrices, check_success, factored, hermitian_of

_ALPHA = (1 + math.sqrt(17)) / 8  # bounds the growth of elements


def _size(array):
    """The magnitude that pivots are chosen by: cheaper than the absolute value of a complex number."""
    return lax.abs(lax.real(array)) + lax.abs(lax.imag(array)) if is_complex(array) else lax.abs(array)


@factored(torch.linalg.ldl_factor_ex, torch.ops.aten.linalg_ldl_factor_ex, dtype=(None, torch.int32, torch.int32))
def linalg_ldl_factor_ex(input, *, hermitian=False, check_errors=False):
    check_matrices("torch.linalg.ldl_factor_ex", input)
    *batch, n, _ = input.shape
    if not input.size:
        return input, lax.full((*batch, n), np.int32(0)), lax.full(batch, np.int32(0))
    hermitian = hermitian and is_complex(input)
    factor = jax.vmap(functools.partial(_factor, hermitian=hermitian))
    factors, pivots, info = factor(input.reshape(-1, n, n))
    check_success(info, "torch.linalg.ldl_factor_ex", input, check_errors)
    return factors.reshape(input.shape), pivots.reshape(*batch, n), info.reshape(batch)


def _factor(a, hermitian: bool):
    """Works on both triangles at once, so that an interchange is one of whole rows and columns."""
    n = a.shape[-1]
    conj = lax.conj if hermitian else lambda array: array
    a = hermitian_of(a) if hermitian else jnp.tril(a) + jnp.tril(a, -1).T
    a = _with_real_diagonal(a) if hermitian else a
    rows = np.arange(n, dtype=np.int32)

    def eliminate(k, carry):
        a, pivots, info, second = carry
        pivot, block, singular = _choose(a, k, rows)
        last = k + block.astype(np.int32)  # of the one or two columns that are eliminated
        swapped = _interchanged(a, k, last, pivot, rows)
        one, two = (eliminated(swapped, k, rows, conj) for eliminated in (_eliminate_one, _eliminate_two))
        after = jnp.where(singular, a, jnp.where(block, two, one))
        after = _with_real_diagonal(after) if hermitian else after
        number = jnp.where(block, -1 - pivot, 1 + pivot)
        at = (rows == k) | (rows == last)
        return (
            jnp.where(second, a, after),
            jnp.where(second | ~at, pivots, number),
            jnp.where(~second & singular & (info == 0), k + 1, info),
            ~second & block,
        )

    start = a, lax.full((n,), np.int32(0)), np.int32(0), np.bool_(False)
    a, pivots, info, _ = lax.fori_loop(np.int32(0), np.int32(n), eliminate, start)
    return jnp.tril(a), pivots, info


def _with_real_diagonal(a):
    diagonal = jnp.eye(a.shape[-1], dtype=bool)
    return jnp.where(diagonal, lax.real(a).astype(a.dtype), a)


def _choose(a, k, rows):
    """The row to bring up, whether as the second of two pivots, and whether there is nothing to eliminate."""
    column = jnp.where(rows > k, _size(a[:, k]), -1)
    row = lax.argmax(column, 0, np.int32)
    diagonal, largest = _size(a[k, k]), jnp.maximum(column[row], 0)
    of_row = jnp.max(jnp.where((rows >= k) & (rows != row), _size(a[row]), 0))
    singular = (jnp.maximum(diagonal, largest) == 0) | jnp.isnan(diagonal)
    stays = (diagonal >= _ALPHA * largest) | (diagonal >= _ALPHA * largest * (largest / of_row)) | singular
    block = ~stays & (_size(a[row, row]) < _ALPHA * of_row)
    return jnp.where(stays, k, row), block, singular


def _interchanged(a, k, first, second, rows):
    """`a` with two rows and columns interchanged, but not in the columns that are finished."""
    order = jnp.where(rows == first, second, jnp.where(rows == second, first, rows))
    return jnp.where(rows >= k, a[order][:, order], a)


def _eliminate_one(a, k, rows, conj):
    below = rows > k
    column = jnp.where(below, a[:, k], 0)
    factors = column / a[k, k]
    rest = a - factors[:, None] * conj(column)[None, :]
    return jnp.where((rows == k) & below[:, None], factors[:, None], rest)


def _eliminate_two(a, k, rows, conj):
    below = rows > k + 1
    next = jnp.minimum(k + 1, a.shape[-1] - 1)
    first, second = jnp.where(below, a[:, k], 0), jnp.where(below, a[:, next], 0)
    scaled = _inverse_of_block(a[k, k], a[next, k], a[next, next], conj)
    one, two = scaled(first, second)
    rest = a - one[:, None] * conj(first)[None, :] - two[:, None] * conj(second)[None, :]
    rest = jnp.where((rows == k) & below[:, None], one[:, None], rest)
    return jnp.where((rows == k + 1) & below[:, None], two[:, None], rest)


def _inverse_of_block(first, between, second, conj):
    """Multiplication from the right by the inverse of ``[[first, conj(between)], [between, second]]``.

    Scaled by the element off the diagonal, which is the largest.
    """
    upper, lower = second / between, first / conj(between)
    scale = 1 / (upper * lower - 1)

    def multiply(x, y):
        return scale * (upper * x - y) / conj(between), scale * (lower * y - x) / between

    return multiply


def _check_pivots(LD, pivots, *args, **kwargs) -> None:
    if LD.ndim > 1 and outside(pivots, -LD.shape[-2], LD.shape[-2]) is not None:
        raise RuntimeError(
            "Pivots given to ldl_solve must all satisfy |pivot| <= LD.size(-2). Did you properly pass the result of "
            "ldl_factor?"
        )


@factored(torch.linalg.ldl_solve, torch.ops.aten.linalg_ldl_solve, check=_check_pivots)
def linalg_ldl_solve(LD, pivots, B, *, hermitian=False):
    check_matrices("torch.linalg.ldl_solve", LD, name="LD")
    _check_solve(LD, pivots, B)
    factors, right = broadcast_matrices("torch.linalg.ldl_solve", LD, B)
    if not right.size:
        return right
    batch, n = right.shape[:-2], LD.shape[-1]
    solve = jax.vmap(functools.partial(_solve, hermitian=hermitian and is_complex(LD)))
    pivots = jnp.broadcast_to(pivots, (*batch, n)).reshape(-1, n)
    solution = solve(factors.reshape(-1, n, n), pivots, right.reshape(-1, *right.shape[-2:]))
    return solution.reshape(right.shape)


def _check_solve(LD, pivots, B) -> None:
    if B.ndim < 2 or B.shape[-2] != LD.shape[-1]:
        raise RuntimeError(
            f"torch.linalg.ldl_solve: Expected B to have at least 2 dimensions and {LD.shape[-1]} rows, got shape "
            f"{list(B.shape)}"
        )
    if pivots.shape != LD.shape[:-1] or not jnp.issubdtype(pivots.dtype, jnp.integer):
        raise RuntimeError(
            f"torch.linalg.ldl_solve: Expected pivots to be integers of shape {list(LD.shape[:-1])}, got "
            f"{pivots.dtype} of shape {list(pivots.shape)}"
        )
    if LD.dtype != B.dtype:
        raise RuntimeError(f"torch.linalg.ldl_solve: Expected LD and B of one dtype, got {LD.dtype} and {B.dtype}")


def _solve(ld, pivots, b, hermitian: bool):
    conj = lax.conj if hermitian else lambda array: array
    in_block = pivots < 0
    second = in_block & (jnp.cumsum(in_block) % 2 == 0)
    first = in_block & ~second
    lower, order = _in_one_order(ld, pivots, first, second)
    solve = functools.partial(
        lax.linalg.triangular_solve, lower, left_side=True, lower=True, unit_diagonal=True, conjugate_a=hermitian
    )
    solution = lax.linalg.triangular_solve(lower, b[order], left_side=True, lower=True, unit_diagonal=True)
    solution = _solve_blocks(ld, first, second, solution, conj)
    return solve(solution, transpose_a=True)[jnp.argsort(order)]


def _in_one_order(ld, pivots, first, second):
    """L with the later interchanges made in its earlier columns too, and the order of rows that they lead to."""
    n = ld.shape[-1]
    rows = np.arange(n, dtype=np.int32)

    def interchange(k, carry):
        lower, order = carry
        pivot = jnp.where(first[k], k, jnp.where(second[k], -1 - pivots[k], pivots[k] - 1)).astype(np.int32)
        swap = jnp.where(rows == k, pivot, jnp.where(rows == pivot, k, rows))
        return jnp.where(rows < k - second[k], lower[swap], lower), order[swap]

    # The element under the first of two pivots belongs to D.
    lower = jnp.tril(ld, -1) * ~(jnp.eye(n, k=-1, dtype=bool) & first)
    return lax.fori_loop(np.int32(0), np.int32(n), interchange, (lower, jnp.asarray(rows)))


def _solve_blocks(ld, first, second, b, conj):
    """Solves with D, whose blocks of two are scaled by the element off their diagonal."""
    diagonal = jnp.diagonal(ld)
    between = jnp.where(first, jnp.append(jnp.diagonal(ld, -1), 0), 1)  # beside the first row of each block
    upper, lower = diagonal / conj(between), jnp.roll(diagonal, -1) / between
    scale = (1 / jnp.where(first, upper * lower - 1, 1))[:, None]
    this, next = b / conj(between)[:, None], jnp.roll(b, -1, axis=0) / between[:, None]
    of_first = scale * (lower[:, None] * this - next)
    of_second = jnp.roll(scale * (upper[:, None] * next - this), 1, axis=0)
    single = b / jnp.where(first | second, 1, diagonal)[:, None]
    return jnp.where(first[:, None], of_first, jnp.where(second[:, None], of_second, single))
