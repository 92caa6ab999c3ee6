"""`torch.optim` in translated code: whose optimizers step, and how they step if their counters are traced.

PyTorch's optimizers keep counters in tensors and ask for their values, or, if told that they are ``capturable`` and
being compiled, compute with the tensors. Here they are told so if the counters or hyperparameters are traced.

PyTorch takes counters out of tensors and computes with Python's numbers. Here such a number is an `Item`, in double
precision, and PyTorch's own formulas run. Two of them ask what a counter has reached: RAdam's and ASGD's. These follow
PyTorch's formulas for counters that are tensors, in double precision as well.
"""

import functools
import importlib
import inspect
import types
from collections import UserDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, cast

import numpy as np
import torch
from torch.amp import GradScaler
from torch.optim import LBFGS, Optimizer, lr_scheduler, swa_utils
from torch.optim.swa_utils import AveragedModel

from ..internals.modules import adafactor, sparse_adam
from ..rules.features import NEXT, Feature
from ..rules.inline import Scalars
from ..runtime.errors import TracedValueError
from ..runtime.patches import exchange, replaces
from ..runtime.translation import Call, current, this_call
from ..tensors.dtypes import has_doubles
from ..tensors.objects import Slot
from ..tensors.traced import is_traced
from ..tensors.wrapped import is_wrapper, tensor_of, wrapped
from ..tracing.user_code import of_user
from ..values.item import Item
from ..values.python_functions import TensorMath
from ..values.traced_numbers import Number, as_float, is_unknown, larger, number_of, smaller

_POWERS = frozenset((torch.pow, torch.Tensor.pow, torch.Tensor.__pow__, torch.Tensor.__rpow__))


_QUOTIENTS = frozenset((torch.Tensor.__truediv__, torch.Tensor.__rtruediv__, torch.Tensor.__rdiv__))
_REFLECTED = frozenset((torch.Tensor.__rpow__, torch.Tensor.__rtruediv__, torch.Tensor.__rdiv__))


class _Rounded(Feature):
    """The feature that rounds float32 scalars as PyTorch rounds them.

    Powers are rounded once, of double precision; a number is divided by a tensor as a product with the reciprocal.
    """

    def run_operator(self, call: Call, function: object, args: tuple, kwargs: dict) -> object:
        if (function not in _POWERS and function not in _QUOTIENTS) or len(args) != 2:
            return NEXT
        first, second = reversed(args) if function in _REFLECTED else args
        if not any(map(is_unknown, args)) or not _are_singles(first, second):
            return NEXT
        if function in _QUOTIENTS:
            return NEXT if _is_tensor(first) else second.reciprocal() * first
        power = torch.pow(_wide(first), _wide(second)).float()
        return torch.where(second == 3, first * first * first, power) if type(second) is Item else power


def _are_singles(*values: Any) -> bool:
    """Returns True if values are float32 scalars, perhaps with numbers, which PyTorch makes float32 beside them."""
    tensors = [x for x in values if _is_tensor(x)]
    return bool(tensors) and all(
        x.ndim == 0 and x.dtype == torch.float32 if _is_tensor(x) else type(x) in (int, float, Item) for x in values
    )


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor) and type(value) is not Item


def _wide(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) else float(np.float32(value))


@contextmanager
def exactly(optimizer: Optimizer):
    """A context in which the traced numbers of an optimizer's groups are taken for Python's, and computed with so."""
    call, rounded = this_call(), _Rounded()
    before = list(_exchanged(optimizer))
    for group, key, _, number in before:
        group[key] = number
    call.features.push(rounded)
    try:
        yield
    finally:
        call.features.pop(rounded)
        for group, key, value, number in before:
            if group[key] is number:
                group[key] = value


def _exchanged(optimizer: Optimizer) -> Iterator[tuple[dict, str, object, object]]:
    for group in optimizer.param_groups:
        for key, value in group.items():
            if isinstance(value, Number):
                yield group, key, value, _python(value)
            elif type(value) is tuple and any(isinstance(x, Number) for x in value):
                yield group, key, value, tuple(map(_python, value))


def _python(value: object) -> object:
    return Item.of(value, value._started) if isinstance(value, Number) else value


class _OfTensors(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return _is_tensor(instance)


class _NoNumber(metaclass=_OfTensors):
    """A ``Tensor`` class for `isinstance` in optimizers: a tensor that stands for a Python number is no instance."""


for _name in ("adam", "adagrad", "sgd"):
    exchange(importlib.import_module(f"torch.optim.{_name}"), "Tensor", _NoNumber)


def _with_tensors(name: str, *lists: str, narrow: str = "") -> None:
    """Makes a function of `torch.optim` compute with tensors in place of the numbers in `lists`, where these are
    traced.

    The tensors are of double precision, and the function's formulas those for counters that are tensors.

    Args:
        narrow: those of `lists` that stay as they are where the learning rate is a tensor, which decides the precision.
    """
    module = importlib.import_module(f"torch.optim.{name}")
    original = getattr(module, name)
    positions = {each: list(inspect.signature(original).parameters).index(each) for each in lists}

    @replaces(module, name)
    def step(*args: Any, **kwargs: object):
        call = this_call()
        traced = any(is_unknown(x) for position in positions.values() for x in args[position])
        if kwargs.get("foreach") or not (traced and call.steps_abstractly and has_doubles()):
            return original(*args, **kwargs)
        kept = narrow if _is_tensor(kwargs["lr"]) else ""
        wide = {position: [x.double() for x in args[position]] for each, position in positions.items() if each != kept}
        given = [wide.get(position, value) for position, value in enumerate(args)]
        before, call.compiles = call.compiles, True
        try:
            original(*given, **{**kwargs, "capturable": True})
        finally:
            call.compiles = before
        with torch.no_grad():
            for position, tensors in wide.items():
                for x, value in zip(args[position], tensors, strict=True):
                    x.copy_(value)


_with_tensors("radam", "state_steps")
_with_tensors("asgd", "mus", "etas", "state_steps", narrow="state_steps")


_NOTHING = nullcontext()


def adopt(thing: object) -> None:
    """Makes an optimizer, scheduler or scaler one of the call's own, which may change it."""
    this_call().registered[id(thing)] = thing


def expect_own(thing: object) -> None:
    """Refuses to change an optimizer, scheduler or scaler that is not the call's.

    Raises:
        RuntimeError: the call has neither made nor copied it.
    """
    own = this_call().registered
    if id(thing) in own or _is_around(thing, own.values()):
        return
    kind = type(thing).__name__
    if any(isinstance(x, type(thing)) for x in own.values()):
        raise RuntimeError(
            f"translated code changes a {kind} from outside the call, which would stay as it is, and has a {kind} that "
            "it may change. Use the function's own argument: what it closes over, as trainer.optimizer, is not that "
            "one. Or pass the object that holds it, t2j(train_step, state=(trainer,)); or, if a wrapper closes over "
            "it, the optimizer without the wrapper"
        )
    raise RuntimeError(
        f"translated code changes a {kind} from outside the call, which would stay as it is. Pass the objects "
        "that the function changes as its first arguments: t2j(train_step, state=(model, optimizer)) returns "
        "a function step(state, *args), and step.init(*args) makes its state"
    )


def _is_around(thing: object, own: Iterable[object]) -> bool:
    """Returns True if an optimizer shares the parameter groups of one of the call's, as a wrapper does."""
    groups = getattr(thing, "param_groups", None)
    return groups is not None and any(getattr(x, "param_groups", None) is groups for x in own)


def step_abstractly(self: Optimizer, *args: Any, **kwargs: object):
    """``optimizer.step``, with tensors in place of numbers that are traced."""
    if isinstance(self, LBFGS):  # it decides how often to call its closure by values
        try:
            return type(self).step(self, *args, **kwargs)
        except TracedValueError as error:
            raise TracedValueError("torch.optim.LBFGS.step", instead=_LBFGS) from error
    step = type(self).step
    is_pytorchs = step.__module__.startswith("torch.optim.")
    # Others may ask; and what a side writes has to be seen.
    if not is_pytorchs or this_call().execution.code.is_on_side():
        step = of_user(step)
    with _abstract_where_traced(self, keeps_scalars=is_pytorchs):
        return step(self, *args, **kwargs)


_LBFGS = "minimize with optax.lbfgs() and optax.value_and_grad_from_state, which run under jit"


@contextmanager
def _abstract_where_traced(optimizer: Optimizer, keeps_scalars: bool):
    """A context of a step that computes with tensors in place of numbers that are traced.

    Args:
        keeps_scalars: whether what is computed of scalars is kept: not where sides of conditions have their own.
    """
    call = this_call()
    groups = [group for group in optimizer.param_groups if "capturable" in group and _has_steps_of_pytorch(optimizer)]
    before = [group["capturable"] for group in groups]
    was, was_compiling, scalars = call.steps_abstractly, call.compiles, call.scalars
    is_traced = any(is_unknown(x) and x.ndim == 0 for x in _scalars(optimizer))
    is_exact = is_traced and has_doubles()
    call.steps_abstractly, call.compiles = True, is_traced and not is_exact
    call.scalars = Scalars() if is_traced and keeps_scalars else None  # every parameter has a counter, and most are one
    for group in groups:
        group["capturable"] = call.compiles  # what users say is of CUDA's graphs
    try:
        with exactly(optimizer) if is_exact else _NOTHING:
            yield
    finally:
        for group, capturable in zip(groups, before, strict=True):
            group["capturable"] = capturable
        call.steps_abstractly, call.compiles, call.scalars = was, was_compiling, scalars


def _has_steps_of_pytorch(optimizer: Optimizer) -> bool:
    """True if ``capturable`` is PyTorch's option; in other optimizers the name may mean that they need CUDA tensors."""
    classes = (cls for cls in type(optimizer).__mro__ if issubclass(cls, Optimizer) and cls is not Optimizer)
    return any(cls.__module__.startswith("torch.optim.") for cls in classes)


def _scalars(optimizer: Optimizer) -> Iterator[Any]:
    for group in optimizer.param_groups:
        for key, value in group.items():
            if key != "params":
                yield from value if isinstance(value, tuple) else (value,)
    for state in optimizer.state.values():  # some keep a counter there, beside the states of parameters
        yield from state.values() if isinstance(state, dict) else (state,)


_patch_step_function = Optimizer._patch_step_function
_is_compiling = torch.compiler.is_compiling


@replaces(Optimizer, "_patch_step_function")
def _adopt_new(self: Any):
    _patch_step_function(self)
    adopt(self)
    self.step = types.MethodType(_abstract_form(type(self).step), self)


def _abstract_form(step: Callable) -> Callable:
    """`step_abstractly` with the arguments of an optimizer's own step, which scalers look at."""

    @functools.wraps(step)
    def abstractly(self: Optimizer, *args: object, **kwargs: object):
        return step_abstractly(self, *args, **kwargs)

    return abstractly


@replaces(torch.compiler, "is_compiling")
def is_compiling():
    return _is_compiling() or this_call().compiles


class _StepHooks(UserDict):
    """The hooks before each step of any optimizer, and in translated calls one that looks whose it is."""

    def __init__(self, hooks: dict[int, object]):
        self.data = hooks  # what others register goes there

    def values(self):
        if current() is None:
            return self.data.values()
        return [_expect_own_before_step, *self.data.values()]


def _expect_own_before_step(optimizer: Optimizer, args: object, kwargs: object):
    del args, kwargs
    expect_own(optimizer)


_torch_optimizer: object = importlib.import_module("torch.optim.optimizer")
exchange(_torch_optimizer, "_global_optimizer_pre_hooks", _StepHooks(_torch_optimizer._global_optimizer_pre_hooks))

_asgd = importlib.import_module("torch.optim.asgd")  # its parent has a function of that name

for _module in (lr_scheduler, swa_utils, adafactor, _asgd):
    exchange(_module, "max", larger, may_lack=True)
    exchange(_module, "min", smaller, may_lack=True)
exchange(lr_scheduler, "float", as_float, may_lack=True)
exchange(lr_scheduler, "math", TensorMath())
exchange(swa_utils, "math", TensorMath())
exchange(sparse_adam, "math", TensorMath())


# Schedulers.


def _numbers_in(value: object) -> Iterator[object]:
    """The numbers in a container, in containers inside it, and in schedulers."""
    if isinstance(value, lr_scheduler.LRScheduler):
        value = vars(value)
    if isinstance(value, dict):
        for key, item in value.items():
            if key != "params":
                yield from _numbers_in(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _numbers_in(item)
    elif _is_number(value):
        yield value


def _is_number(value: object) -> bool:
    return type(value) in (int, float) or isinstance(value, (np.float64, torch.Tensor))


def _guard_scheduler(cls: type[Any]) -> None:
    original = cls.step

    @replaces(cls, "step")
    def step(self: Any, *args: object, **kwargs: object):
        expect_own(self.optimizer)
        numbers = _numbers_in([self, self.optimizer.param_groups])
        if any(isinstance(x, Number) or is_unknown(x) for x in (*numbers, *args, *kwargs.values())):
            this_call().paths[-1].convert()
        return of_user(original)(self, *args, **kwargs)


for _cls in list(vars(lr_scheduler).values()):
    if isinstance(_cls, type) and issubclass(_cls, lr_scheduler.LRScheduler) and "step" in vars(_cls):
        _guard_scheduler(_cls)


_multi_step_get_lr = lr_scheduler.MultiStepLR.get_lr


@replaces(lr_scheduler.MultiStepLR, "get_lr")
def _multi_step(self: Any):
    if not is_unknown(self.last_epoch):
        return _multi_step_get_lr(self)
    times = 0
    for milestone, count in self.milestones.items():
        times = times + Number.of((self.last_epoch == milestone) * count)
    return [group["lr"] * self.gamma**times for group in self.optimizer.param_groups]


# Averages of models.

_update_parameters = AveragedModel.update_parameters


@replaces(AveragedModel, "update_parameters")
def _average(self: Any, model: torch.nn.Module):
    if is_unknown(self.n_averaged):
        this_call().paths[-1].convert()
    return of_user(_update_parameters)(self, model)


# Gradient scalers.

_maybe_step, _unscale, _update = GradScaler._maybe_opt_step, GradScaler._unscale_grads_, GradScaler.update
_start, _init_scaler = GradScaler._lazy_init_scale_growth_tracker, GradScaler.__init__
_restore_scaler = GradScaler.__setstate__


@replaces(GradScaler, "__init__")
def _make_scaler(self: Any, *args: Any, **kwargs: object):
    _init_scaler(self, *args, **kwargs)
    adopt(self)


@replaces(GradScaler, "__setstate__")
def _make_copy_of_scaler(self: Any, state: dict[str, object]):
    _restore_scaler(self, state)
    adopt(self)


@replaces(GradScaler, "_lazy_init_scale_growth_tracker")
def _start_scaler(self: Any, dev: torch.device):
    expect_own(self)
    _start(self, dev)


@replaces(GradScaler, "_unscale_grads_")
def _unscale_own(self: Any, *args: Any, **kwargs: object):
    expect_own(self)
    return _unscale(self, *args, **kwargs)


@replaces(GradScaler, "update")
def _update_own(self: Any, new_scale: Any = None):
    if self._enabled:
        expect_own(self)
    _update(self, new_scale)


@replaces(GradScaler, "_maybe_opt_step")
def _step_where_finite(self: Any, optimizer: Optimizer, optimizer_state: dict[str, Any], *args: Any, **kwargs: object):
    """Steps, and undoes the step where a gradient was not finite, which is traced."""
    found: Any = sum(optimizer_state["found_inf_per_device"].values())
    if not is_unknown(found) or not is_traced(found.read()):
        return _maybe_step(self, optimizer, optimizer_state, *args, **kwargs)
    before = {slot.path: _taken(slot.get()) for slot in _written(optimizer)}
    made: dict[tuple[int, Any], Any] = {}
    with _recording(optimizer, made):
        result = optimizer.step(*args, **kwargs)
    with torch.no_grad():
        for slot in list(_written(optimizer)):
            value = slot.get()
            first = before[slot.path] if slot.path in before else made.get((id(slot.owner), slot.key))
            if first is None and (isinstance(value, torch.Tensor) or _is_number(value)):
                raise RuntimeError(
                    f"the first step of {type(optimizer).__name__} makes {slot.path}, but that step may be skipped: "
                    "take one step in PyTorch first, so that it exists"
                )
            if _is_number(value) and not isinstance(value, torch.Tensor) and value == first:
                continue
            if isinstance(value, torch.Tensor) and not isinstance(value, Number):
                value.copy_(torch.where(found != 0, cast(Any, first), value))
            elif _is_number(value):
                was: Any = number_of(first)
                kept: Any = torch.where(found != 0, was, number_of(value))
                slot.set(Number.of(kept))
            elif value != first:
                raise RuntimeError(
                    f"{type(optimizer).__name__} sets {slot.path} to {value!r} in a step that may be skipped; wanted "
                    "a number or a tensor there, or one step in PyTorch first, so that it is set"
                )
    return result


def _taken(value: object) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) and not isinstance(value, Number) else value


def _written(optimizer: Optimizer) -> Iterator[Slot]:
    """The slots of an optimizer's parameters, groups and state."""
    for i, group in enumerate(optimizer.param_groups):
        for j, _ in enumerate(group["params"]):
            yield Slot(group["params"], j, f"param_groups.{i}.params.{j}")
    for i, group in enumerate(optimizer.param_groups):
        yield from _values_of(group, f"param_groups.{i}")
    for i, state in enumerate(list(optimizer.state.values())):
        yield from _values_of(state, f"state.{i}")


def _values_of(owner: Any, path: str) -> Iterator[Slot]:
    items: Any = owner.items() if isinstance(owner, dict) else enumerate(owner)
    for key, value in list(items):
        if key == "params":
            continue
        if type(value) in (dict, list):
            yield from _values_of(value, f"{path}.{key}")
        elif isinstance(value, torch.Tensor) or type(value) in (int, float, bool, str):
            yield Slot(owner, key, f"{path}.{key}")


# What one of PyTorch's optimizers makes in its first step, which is skipped.


class _Recorded(dict):
    """The state of one parameter, which records the first value of each entry."""

    def __init__(self, made: dict, momentum: bool):
        super().__init__()
        self._made, self._momentum = made, momentum

    def __setitem__(self, key: object, value: object):
        if key not in self:
            self._made[id(self), key] = self._at_first(key, value)
        super().__setitem__(key, value)

    def _at_first(self, key: object, value: object):
        if not isinstance(value, torch.Tensor):
            return value
        if is_wrapper(value):  # it is not asked itself: its class need not have a ``clone``
            return tensor_of(wrapped(value, lambda inner: inner.detach().clone()), lambda inner: inner)
        if not is_unknown(value):
            return value.detach().clone()
        if key == "momentum_buffer" and self._momentum:
            return torch.zeros_like(value)  # the first step's gradient is added to nothing
        return None


@contextmanager
def _recording(optimizer: Optimizer, made: dict[tuple[int, object], object]):
    """Records the first values of entries of the optimizer's state, by their dictionary and name.

    None for those that are made of traced values. Other optimizers than PyTorch's may do anything in a first step.
    """
    if type(optimizer).__module__.partition(".")[0] != "torch":
        yield
        return
    for group in optimizer.param_groups:
        momentum = isinstance(optimizer, torch.optim.SGD) and group["dampening"] == 0
        for parameter in group["params"]:
            if not optimizer.state.get(parameter):
                optimizer.state[parameter] = _Recorded(made, momentum)
    yield
    for parameter, state in list(optimizer.state.items()):
        if isinstance(state, _Recorded):
            plain = dict(state)
            made.update({(id(plain), key): made[id(state), key] for key in state})
            optimizer.state[parameter] = plain
            if not plain:
                del optimizer.state[parameter]
