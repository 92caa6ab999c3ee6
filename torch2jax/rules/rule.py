"""Rules that are not on arrays: on tensors, on metadata, for several functions of one name.

A `TensorRule` gets the tensors themselves; it is for functions that are about storages, metadata or Python values.
Those on arrays are in `array_rule.py`.

Rules for classes of modules replace ``forward`` during translated calls.

Also here: checks that a user's rule fits PyTorch's function, which must write to nothing, and that the results do.
"""

import functools
import operator
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np
import torch

from ..internals.dispatch import DisableTorchDispatch, DisableTorchFunction, OpOverload, OpOverloadPacket
from ..runtime.patches import exchange
from ..runtime.translation import current, lift, this_call
from ..tensors.dtypes import Takes, expect
from ..tensors.tensor import Torchish
from .options import NO_TAGS, BodyParameters, Tag, schemas


def of_metadata(prepare: Callable) -> Callable:
    """Declares that a `prepare` of an `ArrayRule` asks tensors for metadata alone, not for values.

    It gives the tensors that it is given.
    """
    vars(prepare)["is_of_metadata"] = True
    return prepare


def is_of_metadata(prepare: Callable) -> bool:
    return getattr(prepare, "is_of_metadata", False)


class TensorRule:
    """A rule on tensors: its body has the signature of the PyTorch function.

    Args:
        body: takes and gives tensors.
        name: the function's name.
        takes: the dtypes of the first tensor that the function is defined for; all if None.
        tags: what the function is, beyond what PyTorch's schema of it says.
    """

    elementwise = False
    is_pure = False

    def __init__(self, body: Callable, name: str, takes: Takes | None = None, tags: Iterable[Tag] = ()):
        self.body, self.name, self.takes, self.tags = body, name, takes, frozenset(tags)
        self.names = BodyParameters.of(body)

    def __call__(self, args: tuple, kwargs: dict):
        if self.takes is not None:
            expect(self.name, dtype_of_first(self.names.positional, args, kwargs), self.takes)
        with this_call().inside():
            return self.body(*args, **kwargs)


class OverloadedRule:
    """Functions that PyTorch calls by one name.

    Args:
        choose: gives the function that a call's arguments mean; it has a rule.
        find: gives the rule of a function.
        name: the name.
        tags: as those of `TensorRule`, of all of them.
    """

    elementwise = False
    is_pure = False  # the rule that it finds may be

    def __init__(self, choose: Callable[..., Any], find: Callable, name: str, tags: Iterable[Tag] = ()):
        self.choose, self.find, self.name, self.tags = choose, find, name, frozenset(tags)
        self.names = BodyParameters.of(choose)

    def __call__(self, args: tuple, kwargs: dict):
        chosen = self.choose(*args, **kwargs)
        return this_call().run_rule(chosen, self.find(chosen), args, kwargs)


class MetadataRule:
    """A function that PyTorch itself answers, since it needs no values: ``x.shape``, ``x.stride()``."""

    elementwise = False
    is_pure = False
    names = BodyParameters(("input",), (), frozenset(("input",)))
    tags = NO_TAGS

    def __init__(self, function: Callable, name: str):
        self.function, self.name = function, name

    def __call__(self, args: tuple, kwargs: dict):
        tensor = args[0]
        if not isinstance(tensor, Torchish):
            args = (this_call().constants.standing_for(tensor), *args[1:])
        with DisableTorchFunction(), DisableTorchDispatch():
            return self.function(*args, **kwargs)


class Reflected:
    """The operator form with its operands swapped: ``__radd__`` of ``add``."""

    concrete, result_type = False, None

    def __init__(self, rule: Any):
        self.rule, self.name, self.elementwise = rule, rule.name, rule.elementwise
        self.is_pure, self.has_own_values = rule.is_pure, rule.has_own_values
        self.names, self.tags = rule.names, rule.tags

    def __call__(self, args: tuple, kwargs: dict):
        this, other = args
        return self.rule((other, this), kwargs)


def dtype_of_first(names: Sequence[str], args: tuple[object, ...], kwargs: dict[str, object]) -> torch.dtype:
    """The dtype of the first tensor among the arguments, alone or in a list; `names` are the parameters'."""
    for x in (*args, *(kwargs[name] for name in names[len(args) :] if name in kwargs)):
        for item in x if isinstance(x, (list, tuple)) else (x,):
            if isinstance(item, torch.Tensor):
                return item.dtype
            if isinstance(item, (jax.Array, np.ndarray)):
                return lift(item).dtype
    raise TypeError("got no tensor; wanted one at least")


_replaced: set[type] = set()
_running = threading.local()


def replace_forward(cls: type, lookup: Callable) -> None:
    """Makes ``cls.forward`` look for a rule of `cls` within translated calls, also where a subclass inherits it.

    Args:
        lookup: gives the rule of the class, or None.

    Raises:
        TypeError: `cls` is no class of modules.
    """
    if not issubclass(cls, torch.nn.Module):
        raise TypeError(f"implements_tensors got the class {cls.__name__}; wanted functions or classes of modules")
    if cls in _replaced:
        return
    _replaced.add(cls)
    original = cls.forward

    @functools.wraps(original)
    def forward(self: torch.nn.Module, *args: object, **kwargs: object):
        rule = None if current() is None or (cls, id(self)) in _modules() else lookup(cls)
        if rule is None:
            return original(self, *args, **kwargs)
        running = _running.modules = _modules() | {(cls, id(self))}
        try:
            return rule((self, *args), kwargs)
        finally:
            _running.modules = running - {(cls, id(self))}

    exchange(cls, "forward", forward, may_lack=True)


def _modules() -> frozenset:
    return getattr(_running, "modules", frozenset())


def expect_no_writes(function: object, name: str, location: str) -> None:
    """Refuses a function that writes to its arguments, for a rule that returns new arrays: nothing would be written.

    Args:
        function: what the rule is declared for.
        name: the function's name.
        location: where the rule's body is.

    Raises:
        TypeError: every overload of the function writes, apart from ``out=``.
    """
    written = _written(_loaded(function), name)
    if written:
        raise TypeError(
            f"the rule at {location} is for {name}, which writes to {written}: wanted a function that only returns, "
            "since a rule of implements takes and returns arrays. Declare the rule with implements_tensors and write "
            "with x.copy_(...). In-place forms of PyTorch's functions have the rule of the function itself: that of "
            "torch.add serves add_"
        )


def results_of(function: object, name: str, location: str) -> Callable[[object], None] | None:
    """Returns a check of a body's results against those of PyTorch's operator; None if these are unknown.

    It raises a TypeError for another number of results, and for results that are no arrays.

    Args:
        function: what the rule is declared for.
        name: the function's name.
        location: where the rule's body is.
    """
    function = _loaded(function)
    if not isinstance(function, (OpOverload, OpOverloadPacket)):
        return None
    returned = {tuple(str(x.type) for x in schema.returns) for schema in schemas(function)}
    if len(returned) != 1 or set(*returned) != {"Tensor"}:
        return None
    count = len(*returned)

    def refusal(given: object, wanted: str) -> TypeError:
        error = TypeError(f"the rule for {name} at {location} gave {_kind(given)}; wanted {wanted}")
        vars(error)["is_of_results"] = True
        return error

    def expect(result: object) -> None:
        parts = result if isinstance(result, (tuple, list)) else (result,)
        is_single = not isinstance(result, (tuple, list))
        if len(parts) != count or is_single != (count == 1):
            raise refusal(result, "an array" if count == 1 else f"a tuple of {count} arrays")
        for part in parts:
            if not isinstance(part, (jax.Array, np.ndarray, np.generic)):
                raise refusal(part, "an array")

    return expect


def _kind(result: object) -> str:
    """The type of a body's result, in words."""
    if isinstance(result, (tuple, list)):
        return f"a {type(result).__name__} of {len(result)}"
    return "an array" if isinstance(result, (jax.Array, np.ndarray)) else f"a {type(result).__name__}"


def _written(function: Callable[..., object] | None, name: str) -> str | None:
    """The arguments that a function writes to, in words; None if it is unknown or has a form that writes to none."""
    if isinstance(function, (OpOverload, OpOverloadPacket)):
        writes = [[x.name for x in schema.arguments if x.is_write and not x.is_out] for schema in schemas(function)]
        return ", ".join(map(repr, writes[0])) if writes and all(writes) else None
    return "its tensor" if callable(function) and _says_that_it_writes(name) else None


def _says_that_it_writes(name: str) -> bool:
    """Returns True if a function has the name of an in-place form: ``add_``, ``__iadd__``, ``__setitem__``."""
    if not name.endswith("__"):
        return name.endswith("_")
    plain = f"__{name[3:]}"  # of ``__iadd__``; ``__invert__`` and ``__index__`` have none
    return name in ("__setitem__", "__delitem__") or (hasattr(operator, name) and hasattr(operator, plain))


def _loaded(function: object) -> Any:
    """The operator with a name; None if no loaded library has it. Other arguments are returned unchanged."""
    if not isinstance(function, str):
        return function
    namespace, _, name = function.partition("::")
    return getattr(getattr(torch.ops, namespace), name, None)
