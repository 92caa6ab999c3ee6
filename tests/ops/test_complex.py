"""Complex numbers: lengths, angles, and inverse functions along their branch cuts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch2jax import t2j

INVERSES = [torch.asin, torch.acos, torch.atan, torch.asinh, torch.acosh, torch.atanh]
PARTS = (0.0, -0.0, 0.5, -0.5, 2.0, -2.0, 1e5, -1e5)
PLANE = torch.tensor([complex(a, b) for a in PARTS for b in PARTS], dtype=torch.complex64)


def _gradient(function, z):
    """PyTorch's gradient of the sum of real and imaginary parts, as JAX has it: conjugated."""
    z = z.clone().requires_grad_()
    result = function(z)
    (result.real + result.imag).sum().backward()
    return z.grad.conj().resolve_conj().numpy()


@pytest.mark.parametrize("function", INVERSES, ids=lambda function: function.__name__)
def test_signs_of_zero_tell_the_sides_of_branch_cuts(function):
    expected, actual = function(PLANE).numpy(), jax.jit(t2j(function))(t2j(PLANE))
    np.testing.assert_allclose(np.real(actual), expected.real, 1e-5, 1e-6)
    np.testing.assert_allclose(np.imag(actual), expected.imag, 1e-5, 1e-6)


@pytest.mark.parametrize("function", INVERSES, ids=lambda function: function.__name__)
def test_gradients_of_inverse_functions(function):
    off_the_cuts = torch.tensor([complex(a, b) for a in PARTS[2:] for b in PARTS[2:]], dtype=torch.complex64)

    def total(z):
        result = t2j(function)(z)
        return jnp.sum(result.real + result.imag)

    np.testing.assert_allclose(jax.grad(total)(t2j(off_the_cuts)), _gradient(function, off_the_cuts), 1e-4, 1e-6)


@pytest.mark.parametrize("function", [torch.atan, torch.atanh])
def test_what_is_no_number_stays_none(function):
    lost = torch.tensor([complex(a, b) for a in (np.nan, np.inf, 1.0) for b in (np.nan, 1.0)], dtype=torch.complex64)
    expected, actual = function(lost).numpy(), t2j(function)(t2j(lost))
    np.testing.assert_array_equal(np.isnan(np.real(actual)), np.isnan(expected.real))
    np.testing.assert_array_equal(np.isnan(np.imag(actual)), np.isnan(expected.imag))


def test_angle_of_zeros_has_their_signs():
    zeros = torch.tensor([complex(a, b) for a in PARTS[:2] for b in PARTS[:2]], dtype=torch.complex64)
    np.testing.assert_array_equal(t2j(torch.angle)(t2j(zeros)), torch.angle(zeros).numpy())


def test_gradient_of_angle():
    z = PLANE.clone().requires_grad_()
    expected = torch.autograd.grad(torch.angle(z).sum(), z)[0].conj().resolve_conj().numpy()
    actual = jax.grad(lambda z: jnp.sum(t2j(torch.angle)(z)))(t2j(z.detach()))
    np.testing.assert_allclose(actual, expected, 1e-5)


@pytest.mark.parametrize("function", [torch.abs, torch.sgn])
def test_lengths_and_directions_of_tiny_numbers(function):
    z = torch.tensor([0j, 1e-20 + 1e-20j, 3 - 4j])
    np.testing.assert_allclose(t2j(function)(t2j(z)), function(z).numpy(), 1e-5)


@pytest.mark.parametrize("function", [torch.abs, torch.sgn])
def test_gradients_of_lengths_and_directions(function):
    z = torch.tensor([0j, 3 - 4j, -1 + 0.5j], requires_grad=True)
    result = function(z)
    expected = torch.autograd.grad((result.real + 2 * result.imag if result.is_complex() else result).sum(), z)[0]

    def total(z):
        result = t2j(function)(z)
        return jnp.sum(result.real + 2 * result.imag)

    np.testing.assert_allclose(jax.grad(total)(t2j(z.detach())), expected.conj().resolve_conj().numpy(), 1e-5)


def test_powers_overflow_only_if_the_result_does():
    numbers = torch.tensor([-5 - 5j, -501 + 1001j, 1e20 + 1e20j, 1e-10j, 2 + 0j])
    base, exponent = torch.meshgrid(numbers, numbers, indexing="ij")
    actual = jax.jit(t2j(torch.pow))(t2j(base), t2j(exponent))
    np.testing.assert_allclose(np.abs(actual), torch.pow(base, exponent).abs(), 1e-4)  # phases of 1e20 radians differ
