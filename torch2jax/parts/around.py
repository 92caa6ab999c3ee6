"""Integers and booleans around compiled parts: PyTorch's own tensors, computed by PyTorch.

Python around compiled parts counts, compares, and concatenates: small integers, of another shape each time. Each shape
would be one more program for XLA. So these are real tensors, that a part takes as arrays. What nobody else has may be
written to; what came from outside of the call never is.
"""

import contextlib
import functools
import re
import types
from collections.abc import Callable
from enum import Enum
from typing import Any

import jax
import numpy as np
import torch

from ..rules import registry
from ..rules.inplace import InPlace, WithFlag
from ..rules.rule import ArrayRule, Reflected
from ..rules.tables import entered
from ..tensors.dtypes import canonical, dtype_t2j, is_integral
from ..tensors.interop import tensor_to_array, to_numpy
from ..tensors.journal import Uncontained, journal
from ..tensors.scalars import held_values
from ..tensors.tensor import Torchish, wrap
from ..transforms.scope import outside
from ..transforms.traces import is_transforming

__all__ = ["Around"]

_from_numpy = torch.from_numpy  # which translated code has something else for

NOT_RUN: Any = object()
_MOST = 2**16  # elements that are worth a copy
_RANDOM = re.compile(
    "rand|normal|bernoulli|multinomial|poisson|dropout|exponential|geometric|cauchy|uniform|rrelu|gumbel|seed|rng|init"
)
_MAKERS = frozenset((torch.arange, torch.tensor, torch.as_tensor, torch.full, torch.zeros, torch.ones, torch.empty))
_FILLERS = frozenset((torch.zeros, torch.ones, torch.empty))
_DEVICES = (torch.device, str)
_PLAIN = frozenset((int, bool, float, complex, slice, torch.dtype, type(None), type(Ellipsis)))


class _Sort(Enum):
    """What a function does with tensors."""

    PURE = "gives new ones"
    WRITES = "writes to its first"
    OTHER = "gives views, or whatever else"
    NONE = "is not for PyTorch"


@functools.cache
def _sort_of(function) -> _Sort:
    name = getattr(function, "__name__", "")
    if name in ("__get__", "__set__"):
        is_gradients = "grad" in function.__self__.__name__
        return _Sort.NONE if is_gradients else _Sort.OTHER if name == "__get__" else _Sort.WRITES
    rule = registry.lookup(function)
    if _RANDOM.search(name) or (rule is None and isinstance(function, types.FunctionType)):
        return _Sort.NONE  # what a function in Python calls comes by itself
    if isinstance(rule, (Reflected, WithFlag)):
        rule = rule.rule
    if isinstance(rule, ArrayRule):
        return _Sort.NONE if rule.random or not _is_provided(rule) else _Sort.PURE
    if isinstance(rule, InPlace) or name in ("__setitem__", "copy_", "fill_", "zero_"):
        return _Sort.WRITES
    return _Sort.NONE if name.startswith("_set_") or "grad" in name else _Sort.OTHER


def _is_native(function) -> bool:
    return _sort_of(function) is not _Sort.NONE and not entered()


def _is_provided(rule: ArrayRule) -> bool:
    """Whether a rule is the package's, and does what PyTorch does."""
    return rule.body.__module__.startswith(__name__.partition(".")[0] + ".")


@functools.cache
def _gives_new(function) -> bool:
    name = getattr(function, "__name__", "")
    return isinstance(registry.lookup(function), ArrayRule) or bool(_RANDOM.search(name) and not name.endswith("_"))


class Around:
    """What runs in PyTorch around the parts of one call.

    Args:
        call: the call.
    """

    def __init__(self, call: Any):
        self._call = call
        self._lifted: list[dict[int, tuple[torch.Tensor, Torchish]]] = []
        self._is_closed = False

    def owns(self, value) -> bool:
        """Whether a tensor is one of PyTorch's own that the code around parts has made."""
        return getattr(value, "_is_around", False)

    def run(self, function: Callable, args: tuple, kwargs: dict) -> Any:
        """What a function gives, if it is one for PyTorch; else `NOT_RUN`."""
        sort = _sort_of(function)
        if sort is _Sort.NONE or entered():
            return NOT_RUN
        tensors: list[torch.Tensor] = []
        for value in args:
            if type(value) not in _PLAIN and not _gather(value, tensors):
                return NOT_RUN
        for key, value in kwargs.items():
            if type(value) not in _PLAIN and (key == "generator" or not _gather(value, tensors)):
                return NOT_RUN
        if not tensors:
            return self._make(function, args, kwargs) if function in _MAKERS else NOT_RUN
        others = [x for x in tensors if not getattr(x, "_is_around", False)]
        if others:
            if len(others) == len(tensors) and sort is not _Sort.PURE:
                return NOT_RUN
            if sort is not _Sort.PURE and not (args and self.owns(args[0])):
                return NOT_RUN
            if not all(map(self._is_small, others)) or "out" in kwargs:
                return NOT_RUN
            args = tuple([self._own(x) for x in args])
            kwargs = {key: self._own(x) for key, x in kwargs.items()}
        return self._native(function, args, kwargs)

    def _native(self, function: Callable, args: tuple, kwargs: dict) -> Any:
        with torch._C.DisableTorchFunction():
            return self._taken(function(*args, **kwargs))

    def _make(self, function: Callable, args: tuple, kwargs: dict) -> Any:
        dtype = kwargs.get("dtype")
        if function in _FILLERS and (dtype is None or not _is_integral(dtype)):
            return NOT_RUN
        if dtype is not None and not _is_integral(dtype):
            return NOT_RUN
        if kwargs.get("requires_grad") or (function is torch.full and dtype is None and not _is_number(args, kwargs)):
            return NOT_RUN
        with torch._C.DisableTorchFunction():
            made = function(*args, **kwargs)
        if made.ndim == 0 or not is_integral(made.dtype):  # of one shape only, and often a part's own counter
            return NOT_RUN
        return self._taken(made)

    def _taken(self, result) -> Any:
        if isinstance(result, torch.Tensor):
            if is_integral(result.dtype):
                result._is_around = True  # pyright: ignore[reportAttributeAccessIssue]
                return result
            return self._call.lift_own(result)
        if isinstance(result, (tuple, list)) and any(isinstance(x, torch.Tensor) for x in result):
            items = [self._taken(x) for x in result]
            return type(result)(items)
        return result

    def _is_small(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor may as well be PyTorch's own."""
        with torch._C.DisableTorchFunction():
            if not is_integral(tensor.dtype) or tensor.numel() > _MOST:
                return False
            if type(tensor) is Torchish:
                return tensor._label.type == "cpu"
            return tensor.is_cpu and type(tensor) is torch.Tensor and tensor.layout is torch.strided

    def _own(self, value) -> Any:
        if isinstance(value, torch.Tensor):
            if self.owns(value):
                return value
            with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
                if not isinstance(value, Torchish):
                    return value.clone()
                dtype = value.dtype
            return _copied(value.read(), dtype)
        if isinstance(value, (tuple, list)):
            return type(value)([self._own(x) for x in value])
        return value

    def _settled(self, result: Any) -> Any:
        """A new tensor that a function gave on JAX: as PyTorch's own, if it is small."""
        if type(result) is not Torchish or not self._is_small(result) or result._node.storage.memory.foreign:
            return result
        with torch._C.DisableTorchFunction():
            ndim = result.ndim
        return self._taken(self._own(result)) if ndim else result

    # In JAX.

    def lift(self, value: torch.Tensor) -> Torchish:
        """The tensor of the call that stands for one of PyTorch's own, for as long as the function at hand runs.

        Raises:
            Uncontained: it runs in a trace that does not take the tensor for an argument.
        """
        lifted = self._lifted[-1] if self._lifted else {}
        if id(value) not in lifted:
            if self._is_closed:
                raise Uncontained("a tensor that is in neither its module nor its arguments")
            with outside(), torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
                tensor = wrap(tensor_to_array(value, copy=True), value.dtype)
            tensor._node.storage.memory.foreign = not self._lifted
            lifted[id(value)] = value, tensor
        return lifted[id(value)][1]

    @contextlib.contextmanager
    def lifting(self, lifted: dict[int, tuple[torch.Tensor, Torchish]]):
        """A context in which tensors of the call stand for PyTorch's own, given by the ids of these; for no others."""
        before, self._is_closed = self._is_closed, True
        self._lifted.append(lifted)
        try:
            yield
        finally:
            self._lifted.pop()
            self._is_closed = before

    def standing_for(self, value: torch.Tensor) -> Torchish:
        """A new tensor of the call of the same values, in an array of numpy's: for a program."""
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            values: Any = held_values(to_numpy(value.contiguous()), canonical(value.dtype))
            return wrap(values.copy(), value.dtype)

    def view(self, value: torch.Tensor, shape, strides, offset: int) -> torch.Tensor:
        """A view of one of PyTorch's own."""
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            return self._taken(value.as_strided(shape, strides, offset))

    def write_back(self, value: torch.Tensor, array) -> None:
        """Writes to one of PyTorch's own what was written to the tensor that stood for it."""
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            value.copy_(_copied(array, value.dtype))

    @property
    def is_active(self) -> bool:
        """Whether functions are asked for at all: not within others, or where JAX, or a tape, sees what they do."""
        call = self._call
        return not (
            self._lifted
            or is_transforming()
            or call.tape is not None
            or call.dual is not None
            or call.on_result is not None
            or journal() is not None
            or torch._C._len_torch_dispatch_stack()
        )

    def dispatch(self, call: Any, function: Callable, args: tuple, kwargs: dict) -> Any:
        """Runs a function in PyTorch, or on JAX; what it writes to PyTorch's own tensors there is written to them."""
        if len(args) == 1 and not kwargs and self.owns(args[0]) and _is_native(function):
            return self._native(function, args, kwargs)  # most often a question for its shape
        result = self.run(function, args, kwargs)
        if result is not NOT_RUN:
            return result
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
                    self.write_back(value, tensor.read())
        return self._settled(result) if _gives_new(function) else result


def _copied(array, dtype: torch.dtype) -> torch.Tensor:
    """An array of integers as a tensor of PyTorch's own: by numpy, in half the time of DLPack."""
    return _from_numpy(np.array(array, dtype_t2j(dtype)))


def _gather(value, tensors: list) -> bool:
    """Gathers the tensors of an argument; false if it has something else that PyTorch would not take for what it is."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return True
    if isinstance(value, (tuple, list)):
        return all(type(x) in _PLAIN or _gather(x, tensors) for x in value)
    if isinstance(value, _DEVICES):
        return torch.device(value).type == "cpu" if isinstance(value, torch.device) else value in ("cpu", "mean", "sum")
    return not isinstance(value, (jax.Array, np.ndarray))


def _is_integral(dtype) -> bool:
    return is_integral(dtype) if isinstance(dtype, torch.dtype) else dtype in (int, bool)


def _is_number(args: tuple, kwargs: dict) -> bool:
    value = args[1] if len(args) > 1 else kwargs.get("fill_value")
    return type(value) in (int, bool)
