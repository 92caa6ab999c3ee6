"""A process that runs models, and that another process watches: one may hang it or end it."""

import functools
import itertools
import os
import resource
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from multiprocessing.connection import Connection
from typing import NamedTuple

import jax
import torch

from scripts.models.answers import answers_of
from scripts.models.building import built
from scripts.models.detectors import lessen
from scripts.models.exports import Loading, loading
from scripts.models.outcome import Outcome, library_of
from scripts.models.reference import BATCH_NORM, by_formula
from scripts.models.training import Training, doubled, train
from scripts.models.variation import vary
from scripts.suite.outcomes import reason
from scripts.watched import each, silence
from tests.compiling import known_flags
from tests.memory import Bound
from tests.torchvision_library import loaded
from torch2jax import t2j
from torch2jax.tensors.trees import map_arguments
from torch2jax.tools.check import Report, check
from torch2jax.tools.models import SpecError, Subject, define_vision_operators
from torch2jax.tools.trial import Trial

__all__ = ["outcomes", "rows"]

_PARAMETERS = 150_000_000  # of which there are half a dozen copies, with gradients
_SHALLOW = {"transformers", "diffusers"}  # made of a few layers


_AS_LONG_AS_THE_PROCESS = ExitStack()


class _Way(NamedTuple):
    """How models are run.

    Attributes:
        flags: of XLA.
        batch: how many one process runs: what libraries and compilers keep grows.
        memory: GB that a process may take.
    """

    flags: str
    batch: int
    memory: int


# The quick way, and ways for what it has no time or memory for: what is not optimised takes up to a hundred times as
# long to run, and without XLA's emitters a fusion repeats what it reads, in a deep network again and again.
_WAYS = (_Way(known_flags(), 60, 6), _Way("", 20, 8), _Way("", 1, 14))


def outcomes(specs: Sequence[str], timeout: float) -> Iterator[Outcome]:
    """The outcome of each model, in as many processes, one after the other, as that takes.

    What runs out of time or memory comes last of its library: it is tried again in another way.
    """
    for library, group in itertools.groupby(specs, library_of):
        left, ways = list(group), _WAYS if library in _SHALLOW else _WAYS[1:]
        for way in ways:
            tried, left = left, []
            for outcome in _outcomes(tried, way, timeout):
                if outcome.ran_out and way is not ways[-1]:
                    left.append(outcome.spec)
                else:
                    yield outcome


def _outcomes(specs: Sequence[str], way: _Way, timeout: float) -> Iterator[Outcome]:
    for spec, found in each(functools.partial(_run, way=way), specs, way.batch, timeout):
        yield found if isinstance(found, Outcome) else Outcome(spec, failure=found)


def rows(kind: str, names: Sequence[str], timeout: float) -> Iterator[tuple[str, str]]:
    """The row of each name in a section of the page.

    Args:
        kind: ``"train"`` or ``"load"``.
        names: of families, or specs.
    """
    make, failed, batch = _ROWS[kind]
    for name, found in each(functools.partial(_make_rows, make=make, failed=failed), names, batch, timeout):
        yield name, (failed(name, failure=found) if isinstance(found, str) else found).row()


# What follows runs in the worker.


def _make_rows(send: Connection, names: list[str], make: Callable, failed: Callable) -> None:
    _set_up(_WAYS[1])
    send.send(None)
    for name in names:
        try:
            send.send(make(name))
        except Exception as error:
            send.send(failed(name, failure=reason(f"{type(error).__name__}: {error}")))


def _run(send: Connection, specs: list[str], way: _Way) -> None:
    _set_up(way)
    bound = Bound(way.memory / 3)
    send.send(None)
    for spec in specs:
        send.send(_outcome(spec))
        bound.keep()


def _set_up(way: _Way) -> None:
    silence()
    os.environ.setdefault("XLA_FLAGS", way.flags)  # which JAX reads when it first computes
    resource.setrlimit(resource.RLIMIT_DATA, (way.memory * 10**9, resource.RLIM_INFINITY))
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if define_vision_operators():
        _AS_LONG_AS_THE_PROCESS.enter_context(loaded())


def _outcome(spec: str) -> Outcome:
    found = Outcome(spec)
    try:
        subject = _built(spec)
    except Exception as error:
        found.pytorch, found.failure = False, reason(f"{type(error).__name__}: {error}")
        return found
    found.parameters = sum(parameter.numel() for parameter in subject.target.parameters())
    if found.parameters > _PARAMETERS:
        found.pytorch, found.failure = False, "too large to be compared here"
        return found
    vary(subject.target)
    try:
        report = check(subject, grad=True, timed=False)
    except SpecError as error:
        found.pytorch, found.failure = False, reason(f"{type(error.__cause__ or error).__name__}: {error}")
        return found
    except Exception as error:
        found.failure = reason(f"{type(error).__name__}: {error}")
        return found
    if any(x.agreement and not x.agreement.agrees for x in report.checks):
        for why, reference in (("in single precision", nullcontext), (BATCH_NORM, by_formula)):
            in_double = _in_double(spec, reference)
            if in_double is not None and in_double.passed:
                found.note, report = f"{why}: {'; '.join(_failures(report))}", in_double
                break
    forward, gradient = report.checks
    found.forward, found.gradient = (x.agreement and x.agreement.relative for x in (forward, gradient))
    if forward.times:
        found.trace, found.compile = forward.times.trace, forward.times.compile
    failures = _failures(report)
    if not forward.error:
        try:
            found.operations = _exported(subject).mlir_module().count("stablehlo.")
            found.exports = True
        except Exception as error:
            failures.append(f"export: {reason(f'{type(error).__name__}: {error}')}")
    found.failure = "; ".join(failures)
    return found


def _built(spec: str) -> Subject:
    subject = built(spec)
    subject.target.eval()
    lessen(subject.target)
    subject.branches = answers_of(spec)
    return subject


def _loading(spec: str) -> Loading:
    subject = _built(spec)
    vary(subject.target)
    return loading(subject)


# For each section: what makes a row, one for what has failed, and how many are made by one process.
_ROWS: dict[str, tuple[Callable, Callable, int]] = {
    "train": (train, Training, 60),
    "load": (_loading, Loading, 10),
}


def _in_double(spec: str, reference: Callable) -> Report | None:
    """The same comparison in double precision, where rounding decides nothing, with PyTorch in a context.

    None where that cannot be: not all of PyTorch's operators take double precision.
    """
    subject = _built(spec)
    vary(subject.target)
    subject.target.double()
    subject.args, subject.kwargs = map_arguments(doubled, (subject.args, subject.kwargs))
    with jax.enable_x64(True), reference():
        try:
            return check(subject, grad=True, timed=False)
        except Exception:
            return None


def _failures(report: Report) -> list[str]:
    return [f"{x.name}: {_failure(x)}" for x in report.checks if not x.passed or _is_random(x)]


def _is_random(row) -> bool:
    return row.agreement is None and row.note.startswith("random")


def _failure(row) -> str:
    if row.error:
        return reason(row.error)
    if _is_random(row):
        return row.note
    return row.agreement.problem or f"{row.agreement.relative:.0e} in {row.agreement.worst}"


def _exported(subject):
    """The forward pass, as a program for TPU."""
    trial = Trial(subject, training=False)
    arguments = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), t2j((trial.state(), trial.inputs)))
    return jax.export.export(jax.jit(lambda *args: trial.jax(*args, jax.random.key(0))[0]), platforms=["tpu"])(
        *arguments
    )
