"""Roots of matrices against what defines them; where PyTorch has them, its database compares them with PyTorch's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from torch2jax.ops.matrix_roots import linalg_matrix_sqrth, linalg_polar


def matrices(rows, columns, is_complex):
    generator = np.random.default_rng(0)
    a = generator.normal(size=(rows, columns))
    return jnp.asarray(a + 1j * generator.normal(size=a.shape) if is_complex else a)


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


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


def test_shapes_are_refused():
    with pytest.raises(RuntimeError, match="at least as many rows as columns, but got 2 by 3"):
        linalg_polar(jnp.ones((2, 3)))
