"""One sample under one switch, compared with itself under none."""

import functools

import jax
import numpy as np

from .samples import DRAWN, SAMPLES
from .switches import SWITCHES

__all__ = ["tried"]


@functools.cache
def _expected(sample: str) -> list:
    return [np.asarray(x) for x in jax.tree.leaves(SAMPLES[sample]())]


def tried(switch: str, sample: str) -> str | None:
    """What is wrong with a sample under a switch; None if nothing is."""
    expected = _expected(sample)
    try:
        with SWITCHES[switch]():
            found = [np.asarray(x) for x in jax.tree.leaves(SAMPLES[sample]())]
        assert len(found) == len(expected)
        if sample in DRAWN:  # other numbers by other generators
            return None
        for mine, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(mine, wanted, rtol=1e-4, atol=1e-5)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None
