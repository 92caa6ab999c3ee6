"""Special functions, against SciPy over wide ranges: PyTorch's own lose digits in places."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import torch

from tests.ops.database import compare
from torch2jax import t2j

POLYNOMIALS = {
    "chebyshev_polynomial_t": scipy.special.eval_chebyt,
    "chebyshev_polynomial_u": scipy.special.eval_chebyu,
    "hermite_polynomial_h": scipy.special.eval_hermite,
    "hermite_polynomial_he": scipy.special.eval_hermitenorm,
    "laguerre_polynomial_l": scipy.special.eval_laguerre,
    "legendre_polynomial_p": scipy.special.eval_legendre,
    "shifted_chebyshev_polynomial_t": scipy.special.eval_sh_chebyt,
    "shifted_chebyshev_polynomial_u": scipy.special.eval_sh_chebyu,
}
FUNCTIONS = {
    "airy_ai": lambda x: scipy.special.airy(x)[0],
    "bessel_j0": scipy.special.j0,
    "bessel_j1": scipy.special.j1,
    "bessel_y0": scipy.special.y0,
    "bessel_y1": scipy.special.y1,
    "erfcx": scipy.special.erfcx,
    "i0e": scipy.special.i0e,
    "i1e": scipy.special.i1e,
    "log_ndtr": scipy.special.log_ndtr,
    "modified_bessel_i0": scipy.special.i0,
    "modified_bessel_i1": scipy.special.i1,
    "modified_bessel_k0": scipy.special.k0,
    "modified_bessel_k1": scipy.special.k1,
    "scaled_modified_bessel_k0": scipy.special.k0e,
    "scaled_modified_bessel_k1": scipy.special.k1e,
    "spherical_bessel_j0": lambda x: scipy.special.spherical_jn(0, x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_against_scipy(name):
    x = np.concatenate([np.linspace(-25, 25, 401), np.logspace(-10, 2, 100), [0, np.nan]])
    with jax.enable_x64(True), np.errstate(all="ignore"):
        actual = t2j(getattr(torch.special, name))(jnp.asarray(x))
        np.testing.assert_allclose(actual, FUNCTIONS[name](x), rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("name", POLYNOMIALS)
def test_polynomials(name):
    x, n = np.linspace(-1.5, 1.5, 7, dtype=np.float32)[:, None], np.arange(8)
    function = t2j(getattr(torch.special, name))
    np.testing.assert_allclose(jax.jit(function)(x, n), POLYNOMIALS[name](n, x), rtol=2e-5, atol=2e-5)
    derivative = jax.grad(lambda x: t2j(lambda x: getattr(torch.special, name)(x, 3))(x))(jnp.float32(0.3))
    step = (POLYNOMIALS[name](3, 0.3 + 1e-6) - POLYNOMIALS[name](3, 0.3 - 1e-6)) / 2e-6
    np.testing.assert_allclose(derivative, step, rtol=1e-4)


@pytest.mark.parametrize("order", [0, 1, 2, 5])
def test_polygamma(order):
    x = torch.tensor([0.3, 1.0, 7.5, -0.4, -3.6, -20.3], requires_grad=True)
    expected = torch.polygamma(order, x.double())
    compare(t2j(lambda x: torch.polygamma(order, x))(t2j(x.detach())), expected.float())
    compare(t2j(lambda x: x.polygamma(order))(t2j(x.detach())), expected.float())
    slope = jax.vmap(jax.grad(t2j(lambda x: torch.polygamma(order, x))))(t2j(x.detach()))
    compare(slope, torch.polygamma(order + 1, x.double()).float())


@pytest.mark.parametrize("name", ["bessel_j0", "bessel_y0", "scaled_modified_bessel_k0", "airy_ai", "erfcx"])
def test_derivatives_are_finite(name):
    x = jnp.asarray([0.5, 1.9, 2.1, 4.9, 5.1, 30.0])
    function = t2j(getattr(torch.special, name))
    step = 1e-2
    expected = (function(x + step) - function(x - step)) / (2 * step)
    np.testing.assert_allclose(jax.vmap(jax.grad(function))(x), expected, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("name", ["bessel_y0", "bessel_y1", "modified_bessel_k0", "modified_bessel_k1"])
def test_derivatives_of_bessel_functions(name):
    """Against SciPy's, which PyTorch has since 2.15; at zero they are infinite as PyTorch's are."""
    letter, order = name[-2], int(name[-1])
    x = np.array([0.0, 1e-3, 0.3, 1.9, 2.1, 4.9, 5.1, 30.0])
    with jax.enable_x64(True), np.errstate(all="ignore"):
        first = jax.vmap(jax.grad(t2j(getattr(torch.special, name))))
        second = jax.vmap(jax.grad(jax.grad(t2j(getattr(torch.special, name)))))
        of = {"y": scipy.special.yvp, "k": scipy.special.kvp}[letter]
        np.testing.assert_allclose(first(jnp.asarray(x[1:])), of(order, x[1:]), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(second(jnp.asarray(x[1:])), of(order, x[1:], 2), rtol=1e-8, atol=1e-11)
        sign = -1 if letter == "k" else 1
        assert first(jnp.zeros(1)) == sign * np.inf
        assert second(jnp.zeros(1)) == -sign * np.inf


def test_negative_order_is_refused():
    with pytest.raises(RuntimeError, match="negative n"):
        t2j(lambda x: torch.polygamma(-1, x))(jnp.ones(2))


@pytest.mark.parametrize("name", ["gammainc", "gammaincc"])
def test_incomplete_gamma_functions_of_large_numbers(name):
    a = np.geomspace(1, 1e7, 300).astype(np.float32)
    x = a + np.sqrt(a) * np.linspace(-1, 8, 300).astype(np.float32) * np.where(np.arange(300) % 2, 1, -1)
    x = np.abs(x).astype(np.float32)
    wanted = getattr(scipy.special, name)(a.astype(np.float64), x.astype(np.float64))
    np.testing.assert_allclose(t2j(getattr(torch.special, name))(jnp.asarray(a), jnp.asarray(x)), wanted, 0, 5e-6)
    ends = torch.tensor([0, 1, torch.inf, -1, torch.nan])
    grid = torch.cartesian_prod(ends, ends).T
    compare(t2j(getattr(torch.special, name))(*grid), getattr(torch.special, name)(*grid))


def test_zeta_of_large_orders_and_on_the_left():
    orders, q = torch.tensor([1.0, 1.5, 2, 3, 4, 5e6, 501, torch.nan, 0]), torch.tensor([0.0, -2, 3, -0.3, -7.6, 500])
    orders, q = torch.meshgrid(orders, torch.cat([q, torch.tensor([-501.0, -1001.2, -torch.inf])]), indexing="ij")
    expected = torch.special.zeta(orders, q)
    np.testing.assert_allclose(jax.jit(t2j(torch.special.zeta))(t2j(orders), t2j(q)), expected.numpy(), 2e-5)


def test_polygamma_of_small_negative_numbers():
    x = torch.tensor([-1e-3, -1e-5, -1.001, -0.999])
    for n in (1, 2, 4):
        expected = torch.polygamma(n, x.double()).numpy()
        np.testing.assert_allclose(t2j(lambda x, n=n: torch.polygamma(n, x))(t2j(x)), expected, 1e-6)


RECURRENCES = [
    *(f"{shift}chebyshev_polynomial_{kind}" for shift in ("", "shifted_") for kind in "tuvw"),
    *("hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p"),
]


@pytest.mark.parametrize("name", RECURRENCES)
def test_polynomials_of_degrees_that_are_no_integers(name):
    function = getattr(torch.special, name)
    degrees = torch.tensor([3.7, np.nan, -1.0, np.inf, 1e20, 2.0, 0.0, 40.0])
    x = torch.full_like(degrees, 1.5)
    expected = function(x, degrees).numpy()
    for call in (t2j(function), jax.jit(t2j(function))):
        np.testing.assert_allclose(call(t2j(x), t2j(degrees)), expected, 1e-4)


@pytest.mark.parametrize(
    ("name", "x"), [("laguerre_polynomial_l", 0.0), ("legendre_polynomial_p", 1.0), ("legendre_polynomial_p", -1.0)]
)
def test_polynomials_of_large_degrees_do_not_drift_where_they_are_one(name, x):
    degrees = np.array([100, 255, 900])
    result = t2j(getattr(torch.special, name))(np.full(3, x, np.float32), degrees)
    np.testing.assert_array_equal(result, np.where(x < 0, (-1.0) ** degrees, 1))


@pytest.mark.parametrize("name", RECURRENCES)
def test_polynomials_of_large_degrees_end(name):
    function, degrees = getattr(torch.special, name), torch.tensor([1e6, 1e6])
    x = torch.tensor([-20.0, -30.0])
    np.testing.assert_allclose(t2j(function)(t2j(x), t2j(degrees)), function(x, degrees).numpy(), 1e-4)


@pytest.mark.parametrize("function", [torch.i0, torch.special.i1], ids=["i0", "i1"])
def test_higher_derivatives_of_modified_bessel_functions(function):
    x = torch.tensor([0.0, 1e-3, -0.05, 0.0999, 0.1001, -1.7, 4.0], dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    with jax.enable_x64(True):
        call = t2j(function)
        actual = jax.vmap(jax.grad(jax.grad(call)))(t2j(x.detach()))
        np.testing.assert_allclose(actual, second.numpy(), 1e-7, 1e-12)
