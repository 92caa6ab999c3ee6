"""A search for the first difference between a translation and PyTorch: the operator, its module, and the line."""

import contextlib
import dataclasses
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import torch
from torch.overrides import TorchFunctionMode, resolve_name

from ..modules.convert import t2j
from ..runtime.errors.locations import is_library
from ..tensors.interop import tensor_to_array
from ..tensors.trees import map_arguments
from .models import SpecError, Subject, error_text, refusing_bad_inputs, subject_of
from .trial import OUTPUT_TOLERANCE, Agreement, Trial, compare, to_jax


@dataclasses.dataclass(frozen=True)
class Step:
    """A call of an operator.

    Attributes:
        index: the number of the call, counted from 1.
        operator: its name, such as ``nn.functional.linear``.
        module: the path of the module that calls it, with its class: ``layers.0.fc (Linear)``; the class for the model.
        line: the innermost line outside of PyTorch's own files.
        inputs: shapes and dtypes of its tensors.
    """

    index: int
    operator: str
    module: str
    line: str
    inputs: str


@dataclasses.dataclass(frozen=True)
class Bisection:
    """The extent to which a translation agrees with PyTorch.

    Attributes:
        subject: the model and its inputs.
        agreed: the number of operator calls that agree, from the first one on.
        drawn: how many of these draw random numbers; the translation used PyTorch's numbers for them.
        step: the first call that differs; None if all agree.
        agreement: how far its results are from PyTorch's.
        alone: the same, if it runs on PyTorch's operands; None if it cannot run by itself.
        error: another problem: the call fails, or another call comes in its place.
    """

    subject: Subject
    agreed: int
    drawn: int
    step: Step | None = None
    agreement: Agreement | None = None
    alone: Agreement | None = None
    error: str = ""

    @property
    def agrees(self) -> bool:
        """True if all calls agree."""
        return self.step is None

    @property
    def verdict(self) -> str:
        """The problem, in a sentence."""
        if self.step is None:
            return "every operator agrees with PyTorch"
        if self.error:
            return self.error
        if self.alone is None:
            return "its results differ"
        if self.alone.agrees:
            return (
                "its results differ, and agree where it has PyTorch's operands: its own have been written to, or "
                "errors have grown up to here"
            )
        return "its results differ, also where it has PyTorch's operands: the operator itself is wrong"


def bisect(
    target: Subject | torch.nn.Module | Callable | str,
    args: tuple = (),
    kwargs: Mapping[str, object] | None = None,
    *,
    train: bool = False,
    tolerance: float | None = None,
    step: Callable[[str], None] = lambda _: None,
) -> Bisection:
    """Runs PyTorch and the translation side by side, and stops at the first operator whose results differ.

    The translation runs eagerly, operator by operator. Operands that operators write to are compared as well. If an
    operator draws random numbers, the translation continues with PyTorch's numbers.

    Args:
        target: a module, a function of tensors, a spec (see `build`), or a `Subject`.
        args: positional arguments, PyTorch tensors; by default those of the spec.
        kwargs: keyword arguments.
        train: run in training mode, with dropout off, instead of evaluation mode.
        tolerance: the relative error to accept; by default 1e-4, and more in half precision.
        step: a function that receives progress messages.

    Raises:
        SpecError: PyTorch itself cannot run the model on these inputs, or `tolerance` is negative.

    Examples:
        >>> import torch
        >>> from torch2jax import tools
        >>> tools.bisect(torch.nn.Linear(3, 2), (torch.ones(4, 3),)).verdict
        'every operator agrees with PyTorch'
    """
    if tolerance is not None and not tolerance >= 0:
        raise SpecError(f"got the tolerance {tolerance}; wanted a relative error, as 1e-4")
    subject = subject_of(target, args, kwargs)
    accepted = OUTPUT_TOLERANCE if tolerance is None else tolerance
    step("running PyTorch")
    record = _Record()
    with refusing_bad_inputs(subject):
        _run_pytorch(Trial(subject, train), record)
    step(f"running the translation beside {len(record.calls)} calls of operators")
    follower = _Follower(record.calls, accepted)
    with contextlib.suppress(_StoppedError):
        _run_translation(Trial(subject, train), follower)
    if follower.index < len(record.calls) and follower.agreement is None and not follower.error:
        follower.error = "the translation ends before it"
    if follower.agreement is None and not follower.error:
        return Bisection(subject, follower.index, follower.drawn)
    index = min(follower.index, len(record.calls) - 1)
    alone = None
    if follower.agreement is not None:
        step(f"running {record.calls[index].step.operator} by itself")
        alone = _alone(Trial(subject, train), record.calls[index], index, accepted)
    found = record.calls[index].step if record.calls else None
    return Bisection(subject, follower.index, follower.drawn, found, follower.agreement, alone, follower.error)


class _OperatorCall(NamedTuple):
    """A call of PyTorch's.

    Attributes:
        function: what is called.
        values: tensors of its results, and operands that it has written to, by names.
        draws: whether it draws random numbers.
    """

    step: Step
    function: Callable
    values: dict[str, torch.Tensor]
    draws: bool


class _StoppedError(BaseException):
    """Ends a run that has shown enough."""


class _Record(TorchFunctionMode):
    """Records the calls of a run of PyTorch's.

    Attributes:
        calls: those that make or write tensors.
        path: the modules that are being called.
    """

    keeps_operands = False

    def __init__(self):
        super().__init__()
        self.calls: list[_OperatorCall] = []
        self.path: list[str] = []

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple = (),
        kwargs: dict[str, object] | None = None,
    ):
        kwargs = kwargs or {}
        operands = map_arguments(_cloned, (args, kwargs)) if self.keeps_operands else ((), {})
        versions = [tensor._version for tensor in _tensors((args, kwargs))]
        state = torch.get_rng_state()
        result = func(*args, **kwargs)
        values = {f"result {i}": tensor for i, tensor in enumerate(_tensors(result))}
        for i, tensor in enumerate(_tensors((args, kwargs))):
            if tensor._version != versions[i]:
                values[f"operand {i}"] = tensor
        if values:
            name = (resolve_name(func) or getattr(func, "__name__", str(func))).removeprefix("torch.")
            inputs = Subject("", func, args, kwargs).describe_inputs()
            step = Step(len(self.calls) + 1, name, self.path[-1] if self.path else "", _line(), inputs)
            draws = not torch.equal(state, torch.get_rng_state())
            kept = {name: tensor.detach().clone() for name, tensor in values.items()}
            self.calls.append(_OperatorCall(step, func, kept, draws))
            self.saw(self.calls[-1], operands)
        return result

    def saw(self, call: _OperatorCall, operands: tuple[tuple, dict]) -> None:
        """Called with each call, and with copies of its operands if the class keeps them."""


class _Until(_Record):
    """A run up to a call, for its operands."""

    keeps_operands = True

    def __init__(self, index: int):
        super().__init__()
        self.operands: tuple[tuple, dict] | None = None
        self._index = index

    def saw(self, call: _OperatorCall, operands: tuple[tuple, dict]) -> None:
        self.calls[-1] = call._replace(values={})
        if len(self.calls) > self._index:
            self.operands = operands
            raise _StoppedError


def _computed(call: _OperatorCall, operands: tuple[tuple, dict]) -> dict[str, torch.Tensor]:
    """The values of a call, run once more."""
    results = _tensors(call.function(*operands[0], **operands[1]))
    return _named(call.values, results, _tensors(operands))


def _named(names: Iterable[str], results: list[torch.Tensor], operands: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """The values of these names among the results and the operands of a call."""
    kinds = {"result": results, "operand": operands}
    return {name: kinds[name.split()[0]][int(name.split()[1])] for name in names}


class _Follower(TorchFunctionMode):
    """A comparison of a translation's calls with those of PyTorch's run, one by one.

    Attributes:
        index: how many agree.
        drawn: how many of these draw random numbers.
        agreement: how far the first one that does not agree is from PyTorch's.
        error: what is wrong with it instead.
    """

    def __init__(self, calls: list[_OperatorCall], tolerance: float):
        super().__init__()
        self.index = self.drawn = 0
        self.agreement: Agreement | None = None
        self.error = ""
        self._calls, self._tolerance = calls, tolerance

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple = (),
        kwargs: dict[str, object] | None = None,
    ):
        kwargs = kwargs or {}
        call = self._calls[self.index] if self.index < len(self._calls) else None
        is_next = call is not None and call.function == func
        try:
            result = func(*args, **kwargs)
        except Exception as error:
            if is_next:
                self.error = f"it fails: {type(error).__name__}: {error_text(error)}"
                raise _StoppedError from error
            raise
        results, operands = _tensors(result), _tensors((args, kwargs))
        if call is None or not is_next:
            if results:  # else it is a query, as of a shape
                name = resolve_name(func) or str(func)
                self.error = f"the translation calls {name.removeprefix('torch.')} here"
                raise _StoppedError
            return result
        found = _named(call.values, results, operands)
        if call.draws:
            for name, tensor in found.items():
                tensor.copy_(call.values[name])
            self.drawn += 1
        elif "empty" not in call.step.operator:  # whose memory holds anything
            agreement = compare(_arrays(found), call.values, self._tolerance)
            if not agreement.agrees:
                self.agreement = agreement
                raise _StoppedError
        self.index += 1
        return result


class _Within(torch.nn.Module):
    """Calls a model within a mode, without gradients."""

    def __init__(self, model: Callable, mode: TorchFunctionMode):
        super().__init__()
        self.model, self._mode = model, mode

    def forward(self, *args: object, **kwargs: object):
        with torch.no_grad(), self._mode:
            return self.model(*args, **kwargs)


def _run_pytorch(trial: Trial, record: _Record) -> None:
    if isinstance(trial.target, torch.nn.Module):
        _keep_path(trial.target, record.path)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # each run draws the same
        _Within(trial.target, record)(*trial.subject.args, **trial.subject.kwargs)


def _keep_path(model: torch.nn.Module, path: list[str]) -> None:
    for name, module in model.named_modules():
        given = f"{name} ({type(module).__name__})" if name else type(module).__name__
        module.register_forward_pre_hook(lambda module, args, given=given: path.append(given))
        module.register_forward_hook(lambda module, args, output: path.pop() and None, always_call=True)


def _run_translation(trial: Trial, follower: _Follower) -> None:
    """Runs the translation eagerly; a failure outside of operators is an error at the next one."""
    within = _Within(trial.target, follower)
    state = {f"model.{name}": to_jax(tensor) for name, tensor in trial.state().items()}

    def run(state: dict[str, Any], args: tuple, kwargs: dict[str, Any]):
        return torch.func.functional_call(within, state, args, kwargs)

    args, kwargs = map_arguments(to_jax, (trial.subject.args, trial.subject.kwargs))
    try:
        t2j(run, branches=trial.subject.branches)(state, args, kwargs, rng=jax.random.key(0))
    except Exception as error:
        follower.error = f"the translation fails here: {type(error).__name__}: {error_text(error)}"


def _alone(trial: Trial, call: _OperatorCall, index: int, tolerance: float) -> Agreement | None:
    """The translation of one call, on PyTorch's operands; None if it cannot run separately."""
    record = _Until(index)
    with contextlib.suppress(_StoppedError):
        _run_pytorch(trial, record)
    try:
        found = t2j(lambda operands: _computed(call, operands))(map_arguments(to_jax, record.operands))
    except Exception:
        return None
    return compare(found, call.values, tolerance)


def _cloned(leaf: object):
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf


def _tensors(tree: object) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    map_arguments(lambda leaf: found.append(leaf) if isinstance(leaf, torch.Tensor) else None, tree)
    return found


def _arrays(tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    return {name: tensor_to_array(tensor.detach()) for name, tensor in tensors.items()}


def _line() -> str:
    """The innermost line of the model's own code, in the run of PyTorch's."""
    frame: types.FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code is not _run_pytorch.__code__:
        code = frame.f_code
        if not is_library(code.co_filename):
            return f"{code.co_filename}:{frame.f_lineno} in {code.co_name}"
        frame = frame.f_back
    return ""
