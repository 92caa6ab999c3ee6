"""Compares a model's results and speed in JAX with PyTorch."""

import collections
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import torch
from jax.extend.core import Jaxpr
from torch.overrides import resolve_name

from ..calls.modes import observing
from ..internals.dispatch import OpOverload
from ..tensors.padded import Padded
from ..tracing.loops.rolled import noting_loops
from .models import SpecError, Subject, error_text, refusing_bad_inputs, subject_of
from .operators import Route, level_of
from .trial import GRADIENT_TOLERANCE, OUTPUT_TOLERANCE, Agreement, Trial, compare, differentiable, to_jax

_SECONDS_OF_RUNS = 0.5
_MOST_RUNS = 20
_VMAPPED = 2
_NUDGES = 8


@dataclasses.dataclass(frozen=True)
class Times:
    """Seconds of tracing and lowering, of compiling, and, if timed, of one run and of PyTorch's eager run."""

    trace: float
    compile: float
    run: float | None
    pytorch: float | None


@dataclasses.dataclass(frozen=True)
class Check:
    """One row of the report: what was compared, and the result.

    Attributes:
        name: what was compared, such as ``outputs`` or ``training: gradients``.
        agreement: how far it is from PyTorch's; None if nothing could be compared.
        times: how long it took; only in the first row of each program.
        note: why nothing was compared.
        error: why JAX has no result.
        stage: the stage that failed: tracing, compiling or running.
    """

    name: str
    agreement: Agreement | None = None
    times: Times | None = None
    note: str = ""
    error: str = ""
    stage: str = ""

    @property
    def passed(self) -> bool:
        """True if JAX's results agree with PyTorch's."""
        return not self.error and (self.agreement is None or self.agreement.agrees)


@dataclasses.dataclass
class Report:
    """The comparison of a model with its translation.

    Attributes:
        subject: the model and its inputs.
        checks: what was compared.
        operators: how often each operator was called, by how it is implemented.
        loops: what happened to repeated iterations, as text.
    """

    subject: Subject
    checks: list[Check] = dataclasses.field(default_factory=list)
    operators: dict[Route, collections.Counter[str]] = dataclasses.field(default_factory=dict)
    loops: list[str] = dataclasses.field(default_factory=list)

    @property
    def passed(self) -> bool:
        """True if every check passed."""
        return all(check.passed for check in self.checks)

    @property
    def failed(self) -> bool:
        """True if a program could not be translated, compiled or run, so that there was nothing to compare."""
        return any(check.error for check in self.checks)

    @property
    def verdict(self) -> str:
        """The result in a few words."""
        stages = {check.stage for check in self.checks if check.error}
        if "tracing" in stages:
            return "cannot be translated"
        if stages:
            return "fails in JAX"
        return "agrees with PyTorch" if self.passed else "differs from PyTorch"


def check(
    target: Subject | torch.nn.Module | Callable | str,
    args: tuple = (),
    kwargs: Mapping[str, object] | None = None,
    *,
    grad: bool = False,
    vmap: bool = False,
    train: bool = False,
    timed: bool = True,
    tolerance: float | None = None,
    step: Callable[[str], None] = lambda _: None,
) -> Report:
    """Compares a model in PyTorch with its jitted translation.

    Args:
        target: a module, a function of tensors, a spec (see `build`), or a `Subject`.
        args: positional arguments, PyTorch tensors; by default those of the spec.
        kwargs: keyword arguments.
        grad: also compare the gradients of every parameter and every floating-point input.
        vmap: also compare `jax.vmap` over inputs with one PyTorch call for each.
        train: also compare training mode: outputs, buffers, and gradients if `grad`.
        timed: also measure the time of a run, by several runs.
        tolerance: the relative error to accept, instead of the defaults.
        step: a function that receives progress messages.

    Returns:
        The report. If a program cannot be translated, compiled or run, its row contains the error.

    Raises:
        SpecError: PyTorch itself cannot run the model on these inputs, or `tolerance` is negative.

    Examples:
        >>> import torch
        >>> from torch2jax import tools
        >>> report = tools.check(torch.nn.Linear(3, 2), (torch.ones(4, 3),), grad=True)
        >>> report.verdict
        'agrees with PyTorch'
        >>> [row.name for row in report.checks]
        ['outputs', 'gradients']
    """
    subject = subject_of(target, args, kwargs)
    if tolerance is not None and not tolerance >= 0:
        raise SpecError(f"got the tolerance {tolerance}; wanted a relative error, as 1e-4")
    if train and not isinstance(subject.target, torch.nn.Module):
        raise SpecError(f"{subject.name} is a function: --train is for modules")
    report = Report(subject)
    for training in (False, True) if train else (False,):
        checker = _Checker(Trial(subject, training), timed, tolerance, step)
        used: dict[Route, collections.Counter[str]] = {}
        with observing(_recorder(used)), noting_loops() as loops:
            report.checks += checker.outputs()
        report.loops += [text for text in dict.fromkeys(loops) if text not in report.loops]
        for level, names in used.items():
            report.operators[level] = report.operators.get(level, collections.Counter()) | names
        if grad:
            report.checks += checker.gradients()
        if vmap and not training:
            report.checks += checker.vmapped()
    return report


class _Checker:
    """The checks of a model in one mode."""

    def __init__(self, trial: Trial, timed: bool, tolerance: float | None, step: Callable[[str], None]):
        self._trial, self._timed, self._tolerance = trial, timed, tolerance
        self._prefix = "training: " if trial.training else ""
        self._step = lambda text: step(self._prefix + text)
        self._state, self._inputs = trial.arrays()

    def outputs(self) -> list[Check]:
        """Outputs and, in training, the new buffers."""
        self._step("running PyTorch")
        with torch.no_grad():
            outputs, buffers, _ = self._refusing_bad_inputs(self._trial.pytorch())(self._trial.inputs)
            expected = {"outputs": outputs}
            if self._trial.training and buffers:
                expected["buffers"] = {name: tensor.clone() for name, tensor in buffers.items()}
            seconds = self._seconds(lambda model: lambda: model(self._trial.inputs))

        def run(state: dict[str, object], inputs: dict[str, object], key: jax.Array | None):
            outputs, buffers = self._trial.jax(state, inputs, key)
            return {"outputs": outputs, "buffers": buffers}

        return self._compare(run, expected, seconds, OUTPUT_TOLERANCE)

    def gradients(self) -> list[Check]:
        """Gradients of a random linear function of the outputs."""
        self._step("PyTorch's gradients")
        names = list(self._trial.leaves())
        outputs, *_ = self._refusing_bad_inputs(self._trial.pytorch())(self._trial.inputs)
        weights = {name: _random_like(out, i) for i, (name, out) in enumerate(differentiable(outputs).items())}
        backward = self._pytorch_gradients(self._trial.pytorch(), names, weights)
        if not names or not weights:
            return [Check(self._prefix + "gradients", note="no input or no output has a gradient")]
        expected = self._refusing_bad_inputs(backward)()
        seconds = self._seconds(lambda model: self._pytorch_gradients(model, names, weights))
        cotangents = {name: to_jax(weight) for name, weight in weights.items()}

        def loss(leaves: dict[str, object], state: dict[str, object], inputs: dict[str, object], key: jax.Array | None):
            outputs, _ = self._trial.jax(_replaced(state, leaves), _replaced(inputs, leaves), key)
            return sum(_weighted(outputs[name], weight) for name, weight in cotangents.items())

        def run(state: dict[str, object], inputs: dict[str, object], key: jax.Array | None):
            both = {**state, **inputs}
            return {"gradients": jax.grad(loss)({name: both[name] for name in names}, state, inputs, key)}

        def nudged() -> list[dict[str, torch.Tensor]]:
            self._step("PyTorch's gradients, moved by rounding")
            return [self._pytorch_gradients(self._trial.pytorch(i), names, weights)() for i in range(_NUDGES)]

        return self._compare(run, {"gradients": expected}, seconds, GRADIENT_TOLERANCE, nudged=nudged)

    def vmapped(self) -> list[Check]:
        """Outputs under `jax.vmap` over the inputs, against one call for each."""
        self._step("running PyTorch")
        batch = [{name: _shifted(x, by) for name, x in self._trial.inputs.items()} for by in range(_VMAPPED)]
        with torch.no_grad():
            model = self._trial.pytorch()
            results = [self._refusing_bad_inputs(model)(inputs)[0] for inputs in batch]
            if any(len({result[name].shape for result in results}) > 1 for name in results[0]):
                return [Check(self._prefix + "vmap", note="data decide how long outputs are: values not compared")]
            expected = {name: torch.stack([result[name] for result in results]) for name in results[0]}
            seconds = self._seconds(lambda model: lambda: [model(inputs) for inputs in batch])
        stacked = {name: to_jax(torch.stack([inputs[name] for inputs in batch])) for name in batch[0]}

        def run(state: dict[str, object], inputs: dict[str, object], key: jax.Array | None):
            return {"vmap": jax.vmap(lambda inputs: self._trial.jax(state, inputs, key)[0])(inputs)}

        return self._compare(run, {"vmap": expected}, seconds, OUTPUT_TOLERANCE, stacked)

    def _pytorch_gradients(self, model: Callable, names: list[str], weights: Mapping[str, torch.Tensor]) -> Callable:
        inputs = {name: x.detach().clone().requires_grad_(name in names) for name, x in self._trial.inputs.items()}

        def backward() -> dict[str, torch.Tensor]:
            outputs, _, parameters = model(inputs)
            leaves = {**parameters, **inputs}
            loss = torch.stack([torch.sum(outputs[name] * weight).float() for name, weight in weights.items()]).sum()
            if not loss.requires_grad:
                return {name: torch.zeros_like(leaves[name]) for name in names}
            found = cast(
                Sequence[torch.Tensor | None],
                torch.autograd.grad(loss, [leaves[name] for name in names], allow_unused=True),
            )
            return {
                name: torch.zeros_like(leaves[name]) if grad is None else grad
                for name, grad in zip(names, found, strict=True)
            }

        return backward

    def _refusing_bad_inputs(self, function: Callable) -> Callable:
        def run(*args: object):
            with refusing_bad_inputs(self._trial.subject):
                return function(*args)

        return run

    def _seconds(self, of: Callable[[Callable], Callable]) -> float | None:
        """The time of a run in PyTorch, on a copy."""
        return _seconds(of(self._trial.pytorch())) if self._timed else None

    def _compare(
        self,
        run: Callable,
        expected: dict,
        pytorch: float | None,
        tolerance: float,
        inputs: dict[str, object] | None = None,
        nudged: Callable[[], list[dict[str, torch.Tensor]]] | None = None,
    ) -> list[Check]:
        """Compiles and runs `run`, and compares the groups of its result with PyTorch's.

        Where they differ, `nudged` gives what PyTorch's would be, had rounding decided otherwise.
        """
        first, stage = self._prefix + next(iter(expected)), "tracing"
        arguments = (self._state, inputs or self._inputs, jax.random.key(0))
        try:
            self._step(f"tracing {next(iter(expected))}")
            started = time.perf_counter()
            program = jax.jit(run).trace(*arguments)
            draws = _uses(program.jaxpr.jaxpr, -1)
            lowered = program.lower()
            traced = time.perf_counter()
            stage = "compiling"
            self._step(f"compiling {next(iter(expected))}")
            compiled = lowered.compile()
            times = (traced - started, time.perf_counter() - traced)
            stage = "running"
            self._step(f"running {next(iter(expected))}")
            actual = _compact(jax.block_until_ready(compiled(*arguments)))
            seconds = _seconds(lambda: jax.block_until_ready(compiled(*arguments))) if self._timed else None
        except Exception as error:
            return [Check(first, error=f"{type(error).__name__}: {error_text(error)}", stage=stage)]
        accepted = tolerance if self._tolerance is None else self._tolerance
        random = draws and not _agree(_compact(compiled(*arguments[:2], jax.random.key(1))), actual, accepted)
        checks = []
        for name, tensors in expected.items():
            row = Times(*times, seconds, pytorch) if not checks else None
            if random:
                checks.append(Check(self._prefix + name, times=row, note="random: values not compared"))
            else:
                agreement = compare(actual[name], tensors, accepted)
                if nudged is not None and not (agreement.agrees or agreement.problem):
                    agreement = compare(actual[name], tensors, accepted, nudged())
                checks.append(Check(self._prefix + name, agreement, row))
        return checks


def _replaced(arrays: Mapping, by: Mapping) -> dict:
    return {name: by.get(name, array) for name, array in arrays.items()}


def _random_like(tensor: torch.Tensor, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(tensor.shape, generator=generator).to(tensor.dtype)


def _shifted(tensor: torch.Tensor, by: int) -> torch.Tensor:
    return tensor.roll(by, -1) if tensor.ndim else tensor


def _weighted(output: jax.Array | Padded, weight: jax.Array) -> jax.Array:
    """A linear function of an output, which is padded where data decide its length."""
    if not isinstance(output, Padded):
        return jnp.sum(output * weight)
    edges = [(0, size - given) for size, given in zip(output.values.shape, weight.shape, strict=True)]
    return jnp.sum(output.values * jnp.pad(weight, edges))


def _compact(tree: object) -> Any:
    """The arrays of PyTorch's tensors in place of padded ones."""
    is_padded = lambda leaf: isinstance(leaf, Padded)
    array = lambda leaf: jnp.asarray(leaf.compact()) if is_padded(leaf) else leaf  # of examples, as long as each other
    return jax.tree.map(array, tree, is_leaf=is_padded)


def _uses(jaxpr: Jaxpr, argument: int) -> bool:
    """Returns True if a program computes something from one of its arguments."""
    return any(var is jaxpr.invars[argument] for step in jaxpr.eqns for var in step.invars)


def _agree(one: Mapping[str, Mapping], other: Mapping[str, Mapping], tolerance: float) -> bool:
    return all(compare(one[name], arrays, tolerance).agrees for name, arrays in other.items())


def _seconds(run: Callable) -> float:
    """The median time of one run, after one to warm up."""
    run()
    times: list[float] = []
    while sum(times) < _SECONDS_OF_RUNS and len(times) < _MOST_RUNS:
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return sorted(times)[len(times) // 2]


def _recorder(operators: dict[Route, collections.Counter[str]]) -> Callable:
    def record(function: Callable[..., object]) -> None:
        level = level_of(function)
        if level is Route.METADATA:
            return
        name = str(function) if isinstance(function, OpOverload) else resolve_name(function)
        name = name or getattr(function, "__name__", str(function))
        if not name.endswith((".__get__", ".__set__", "_set_grad_enabled")):
            operators.setdefault(level, collections.Counter())[name.removeprefix("torch.")] += 1

    return record
