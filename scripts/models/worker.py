"""A process that runs models, and that another process watches: one may hang it or end it."""

import functools
import itertools
import os
import resource
import warnings
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from typing import NamedTuple

import jax
import torch

from scripts.models.answers import answers_of
from scripts.models.outcome import Outcome, library_of
from scripts.models.training import Training, train
from scripts.models.variation import vary
from scripts.suite.outcomes import reason
from scripts.watched import each, silence
from tests.memory import Bound
from torch2jax import t2j
from torch2jax.cli.check import check
from torch2jax.cli.specs import build
from torch2jax.cli.subject import SpecError
from torch2jax.cli.trial import Trial
from torch2jax.cli.vision import define_vision_operators

__all__ = ["FLAGS", "outcomes", "trainings"]

_PARAMETERS = 150_000_000  # of which there are half a dozen copies, with gradients
# What LLVM does not optimise compiles in half the time, and in a tenth where XLA's emitters of fusions are not used.
# But a fusion then repeats what it reads, in a deep network again and again, until it takes minutes to run. (Where XLA
# is told to fuse nothing, it gives wrong numbers.)
FLAGS = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_parallel_codegen_split_count=1 --xla_disable_hlo_passes=constant_folding"
)
_SHALLOW = {"transformers", "diffusers"}  # made of a few layers


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


# The quick way, and one for what it has no time or memory for.
_WAYS = (_Way(FLAGS + " --xla_cpu_use_fusion_emitters=false", 60, 6), _Way(FLAGS, 20, 8))


def outcomes(specs: Sequence[str], timeout: float) -> Iterator[Outcome]:
    """The outcome of each model, in as many processes, one after the other, as that takes.

    What runs out of time or memory comes last of its library: it is tried again in another way.
    """
    for library, group in itertools.groupby(specs, library_of):
        left, ways = list(group), _WAYS if library in _SHALLOW else _WAYS[-1:]
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


def trainings(families: Sequence[str], timeout: float) -> Iterator[Training]:
    """How a model of each family is trained."""
    for family, found in each(_train, families, len(families), timeout):
        yield found if isinstance(found, Training) else Training(family, failure=found)


# What follows runs in the worker.


def _train(send: Connection, families: list[str]) -> None:
    _set_up(_WAYS[-1])
    send.send(None)
    for family in families:
        try:
            send.send(train(family))
        except Exception as error:
            send.send(Training(family, failure=reason(f"{type(error).__name__}: {error}")))


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
    define_vision_operators()


def _outcome(spec: str) -> Outcome:
    found = Outcome(spec)
    try:
        subject = build(spec, [], None, False)
        subject.target.eval()
        subject.answers = answers_of(spec)
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
    forward, gradient = report.checks
    found.forward, found.gradient = (x.agreement and x.agreement.relative for x in (forward, gradient))
    if forward.times:
        found.trace, found.compile = forward.times.trace, forward.times.compile
    failures = [f"{x.name}: {_failure(x)}" for x in report.checks if not x.passed or _is_random(x)]
    if not forward.error:
        try:
            found.operations = _exported(subject).mlir_module().count("stablehlo.")
            found.exports = True
        except Exception as error:
            failures.append(f"export: {reason(f'{type(error).__name__}: {error}')}")
    found.failure = "; ".join(failures)
    return found


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
