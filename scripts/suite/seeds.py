"""Tests that pass with the seed they choose and not with others, as it was chosen for PyTorch's random numbers."""

import inspect
import unittest
from collections.abc import Callable

__all__ = ["passes_by_its_seed"]

_OTHERS = range(1000, 33000, 1000)  # what is added to a seed
_SETTER = "set_rng_seed"  # as tests import it


def passes_by_its_seed(function: Callable, run: Callable[[], None]) -> bool:
    """Whether a test that has passed fails with one of 32 other seeds.

    Args:
        function: the test, which calls the name of its module that is exchanged.
        run: runs it.
    """
    function = inspect.unwrap(function)
    names, code = function.__globals__, function.__code__
    original = names.get(_SETTER)
    if original is None or _SETTER not in code.co_names:
        return False
    try:
        return not all(_passes(run, names, original, other) for other in _OTHERS)
    finally:
        names[_SETTER] = original


def _passes(run: Callable[[], None], names: dict, original: Callable, other: int) -> bool:
    names[_SETTER] = lambda seed: original(seed + other)
    try:
        run()
    except unittest.SkipTest:
        return True
    except Exception:
        return False
    return True
