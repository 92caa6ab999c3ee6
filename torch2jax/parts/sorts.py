"""What functions of PyTorch do with tensors, as far as it decides whether PyTorch runs them around compiled parts."""

import functools
import re
import types
from enum import Enum

import torch

from ..rules import registry
from ..rules.inplace import InPlace, WithFlag
from ..rules.rule import ArrayRule, Reflected

__all__ = ["FILLERS", "MAKERS", "METADATA", "Sort", "asks_for_gradients", "gives_new", "is_new", "sort_of"]

_RANDOM = re.compile(
    "rand|normal|bernoulli|multinomial|poisson|dropout|exponential|geometric|cauchy|uniform|rrelu|gumbel|seed|rng|init"
)
_OF_GRADIENTS = re.compile("grad|backward|is_leaf|register_hook|register_post_accumulate")
_SWITCHES = re.compile("_enabled|enable_|inference|zero_grad")
_WRITERS = frozenset(("__setitem__", "copy_", "fill_", "zero_"))
_READERS = frozenset(("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "__complex__"))
_NEW = frozenset(
    (
        *("max", "min", "where", "clone", "new_zeros", "new_ones", "new_full", "zeros_like", "ones_like", "full_like"),
        *("masked_select", "one_hot", "bincount", "equal", "allclose", "is_nonzero"),
    )
)
"""Rules on tensors whose functions give new ones."""
_CONVERTERS = frozenset(("to", "float", "double", "half", "bfloat16", "long", "int", "short", "bool", "char", "byte"))
MAKERS = frozenset((torch.arange, torch.tensor, torch.as_tensor, torch.full, torch.zeros, torch.ones, torch.empty))
FILLERS = frozenset((torch.zeros, torch.ones, torch.empty))
METADATA = frozenset(
    (
        *(torch.Tensor.shape.__get__, torch.Tensor.dtype.__get__, torch.Tensor.ndim.__get__),  # pyright: ignore
        *(
            torch.Tensor.dim,
            torch.Tensor.size,
            torch.Tensor.numel,
            torch.Tensor.is_floating_point,
            torch.Tensor.__len__,
        ),
    )
)
"""What a tensor of the call answers by itself, without its values."""


class Sort(Enum):
    """What a function does with tensors."""

    PURE = "gives new ones, or what is no tensor"
    WRITES = "writes to its first"
    INDEXES = "gives a view, or a new one where a tensor tells the elements"
    SHARES = "lets its first have the memory of another"
    CONVERTS = "gives the same, or a new one of another dtype"
    OTHER = "gives views, or whatever else"
    PYTHON = "calls others, which come by themselves"
    NONE = "is not for PyTorch"


@functools.cache
def sort_of(function) -> Sort:
    name = getattr(function, "__name__", "")
    if name in ("__get__", "__set__"):
        is_gradients = "grad" in function.__self__.__name__
        if name == "__set__" and function.__self__.__name__ == "data":
            return Sort.SHARES
        return Sort.NONE if is_gradients else Sort.OTHER if name == "__get__" else Sort.WRITES
    rule = registry.lookup(function)
    if rule is None and isinstance(function, types.FunctionType):
        return Sort.PYTHON
    if _RANDOM.search(name):
        return Sort.NONE
    if isinstance(rule, (Reflected, WithFlag)):
        rule = rule.rule
    if isinstance(rule, ArrayRule):
        return Sort.NONE if rule.random or not registry.is_provided(rule) else Sort.PURE
    if isinstance(rule, InPlace) or name in _WRITERS:
        return Sort.WRITES
    if name == "__getitem__":
        return Sort.INDEXES
    if name in _CONVERTERS:
        return Sort.CONVERTS
    if name in _READERS or (name in _NEW and registry.is_provided(rule)):
        return Sort.PURE
    return Sort.NONE if name.startswith("_set_") or "grad" in name else Sort.OTHER


def is_new(sort: Sort, function, args: tuple, kwargs: dict) -> bool:
    """Whether what a function gives shares no memory with tensors that are not PyTorch's own among its arguments."""
    if sort is Sort.INDEXES:
        return len(args) == 2 and _has_tensor(args[1])
    if sort is Sort.CONVERTS:
        wanted = getattr(torch, function.__name__, None)
        found = [x for x in (wanted, *args[1:], *kwargs.values()) if isinstance(x, torch.dtype)]
        return kwargs.get("copy") is True or bool(found and found[0] != args[0].dtype)
    return sort is Sort.PURE


def _has_tensor(index) -> bool:
    if isinstance(index, (tuple, list)):
        return any(map(_has_tensor, index))
    return isinstance(index, torch.Tensor)


@functools.cache
def gives_new(function) -> bool:
    name = getattr(function, "__name__", "")
    return isinstance(registry.lookup(function), ArrayRule) or bool(_RANDOM.search(name) and not name.endswith("_"))


@functools.cache
def asks_for_gradients(function) -> bool:
    """Whether a function asks how a tensor came about, or begins to note that."""
    name = getattr(function, "__name__", "")
    if name in ("__get__", "__set__"):
        name = function.__self__.__name__
    return bool(_OF_GRADIENTS.search(name)) and not _SWITCHES.search(name)
