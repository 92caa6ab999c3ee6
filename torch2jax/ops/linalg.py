"""Linear algebra: factorisations, solvers, inverses, determinants and spectra.

Most functions of ``torch.linalg`` are compositions that PyTorch makes itself; the rules here are of what they are
composed of.
"""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..rules.array_rule import InnerRule
from ..rules.registry import implements, implements_tensors
from ..runtime.errors import TracedValueError
from ..tensors.dtypes import FACTORED, INEXACT
from ..tensors.interop import array_to_tensor
from ..tensors.known import in_pytorch
from ..tensors.traced import is_traced
from .arrays import cast, is_complex, like, where, widened
from .bounds import outside
from .products import matmul
from .values import values

aten = torch.ops.aten
factored = functools.partial(implements, takes=FACTORED)
chosen = functools.partial(factored, has_own_values=True)  # the signs of vectors are anybody's choice


def adjoint(array):
    """The conjugate transpose of the last two dimensions."""
    transposed = array.mT
    return lax.conj(transposed) if is_complex(array) else transposed


def _identity(array):
    """Identity matrices, of the shape and dtype of `array`."""
    return jnp.broadcast_to(jnp.eye(*array.shape[-2:], dtype=array.dtype), array.shape)


def check_matrices(function: str, array, *, square: bool = True, name: str = "A") -> None:
    """Raises unless `array` is a batch of (square) matrices."""
    if array.ndim < 2:
        raise RuntimeError(
            f"{function}: The input tensor {name} must have at least 2 dimensions, but got {array.ndim} dimensions"
        )
    if square and array.shape[-1] != array.shape[-2]:
        raise RuntimeError(
            f"{function}: {name} must be batches of square matrices, but they are {array.shape[-2]} by "
            f"{array.shape[-1]} matrices"
        )


def broadcast_matrices(function: str, first, second):
    """Both matrices, with their batch dimensions broadcast."""
    try:
        batch = np.broadcast_shapes(first.shape[:-2], second.shape[:-2])
    except ValueError:
        raise RuntimeError(
            f"{function}: the batch dimensions of tensors of shapes {list(first.shape)} and {list(second.shape)} do "
            "not broadcast"
        ) from None
    return tuple(jnp.broadcast_to(each, (*batch, *each.shape[-2:])) for each in (first, second))


def _nothing(dtype):
    """A placeholder for a result that was not asked for."""
    return lax.full((0,), 0, dtype)


# Whether a factorisation succeeded. Under jit nothing can be raised: the result then holds nan or inf.


@implements_tensors(aten._linalg_check_errors.default)
def _linalg_check_errors(info, api_name, *, is_matrix):
    with contextlib.suppress(TracedValueError):
        _expect_success(values(info, api_name), api_name, is_matrix=is_matrix)


def _expect_success(codes, api_name: str, *, is_matrix: bool) -> None:
    in_pytorch(aten._linalg_check_errors, array_to_tensor(codes, gathers=True), api_name, is_matrix=is_matrix)


def check_success(info, name: str, a, check_errors: bool) -> None:
    """Checks a factorization of `a` as ``check_errors=True`` does, if `info` has values.

    Raises:
        torch.linalg.LinAlgError: it failed, in PyTorch's words.
    """
    if check_errors and not is_traced(info):
        _expect_success(info, name, is_matrix=a.ndim == 2)


def _finite(error: type[Exception], message: str):
    """Makes a `prepare` that refuses a matrix with values that are not finite: LAPACK's iterations would not end."""

    def prepare(*args, **kwargs):
        matrices = next(iter((*args, *kwargs.values())))
        with contextlib.suppress(TracedValueError):
            if not np.isfinite(values(matrices, "a factorization")).all():
                raise error(message)
        return args, kwargs

    return prepare


def _for_eigh(A, UPLO="L", compute_v=True):
    if A.ndim > 1 and A.shape[-1] > 2:  # of smaller ones PyTorch's are NaN as well
        with contextlib.suppress(TracedValueError):
            matrices = values(A, "a factorization")
            if np.isnan((np.triu if UPLO.upper() == "U" else np.tril)(matrices)).any():
                raise torch.linalg.LinAlgError(
                    "linalg.eigh: The algorithm failed to converge because the input matrix is ill-conditioned or has "
                    "too many repeated eigenvalues (it has values that are NaN)."
                )
    return (A, UPLO, compute_v), {}


_for_eig = _finite(RuntimeError, "torch.linalg.eig: input tensor should not contain infs or NaNs.")
_for_svd = _finite(
    torch.linalg.LinAlgError,
    "linalg.svd: The algorithm failed to converge because the input matrix contained non-finite values.",
)


def _first(failed):
    """The place, counted from one, of the first True in the last dimension, or zero."""
    axis = failed.ndim - 1
    if not failed.shape[axis]:
        return lax.full(failed.shape[:-1], np.int32(0))
    position = lax.argmax(failed, axis, np.int32) + np.int32(1)
    return where(lax.reduce_or(failed, (axis,)), position, np.int32(0))


# Cholesky.


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def hermitian_of(a, lower=True):
    """The hermitian matrix with one triangle of `a`; its derivative is that of the hermitian part of `a`."""
    rows, columns = (lax.broadcasted_iota(np.int32, a.shape, dim) for dim in (a.ndim - 2, a.ndim - 1))
    return lax.select(lax.ge(rows, columns) if lower else lax.le(rows, columns), a, adjoint(a))


@hermitian_of.defjvp
def _hermitian_jvp(lower, primals, tangents):
    return hermitian_of(*primals, lower), (tangents[0] + adjoint(tangents[0])) / 2


@factored(torch.linalg.cholesky_ex, dtype=(None, torch.int32))
def linalg_cholesky_ex(input, *, upper=False, check_errors=False):
    check_matrices("linalg.cholesky", input)
    matrix = hermitian_of(input, not upper)
    factor = lax.linalg.cholesky(matrix, symmetrize_input=False)
    info = _indefiniteness(lax.stop_gradient(matrix), factor)
    check_success(info, "linalg.cholesky_ex", input, check_errors)
    return adjoint(factor) if upper else factor, info


def _indefiniteness(a, factor):
    """The order of the first leading minor of `a` that is not positive; zero if all are."""

    def eliminate(k, carry):
        rest, order = carry
        pivot, column = lax.real(rest[..., k, k]) if is_complex(rest) else rest[..., k, k], rest[..., k]
        order = where((order == 0) & ~(pivot > 0), k.astype(np.int32) + 1, order)
        row = adjoint(column[..., None])
        return rest - column[..., None] * row / pivot[..., None, None], order

    order = lax.full(a.shape[:-2], np.int32(0))
    if not a.size:
        return order
    failed = jnp.isnan(factor).any()  # JAX says no more than that
    return lax.cond(failed, lambda: lax.fori_loop(0, a.shape[-1], eliminate, (a, order))[1], lambda: order)


@implements_tensors("aten::cholesky")  # which PyTorch 2.14 has no more
def cholesky(input, upper=False, *, out=None):
    return torch.linalg.cholesky(input, upper=upper, out=out)


@factored(torch.cholesky_solve)
def cholesky_solve(input, input2, upper=False):
    check_matrices("cholesky_solve", input2)
    check_matrices("cholesky_solve", input, square=False, name="B")
    factor, right = broadcast_matrices("cholesky_solve", input2, input)
    solve = functools.partial(lax.linalg.triangular_solve, factor, left_side=True, lower=not upper)
    return solve(solve(right, **_transposed(factor, upper)), **_transposed(factor, not upper))


def _transposed(factor, wanted: bool) -> dict:
    return {"transpose_a": wanted, "conjugate_a": wanted and is_complex(factor)}


@implements_tensors(aten.cholesky_inverse.default)
def cholesky_inverse(input, upper=False):
    inverse, info = _INVERSE_OF_FACTOR((input, upper), {})
    _linalg_check_errors(info, "cholesky_inverse", is_matrix=input.ndim == 2)
    return inverse


def _inverse_of_factor(input, upper):
    check_matrices("cholesky_inverse", input)
    return cholesky_solve(_identity(input), input, upper), _singularity(input)


_INVERSE_OF_FACTOR = InnerRule(_inverse_of_factor, "cholesky_inverse", takes=FACTORED, dtype=(None, torch.int32))


# LU, and what it solves.


def _factored(a):
    """The LU factors of `a` and its permutation, for a solver that does not differentiate through them."""
    lu, _, permutation = lax.linalg.lu(lax.stop_gradient(a))
    return lu, permutation


def _substitute(factors, b, transpose: bool = False, conjugate: bool = False):
    """Solves ``op(A) x = b`` for the factors of A."""
    lu, permutation = factors
    solve = functools.partial(lax.linalg.triangular_solve, lu, left_side=True, transpose_a=transpose)
    lower = functools.partial(solve, lower=True, unit_diagonal=True, conjugate_a=conjugate)
    upper = functools.partial(solve, lower=False, conjugate_a=conjugate)
    if transpose:
        return _permuted(lower(upper(b)), jnp.argsort(permutation, axis=-1))
    return upper(lower(_permuted(b, permutation)))


def _permuted(array, permutation):
    """The rows of `array` in another order."""
    return jnp.take_along_axis(array, permutation[..., None], axis=-2, mode="promise_in_bounds")


def _solved(a, factors, b):
    """``a⁻¹ b``, with the derivative of the solution rather than of how it was found."""
    return lax.custom_linear_solve(
        functools.partial(matmul, a),
        b,
        lambda _, right: _substitute(factors, right),
        lambda _, right: _substitute(factors, right, transpose=True),
    )


def _pivots(pivots):
    return pivots + np.int32(1)  # LAPACK counts from one


def _singularity(lu):
    """The index of the first zero on the diagonal of U, counted from one; zero if there is none."""
    zero = (lu == 0) & jnp.eye(*lu.shape[-2:], dtype=bool)
    return _first(lax.reduce_or(zero, (lu.ndim - 1,)))


@factored(torch.linalg.inv_ex, dtype=(None, torch.int32))
def linalg_inv_ex(A, *, check_errors=False):
    check_matrices("linalg.inv", A)
    factors = _factored(A)
    info = _singularity(factors[0])
    check_success(info, "linalg.inv_ex", A, check_errors)
    return _solved(A, factors, _identity(A)), info


@factored(aten._linalg_solve_ex, dtype=(None, None, torch.int32, torch.int32))
def _linalg_solve_ex(A, B, *, left=True, check_errors=False):
    check_matrices("linalg.solve", A)
    is_vector = B.ndim == 1 or (A.ndim == B.ndim + 1 and A.shape[:-1] == B.shape)
    right = B[..., None] if is_vector else B
    right = right if left else right.mT
    if A.dtype != B.dtype:
        raise RuntimeError(f"linalg.solve: Expected A and B to have the same dtype, but got {A.dtype} and {B.dtype}")
    if right.ndim < 2 or right.shape[-2] != A.shape[-1]:
        raise RuntimeError(
            f"linalg.solve: Incompatible shapes of A and B for the equation {'AX' if left else 'XA'} = B "
            f"({A.shape[-2]}x{A.shape[-1]} and {'x'.join(map(str, B.shape[-2:]))})"
        )
    a, right = broadcast_matrices("linalg.solve", A if left else A.mT, right)
    lu, pivots, permutation = lax.linalg.lu(lax.stop_gradient(a))
    info = _singularity(lu)
    check_success(info, "torch.linalg.solve_ex", A, check_errors)
    result = _solved(a, (lu, permutation), right)
    result = result if left else result.mT
    return result[..., 0] if is_vector else result, lu, _pivots(pivots), info


@factored(torch.linalg.lu_factor_ex, dtype=(None, torch.int32, torch.int32))
def linalg_lu_factor_ex(A, *, pivot=True, check_errors=False):
    check_matrices("linalg.lu_factor", A, square=False)
    lu, pivots, _ = lax.linalg.lu(_pivoting("linalg.lu_factor", A, pivot))
    info = _singularity(lu)
    check_success(info, "torch.linalg.lu_factor_ex", A, check_errors)
    return lu, _pivots(pivots), info


def _pivoting(function: str, array, pivot: bool):
    if not pivot:
        raise RuntimeError(f"{function}: LU without pivoting is not implemented on the CPU; pass pivot=True")
    return array


@factored(torch.linalg.lu)
def linalg_lu(A, *, pivot=True):
    check_matrices("linalg.lu", A, square=False)
    lu, _, permutation = lax.linalg.lu(_pivoting("linalg.lu_factor", A, pivot))
    return (_permutation_matrix(permutation, A.dtype), *_triangles(lu))


def _permutation_matrix(permutation, dtype):
    positions = np.arange(permutation.shape[-1], dtype=np.int32)
    return (permutation[..., None, :] == positions[:, None]).astype(dtype)


def _triangles(lu):
    """The unit lower and the upper factor that are stored in one matrix."""
    rows, columns = lu.shape[-2:]
    size = min(rows, columns)
    lower = jnp.tril(lu[..., :, :size], -1) + jnp.eye(rows, size, dtype=lu.dtype)
    return lower, jnp.triu(lu[..., :size, :])


def _check_unpacked(LU_data, LU_pivots, unpack_data=True, unpack_pivots=True) -> None:
    if unpack_pivots and outside(LU_pivots, 1, LU_data.shape[-2]) is not None:
        raise RuntimeError(
            "pivots passed to lu_unpack must be between 1 and LU.size(-2) inclusive."
            "Did you properly pass the result of lu_factor?"
        )


@factored(torch.lu_unpack, check=_check_unpacked)
def lu_unpack(LU_data, LU_pivots, unpack_data=True, unpack_pivots=True):
    nothing = _nothing(LU_data.dtype)
    matrix = nothing
    if unpack_pivots:
        permutation = lax.linalg.lu_pivots_to_permutation(LU_pivots - np.int32(1), LU_data.shape[-2])
        matrix = _permutation_matrix(permutation, LU_data.dtype)
    return (matrix, *(_triangles(LU_data) if unpack_data else (nothing, nothing)))


def _check_pivots(LU, pivots, *args, **kwargs) -> None:
    if LU.ndim > 1 and outside(pivots, 1, LU.shape[-2]) is not None:
        raise RuntimeError(
            "Pivots given to lu_solve must all be greater or equal to 1 and smaller or equal to LU.size(-2). Did you "
            "properly pass the result of lu_factor?"
        )


@factored(torch.linalg.lu_solve, check=_check_pivots)
def linalg_lu_solve(LU, pivots, B, *, left=True, adjoint=False):
    check_matrices("linalg.lu_solve", LU, name="LU")
    if pivots.shape != LU.shape[:-1]:
        raise RuntimeError(
            "linalg.lu_solve: Number of pivots per batch should be same as the dimension of the matrix, but got shapes "
            f"{list(pivots.shape)} and {list(LU.shape)}"
        )
    lu, right = broadcast_matrices("linalg.lu_solve", LU, B if left else B.mT)
    permutation = lax.linalg.lu_pivots_to_permutation(pivots - np.int32(1), LU.shape[-1])
    permutation = jnp.broadcast_to(permutation, lu.shape[:-1])
    # From the right, X op(A) = B is op(A)ᵀ Xᵀ = Bᵀ.
    conjugate = adjoint and is_complex(lu)
    if left or not conjugate:
        result = _substitute((lu, permutation), right, transpose=adjoint == left, conjugate=conjugate)
    else:
        result = lax.conj(_substitute((lu, permutation), lax.conj(right)))
    return result if left else result.mT


@factored(torch.linalg.solve_triangular)
def linalg_solve_triangular(input, B, *, upper, left=True, unitriangular=False):
    check_matrices("linalg.solve_triangular", input)
    a, b = broadcast_matrices("linalg.solve_triangular", input, B)
    if b.shape[-2 if left else -1] != a.shape[-1]:
        raise RuntimeError(
            f"linalg.solve_triangular: Incompatible shapes of A and B for the equation {'AX' if left else 'XA'} = B "
            f"({a.shape[-2]}x{a.shape[-1]} and {b.shape[-2]}x{b.shape[-1]})"
        )
    return lax.linalg.triangular_solve(a, b, left_side=left, lower=not upper, unit_diagonal=unitriangular)


@factored(torch.triangular_solve)
def triangular_solve(input, A, upper=True, transpose=False, unitriangular=False):
    check_matrices("triangular_solve", A)
    check_matrices("triangular_solve", input, square=False, name="b")
    a, b = broadcast_matrices("triangular_solve", A, input)
    solution = lax.linalg.triangular_solve(
        a, b, left_side=True, lower=not upper, transpose_a=transpose, unit_diagonal=unitriangular
    )
    return solution, a


# Determinants.


@factored(torch.linalg.det)
def linalg_det(A):
    check_matrices("linalg.det", A)
    return jnp.linalg.det(A) if A.size else lax.full(A.shape[:-2], A.dtype.type(A.shape[-1] == 0))


@factored(torch.linalg.slogdet, dtype=lambda A: (A.dtype, A.dtype.to_real()))
def linalg_slogdet(A):
    check_matrices("linalg.slogdet", A)
    return tuple(jnp.linalg.slogdet(A))


# QR, and the reflectors that it is stored as.


@chosen(torch.linalg.qr)
def linalg_qr(A, mode="reduced"):
    check_matrices("linalg.qr", A, square=False)
    if mode not in ("reduced", "complete", "r"):
        raise RuntimeError(
            f"qr received unrecognized mode '{mode}' but expected one of 'reduced' (default), 'r', or 'complete'"
        )
    q, r = lax.linalg.qr(A, full_matrices=mode == "complete")
    return (_nothing(A.dtype) if mode == "r" else q), r


@chosen(torch.geqrf)
def geqrf(input):
    check_matrices("geqrf", input, square=False)
    reflectors, tau = jnp.linalg.qr(input, mode="raw")
    return reflectors.mT, tau


@jax.custom_jvp
def _orthogonal(reflectors, tau):
    return lax.linalg.householder_product(reflectors, tau)


@_orthogonal.defjvp
def _orthogonal_jvp(primals, tangents):
    return _orthogonal(*primals), jax.jvp(_reflected, primals, tangents)[1]


def _reflected(reflectors, tau):
    """The product of the reflections, one after the other; unlike LAPACK's, it can be differentiated."""
    rows, columns = reflectors.shape[-2:]
    vectors = jnp.tril(reflectors, -1) + jnp.eye(rows, columns, dtype=reflectors.dtype)

    def reflect(result, reflector):
        vector, factor = reflector[0][..., None], reflector[1][..., None, None]
        return result - factor * vector @ (adjoint(vector) @ result), None

    each = jnp.moveaxis(vectors[..., : tau.shape[-1]], -1, 0), jnp.moveaxis(tau, -1, 0)
    return lax.scan(reflect, _identity(reflectors), each, reverse=True)[0]


@factored(torch.linalg.householder_product)
def linalg_householder_product(input, tau):
    check_matrices("linalg.householder_product", input, square=False, name="input")
    if input.shape[-2] < input.shape[-1] or tau.shape[-1] > input.shape[-1]:
        raise RuntimeError(
            "torch.linalg.householder_product: wanted input.shape[-2] >= input.shape[-1] >= tau.shape[-1], got shapes "
            f"{list(input.shape)} and {list(tau.shape)}"
        )
    return _orthogonal(input, tau)


@factored(torch.ormqr)
def ormqr(input, input2, input3, left=True, transpose=False):
    if input.ndim < 2 or input3.ndim < 2:
        raise RuntimeError(
            f"ormqr: input and other must have at least 2 dimensions, got shapes {input.shape} and {input3.shape}"
        )
    rows, most = input3.shape[-2 if left else -1], min(input3.shape[-2 if left else -1], input.shape[-1])
    if input.shape[-2] != rows or input2.shape[-1] > most:
        raise RuntimeError(
            f"ormqr: input of shape {input.shape} and tau of shape {input2.shape} do not fit other of shape "
            f"{input3.shape}"
        )
    reflectors = input[..., : input2.shape[-1]]
    missing = input.shape[-2] - reflectors.shape[-1]
    square = jnp.concatenate([reflectors, jnp.zeros((*input.shape[:-1], missing), input.dtype)], axis=-1)
    matrix = _orthogonal(square, input2)
    matrix = adjoint(matrix) if transpose else matrix
    return matrix @ input3 if left else input3 @ matrix


# Spectra.


@chosen(aten._linalg_eigh, prepare=_for_eigh, dtype=lambda A, *args, **kwargs: (A.dtype.to_real(), A.dtype))
def _linalg_eigh(A, UPLO="L", compute_v=True):
    check_matrices("linalg.eigh", A)
    if UPLO.upper() not in ("L", "U"):
        raise RuntimeError(f"Expected UPLO argument to be 'L' or 'U', but got {UPLO}")
    vectors, eigenvalues = lax.linalg.eigh(hermitian_of(A, UPLO.upper() == "L"), symmetrize_input=False)
    return eigenvalues, vectors if compute_v else _nothing(A.dtype)


@chosen(torch.linalg.eig, prepare=_for_eig, dtype=lambda input: input.dtype.to_complex())
def linalg_eig(input):
    check_matrices("linalg.eig", input)
    if not input.size:
        vectors = lax.convert_element_type(input, jnp.result_type(input, np.complex64))
        return vectors.sum(-1), vectors
    return tuple(lax.linalg.eig(input, compute_left_eigenvectors=False, enable_eigvec_derivs=True))


@factored(torch.linalg.eigvals, aten._linalg_eigvals, prepare=_for_eig, dtype=lambda input: input.dtype.to_complex())
def linalg_eigvals(input):
    check_matrices("linalg.eigvals", input)
    if not input.size:
        return lax.convert_element_type(input, jnp.result_type(input, np.complex64)).sum(-1)
    return lax.linalg.eig(
        input, compute_left_eigenvectors=False, compute_right_eigenvectors=False, enable_eigvec_derivs=True
    )[0]


@chosen(
    aten._linalg_svd,
    prepare=_for_svd,
    dtype=lambda A, *args, **kwargs: (A.dtype, A.dtype.to_real(), A.dtype),
)
def _linalg_svd(A, full_matrices=False, compute_uv=True, *, driver=None):
    check_matrices("linalg.svd", A, square=False)
    if not compute_uv:
        nothing = _nothing(A.dtype)
        return nothing, lax.linalg.svd(A, compute_uv=False), nothing
    return _full_svd(A) if full_matrices and A.shape[-2] != A.shape[-1] else _thin_svd(A)


_thin_svd = functools.partial(lax.linalg.svd, full_matrices=False)


@jax.custom_jvp
def _full_svd(a):
    return tuple(lax.linalg.svd(a, full_matrices=True))


@_full_svd.defjvp
def _full_svd_jvp(primals, tangents):
    # The vectors beyond the thin decomposition are any basis of what is left: they have no derivative.
    u, s, vh = _full_svd(*primals)
    _, (du, ds, dvh) = jax.jvp(_thin_svd, primals, tangents)
    du = jnp.concatenate([du, jnp.zeros_like(u[..., :, du.shape[-1] :])], axis=-1)
    dvh = jnp.concatenate([dvh, jnp.zeros_like(vh[..., dvh.shape[-2] :, :])], axis=-2)
    return (u, s, vh), (du, ds, dvh)


# What rests on spectra.


@functools.partial(jax.custom_jvp, nondiff_argnums=(3,))
def _pseudo_inverse(a, atol, rtol, hermitian):
    if hermitian:
        u, s = lax.linalg.eigh(a, symmetrize_input=False)
        vh = adjoint(u)
    else:
        u, s, vh = _thin_svd(a)
    cutoff = jnp.maximum(atol, rtol * jnp.max(abs(s), axis=-1, initial=0))[..., None]
    kept = abs(s) > cutoff
    inverse = where(kept, 1 / where(kept, s, like(s, 1)), like(s, 0))
    return adjoint(vh) @ (inverse[..., None].astype(a.dtype) * adjoint(u))


@_pseudo_inverse.defjvp
def _pseudo_inverse_jvp(hermitian, primals, tangents):
    a, da = primals[0], tangents[0]
    p = _pseudo_inverse(*primals, hermitian)
    pda = p @ da
    left = (adjoint(da) - (p @ a) @ adjoint(da)) @ adjoint(p) @ p
    right = p @ adjoint(p) @ (adjoint(da) - adjoint(da) @ (a @ p))
    return p, left + right - pda @ p


@factored(aten.linalg_pinv.atol_rtol_tensor, prepare=_for_svd)
def linalg_pinv(input, *, atol=None, rtol=None, hermitian=False):
    check_matrices("linalg.pinv", input, square=hermitian)
    for name, tolerance in (("atol", atol), ("rtol", rtol)):
        if tolerance is not None and jnp.iscomplexobj(tolerance):
            raise RuntimeError(f"linalg.pinv: {name} tensor of complex type is not supported.")
    return _pseudo_inverse(input, *_tolerances(input, atol, rtol), hermitian)


def _tolerances(array, atol, rtol):
    info = jnp.finfo(array.dtype)
    default = np.asarray(float(info.eps) * max(array.shape[-2:]), info.dtype)
    if rtol is None:
        rtol = default if atol is None else where(atol > 0, like(default, 0), default)
    return 0.0 if atol is None else atol, rtol


def _cutoff(a, rcond: float | None, driver: str) -> float:
    """Up to which part of the largest a singular value counts as zero: as LAPACK's drivers take `rcond`."""
    eps = float(jnp.finfo(a.dtype).eps)
    if rcond is None:
        return eps * max(a.shape[-2:])
    is_taken = 0 < rcond < 1 if driver == "gelsd" else rcond >= 0 or driver == "gelsy"
    return rcond if is_taken else eps


@factored(
    torch.linalg.lstsq,
    dtype=lambda input, *args, **kwargs: (input.dtype, input.dtype.to_real(), torch.int64, input.dtype.to_real()),
)
def linalg_lstsq(input, b, rcond=None, *, driver=None):
    if input.ndim < 2:
        raise RuntimeError("torch.linalg.lstsq: input must have at least 2 dimensions.")
    driver = driver or "gelsy"
    if driver not in ("gels", "gelsy", "gelsd", "gelss"):
        raise RuntimeError(
            f"torch.linalg.lstsq: parameter `driver` should be one of (gels, gelsy, gelsd, gelss), got {driver}"
        )
    if input.dtype != b.dtype:
        raise RuntimeError(
            "torch.linalg.lstsq: Expected input and other to have the same dtype, but got input's dtype "
            f"{input.dtype} and other's dtype {b.dtype}"
        )
    is_vector = b.ndim == 1 or (input.ndim == b.ndim + 1 and input.shape[:-1] == b.shape)
    a, right = broadcast_matrices("torch.linalg.lstsq", input, b[..., None] if is_vector else b)
    singular = lax.linalg.svd(lax.stop_gradient(a), compute_uv=False)
    rtol = _cutoff(a, rcond, driver)
    solution = _pseudo_inverse(a, 0.0, rtol, False) @ right
    nothing = _nothing(singular.dtype)
    residuals = nothing
    if a.shape[-2] > a.shape[-1] and driver != "gelsy":
        residuals = jnp.sum(abs(right - a @ solution) ** 2, axis=-2)
    rank = jnp.sum(singular > rtol * jnp.max(singular, axis=-1, keepdims=True, initial=0), axis=-1)
    return (
        solution[..., 0] if is_vector else solution,
        residuals,
        _nothing(np.int32) if driver == "gels" else rank,
        singular if driver in ("gelsd", "gelss") else nothing,
    )


@implements(torch.linalg.matrix_exp, takes=INEXACT)
def linalg_matrix_exp(input):
    matrices = widened(input)
    check_matrices("linalg.matrix_exp", matrices)
    return cast(jax.scipy.linalg.expm(matrices), input.dtype)
