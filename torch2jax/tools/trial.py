"""A model in one mode, in both frameworks: how far their results differ, and how fast both are."""

import copy
import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.utils.benchmark import Timer

from ..modules.convert import t2j
from ..tensors.interop import distinct, tensor_to_array
from ..tensors.padded import Padded
from ..tensors.trees import map_arguments, map_given
from .models import SpecError, Subject, first_line, refusing_bad_inputs, subject_of, translating

OUTPUT_TOLERANCE = 1e-4
GRADIENT_TOLERANCE = 1e-3
_HALF = {torch.float16: 5e-3, torch.bfloat16: 3e-2}
# A tensor far smaller than the largest of its group is rounding noise of the others; it is measured against this part
# of the largest one.
_FLOOR = 1e-3


@dataclasses.dataclass(frozen=True)
class Agreement:
    """The comparison of a group of arrays with PyTorch's tensors.

    Args:
        count: the number of arrays that were compared.
        absolute: the largest absolute error.
        relative: the largest error of a tensor, divided by the magnitude of that tensor.
        worst: the name of the tensor with the largest relative error.
        agrees: whether every tensor is within tolerance.
        problem: what is wrong apart from values (a missing result, another shape), or "".
        moved: the relative change of PyTorch's own values by rounding, if the agreement depends on it; else 0.
    """

    count: int
    absolute: float
    relative: float
    worst: str
    agrees: bool
    problem: str = ""
    moved: float = 0.0


def compare(
    actual: Mapping, expected: Mapping[str, Any], tolerance: float, nudged: Sequence[Mapping] = ()
) -> Agreement:
    """Compares arrays with tensors by name. Tensors of half precision are compared more coarsely.

    Args:
        actual: the arrays.
        expected: PyTorch's tensors, or arrays.
        tolerance: the relative error to accept.
        nudged: what PyTorch gives instead when rounding decides otherwise. An error of up to twice the largest
            distance of these is accepted: it is that of an activation at a kink, or of a tie.
    """
    if actual.keys() != expected.keys():
        return _mismatch(f"{len(actual)} tensors instead of {len(expected)}", len(expected))
    absolute = relative = moved = 0.0
    agrees, worst = True, ""
    largest = max((_magnitude(_wide(tensor)) for tensor in expected.values()), default=0.0)
    for name, tensor in expected.items():  # one by one, as wide ones are twice as large
        got, want = _wide(actual[name]), _wide(tensor)
        if got.shape != want.shape:
            return _mismatch(f"{name} has shape {list(got.shape)} instead of {list(want.shape)}", len(expected))
        error = _largest_error(got, want)
        scale = max(_magnitude(want), _FLOOR * largest) or 1.0  # all zeros: the error itself
        ratio = error / scale if error else 0.0
        absolute = max(absolute, error)
        if ratio > relative or not worst:
            relative, worst = ratio, name
        accepted = max(tolerance, _HALF.get(expected[name].dtype, 0.0))
        if ratio > accepted and nudged:
            own = max(_largest_error(_wide(other[name]), want) for other in nudged) / scale
            if np.isfinite(own):
                moved, accepted = max(moved, own), max(accepted, 2 * own)
        agrees = agrees and ratio <= accepted
    return Agreement(len(expected), absolute, relative, worst, agrees, moved=moved)


def _mismatch(problem: str, count: int) -> Agreement:
    return Agreement(count, float("inf"), float("inf"), "", False, problem)


def _wide(value: object) -> np.ndarray:
    array = np.asarray(tensor_to_array(value.detach()) if isinstance(value, torch.Tensor) else value)
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _magnitude(array: np.ndarray) -> float:
    finite = np.abs(array[np.isfinite(array)])
    return float(finite.max()) if finite.size else 0.0


def _largest_error(got: np.ndarray, want: np.ndarray) -> float:
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    if same.all():
        return 0.0
    error = np.abs(got[~same] - want[~same])
    return float("inf") if not np.isfinite(error).all() else float(error.max())


class Trial:
    """A subject in evaluation or training mode, called on named leaves: its parameters, its buffers, its inputs.

    PyTorch runs on a copy, so that the buffers of the subject stay as they are; in training, dropout is switched off,
    since the two frameworks draw different random numbers.
    """

    def __init__(self, subject: Subject, training: bool):
        self.subject, self.training = subject, training
        self.target = copied(subject.target)
        if isinstance(self.target, torch.nn.Module):
            set_mode(self.target, training, subject.name)
            if training:
                _switch_off_dropout(self.target)
        self._arguments = (subject.args, subject.kwargs)
        self.inputs = _inputs(self._arguments)
        self._translated = t2j(self.target, branches=subject.branches)

    def state(self) -> dict[str, torch.Tensor]:
        """The parameters and buffers, each under one name."""
        return dict(distinct({**_parameters(self.target), **_buffers(self.target)}))

    def leaves(self) -> dict[str, torch.Tensor]:
        """The tensors to take gradients for: the trainable parameters, and the inputs of floating point."""
        trainable = {name: tensor for name, tensor in _parameters(self.target).items() if tensor.requires_grad}
        return {**trainable, **differentiable(self.inputs)}

    def pytorch(self, nudge: int | None = None) -> Callable:
        """PyTorch's side on a copy of the model: from inputs to outputs, new buffers and the copy's parameters.

        With `nudge`, a seed, it moves parameters and inputs about as much as rounding moves what is computed of them.
        """
        target = copied(self.target)
        generator = None if nudge is None else torch.Generator().manual_seed(nudge)
        if generator is not None:
            with torch.no_grad():
                for parameter in _parameters(target).values():
                    parameter.copy_(_nudged(parameter, generator))

        def run(inputs: Mapping[str, torch.Tensor]):
            if generator is not None:
                inputs = {name: _nudged(tensor, generator) for name, tensor in inputs.items()}
            args, kwargs = _filled(self._arguments, inputs)
            outputs = _outputs(target(*args, **kwargs), torch.Tensor)
            return outputs, _buffers(target), _parameters(target)

        return run

    def jax(
        self, state: Mapping[str, Any], inputs: Mapping[str, Any], key: jax.Array | None = None
    ) -> tuple[dict, dict]:
        """JAX's side: from arrays for the state and the inputs to outputs and new buffers."""
        args, kwargs = _filled(self._arguments, inputs)
        if not isinstance(self.target, torch.nn.Module):
            return _outputs(self._translated(*args, rng=key, **kwargs), (jax.Array, Padded)), {}
        result, new = self._translated(*args, state_dict=state, rng=key, return_state_dict=True, **kwargs)
        found = _outputs(result, (jax.Array, Padded))
        return found, {name: new[name] for name in _buffers(self.target) if name in new}

    def arrays(self) -> tuple[dict, dict]:
        """The state and the inputs, for JAX."""
        state, inputs = ({name: to_jax(x) for name, x in each.items()} for each in (self.state(), self.inputs))
        return state, inputs

    def program(self, grad: bool) -> Callable:
        """JAX's side as a program of state, inputs and key: the outputs or, with `grad`, the gradient of their sum."""

        def outputs(state: Mapping[str, Any], inputs: Mapping[str, Any], key: jax.Array | None):
            return self.jax(state, inputs, key)[0]

        def loss(
            leaves: Mapping[str, object],
            state: Mapping[str, object],
            inputs: Mapping[str, object],
            key: jax.Array | None,
        ):
            state, inputs = ({name: leaves.get(name, x) for name, x in each.items()} for each in (state, inputs))
            found = [x.values if isinstance(x, Padded) else x for x in outputs(state, inputs, key).values()]
            return sum(jnp.sum(x) for x in found if jnp.issubdtype(x.dtype, jnp.floating))

        def gradient(state: Mapping[str, Any], inputs: Mapping[str, Any], key: jax.Array | None):
            both = {**state, **inputs}
            return jax.grad(loss)({name: both[name] for name in self.leaves()}, state, inputs, key)

        return gradient if grad else outputs


def to_jax(leaf: object) -> Any:
    """An array with a copy of a tensor: later writes of PyTorch to its buffers must not reach JAX."""
    return jnp.array(t2j(leaf.detach())) if isinstance(leaf, torch.Tensor) else leaf


def differentiable(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of real floating-point dtypes."""
    return {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}


def _nudged(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if not tensor.is_floating_point():
        return tensor
    noise = torch.randn(tensor.shape, generator=generator).to(tensor)
    return tensor * (1 + 4 * torch.finfo(tensor.dtype).eps * noise)


def copied(target: Any):
    """A deep copy of a module that keeps shared memory shared; `copy.deepcopy` of a `Parameter` alone does not."""
    if not isinstance(target, torch.nn.Module):
        return target
    memo: dict[int, object] = {}
    for parameter in target.parameters():
        if type(parameter) is torch.nn.Parameter:
            memo[id(parameter)] = torch.nn.Parameter(copy.deepcopy(parameter.data, memo), parameter.requires_grad)
    return copy.deepcopy(target, memo)


def _parameters(target: object) -> dict[str, torch.Tensor]:
    return dict(target.named_parameters()) if isinstance(target, torch.nn.Module) else {}


def _buffers(target: object) -> dict[str, torch.Tensor]:
    """The buffers in the state dict: others are constants, as they are to a user who passes that."""
    if not isinstance(target, torch.nn.Module):
        return {}
    kept = target.state_dict()
    return {name: tensor for name, tensor in target.named_buffers() if name in kept}


def _inputs(arguments: tuple[object, ...]) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}

    def collect(leaf: object):
        if isinstance(leaf, torch.Tensor):
            found[f"input {len(found)}"] = leaf

    map_arguments(collect, arguments)
    return found


def _filled(arguments: tuple[object, ...], values: Mapping[str, object]):
    """The arguments with `values` for their tensors, in order; all else stays as it is."""
    remaining = iter(values.values())
    return map_arguments(lambda leaf: next(remaining) if isinstance(leaf, torch.Tensor) else leaf, arguments)


def _outputs(result: object, kind: type | tuple[type, ...]) -> dict[str, Any]:
    found: dict[str, object] = {}

    def collect(leaf: object):
        if isinstance(leaf, kind):
            found[f"output {len(found)}"] = leaf

    map_given(collect, result)
    return found


def set_mode(module: torch.nn.Module, training: bool, name: str) -> None:
    """Puts a module into training or evaluation mode.

    Raises:
        SpecError: it is a graph recorded in one mode, and training was asked for.
    """
    if not isinstance(module, torch.fx.GraphModule):  # whose graph has the mode it was recorded in
        module.train(training)
    elif training:
        raise SpecError(f"{name} is a graph recorded in one mode: --train is for modules")


def _switch_off_dropout(module: torch.nn.Module) -> None:
    for part in module.modules():
        names = [name for name, value in vars(part).items() if "drop" in name.lower() and type(value) is float]
        if any(word in type(part).__name__ for word in ("Drop", "StochasticDepth")) and hasattr(part, "p"):
            names.append("p")
        for name in names:
            setattr(part, name, 0.0)


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
