"""LDL factorisations as PyTorch has them, and roots against what defines them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.test_util import check_grads

from torch2jax import t2j
from torch2jax.ops.factorizations import linalg_matrix_sqrth, linalg_polar

# Every kind that LAPACK factorises: real and complex symmetric, and Hermitian.
KINDS = [(torch.float64, False), (torch.complex128, False), (torch.complex128, True)]

kinds = pytest.mark.parametrize(("dtype", "hermitian"), KINDS, ids=["real", "symmetric", "hermitian"])


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def _indefinite(shape, dtype, hermitian, seed=0):
    torch.manual_seed(seed)
    matrix = torch.randn(shape, dtype=dtype)
    matrix = matrix * (torch.rand(shape) < 0.7)
    matrix.diagonal(dim1=-2, dim2=-1).mul_(0.1)
    return matrix + (matrix.mH if hermitian else matrix.mT)


def _agree(actual, expected):
    for got, want in zip(actual, expected, strict=True):
        np.testing.assert_allclose(np.asarray(got), want.numpy(), rtol=1e-7, atol=1e-7)


@kinds
@pytest.mark.parametrize("size", [1, 3, 70])
def test_factors_and_pivots_are_those_of_lapack(dtype, hermitian, size):
    matrices = _indefinite((4, size, size), dtype, hermitian, seed=size)
    expected = torch.linalg.ldl_factor_ex(matrices, hermitian=hermitian)
    if size > 2:
        assert (expected.pivots < 0).any(), "no block of two pivots, wanted some"
        assert (expected.pivots > 0).any(), "no single pivot, wanted some"
    function = t2j(lambda a: torch.linalg.ldl_factor_ex(a, hermitian=hermitian))
    transform = jax.vmap if size == 3 else jax.jit
    _agree(transform(function)(t2j(matrices)), expected)


@kinds
def test_the_upper_triangle_is_not_read(dtype, hermitian):
    matrix = _indefinite((5, 5), dtype, hermitian)
    matrix += 1j * torch.eye(5) if hermitian else 0
    other = matrix.tril() + torch.randn(5, 5, dtype=dtype).triu(1)
    factor = t2j(lambda a: torch.linalg.ldl_factor(a, hermitian=hermitian))
    _agree(factor(t2j(other)), torch.linalg.ldl_factor(matrix, hermitian=hermitian))


@kinds
@pytest.mark.parametrize("size", [1, 9])
def test_solutions_solve(dtype, hermitian, size):
    matrices, right = _indefinite((3, size, size), dtype, hermitian), torch.randn(3, size, 2, dtype=dtype)
    factors = torch.linalg.ldl_factor(matrices, hermitian=hermitian)
    expected = torch.linalg.ldl_solve(*factors, right, hermitian=hermitian)
    solve = t2j(lambda factors, pivots, right: torch.linalg.ldl_solve(factors, pivots, right, hermitian=hermitian))
    _agree([jax.jit(solve)(t2j(factors.LD), t2j(factors.pivots), t2j(right))], [expected])
    np.testing.assert_allclose(expected.numpy(), torch.linalg.solve(matrices, right).numpy(), rtol=1e-7, atol=1e-7)


def test_info_names_the_first_zero_pivot():
    matrix = torch.diag(torch.tensor([1.0, 0.0, 2.0, 0.0], dtype=torch.float64))
    expected = torch.linalg.ldl_factor_ex(matrix)
    assert expected.info == 2
    _agree(t2j(torch.linalg.ldl_factor_ex)(t2j(matrix)), expected)


def test_bad_arguments_are_refused():
    matrix = jnp.eye(3)
    with pytest.raises(RuntimeError, match="square"):
        t2j(torch.linalg.ldl_factor)(jnp.ones((2, 3)))
    with pytest.raises(RuntimeError, match="each A matrix is 3 by 3"):
        t2j(torch.linalg.ldl_solve)(matrix, jnp.arange(1, 4, dtype=jnp.int32), jnp.ones((2, 1)))
    with pytest.raises(RuntimeError, match="pivots"):
        t2j(torch.linalg.ldl_solve)(matrix, jnp.ones(2, jnp.int32), jnp.ones((3, 1)))


def test_ldl_has_no_derivative():
    with pytest.raises(RuntimeError, match="the derivative for 'linalg_ldl_factor_ex' is not implemented"):
        jax.grad(lambda a: t2j(torch.linalg.ldl_factor)(a)[0].sum())(jnp.eye(3))


# Roots.


def matrices(rows, columns, is_complex):
    generator = np.random.default_rng(0)
    a = generator.normal(size=(rows, columns))
    return jnp.asarray(a + 1j * generator.normal(size=a.shape) if is_complex else a)


def adjoint(a):
    return a.mT.conj()


def root_of_hermitian(a):
    return linalg_matrix_sqrth((a + adjoint(a)) / 2)  # of which one triangle is read


@pytest.mark.parametrize("is_complex", [False, True])
def test_square_roots(is_complex):
    a = matrices(3, 3, is_complex)
    a = a @ adjoint(a) + jnp.eye(3)
    root = linalg_matrix_sqrth(a)
    assert jnp.allclose(root @ root, a)
    assert jnp.allclose(root, adjoint(root))
    check_grads(root_of_hermitian, (a,), order=2, modes=("rev",))


def test_equal_eigenvalues_have_derivatives():
    check_grads(root_of_hermitian, (4 * jnp.eye(3),), order=2, modes=("rev",))


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("rows", [3, 5])
def test_polar_decompositions(rows, is_complex):
    a = matrices(rows, 3, is_complex)
    u, h = linalg_polar(a)
    assert jnp.allclose(u @ h, a)
    assert jnp.allclose(adjoint(u) @ u, jnp.eye(3))
    assert jnp.allclose(h, adjoint(h))
    assert (jnp.linalg.eigvalsh(h) > 0).all()
    check_grads(linalg_polar, (a,), order=2, modes=("rev",))


def test_bad_shapes_of_roots_are_refused():
    with pytest.raises(RuntimeError, match="at least as many rows as columns, but got 2 by 3"):
        linalg_polar(jnp.ones((2, 3)))
