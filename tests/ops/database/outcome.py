"""What PyTorch gives for a case, and the comparison with it."""

import contextlib
import warnings
from collections.abc import Callable, Iterator

import jax
import torch

from . import exceptions
from .compare import compare_trees, is_held, sizes
from .samples import Case, in_double

__all__ = ["Refused", "compare_results", "expected_of", "key", "precisely", "quiet", "refusing"]


class Refused(Exception):
    """PyTorch itself refuses a case, so that there is nothing to compare."""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Passes over what PyTorch and the translation warn of: samples use what is deprecated or writes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def key(case: Case) -> dict:
    """The keyword arguments by which a translated case draws."""
    return {} if exceptions.has_values(case) else {"rng": jax.random.key(0)}


def refusing(function: Callable, *args, **kwargs):
    """The result of a function of PyTorch's, which may refuse."""
    try:
        result = function(*args, **kwargs)
    except Exception as error:
        raise Refused(repr(error)) from error
    if result is NotImplemented:
        raise Refused("the operator is left to the other operand")
    return result


def expected_of(case: Case, tensors: list[torch.Tensor] | None = None):
    """What PyTorch gives for a case, or for other tensors in it, made comparable."""
    tensors = case.twins() if tensors is None else tensors
    if not all(is_held(tensor).all() for tensor in tensors):
        raise Refused("integers of 64 bits, which 32 do not hold")
    return case.comparable(refusing(case.function, *tensors), *tensors)


def precisely(case: Case, tensors: list[torch.Tensor] | None = None) -> Callable:
    """A function that computes `expected_of` in double precision, of integers too."""

    def compute():
        usual = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            return expected_of(case.in_double(), None if tensors is None else [in_double(tensor) for tensor in tensors])
        finally:
            torch.set_default_dtype(usual)

    return compute


def compare_results(case: Case, column: str, actual, wanted, what: str = "", precise: Callable | None = None) -> None:
    """Asserts that a translated case gives what PyTorch does, to the tolerance of its entry."""
    if exceptions.has_values(case):
        tolerance = exceptions.tolerance_for(case.name, column, case.dtype)
        scaled = column in exceptions.DERIVATIVES
        compare_trees(actual, wanted, what or case.name, precise, tolerance=tolerance, scaled=scaled)
    else:
        assert sizes(actual) == sizes(wanted), f"{case.name}: {sizes(actual)}, expected {sizes(wanted)}"
