"""Roots of matrices, which PyTorch has since 2.15: of Hermitian ones, and the polar decomposition."""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from .linalg import adjoint, check_matrices, factored, hermitian_of

__all__ = []


def _lyapunov(h, c):
    """The solution X of ``h @ X + X @ h == c`` for a Hermitian `h` that is positive definite."""

    def applied(h, x):
        return h @ x + x @ h

    def solved(h, c):
        vectors, values = lax.linalg.eigh(h, symmetrize_input=False)
        sums = values[..., :, None] + values[..., None, :]
        return vectors @ ((adjoint(vectors) @ c @ vectors) / sums.astype(c.dtype)) @ adjoint(vectors)

    h_, transposed = lax.stop_gradient(h), lax.stop_gradient(h.mT)
    return lax.custom_linear_solve(
        functools.partial(applied, h),
        c,
        solve=lambda _, c: solved(h_, c),
        transpose_solve=lambda _, c: solved(transposed, c),
    )


@factored("aten::linalg_matrix_sqrth")
def linalg_matrix_sqrth(input):
    check_matrices("linalg.matrix_sqrth", input)
    return _square_root(hermitian_of(input))


@jax.custom_jvp
def _square_root(a):
    vectors, values = lax.linalg.eigh(a, symmetrize_input=False)
    roots = jnp.sqrt(jnp.maximum(values, 0)).astype(a.dtype)
    return (vectors * roots[..., None, :]) @ adjoint(vectors)


@_square_root.defjvp
def _square_root_jvp(primals, tangents):
    # X X = A, so that dX X + X dX = dA.
    root = _square_root(*primals)
    return root, _lyapunov(root, tangents[0])


@factored("aten::linalg_polar")
def linalg_polar(A):
    check_matrices("linalg.polar", A, square=False)
    rows, columns = A.shape[-2:]
    if rows < columns:
        raise RuntimeError(
            f"linalg.polar: input must have at least as many rows as columns, but got {rows} by {columns} matrices"
        )
    return _polar(A)


@jax.custom_jvp
def _polar(a):
    u, s, vh = lax.linalg.svd(a, full_matrices=False)
    return u @ vh, (adjoint(vh) * s[..., None, :].astype(a.dtype)) @ vh


@_polar.defjvp
def _polar_jvp(primals, tangents):
    # Of A = U H, with W = U* dU, which is skew: U* dA - dA* U = W H + H W, and the rest of dU is outside of U's span.
    (u, h), (da,) = _polar(*primals), tangents
    within = adjoint(u) @ da
    skew = _lyapunov(h, within - adjoint(within))
    outside = da - u @ within
    inverse = jnp.linalg.solve(h.mT, outside.mT).mT
    return (u, h), (u @ skew + inverse, within - skew @ h)
