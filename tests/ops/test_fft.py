"""Fourier transforms: more dimensions than XLA takes at once, dtypes."""

import jax
import jax.numpy as jnp
import pytest
import torch

from tests.ops.database import compare
from torch2jax import t2j


@pytest.mark.parametrize("norm", ["forward", "backward", "ortho"])
@pytest.mark.parametrize("name", ["fftn", "ifftn", "rfftn", "irfftn", "hfftn", "ihfftn"])
def test_many_dimensions(name, norm):
    torch.manual_seed(0)
    x = torch.randn(2, 3, 4, 2, 5)
    x = x if name in ("rfftn", "ihfftn") else x + 1j * torch.randn(x.shape)
    dim = (1, 4, 0, 3, 2)

    def transform(x):
        return getattr(torch.fft, name)(x, dim=dim, norm=norm)

    compare(jax.jit(t2j(transform))(t2j(x)), transform(x))


def test_frequencies_and_windows():
    compare(t2j(lambda: torch.fft.fftfreq(5, 0.1))(), torch.fft.fftfreq(5, 0.1))
    compare(t2j(lambda: torch.fft.rfftfreq(6, 0.1))(), torch.fft.rfftfreq(6, 0.1))


def test_gradient_of_a_power_spectrum():
    x = torch.randn(8, requires_grad=True)
    torch.fft.rfft(x).abs().square().sum().backward()
    compare(jax.grad(t2j(lambda x: torch.fft.rfft(x).abs().square().sum()))(t2j(x.detach())), x.grad)


def test_complex_input_of_a_real_transform_is_refused():
    with pytest.raises((RuntimeError, TypeError)):  # the latter since PyTorch 2.14
        t2j(torch.fft.rfft)(jnp.ones(4, jnp.complex64))
