"""Linear algebra: values, gradients, and what happens where a factorisation fails."""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from tests.ops.database import compare, compare_trees
from torch2jax import t2j

# Not Cholesky: PyTorch's gradient of it has an imaginary diagonal, on which no hermitian matrix depends.

pytestmark = pytest.mark.filterwarnings("ignore:torch.* is deprecated")


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


def _hermitian(dtype):
    matrix = torch.randn(2, 4, 4, dtype=dtype)
    return matrix + matrix.mH


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
class TestDecompositionsCompose:
    """Their factors are free in sign or phase; their products are not."""

    def test_eigh(self, dtype):
        def function(x):
            values, vectors = torch.linalg.eigh(x)
            return values, (vectors * values[..., None, :]) @ vectors.mH, vectors.abs()

        x = _hermitian(dtype)
        compare_trees(t2j(function)(t2j(x)), function(x))

    def test_eig(self, dtype):
        def function(x):
            values, vectors = torch.linalg.eig(x)
            return vectors @ torch.diag_embed(values) @ torch.linalg.inv(vectors), values.dtype

        x = torch.randn(2, 4, 4, dtype=dtype)
        product, values_dtype = t2j(function)(t2j(x))
        compare(product, x.to(torch.complex64))
        assert values_dtype == torch.complex64

    @pytest.mark.parametrize("full_matrices", [False, True])
    @pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 4)])
    def test_svd(self, dtype, full_matrices, shape):
        def function(x):
            u, s, vh = torch.linalg.svd(x, full_matrices=full_matrices)
            return u.mH @ u, vh @ vh.mH, s, (u[:, :3] * s[:3]) @ vh[:3] if min(shape) == 3 else (u * s) @ vh

        x = torch.randn(shape, dtype=dtype)
        compare_trees(t2j(function)(t2j(x)), function(x))


def test_matrix_exp():
    x = torch.randn(3, 4, 4, dtype=torch.float32)
    compare(t2j(torch.matrix_exp)(t2j(x)), torch.matrix_exp(x))


def test_low_rank():
    x = torch.randn(8, 2) @ torch.randn(2, 6)

    def function(x):
        u, s, v = torch.svd_lowrank(x, q=3)
        return (u * s) @ v.mT

    compare(t2j(function)(t2j(x), rng=jax.random.key(0)), x)


@pytest.mark.parametrize("upper", [False, True])
def test_only_one_triangle_is_read(upper):
    x = torch.eye(3) * 4 + torch.tensor([[0.0, 0.5, 1.0], [0.3, 0.0, 0.2], [0.1, 0.7, 0.0]])

    def function(x):
        return torch.linalg.cholesky(x, upper=upper), torch.linalg.eigvalsh(x, UPLO="U" if upper else "L")

    compare_trees(t2j(function)(t2j(x)), function(x))


def test_types_of_results():
    result = t2j(lambda x: type(torch.linalg.inv_ex(x)).__name__)(jnp.eye(2))
    assert result == "linalg_inv_ex"
    values, vectors = t2j(lambda x: torch.linalg.eigh(x))(jnp.eye(2))
    assert values.shape == (2,)
    assert vectors.shape == (2, 2)


class TestFailures:
    @pytest.mark.parametrize(
        ("function", "matrix"),
        [
            (torch.linalg.inv, torch.zeros(2, 2)),
            (torch.linalg.inv, torch.stack([torch.eye(2), torch.ones(2, 2)])),
            (torch.linalg.cholesky, -torch.eye(2)),
            (lambda a: torch.linalg.cholesky(a), torch.tensor([[1.0, 2.0, 0], [2.0, 1.0, 0], [0, 0, 1.0]])),
            (lambda a: torch.linalg.solve(a, torch.ones(2)), torch.zeros(2, 2)),
            (torch.linalg.lu_factor, torch.zeros(2, 2)),
            (torch.cholesky_inverse, torch.diag(torch.tensor([1.0, 0, 2]))),
            (lambda a: torch.lu_unpack(a, torch.tensor([3, 2], dtype=torch.int32)), torch.eye(2)),
        ],
    )
    def test_eagerly_pytorchs_error_is_raised(self, function, matrix):
        with pytest.raises(RuntimeError) as expected:
            function(matrix)
        with pytest.raises(type(expected.value)) as actual:
            t2j(function)(t2j(matrix))
        assert str(actual.value) == str(expected.value)

    def test_under_jit_the_result_is_not_finite(self):
        assert not jnp.isfinite(jax.jit(t2j(torch.linalg.inv))(jnp.zeros((2, 2)))).any()
        assert jnp.isnan(jax.jit(t2j(torch.linalg.cholesky))(-jnp.eye(2))).any()

    @pytest.mark.parametrize("name", ["eig", "eigvals", "svd", "svdvals", "pinv"])
    def test_no_iteration_over_what_is_not_finite(self, name):
        function = getattr(torch.linalg, name)
        with pytest.raises(RuntimeError, match=r"should not contain infs or NaNs|contained non-finite values"):
            t2j(function)(jnp.full((2, 2), jnp.nan))
        t2j(function)(jnp.eye(2))
        assert jnp.isnan(jax.tree.leaves(jax.jit(t2j(function))(jnp.full((2, 2), jnp.nan)))[0]).any()

    @pytest.mark.parametrize("shape", [(3, 3), (2, 3, 3)])
    @pytest.mark.parametrize("name", ["inv_ex", "cholesky_ex", "lu_factor_ex", "solve_ex"])
    def test_errors_are_checked_where_that_is_asked_for(self, name, shape):
        def function(x):
            function = getattr(torch.linalg, name)
            return function(*[x] * (2 if name == "solve_ex" else 1), check_errors=True)

        x = torch.eye(3).repeat(*shape[:-2], 1, 1)
        compare_trees(t2j(function)(t2j(x)), function(x))
        x[..., 2, 2] = 0
        with pytest.raises(RuntimeError) as refusal:
            function(x)
        with pytest.raises(refusal.type, match=re.escape(str(refusal.value))):
            t2j(function)(t2j(x))
        jax.jit(t2j(function))(t2j(x))

    @pytest.mark.parametrize("name", ["eigh", "eigvalsh"])
    def test_eigh_of_nan(self, name):
        def function(x, uplo):
            return getattr(torch.linalg, name)(x, UPLO=uplo)

        x = torch.eye(3)
        x[2, 0] = float("nan")
        for call in (function, t2j(function)):
            call(x, "U")
            with pytest.raises(torch.linalg.LinAlgError, match="The algorithm failed to converge"):
                call(x, "L")

    def test_info_tells_under_jit(self):
        def function(x):
            return torch.linalg.cholesky_ex(x).info, torch.linalg.inv_ex(x - x).info, torch.linalg.lu_factor_ex(x).info

        compare_trees(jax.jit(t2j(function))(-jnp.eye(2)), function(-torch.eye(2)))

    @pytest.mark.parametrize(
        ("function", "array", "message"),
        [
            (torch.linalg.inv, jnp.ones((2, 3)), "must be batches of square matrices, but they are 2 by 3 matrices"),
            (torch.linalg.inv, jnp.ones(3), "must have at least 2 dimensions"),
            (lambda a: torch.linalg.lstsq(a, a), jnp.ones(3), "input must have at least 2 dimensions"),
            (lambda a: torch.linalg.pinv(a, atol=torch.tensor(1j)), jnp.ones((2, 2)), "atol tensor of complex type"),
            (torch.linalg.eigh, jnp.ones((2, 2), int), "linalg_eigh got a tensor of torch.int32"),
            (torch.linalg.svd, jnp.ones((2, 2), jnp.bfloat16), "wanted one of complex, torch.float32 or torch.float64"),
            (lambda a: torch.linalg.solve(a, torch.ones(3)), jnp.ones((2, 2)), "Incompatible shapes"),
            (lambda a: torch.linalg.qr(a, mode="raw"), jnp.ones((2, 2)), "unrecognized mode 'raw'"),
        ],
    )
    def test_refusals(self, function, array, message):
        with pytest.raises(RuntimeError, match=message):
            t2j(function)(array)


def test_ormqr_reads_as_many_reflectors_as_there_are_factors():
    reflectors, factors = torch.geqrf(torch.randn(3, 5))
    other = torch.randn(3, 2)
    compare(t2j(torch.ormqr)(t2j(reflectors), t2j(factors), t2j(other)), torch.ormqr(reflectors, factors, other))


@pytest.mark.parametrize(
    ("driver", "rcond"),
    [("gelsy", None), ("gelsy", -1), *itertools.product(("gelsd", "gelss"), (None, -1, 0.0, 0.5, 1.0))],
)
def test_singular_values_that_count_as_zero(driver, rcond):
    torch.manual_seed(0)
    a, b = torch.randn(4, 3), torch.randn(4, 2)

    def solve(a, b):
        found = torch.linalg.lstsq(a, b, rcond=rcond, driver=driver)
        return found.solution, found.rank, found.singular_values

    for got, expected in zip(t2j(solve)(t2j(a), t2j(b)), solve(a, b), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
