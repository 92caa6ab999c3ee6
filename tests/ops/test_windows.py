"""``torch.signal.windows``: every window, of every kind of length."""

import jax
import numpy as np
import pytest
import torch

from torch2jax import t2j

OPTIONS = {
    "exponential": {"tau": 2.0},
    "gaussian": {"std": 3.0},
    "general_cosine": {"a": [0.5, 0.3, 0.2]},
    "general_hamming": {"alpha": 0.6},
    "kaiser": {"beta": 5.0},
}


@pytest.mark.parametrize("name", torch.signal.windows.__all__)
@pytest.mark.parametrize("sym", [False, True])
def test_windows(name, sym):
    def windows():
        make, options = getattr(torch.signal.windows, name), OPTIONS.get(name, {})
        windows = [make(length, sym=sym, **options) for length in (0, 1, 2, 7, 8)]
        return [*windows, make(5, sym=sym, dtype=torch.float64, **options)]

    translated = t2j(windows)
    for got, eager, want in zip(jax.jit(translated)(), translated(), windows(), strict=True):
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(eager, want.numpy(), rtol=1e-5, atol=1e-6)


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="non-negative"):
        t2j(lambda: torch.signal.windows.hann(-1))()
    with pytest.raises(ValueError, match="Standard deviation"):
        t2j(lambda: torch.signal.windows.gaussian(3, std=-1.0))()
    with pytest.raises(ValueError, match="float"):
        t2j(lambda: torch.signal.windows.hann(3, dtype=torch.int64))()
