"""Which columns an entry has in a dtype, and its trials: single checks of single samples."""

import contextlib
import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import jax
import torch

from . import exceptions
from .checks import CHECKS
from .outcome import Refused, quiet
from .programs import alone, together
from .samples import Case, bad_cases, cases, dtypes_of, full_name

if TYPE_CHECKING:
    from torch.testing._internal.opinfo.core import OpInfo

__all__ = ["Outcome", "Trial", "attempt", "columns_of", "joined", "run", "trials"]

_DIFFERENTIATED = (torch.float32, torch.float64, torch.complex64)
_WIDE = (torch.float32, torch.complex64, torch.bfloat16, torch.float16)  # float64 always is
_WITH_REFERENCES = ("jit",)  # which compares values as well, and compiles many cases as one
_BATCH = 16


class Trial(NamedTuple):
    """One check of one sample; calling it raises what is wrong."""

    column: str
    case: Case

    def __call__(self) -> None:
        with quiet(), _precision(self):
            alone(self.check)

    def check(self):
        """Starts the check."""
        return CHECKS[self.column](self.case)

    def __str__(self) -> str:
        return f"{self.column} of {self.case}"


class Outcome(NamedTuple):
    """What became of the samples of one entry in one column and dtype."""

    passed: int
    total: int
    error: str | None
    """What the first that failed has to say."""


def columns_of(op: "OpInfo", dtype: torch.dtype) -> list[str]:
    """The columns that an entry has in a dtype; errors and forms are those of one dtype only."""
    name, columns = full_name(op), []
    supported = dtypes_of(op)
    if dtype in supported:
        columns += ["values", "x64", "jit", "vmap"]
    if op.supports_autograd and dtype in _DIFFERENTIATED and dtype in dtypes_of(op, gradients=True):
        columns += ["gradients", "forward"] + ["second"] * op.supports_gradgrad
    if op.supports_autograd and dtype in _WIDE and dtype in dtypes_of(op, gradients=True):
        columns.append("wide")
    if supported and dtype == supported[0]:
        columns += ["errors", "forms", "constants"]
    return [column for column in columns if not exceptions.excluded(name, column, dtype)]


def trials(
    op: "OpInfo",
    dtype: torch.dtype,
    columns: list[str],
    limit: int | None = None,
    full: bool = False,
) -> Iterator[list[Trial]]:
    """The trials of an entry in one dtype and some of its columns, in batches of one column.

    `full` is with PyTorch's reference inputs where it matters, and many to a batch, which are compiled together.
    """
    sample = functools.partial(cases, op, dtype, limit)
    referring = [column for column in columns if full and column in _WITH_REFERENCES]
    derived = [column for column in columns if column in exceptions.DERIVATIVES]
    refused = [column for column in columns if column == "errors"]
    plain = [column for column in columns if column not in (*referring, *derived, *refused)]
    for chosen, make in (
        (plain, sample),
        (referring, functools.partial(sample, reference=True)),
        (derived, functools.partial(sample, requires_grad=True)),
        (refused, functools.partial(bad_cases, op)),
    ):
        for batch in _batched(make() if chosen else (), _BATCH if full else 1):
            yield from ([Trial(column, case) for case in batch] for column in chosen)


def joined(batches: Iterable[list[Trial]], eager: bool) -> list[list[Trial]]:
    """The trials of several columns and dtypes in as few batches as can be: those of one precision compile as one.

    With `eager`, checks that run operation by operation where they are alone, are. So is what data may decide, which
    cannot be compiled.
    """
    single, compiled, derived = [], {True: [], False: []}, []
    for trial in itertools.chain.from_iterable(batches):
        if exceptions.is_data_dependent(trial.case) or (eager and trial.column in ("values", "forms")):
            single.append([trial])
        elif trial.column == "forward":  # compares what `gradients` has compiled
            derived.append([trial])
        else:
            compiled[_wide(trial)].append(trial)
    return [*filter(None, compiled.values()), *derived, *single]


def _batched(cases: Iterable[Case], size: int) -> Iterator[list[Case]]:
    left = iter(cases)
    while batch := list(itertools.islice(left, size)):
        yield batch


def attempt(batch: Sequence[Trial]) -> Iterator[tuple[Trial, Exception | None]]:
    """Each trial of a batch with what is wrong, if anything is; without those that PyTorch itself refuses."""
    passed = [False] * len(batch)
    if len(batch) > 1:
        with quiet(), _precision(batch[0]):
            passed = together([trial.check for trial in batch])
    for trial, done in zip(batch, passed, strict=True):
        try:
            if not done:
                trial()
        except Refused:
            continue
        except Exception as error:
            yield trial, error
        else:
            yield trial, None


def _precision(trial: Trial) -> contextlib.AbstractContextManager:
    """64-bit types are held as what they are in a column of its own, and where float64 tells what float32 does not."""
    return jax.enable_x64(_wide(trial))


def _wide(trial: Trial) -> bool:
    is_double = trial.column in exceptions.DERIVATIVES and trial.case.dtype == torch.float64
    return is_double or trial.column in ("x64", "wide") or bool(jax.config.jax_enable_x64)


def run(batches: Iterable[Sequence[Trial]]) -> dict[str, Outcome]:
    """The outcome of each column; what PyTorch itself refuses does not count."""
    outcomes: dict[str, Outcome] = {}
    for batch in batches:
        for trial, error in attempt(batch):
            passed, total, first = outcomes.get(trial.column, Outcome(0, 0, None))
            if error is not None and first is None:
                first = f"{type(error).__name__}: {' '.join(str(error).split())}"
            outcomes[trial.column] = Outcome(passed + (error is None), total + 1, first)
    return outcomes
