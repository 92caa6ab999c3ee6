"""Factorisations that few programs ask for: LDL, and since PyTorch 2.15 roots of Hermitian matrices and polar ones."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..internals.tensors import tree_leaves
from ..tensors.dtypes import canonical, dtype_j2t
from ..tensors.known import in_pytorch
from ..tensors.traced import is_traced
from .bounds import outside
from .linalg import adjoint, broadcast_matrices, check_matrices, check_success, factored, hermitian_of

aten = torch.ops.aten

# LDLᵀ and LDLᴴ, which XLA lacks: LAPACK factorises and solves on the host, as PyTorch asks it to.


def _on_host(operator: Callable, *arrays, **options) -> tuple:
    """The result of a PyTorch operator for arrays; batches are their leading dimensions."""

    def run(*arrays):
        tensors = [torch.from_numpy(np.array(array)) for array in arrays]
        result = in_pytorch(operator, *tensors, **options)
        return tuple(x.contiguous().numpy() for x in (result if isinstance(result, tuple) else (result,)))

    if not any(map(is_traced, arrays)):
        return tuple(map(jnp.asarray, run(*arrays)))
    without_data = [torch.empty(x.shape, dtype=dtype_j2t(x.dtype), device="meta") for x in arrays]
    result = in_pytorch(operator, *without_data, **options)  # which refuses shapes that do not fit
    shapes = [jax.ShapeDtypeStruct(x.shape, canonical(x.dtype)) for x in tree_leaves(result)]

    @jax.custom_jvp
    def run_there(*arrays):
        return tuple(jax.pure_callback(run, shapes, *arrays, vmap_method="broadcast_all"))

    @run_there.defjvp
    def _(*_):
        raise RuntimeError(f"the derivative for '{operator.__name__}' is not implemented, in PyTorch as well")

    return run_there(*arrays)


@factored(torch.linalg.ldl_factor_ex, aten.linalg_ldl_factor_ex, dtype=(None, torch.int32, torch.int32))
def linalg_ldl_factor_ex(input, *, hermitian=False, check_errors=False):
    check_matrices("torch.linalg.ldl_factor_ex", input)
    factors, pivots, info = _on_host(aten.linalg_ldl_factor_ex, input, hermitian=hermitian)
    check_success(info, "torch.linalg.ldl_factor_ex", input, check_errors)
    return factors, pivots, info


def _check_pivots(LD, pivots, *args, **kwargs) -> None:
    if LD.ndim > 1 and outside(pivots, -LD.shape[-2], LD.shape[-2]) is not None:
        raise RuntimeError(
            "Pivots given to ldl_solve must all satisfy |pivot| <= LD.size(-2). Did you properly pass the result of "
            "ldl_factor?"
        )


@factored(torch.linalg.ldl_solve, aten.linalg_ldl_solve, check=_check_pivots)
def linalg_ldl_solve(LD, pivots, B, *, hermitian=False):
    check_matrices("torch.linalg.ldl_solve", LD, name="LD")
    check_matrices("torch.linalg.ldl_solve", B, square=False, name="B")
    if pivots.shape == LD.shape[:-1]:  # otherwise PyTorch refuses
        LD, B = broadcast_matrices("torch.linalg.ldl_solve", LD, B)
        pivots = jnp.broadcast_to(pivots, LD.shape[:-1])
    return _on_host(aten.linalg_ldl_solve, LD, pivots, B, hermitian=hermitian)[0]


# Roots.


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
