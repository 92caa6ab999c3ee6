"""The cost of a translated model by module, operations, flops and bytes, and its speed beside PyTorch's."""

import dataclasses
import functools
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import jax
import torch
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Primitive
from torch.utils.benchmark import Timer

from ..tensors.dtypes import canonical
from ..tensors.trees import map_arguments
from .models import Subject, first_line, refusing_bad_inputs, subject_of, translating
from .trial import OUTPUT_TOLERANCE, Agreement, Trial, compare, copied, set_mode

_WRAPPED = re.compile(r"\w+\((.*)\)")  # jvp(encoder), transpose(jvp(encoder))


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of a part of a program, by XLA's analysis of each operation on its own.

    Attributes:
        operations: the number of operations; those of a loop count once for each iteration.
        flops: floating-point operations.
        bytes: the bytes that operations read and write. Fused operations read and write less.
    """

    operations: int = 0
    flops: float = 0.0
    bytes: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            *(mine + its for mine, its in zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True))
        )

    def __mul__(self, times: int) -> "Cost":
        return Cost(*(times * each for each in dataclasses.astuple(self)))


@dataclasses.dataclass
class Scope:
    """A module, or a PyTorch function that it calls.

    Attributes:
        name: the name within the enclosing scope.
        kind: the class of a module; "" for a function.
        cost: the cost of everything inside.
        scopes: the scopes inside, in the order of their first calls.
    """

    name: str
    kind: str = ""
    cost: Cost = dataclasses.field(default_factory=Cost)
    scopes: "dict[str, Scope]" = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class CompiledCost:
    """The cost of the compiled program, in which XLA has fused operations.

    Attributes:
        flops: floating-point operations.
        bytes: the bytes that it reads and writes.
        arguments: bytes of weights and inputs.
        results: bytes of the results.
        temporary: the other bytes that it needs while it runs.
    """

    flops: float
    bytes: float
    arguments: int
    results: int
    temporary: int


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What a translated model computes.

    Attributes:
        subject: the model and its inputs.
        root: the whole program.
        compiled: the cost of the compiled program, if you asked for it.
        notes: what the numbers leave out.
    """

    subject: Subject
    root: Scope
    compiled: CompiledCost | None = None
    notes: tuple[str, ...] = ()


def explain(
    target: Subject | torch.nn.Module | Callable | str,
    args: tuple = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    grad: bool = False,
    compile: bool = False,
    step: Callable[[str], None] = lambda _: None,
) -> Explanation:
    """Counts operations, flops and bytes of a translated model in evaluation mode, for each of its modules.

    Each operation of the JAX graph belongs to the modules in its name stack. Its cost is XLA's analysis of the
    operation on its own, as in ``jax.jit(operation).lower(...).cost_analysis()``.

    Args:
        target: a module, a function of tensors, a spec (see `build`), or a `Subject`.
        args: positional arguments, PyTorch tensors; by default those of the spec.
        kwargs: keyword arguments.
        grad: analyze the gradient of the sum of the outputs for parameters and inputs, instead of the outputs.
        compile: also compile the program, and report XLA's numbers for all of it.
        step: a function that receives progress messages.

    Raises:
        SpecError: PyTorch itself cannot run the model on these inputs.
        TranslationError: it cannot be translated or, with `compile`, compiled.

    Examples:
        >>> import torch
        >>> from torch2jax import tools
        >>> tools.explain(torch.nn.Linear(3, 2), (torch.ones(4, 3),)).root.cost.flops
        56.0
    """
    subject = subject_of(target, args, kwargs)
    trial = Trial(subject, training=False)
    step("running PyTorch")
    with torch.no_grad(), refusing_bad_inputs(subject):
        trial.pytorch()(trial.inputs)
    state, inputs = (_abstract(tensors) for tensors in (trial.state(), trial.inputs))
    step("tracing")
    with translating(f"{subject.name} cannot be translated"):
        traced = jax.jit(trial.program(grad)).trace(state, inputs, jax.random.key(0))
    step("counting")
    counter = _CostCounter({} if subject.module is None else _kinds(subject.module))
    root = Scope("", type(subject.module).__name__ if subject.module is not None else "")
    counter.count(traced.jaxpr.jaxpr, root, (), 1)
    compiled = None
    if compile:
        step("compiling")
        with translating(f"{subject.name} cannot be compiled"):
            compiled = _compiled(traced.lower().compile())
    return Explanation(subject, root, compiled, tuple(sorted(counter.notes)))


def _abstract(tensors: Mapping[str, torch.Tensor]) -> dict[str, jax.ShapeDtypeStruct]:
    return {name: jax.ShapeDtypeStruct(tensor.shape, canonical(tensor.dtype)) for name, tensor in tensors.items()}


def _kinds(module: torch.nn.Module) -> dict[str, str]:
    """The classes of modules, by paths in which a call of a call has the names of both."""
    return {path: type(part).__name__ for path, part in module.named_modules(remove_duplicate=False)}


class _CostCounter:
    """Adds up what the equations of a program cost, in the scopes that they belong to."""

    def __init__(self, kinds: Mapping[str, str]):
        self._kinds = kinds
        self.notes: set[str] = set()

    def count(self, jaxpr: Jaxpr, root: Scope, outer: tuple[str, ...], times: int) -> None:
        """Counts a program.

        Args:
            outer: the scopes of the equation whose program it is.
            times: how often it runs.
        """
        for eqn in jaxpr.eqns:
            names = (*outer, *_names(str(eqn.source_info.name_stack)))
            inner = list(self._inner(eqn))
            for program, iterations in inner:
                self.count(program, root, names, times * iterations)
            if not inner:
                self._add(root, names, self._cost(eqn) * times)

    def _inner(self, eqn: JaxprEqn) -> Iterator[tuple[Jaxpr, int]]:
        """The programs that an equation runs, and how often."""
        kind, params = eqn.primitive.name, eqn.params
        if kind == "scan":
            yield params["jaxpr"].jaxpr, params["length"]
        elif kind == "while":
            self.notes.add("a loop that data end is counted as if it turned once")
            yield params["cond_jaxpr"].jaxpr, 1
            yield params["body_jaxpr"].jaxpr, 1
        elif kind == "cond":
            self.notes.add("of data-dependent branches, the one of most flops is counted")
            yield max((branch.jaxpr for branch in params["branches"]), key=self._flops), 1
        else:
            wanted = [var.aval for var in eqn.invars]
            for value in params.values():
                program = value.jaxpr if isinstance(value, ClosedJaxpr) else value
                # What takes just these operands is called; others are parts, as what a scatter does to an element.
                if isinstance(program, Jaxpr) and [var.aval for var in program.invars] == wanted:
                    yield program, 1
                    return

    def _flops(self, jaxpr: Jaxpr) -> float:
        alone = Scope("")
        self.count(jaxpr, alone, (), 1)
        return alone.cost.flops

    def _cost(self, eqn: JaxprEqn) -> Cost:
        avals: list[Any] = [var.aval for var in eqn.invars]
        operands = tuple(jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals)
        key = eqn.primitive, tuple(eqn.params.items()), operands
        try:
            return _analysis(*key) if _is_hashable(key) else _analysis.__wrapped__(*key)
        except Exception:  # it is one that does not stand by itself, as a collective
            self.notes.add(f"{eqn.primitive.name} is counted as an operation without flops and bytes")
            return Cost(1)

    def _add(self, root: Scope, names: tuple[str, ...], cost: Cost) -> None:
        root.cost += cost
        scope, path = root, ""
        for name in names:
            path = f"{path}.{name}" if path else name
            scope = scope.scopes.setdefault(name, Scope(name, self._kinds.get(path, "")))
            scope.cost += cost


def _names(stack: str) -> Iterator[str]:
    """The scopes of a name stack, without the transformations that are written around them."""
    for name in stack.split("/"):
        while found := _WRAPPED.fullmatch(name):
            name = found[1]
        if name:
            yield name


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


@functools.lru_cache(4096)
def _analysis(primitive: Primitive, params: tuple, operands: tuple) -> Cost:
    """XLA's count for an operation by itself."""
    lowered = jax.jit(lambda *operands: primitive.bind(*operands, **dict(params))).lower(*operands)
    found = _flat(lowered.cost_analysis())
    return Cost(1, found.get("flops", 0.0), found.get("bytes accessed", 0.0))


def _flat(analysis: Any) -> Mapping[str, float]:
    """An analysis, of which some backends give a list, or none."""
    return (analysis[0] if isinstance(analysis, list) else analysis) or {}


def _compiled(compiled: jax.stages.Compiled) -> CompiledCost:
    costs, memory = _flat(compiled.cost_analysis()), cast(Any, compiled.memory_analysis())
    sizes = (memory.argument_size_in_bytes, memory.output_size_in_bytes, memory.temp_size_in_bytes)
    return CompiledCost(costs.get("flops", 0.0), costs.get("bytes accessed", 0.0), *sizes)


_ROUNDS = 3  # at least, in turn, so that what else the machine does is not one's alone
_ROUND = 0.1  # seconds
_SETTLING = 0.05  # seconds, in which the threads of the way before come to rest: those of OpenMP wait busily
_BUSY = 0.2  # of the time, between rounds


@dataclasses.dataclass(frozen=True)
class Timing:
    """How long one way of running a model takes.

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
        """Whether the rounds differ little: else the machine is busy, and the times say little."""
        return self.seconds is None or self.spread is None or self.spread <= _BUSY * self.seconds


@dataclasses.dataclass(frozen=True)
class Bench:
    """How long a model takes.

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
    kwargs: Mapping[str, Any] | None = None,
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
    """The times of a call in each round, of each of several ways that are run in turn for so many seconds each."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    end = time.perf_counter() + seconds * len(runs)
    while min(map(len, times.values())) < _ROUNDS or time.perf_counter() < end:
        for name, run in runs.items():
            _settle(run, min(_SETTLING, seconds))
            timer = Timer("run()", globals={"run": run}, num_threads=torch.get_num_threads())
            times[name].append(min(timer.blocked_autorange(min_run_time=min(_ROUND, seconds)).times))
    return times


def _settle(run: Callable, seconds: float) -> None:
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
