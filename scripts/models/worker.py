"""A process that runs models, and that another process watches: one may hang it or end it."""

import warnings
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection

import jax
import torch

from scripts.models.outcome import Outcome
from scripts.suite.outcomes import reason
from scripts.watched import each, silence
from torch2jax import t2j
from torch2jax.cli.check import check
from torch2jax.cli.specs import build
from torch2jax.cli.subject import SpecError
from torch2jax.cli.trial import Trial

__all__ = ["outcomes"]

_BATCH = 15  # models that one process runs: what libraries and compilers keep grows


def outcomes(specs: Sequence[str], timeout: float) -> Iterator[Outcome]:
    """The outcome of each model, in as many processes, one after the other, as that takes."""
    for spec, found in each(_run, specs, _BATCH, timeout):
        yield found if isinstance(found, Outcome) else Outcome(spec, failure=found)


# What follows runs in the worker.


def _run(send: Connection, specs: list[str]) -> None:
    silence()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    send.send(None)
    for spec in specs:
        send.send(_outcome(spec))
        jax.clear_caches()


def _outcome(spec: str) -> Outcome:
    found = Outcome(spec)
    try:
        subject = build(spec, [], None, False)
        subject.target.eval()
    except Exception as error:
        found.pytorch, found.failure = False, reason(f"{type(error).__name__}: {error}")
        return found
    found.parameters = sum(parameter.numel() for parameter in subject.target.parameters())
    try:
        report = check(subject, grad=True)
    except SpecError as error:
        found.pytorch, found.failure = False, reason(f"{type(error.__cause__ or error).__name__}: {error}")
        return found
    except Exception as error:
        found.failure = reason(f"{type(error).__name__}: {error}")
        return found
    forward, gradient = report.checks
    found.forward, found.gradient = (x.agreement and x.agreement.relative for x in (forward, gradient))
    if forward.times:
        found.trace, found.compile = forward.times.trace, forward.times.compile
    failures = [f"{x.name}: {_failure(x)}" for x in report.checks if not x.passed]
    if not forward.error:
        try:
            found.operations = _exported(subject).mlir_module().count("stablehlo.")
            found.exports = True
        except Exception as error:
            failures.append(f"export: {reason(f'{type(error).__name__}: {error}')}")
    found.failure = "; ".join(failures)
    return found


def _failure(row) -> str:
    if row.error:
        return reason(row.error)
    return row.agreement.problem or f"{row.agreement.relative:.0e} in {row.agreement.worst}"


def _exported(subject):
    """The forward pass, as a program for TPU."""
    trial = Trial(subject, training=False)
    arguments = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), t2j((trial.state(), trial.inputs)))
    return jax.export.export(jax.jit(lambda *args: trial.jax(*args)[0]), platforms=["tpu"])(*arguments)
