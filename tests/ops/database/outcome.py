"""What PyTorch gives for a case, and the comparison with it."""

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator

import jax
import torch

from . import exceptions
from .compare import compare_trees, is_held, precision_of, sizes
from .samples import Case, in_precision

__all__ = ["Refused", "compare_results", "expected_of", "key", "quiet", "refusing", "witnesses"]


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


def witnesses(case: Case, tensors: list[torch.Tensor] | None = None) -> dict[str, Callable]:
    """Functions that compute `expected_of` in other precisions, to tell how inaccurate PyTorch is.

    They are `precise`, in double precision (of integers too), and `rounded`, in single precision where doubles are
    held in that.
    """
    found = {"precise": functools.partial(_in_precision, torch.float64, case, tensors)}
    if precision_of(case.dtype) != case.dtype:
        found["rounded"] = functools.partial(_in_precision, torch.float32, case, tensors)
    return found


def _in_precision(precision: torch.dtype, case: Case, tensors: list[torch.Tensor] | None):
    usual = torch.get_default_dtype()
    torch.set_default_dtype(precision)
    try:
        given = case.in_precision(precision)
        return expected_of(given, None if tensors is None else [in_precision(tensor, precision) for tensor in tensors])
    finally:
        torch.set_default_dtype(usual)


def compare_results(case: Case, column: str, actual, wanted, what: str = "", **witnesses: Callable) -> None:
    """Asserts that a translated case gives what PyTorch does, to the tolerance of its entry."""
    if exceptions.has_values(case):
        tolerance = exceptions.tolerance_for(case.name, column, case.dtype)
        scaled = column in exceptions.DERIVATIVES
        compare_trees(actual, wanted, what or case.name, tolerance=tolerance, scaled=scaled, **witnesses)
    else:
        assert sizes(actual) == sizes(wanted), f"{case.name}: {sizes(actual)}, expected {sizes(wanted)}"
