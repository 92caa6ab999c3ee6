"""The functions around compiled parts: PyTorch's, on its own small tensors, or JAX's rules.

Also here: the kinds of functions, by their effect on tensors, which decide if PyTorch runs them.
"""

import types
from collections.abc import Callable, Collection
from enum import Enum
from typing import Any

import jax
import numpy as np
import torch

from ...internals.dispatch import (
    DisableTorchDispatch,
    DisableTorchFunction,
    len_torch_dispatch_stack,
    len_torch_function_stack,
)
from ...internals.transforms import is_any_autocast_enabled
from ...rules import registry
from ...rules.features import NEXT, Feature
from ...rules.inplace import WithFlag
from ...rules.options import Tag
from ...rules.plan import NOT_PLANNED
from ...rules.rule import MetadataRule
from ...rules.tables import entered
from ...runtime.caches import remembered
from ...runtime.errors.unwinding import Restart
from ...runtime.translation import Call
from ...tensors.dtypes import is_integral
from ...tensors.journal import journal
from ...tensors.tensor import Torchish
from ...tracing.traces import is_transforming
from .host_memory import NO, WANTING, YES, HostTensors, state_of
from .reordered import REORDERING


class FunctionKind(Enum):
    """The effect of a function on tensors."""

    PURE = "gives new ones, or what is no tensor"
    FACTORY = "as PURE, also of no tensor"
    WRITES = "writes to its first"
    WRITES_OTHERS = "writes to others than its first"
    WRITES_IF_INPLACE = "is as PURE, or WRITES if its argument `inplace` says so"
    INDEXES = "gives a view, or a new one where a tensor tells the elements"
    SHARES = "lets its first have the memory of another"
    CONVERTS = "gives the same, or a new one of another dtype"
    METADATA = "answers from a tensor's form, without its values"
    OTHER = "gives views, or whatever else"
    PYTHON = "calls others, which come by themselves"
    NONE = "is not for PyTorch"


WRITING = (FunctionKind.WRITES, FunctionKind.WRITES_OTHERS, FunctionKind.WRITES_IF_INPLACE)
"""The kinds of functions that may write."""
_OF_TAGS = (
    (Tag.SHARES, FunctionKind.SHARES),
    (Tag.WRITES_OTHERS, FunctionKind.WRITES_OTHERS),
    (Tag.WRITES, FunctionKind.WRITES),
    (Tag.INDEXES, FunctionKind.INDEXES),
    (Tag.CONVERTS, FunctionKind.CONVERTS),
    (Tag.FACTORY, FunctionKind.FACTORY),
    (Tag.FRESH, FunctionKind.PURE),
    (Tag.READS, FunctionKind.PURE),
)


@registry.cached
def kind_of(function: Callable[..., object]) -> FunctionKind:
    rule = registry.lookup(function)
    if isinstance(rule, MetadataRule):
        return FunctionKind.METADATA
    tags = registry.tags_of(function)
    if Tag.AUTOGRAD in tags or Tag.RANDOM in tags or not registry.is_provided(rule):
        return FunctionKind.NONE
    if rule is None and isinstance(function, types.FunctionType):
        return FunctionKind.PYTHON
    if isinstance(rule, WithFlag):
        return FunctionKind.WRITES_IF_INPLACE
    found = next((kind for tag, kind in _OF_TAGS if tag in tags), None)
    if found is not None:
        return found
    is_setter = rule is None and getattr(function, "__name__", "") == "__set__"  # of a property
    return FunctionKind.WRITES if is_setter else FunctionKind.OTHER


def kind_for_arguments(function: Callable[..., object], args: tuple, kwargs: dict) -> FunctionKind:
    """The kind of a WRITES_IF_TOLD function with these arguments."""
    rule: WithFlag = registry.lookup(function)  # pyright: ignore[reportAssignmentType]
    return FunctionKind.WRITES if rule.writes(args, kwargs) else FunctionKind.PURE


def is_new(kind: FunctionKind, function: Callable[..., object], args: tuple, kwargs: dict) -> bool:
    """True if a function's result shares no memory with those arguments that are not PyTorch's own."""
    if kind is FunctionKind.INDEXES:
        return len(args) == 2 and _has_tensor(args[1])
    if kind is FunctionKind.CONVERTS:
        wanted = getattr(torch, function.__name__, None)
        found = [x for x in (wanted, *args[1:], *kwargs.values()) if isinstance(x, torch.dtype)]
        return kwargs.get("copy") is True or bool(found and found[0] != args[0].dtype)
    return kind is FunctionKind.PURE or kind is FunctionKind.FACTORY


def _has_tensor(index: object) -> bool:
    if isinstance(index, (tuple, list)):
        return any(map(_has_tensor, index))
    return isinstance(index, torch.Tensor)


@registry.cached
def gives_new(function: Callable[..., object]) -> bool:
    return Tag.FRESH in registry.tags_of(function)


@registry.cached
def gives_memory(function: Callable[..., object]) -> bool:
    return Tag.UNINITIALIZED in registry.tags_of(function)


@registry.cached
def is_of_autograd(function: Callable[..., object]) -> bool:
    """Returns True if a function asks for a tensor's history, or begins one."""
    return Tag.AUTOGRAD in registry.tags_of(function)


def begin_parts(call: Call) -> None:
    """Lets PyTorch's own small tensors stand around the compiled parts of a call."""
    host = call.kept[HostFunctions] = HostFunctions(call)
    call.features.push(host)
    call.stream.reports = False  # parts hold generators for longer


NOT_RUN = NEXT
_TENSOR = (torch.Tensor,)
_MOST = 2**18  # elements that are worth a copy
_DEVICES = (torch.device, str)
_PLAIN = frozenset((int, bool, float, complex, slice, torch.dtype, torch.Size, type(None), type(Ellipsis)))
_DEVICE = torch.Tensor.device.__get__  # pyright: ignore[reportAttributeAccessIssue]
_DETACHING = frozenset((torch.detach, torch.Tensor.detach, torch.Tensor.data.__get__))  # pyright: ignore


class HostFunctions(HostTensors, Feature):
    """A dispatcher of functions around parts: PyTorch runs them if their tensors are its own."""

    rank, is_shared = 10, True

    def run_first(
        self, call: Call, function: Callable[..., object], types: Collection[type], args: tuple, kwargs: dict
    ) -> object:
        del call
        if types and tuple(types) != _TENSOR:
            return NEXT
        return self.run_at_once(function, args, kwargs)

    def run_instead(
        self, call: Call, function: Callable[..., object], rule: object, args: tuple, kwargs: dict
    ) -> object:
        del rule
        return self.dispatch(call, function, args, kwargs) if self.is_active else NEXT

    def bring_in(self, call: Call, tensor: torch.Tensor) -> Any:
        del call
        return self.lift(tensor) if self.owns(tensor) else NEXT

    def run_past_overrides(self, call: Call, function: Callable[..., object], args: tuple) -> None:
        del call
        if function.overloadpacket is torch.ops.aten.set_ and self.is_active:
            self.memories.give_up_all(args)

    @property
    def is_active(self) -> bool:
        """True if functions may run here: not within others, or where JAX or a tape sees their results."""
        call = self._call
        return not (
            self._lifted
            or call.tape is not None
            or call.dual is not None
            or call.on_result is not None
            or journal() is not None
            or len_torch_dispatch_stack()
            or is_transforming()
        )

    def run_at_once(self, function: Callable, args: tuple, kwargs: dict | None) -> object:
        """The result of a function whose tensors were all made around parts; else `NOT_RUN`."""
        if len_torch_function_stack():
            return NOT_RUN
        kind = kind_of(function)
        is_metadata = kind is FunctionKind.METADATA or function == _DEVICE
        if is_metadata and len(args) == 1 and not kwargs and not self._lifted:
            return function(*args) if state_of(args[0]) else NOT_RUN
        if kind is FunctionKind.NONE or kind is FunctionKind.PYTHON:
            return NOT_RUN
        has_tensors = False
        for value in args:
            of = type(value)
            if of is torch.Tensor:
                if getattr(value, "_is_host", NO) != YES:
                    return NOT_RUN
                has_tensors = True
            elif of is list or of is tuple:
                for x in value:
                    if type(x) is torch.Tensor and getattr(x, "_is_host", NO) == YES:
                        has_tensors = True
                    elif type(x) not in _PLAIN:
                        return NOT_RUN
            elif of not in _PLAIN and not (of is torch.device and value.type == "cpu"):
                return NOT_RUN
        if kwargs:
            for value in kwargs.values():
                if type(value) not in _PLAIN and not (type(value) is torch.device and value.type == "cpu"):
                    return NOT_RUN
        if not self.is_active or entered():
            return NOT_RUN
        if not has_tensors:
            return self._make(function, args, kwargs or {}) if kind is FunctionKind.FACTORY else NOT_RUN
        if is_any_autocast_enabled():
            return NOT_RUN
        if self.memories.shown and kind in WRITING:
            return NOT_RUN
        result = function(*args, **kwargs) if kwargs else function(*args)
        if not isinstance(result, (torch.Tensor, tuple, list)):
            return result
        if type(result) is torch.Tensor and result.dtype in self._dtypes:
            result._is_host = YES  # pyright: ignore[reportAttributeAccessIssue]
            return result
        viewed = self._viewed_as_another(result, args)
        if viewed:
            del result
            return self._on_jax_instead(viewed, function, args, kwargs or {})
        return self._taken(result)

    def dispatch(self, call: Call, function: Callable, args: tuple, kwargs: dict) -> Any:
        """Runs a function in PyTorch, or on JAX; writes on JAX to PyTorch's own tensors are copied back to them."""
        kind = kind_of(function)
        if kind is FunctionKind.WRITES_IF_INPLACE:
            kind = kind_for_arguments(function, args, kwargs)
        if self.memories.shown and args and (kind is FunctionKind.WRITES or "out" in kwargs):
            self.memories.expect_writable(kwargs.get("out", args[0]))
        if kind in (FunctionKind.NONE, FunctionKind.PYTHON):
            if args and state_of(args[0]) and is_of_autograd(function):
                return self._gradient_attribute(function, *args, **kwargs)
            if kind is FunctionKind.PYTHON and not entered():
                if call.runs_body(function, args):
                    return call.run_body(function, args, kwargs)
                if call.is_own_body(function, args):  # in which PyTorch's C++ asks for it by the same name
                    result = self.run(function, args, kwargs, FunctionKind.OTHER)
                    if result is not NOT_RUN:
                        return result
        elif not entered():
            if len(args) == 1 and not kwargs:
                value = args[0]
                state = state_of(value)
                if state:
                    wants = state == WANTING and function not in _DETACHING and torch.is_grad_enabled()
                    return self._native(function, args, kwargs, wants)
                if type(value) is Torchish:
                    if kind is FunctionKind.METADATA:
                        with DisableTorchFunction():
                            return function(value)
                    if function == _DEVICE:
                        return value._label
            elif kind is FunctionKind.CONVERTS and type(args[0]) is Torchish and _is_as_wanted(*args, **kwargs):
                return args[0]
            if kind is FunctionKind.SHARES:
                if all(map(state_of, args)):
                    return self._native(function, args, kwargs, False)
                self.memories.give_up_all(args)
            else:
                if not kwargs and len(args) == REORDERING.get(function):
                    result = self._orders.reordered(args)
                    if result is not None:
                        return result
                result = self.run(function, args, kwargs, kind)
                if result is not NOT_RUN:
                    return result
                if function is torch.Tensor.__getitem__:
                    return self._subscripted(call, function, args)
        return self._on_jax(call, function, args, kwargs)

    def run(self, function: Callable, args: tuple, kwargs: dict, kind: FunctionKind) -> Any:
        """The result of a function that PyTorch can run; else `NOT_RUN`."""
        tensors: list[torch.Tensor] = []
        for value in args:
            if type(value) not in _PLAIN and not _gather(value, tensors):
                return NOT_RUN
        for key, value in kwargs.items():
            if type(value) not in _PLAIN and (key == "generator" or not _gather(value, tensors)):
                return NOT_RUN
        if not tensors:
            return self._make(function, args, kwargs) if kind is FunctionKind.FACTORY else NOT_RUN
        if is_any_autocast_enabled() and not all(is_integral(x.dtype) for x in tensors):
            return NOT_RUN
        states = [*map(state_of, tensors)]
        wants = WANTING in states and torch.is_grad_enabled()
        if kind is FunctionKind.WRITES_OTHERS and (NO in states or wants or self.memories.shown):
            return NOT_RUN
        if NO in states:
            if state_of(args[0] if args else None) == NO and not is_new(kind, function, args, kwargs):
                return NOT_RUN
            others = [x for x, state in zip(tensors, states, strict=True) if state == NO]
            if "out" in kwargs or not all(map(self._is_small, others)):
                return NOT_RUN
            wants = wants or (torch.is_grad_enabled() and any(map(self._requires_grad, others)))
            args = tuple([self._own(x) for x in args])
            kwargs = {key: self._own(x) for key, x in kwargs.items()}
        if wants and kind is FunctionKind.WRITES and args[0]._is_host == YES and not is_integral(args[0].dtype):
            args[0]._is_host = WANTING
            self.memories.is_blurred = True
        return self._native(function, args, kwargs, wants and function not in _DETACHING)

    def _native(self, function: Callable, args: tuple, kwargs: dict, wants: bool) -> object:
        with DisableTorchFunction():
            result = function(*args, **kwargs)
            viewed = self._viewed_as_another(result, args)
            if not viewed:
                return self._taken(result, wants)
            del result
        return self._on_jax_instead(viewed, function, args, kwargs)

    def _make(self, function: Callable, args: tuple, kwargs: dict) -> object:
        if kwargs.get("requires_grad"):
            return NOT_RUN
        with DisableTorchFunction():
            made = function(*args, **kwargs)
        if made.ndim == 0:  # of one shape only, and often a part's own counter
            return NOT_RUN
        if is_integral(made.dtype):
            return self._taken(made)
        is_memory = gives_memory(function) and made.numel()  # which may become a parameter
        return NOT_RUN if is_memory or made.numel() > _MOST or not self._has_floats else self._taken(made)

    def _viewed_as_another(self, result: object, args: tuple) -> tuple:
        """The tensors whose memory a result has in a dtype that is none for PyTorch here."""
        if not isinstance(result, torch.Tensor) or result.dtype in self._dtypes:
            return ()
        memory = result.untyped_storage()._cdata
        return tuple([x for x in args if isinstance(x, torch.Tensor) and x.untyped_storage()._cdata == memory])

    def _on_jax_instead(self, viewed: tuple, function: Callable, args: tuple, kwargs: dict) -> object:
        """The result of a function on JAX, which shares memory there with these tensors."""
        with DisableTorchFunction():
            self.memories.give_up_all(viewed)
        return self._on_jax(self._call, function, args, kwargs)

    def _is_small(self, tensor: torch.Tensor) -> bool:
        """Returns True if a tensor may as well be PyTorch's own."""
        with DisableTorchFunction():
            dtype = tensor.dtype
            if tensor.numel() > _MOST or dtype not in self._dtypes:
                return False
            if type(tensor) is Torchish:
                return tensor._label.type == "cpu" and not tensor._node.is_chosen
            return tensor.is_cpu and type(tensor) is torch.Tensor and tensor.layout is torch.strided

    def _own(self, value: object) -> Any:
        if isinstance(value, torch.Tensor):
            if state_of(value) != NO:
                return value
            value = self._call.constants.standing_for(value)
            if isinstance(value, Torchish):
                return self._copy_of(value)
            with DisableTorchFunction(), DisableTorchDispatch():
                return value.detach().clone()
        if isinstance(value, (tuple, list)):
            return type(value)([self._own(x) for x in value])
        return value

    def _requires_grad(self, tensor: torch.Tensor) -> bool:
        if isinstance(tensor, Torchish):
            return tensor._node.storage.history is not None
        return tensor.requires_grad

    def _subscripted(self, call: Call, function: Callable, args: tuple) -> object:
        """The result of a subscript of a tensor of JAX's: a view, or a new tensor."""
        view = call.run_planned(call, function, (Torchish,), args, None) if type(args[0]) is Torchish else NOT_PLANNED
        return self._on_jax(call, function, args, {}) if view is NOT_PLANNED else view

    def _gradient_attribute(self, function: Callable, value: torch.Tensor, *args: object, **kwargs: object) -> object:
        """The answer of a tensor without gradients to a question about them.

        Raises:
            Restart: it is to have some.
        """
        name = getattr(function, "__name__", "")
        name = function.__self__.__name__ if name == "__get__" else name  # pyright: ignore[reportFunctionMemberAccess]
        wants = state_of(value) == WANTING
        if is_integral(value.dtype) or (not wants and not self.memories.is_blurred):
            attributes = {"requires_grad": False, "is_leaf": True, "grad_fn": None, "grad": None}
        else:
            attributes = {"requires_grad": True, "is_leaf": False} if wants else {}
        if name in attributes:
            return attributes[name]
        if name == "requires_grad_" and not wants and False in (*args, *kwargs.values()):
            return value
        if is_integral(value.dtype):
            return self._on_jax(self._call, function, (value, *args), kwargs)
        raise Restart(tape=1)

    def _on_jax(self, call: Call, function: Callable, args: tuple, kwargs: dict) -> object:
        lifted: dict[int, tuple[torch.Tensor, Torchish]] = {}
        before, self._is_closed = self._is_closed, False
        self._lifted.append(lifted)
        try:
            result = call.dispatch(function, args, kwargs)
        finally:
            self._lifted.pop()
            self._is_closed = before
            for value, tensor in lifted.values():
                if tensor._writes[0]:
                    self.memories.write_back(value, tensor.read(), tensor._node.storage.history is not None)
        if gives_new(function):
            return self._settled(result)
        for value, tensor in lifted.values():
            if result is tensor:
                return value
            if _shares_memory(result, tensor):
                self.memories.share(value, tensor)
        return result

    def _settled(self, result: object) -> object:
        """A new integer tensor from JAX: as PyTorch's own, if it is small."""
        if type(result) is not Torchish or not is_integral(result.dtype) or not self._is_small(result):
            return result
        with DisableTorchFunction():
            ndim = result.ndim
        return result if not ndim or result._node.storage.memory.foreign else self._taken(self._own(result))


def _shares_memory(result: object, tensor: Torchish) -> bool:
    """Returns True if a result, or one among several, shares the memory of a tensor of the call."""
    if isinstance(result, (tuple, list)):
        return any(_shares_memory(x, tensor) for x in result)
    return isinstance(result, Torchish) and result._node.storage.memory is tensor._node.storage.memory


def _is_as_wanted(tensor: Torchish, *options: object, **named: object) -> bool:
    """Returns True if a tensor has that dtype and device already."""
    with DisableTorchFunction():
        dtype = tensor.dtype
    for option in (*options, *named.values()):
        if isinstance(option, str):
            option = torch.device(option)
        if not (option is None or option is False or option is dtype or option == tensor._label):
            return False
    return "memory_format" not in named


def _gather(value: object, tensors: list) -> bool:
    """Gathers the tensors of an argument; False if it has an object that PyTorch would understand otherwise."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return True
    if isinstance(value, (tuple, list)):
        return all(type(x) in _PLAIN or _gather(x, tensors) for x in value)
    if isinstance(value, _DEVICES):
        return _is_here(value)
    return not isinstance(value, (jax.Array, np.ndarray))


@remembered(1024)
def _is_here(device: torch.device | str) -> bool:
    """Returns True if a device is the CPU, or if a string is no device but an option, as of rounding."""
    try:
        return torch.device(device).type == "cpu"
    except RuntimeError:
        return True
