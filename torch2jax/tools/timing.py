"""The speed of a translated model beside PyTorch's."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping

import jax
import torch
from torch.utils.benchmark import Timer

from ..tensors.trees import map_arguments
from .models import Subject, first_line, refusing_bad_inputs, subject_of, translating
from .trial import OUTPUT_TOLERANCE, Agreement, Trial, compare, copied, set_mode

_ROUNDS = 3  # at least, in turn, so that what else the machine does is not one's alone
_ROUND = 0.1  # seconds
_SETTLING = 0.05  # seconds, in which the threads of the way before come to rest: those of OpenMP wait busily
_BUSY = 0.2  # of the time, between rounds


@dataclasses.dataclass(frozen=True)
class Timing:
    """The time that one way of running a model takes.

    Attributes:
        name: the name of the way.
        first: seconds of the first call, with tracing and compilation.
        seconds: the time of a call in the fastest of all rounds.
        spread: the interquartile range of the times in all rounds.
        speedup: the speedup over PyTorch's eager run.
        error: why it could not be timed, or "".
    """

    name: str
    first: float | None = None
    seconds: float | None = None
    spread: float | None = None
    speedup: float | None = None
    error: str = ""

    @property
    def is_steady(self) -> bool:
        """True if the rounds differ little: else the machine is busy, and the times say little."""
        return self.seconds is None or self.spread is None or self.spread <= _BUSY * self.seconds


@dataclasses.dataclass(frozen=True)
class Bench:
    """The time that a model takes.

    Attributes:
        subject: the model and its inputs.
        timings: one for each way to run it, PyTorch's eager run first.
        devices: the devices that PyTorch and JAX used.
        agreement: how far the translation's outputs are from PyTorch's.
    """

    subject: Subject
    timings: list[Timing]
    devices: dict[str, str]
    agreement: Agreement


def bench(
    target: Subject | torch.nn.Module | Callable | str,
    args: tuple = (),
    kwargs: Mapping[str, object] | None = None,
    *,
    grad: bool = False,
    compile: bool = True,
    seconds: float = 1.0,
    step: Callable[[str], None] = lambda _: None,
) -> Bench:
    """Times a model in evaluation mode: eagerly in PyTorch, with `torch.compile`, and translated under `jax.jit`.

    PyTorch uses a GPU if JAX does. All ways are timed in turn, in short rounds, by `torch.utils.benchmark`, with
    PyTorch's number of threads; XLA uses all cores of a CPU. The fastest round counts, because what else the machine
    does only adds time.

    Args:
        target: a module, a function of tensors, a spec (see `build`), or a `Subject`.
        args: positional arguments, PyTorch tensors; by default those of the spec.
        kwargs: keyword arguments.
        grad: time outputs and the gradient of their sum for parameters and inputs, instead of only the outputs.
        compile: also time `torch.compile`, if it works on this machine; otherwise its row contains the error.
        seconds: the minimum time to measure each way.
        step: a function that receives progress messages.

    Raises:
        SpecError: PyTorch itself cannot run the model on these inputs.
        TranslationError: it cannot be translated, compiled or run in JAX.

    Examples:
        >>> import torch
        >>> from torch2jax import tools
        >>> found = tools.bench(torch.nn.Linear(3, 2), (torch.ones(4, 3),), compile=False, seconds=0.1)
        >>> [timing.name for timing in found.timings]
        ['PyTorch', 'torch2jax']
    """
    subject = subject_of(target, args, kwargs)
    device = torch.device("cuda" if jax.default_backend() == "gpu" and torch.cuda.is_available() else "cpu")
    step("running PyTorch")
    with refusing_bad_inputs(subject):
        runs = {"PyTorch": _first(_of_pytorch(subject, device, grad, lambda model: model))}
    errors: dict[str, str] = {}
    if compile:
        step("torch.compile")
        try:
            runs["torch.compile"] = _first(_of_pytorch(subject, device, grad, torch.compile))
        except Exception as error:
            errors["torch.compile"] = f"{type(error).__name__}: {first_line(error)}"
    step("compiling the translation")
    trial = Trial(subject, training=False)
    with translating(f"{subject.name} cannot be translated"):
        runs["torch2jax"] = _first(_of_jax(trial, grad))
        agreement = _agreement(trial)
    step(f"timing {', '.join(runs)} in turn")
    measured = _measured({name: run for name, (run, _) in runs.items()}, seconds)
    eager = min(measured["PyTorch"])
    timings = [_timing(name, runs[name][1], found, eager) for name, found in measured.items()]
    timings += [Timing(name, error=error) for name, error in errors.items()]
    on = {"PyTorch": str(device), "JAX": jax.devices()[0].device_kind}
    return Bench(subject, timings, on, agreement)


def _measured(runs: Mapping[str, Callable], seconds: float) -> dict[str, list[float]]:
    """The times of a call in each round, for several ways that run in turn, each for some seconds."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    end = time.perf_counter() + seconds * len(runs)
    while min(map(len, times.values())) < _ROUNDS or time.perf_counter() < end:
        for name, run in runs.items():
            _warm_up(run, min(_SETTLING, seconds))
            timer = Timer("run()", globals={"run": run}, num_threads=torch.get_num_threads())
            times[name].append(min(timer.blocked_autorange(min_run_time=min(_ROUND, seconds)).times))
    return times


def _warm_up(run: Callable, seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        run()


def _timing(name: str, first: float, times: list[float], eager: float) -> Timing:
    quarter, _, three_quarters = statistics.quantiles(times, n=4)
    return Timing(name, first, min(times), three_quarters - quarter, eager / min(times))


def _first(run: Callable) -> tuple[Callable, float]:
    """A run, after it has run once, and the seconds that this took."""
    started = time.perf_counter()
    run()
    return run, time.perf_counter() - started


def _of_pytorch(subject: Subject, device: torch.device, grad: bool, prepared: Callable) -> Callable:
    model = copied(subject.target)
    if isinstance(model, torch.nn.Module):
        set_mode(model, False, subject.name)
        model.to(device)
    leaves: list[torch.Tensor] = (
        [x for x in model.parameters() if x.requires_grad] if isinstance(model, torch.nn.Module) else []
    )

    def given(leaf: object):
        if not isinstance(leaf, torch.Tensor):
            return leaf
        leaf = leaf.detach().to(device, copy=True)
        if grad and leaf.is_floating_point():
            leaves.append(leaf.requires_grad_())
        return leaf

    args, kwargs = map_arguments(given, (subject.args, subject.kwargs))
    called = prepared(model)

    def outputs():
        with torch.no_grad():
            return called(*args, **kwargs)

    def gradient():
        outputs: list[torch.Tensor] = []
        map_arguments(lambda x: outputs.append(x) if isinstance(x, torch.Tensor) else None, called(*args, **kwargs))
        loss = sum(x.sum() for x in outputs if x.is_floating_point() and x.requires_grad)
        return torch.autograd.grad([loss], leaves, allow_unused=True) if isinstance(loss, torch.Tensor) else None

    return gradient if grad else outputs


def _of_jax(trial: Trial, grad: bool) -> Callable:
    program = jax.jit(trial.program(grad))
    arguments = (*trial.arrays(), jax.random.key(0))
    return lambda: jax.block_until_ready(program(*arguments))


def _agreement(trial: Trial) -> Agreement:
    with torch.no_grad():
        expected, *_ = trial.pytorch()(trial.inputs)
    found = jax.jit(trial.program(False))(*trial.arrays(), jax.random.key(0))
    return compare(found, expected, OUTPUT_TOLERANCE)
