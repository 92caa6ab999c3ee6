"""Which columns an entry has in a dtype, and its trials: single checks of single samples."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import torch
from torch.testing._internal.opinfo.core import OpInfo

from . import exceptions
from .checks import CHECKS, Refused
from .samples import bad_cases, cases, dtypes_of, full_name

__all__ = ["Outcome", "Trial", "columns_of", "run", "trials"]

_DIFFERENTIATED = (torch.float32, torch.float64, torch.complex64)


class Trial(NamedTuple):
    """One check of one sample; calling it raises what is wrong."""

    column: str
    what: str
    check: Callable[[], None]

    def __call__(self) -> None:
        self.check()


class Outcome(NamedTuple):
    """What became of the samples of one entry in one column and dtype."""

    passed: int
    total: int
    error: str | None
    """What the first that failed has to say."""


def columns_of(op: OpInfo, dtype: torch.dtype) -> list[str]:
    """The columns that an entry has in a dtype; errors and forms are those of one dtype only."""
    name, columns = full_name(op), []
    supported = dtypes_of(op)
    if dtype in supported:
        columns += ["values", "x64", "jit", "vmap"]
    if op.supports_autograd and dtype in _DIFFERENTIATED and dtype in dtypes_of(op, gradients=True):
        columns += ["gradients", "forward"] + ["second"] * op.supports_gradgrad
    if supported and dtype == supported[0]:
        columns += ["errors", "forms"]
    return [column for column in columns if not exceptions.excluded(name, column, dtype)]


def trials(
    op: OpInfo, dtype: torch.dtype, columns: list[str], limit: int | None = None, reference: bool = False
) -> Iterator[Trial]:
    """The trials of an entry in one dtype and some of its columns."""
    plain = [column for column in columns if column not in (*exceptions.DERIVATIVES, "errors")]
    if "forms" in plain:
        plain.remove("forms")
        for case in cases(op, dtype, limit):
            yield Trial("forms", str(case), functools.partial(CHECKS["forms"], case))
    for case in cases(op, dtype, limit, reference=reference) if plain else []:
        for column in plain:
            yield Trial(column, str(case), functools.partial(CHECKS[column], case))
    derived = [column for column in columns if column in exceptions.DERIVATIVES]
    for case in cases(op, dtype, limit, requires_grad=True) if derived else []:
        for column in derived:
            yield Trial(column, str(case), functools.partial(_in_its_precision, CHECKS[column], case))
    for case in bad_cases(op) if "errors" in columns else []:
        yield Trial("errors", str(case), functools.partial(CHECKS["errors"], case))


def _in_its_precision(check, case) -> None:
    """Derivatives in float64 are for what float32 leaves open."""
    with jax.enable_x64(case.dtype == torch.float64):
        check(case)


def run(trials: Iterator[Trial]) -> dict[str, Outcome]:
    """The outcome of each column; what PyTorch itself refuses does not count."""
    outcomes: dict[str, Outcome] = {}
    for trial in trials:
        passed, total, first = outcomes.get(trial.column, Outcome(0, 0, None))
        with contextlib.suppress(Refused):
            try:
                trial()
            except Refused:
                raise
            except Exception as error:
                text = " ".join(str(error).split())
                outcomes[trial.column] = Outcome(passed, total + 1, first or f"{type(error).__name__}: {text}")
            else:
                outcomes[trial.column] = Outcome(passed + 1, total + 1, first)
    return outcomes
