"""The one list of looser tolerances and of what is left out of the databases' checks, each with its reason.

A pattern is matched against the full name of an entry (``var.unbiased``) or of a module (``nn.Linear``).
"""

import fnmatch
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from .compare import Tolerance

__all__ = [
    "DATA_DEPENDENT",
    "RANDOM",
    "UNINITIALISED",
    "excluded",
    "forward_tolerance",
    "freedom_of",
    "has_values",
    "is_data_dependent",
    "tolerance_for",
]

ALL = ("values", "x64", "jit", "gradients", "forward", "second", "vmap", "errors", "forms")
DERIVATIVES = ("gradients", "forward", "second")
HALF = (torch.float16, torch.bfloat16)


class Exclusion(NamedTuple):
    """What cannot be compared at all."""

    pattern: str
    reason: str
    columns: tuple[str, ...] = ALL
    dtypes: tuple[torch.dtype, ...] | None = None


class Looser(NamedTuple):
    """What is compared to a looser tolerance than its dtype's."""

    pattern: str
    tolerance: Tolerance
    reason: str
    columns: tuple[str, ...] = ALL
    dtypes: tuple[torch.dtype, ...] | None = None


_SPARSE = "JAX has no sparse layouts in its core"

EXCLUDED = [
    Exclusion("to_sparse", _SPARSE),
    Exclusion("sparse.*", _SPARSE),
]

LOOSER: list[Looser] = []

# Results that a definition leaves free are compared after this.
FREEDOMS: dict[str, Callable[[Any], Any]] = {}

# Their values are drawn from JAX's stream: only shapes and dtypes are compared. Distributions: tests/ops/test_random.py
RANDOM = (
    "bernoulli",
    "cauchy",
    "exponential",
    "geometric",
    "log_normal",
    "multinomial",
    "nn.functional.alpha_dropout",
    "nn.functional.dropout*",
    "nn.functional.feature_alpha_dropout.with_train",
    "nn.functional.fractional_max_pool*",
    "nn.functional.rrelu",
    "normal*",
    "rand*",
    "uniform",
)
# Their values are whatever was in memory.
UNINITIALISED = ("empty*", "new_empty*", "resize_*")

# Their results' shapes, or Python values, depend on data: jit refuses them.
DATA_DEPENDENT = ("nonzero*",)


@functools.cache
def excluded(name: str, column: str, dtype: torch.dtype | None = None) -> str | None:
    """Why an entry is left out of a column, or None."""
    for exclusion in EXCLUDED:
        if _applies(exclusion, name, column, dtype):
            return exclusion.reason
    return None


@functools.cache
def tolerance_for(name: str, column: str, dtype: torch.dtype) -> Tolerance | None:
    """The looser tolerance of an entry, or None."""
    found = [looser.tolerance for looser in LOOSER if _applies(looser, name, column, dtype)]
    return Tolerance(max(t.rtol for t in found), max(t.atol for t in found)) if found else None


def has_values(name: str) -> bool:
    """Whether the values of an entry's results are the same in every run."""
    return not _matches(name, RANDOM + UNINITIALISED)


def forward_tolerance(name: str, dtype: torch.dtype) -> Tolerance:
    """How far <cotangent, pushed> may be from <gradients, tangent>, relative to their terms."""
    wanted = tolerance_for(name, "forward", dtype)
    usual = Tolerance(1e-9, 1e-12) if dtype.itemsize == 8 and dtype.is_floating_point else Tolerance(1e-5, 1e-6)
    return usual if wanted is None else wanted


def is_data_dependent(name: str) -> bool:
    """Whether an entry may need values that do not exist yet under jit."""
    return _matches(name, DATA_DEPENDENT)


def freedom_of(name: str) -> Callable[[Any], Any]:
    """What makes results of an entry comparable."""
    return next((function for pattern, function in FREEDOMS.items() if fnmatch.fnmatchcase(name, pattern)), lambda x: x)


def _applies(rule, name: str, column: str, dtype: torch.dtype | None) -> bool:
    return (
        fnmatch.fnmatchcase(name, rule.pattern)
        and column in rule.columns
        and (rule.dtypes is None or dtype in rule.dtypes)
    )


def _matches(name: str, patterns) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
