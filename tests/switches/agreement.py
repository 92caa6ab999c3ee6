"""One sample under one switch, compared with itself under none."""

import functools
import gc
import warnings

import jax
import numpy as np

from tests.compiling import keep_context, set_flags

from .samples import DRAWN, SAMPLES
from .switches import SWITCHES

__all__ = ["prepare", "tried"]


def prepare() -> None:
    """Sets up a process that runs much under switches, one after the other."""
    set_flags()
    keep_context()
    warnings.simplefilter("ignore")
    gc.collect()
    gc.freeze()  # a check for leaks collects garbage after each trace


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
