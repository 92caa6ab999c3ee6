"""Short-time Fourier transforms, there and back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from tests.ops.database import compare
from torch2jax import t2j

SIGNAL = torch.randn(2, 400, generator=torch.Generator().manual_seed(0))


def test_spectrogram_and_back():
    window = torch.hann_window(64)

    def there(x):
        return torch.stft(x, 64, 16, window=window, return_complex=True)

    def back(x):
        return torch.istft(there(x), 64, 16, window=window, length=400)

    compare(jax.jit(t2j(there))(t2j(SIGNAL)), there(SIGNAL))
    np.testing.assert_allclose(jax.jit(t2j(back))(t2j(SIGNAL)), SIGNAL, atol=1e-5)


OPTIONS = {
    "even": {"n_fft": 8},
    "odd": {"n_fft": 9},
    "shorter windows": {"n_fft": 9, "win_length": 6, "hop_length": 3},
    "two sides": {"n_fft": 9, "onesided": False},
    "normalized": {"n_fft": 8, "normalized": True},
    "not centered": {"n_fft": 8, "center": False},
    "length": {"n_fft": 9, "length": 390},
    "longer": {"n_fft": 8, "length": 410},
    "complex": {"n_fft": 9, "onesided": False, "return_complex": True},
}


@pytest.mark.filterwarnings("ignore:The length of signal is shorter")
@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("name", OPTIONS)
def test_inverse(name, jit):
    options = OPTIONS[name]
    window = torch.ones(options.get("win_length", options["n_fft"])) * 0.5 + 0.1
    forward = {key: value for key, value in options.items() if key not in ("length", "return_complex")}
    spectrum = torch.stft(SIGNAL, window=window, return_complex=True, **forward)

    def back(spectrum, window):
        return torch.istft(spectrum, window=window, **options)

    translated = jax.jit(t2j(back)) if jit else t2j(back)
    compare(translated(t2j(spectrum), t2j(window)), back(spectrum, window))
    compare(translated(t2j(spectrum[0]), t2j(window)), back(spectrum[0], window))


WINDOW = torch.hann_window(8)
BAD = {
    "frequencies": lambda x: torch.istft(x, 10, window=torch.hann_window(10)),
    "window": lambda x: torch.istft(x, 8, window=torch.hann_window(7)),
    "hop": lambda x: torch.istft(x, 8, 9, window=WINDOW),
    "win_length": lambda x: torch.istft(x, 8, win_length=9, window=WINDOW),
    "overlap": lambda x: torch.istft(x, 8, 2, window=WINDOW, center=False),
    "gaps": lambda x: torch.istft(x, 8, 8, window=WINDOW),
    "length": lambda x: torch.istft(x, 8, window=WINDOW, length=0),
    "empty": lambda x: torch.istft(x[:0], 8, window=WINDOW),
    "two sides": lambda x: torch.istft(x, 8, window=WINDOW, onesided=False),
    "complex": lambda x: torch.istft(x, 8, window=WINDOW, return_complex=True),
    "complex window": lambda x: torch.istft(x, 8, window=WINDOW + 0j),
    "real": lambda x: torch.istft(x.real, 8, window=WINDOW),
}


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("name", BAD)
def test_errors(name, jit):
    spectrum = torch.stft(SIGNAL, 8, window=WINDOW, return_complex=True)
    with pytest.raises(RuntimeError):
        BAD[name](spectrum)
    with pytest.raises(RuntimeError):
        (jax.jit if jit else lambda f: f)(t2j(BAD[name]))(t2j(spectrum))


def test_a_window_that_was_not_given():
    def both(x):
        return torch.istft(torch.stft(x, 8, return_complex=True), 8)

    with pytest.warns(UserWarning, match="A window was not provided") as caught:
        got = t2j(both)(jnp.asarray(SIGNAL.numpy()))
    assert len(caught) == 2
    np.testing.assert_allclose(got, SIGNAL, atol=1e-5)
