"""Arguments as PyTorch's parser takes them, if a body takes others: by name, in old orders, and dropped ones."""

import functools
import inspect
import types
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F

from ..internals.dispatch import OpOverload, OpOverloadPacket, jit_get_schemas_for_operator

if TYPE_CHECKING:
    from .options import Tags

# numpy's spellings, which PyTorch's argument parser takes everywhere; and what it calls the first tensor.
_ALIASES = {"axis": "dim", "keepdims": "keepdim", "x2": "other", **dict.fromkeys(("self", "x", "a", "x1"), "input")}

# Functions that took numbers by place before their last tensors, and how many tensors they have.
_OLD = {
    "add": 2, "sub": 2, "addcmul": 3, "addcdiv": 3, "addmm": 3, "addmv": 3, "addr": 3, "addbmm": 3, "baddbmm": 3
}  # fmt: skip
_MOST_POSITIONAL = {
    getattr(owner, form): count
    for name, count in _OLD.items()
    for owner, form in ((torch, name), (torch.Tensor, name), (torch.Tensor, f"{name}_"))
}


class BodyParameters(NamedTuple):
    """The parameters of a rule's body."""

    positional: tuple[str, ...]
    """The positional parameters, in order."""
    options: tuple[str, ...]
    """The keyword-only parameters, though PyTorch may take them by position."""
    known: frozenset[str]
    """All keywords."""
    spread: str = ""
    """The name of any more that the body takes by place, if it does."""
    is_open: bool = False
    """True if it takes any other keyword."""

    @classmethod
    def of(cls, body: Callable, known: Iterable[str] = (), skipped: int = 0) -> "BodyParameters":
        """The parameters of a function without the first `skipped`, and further keywords that the rule itself takes."""
        if isinstance(body, types.FunctionType) and not vars(body):  # which wraps nothing; signatures take long to make
            code = body.__code__
            end = code.co_argcount + code.co_kwonlyargcount
            positional, options = code.co_varnames[: code.co_argcount], code.co_varnames[code.co_argcount : end]
            spread = code.co_varnames[end] if code.co_flags & inspect.CO_VARARGS else ""
            is_open = bool(code.co_flags & inspect.CO_VARKEYWORDS)
        else:
            parameters = inspect.signature(body).parameters.values()
            positional = tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))
            options = tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
            spread = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "")
            is_open = any(p.kind is p.VAR_KEYWORD for p in parameters)
        positional = positional[skipped:]
        return cls(positional, options, frozenset((*positional, *options, *known)), spread, is_open)

    def with_flag(self, name: str, position: int) -> "BodyParameters":
        """The parameters with one more, at an index among all of them."""
        known = self.known | {name}
        if position > len(self.positional):
            options = list(self.options)
            options.insert(position - len(self.positional), name)
            return self._replace(options=tuple(options), known=known)
        return self._replace(positional=(*self.positional[:position], name, *self.positional[position:]), known=known)

    def placed(self, function: Callable[..., object], args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """The arguments of a call of PyTorch's `function`, by the names of the body, and by place as far as can be."""
        if not self.known.issuperset(kwargs):
            args, kwargs = self._named(function, args, kwargs)
        if len(args) < len(self.positional) and self.positional[len(args)] in kwargs:
            kwargs = dict(kwargs)
            for name in self.positional[len(args) :]:
                if name not in kwargs:
                    break
                args = (*args, kwargs.pop(name))
        return args, kwargs

    def _named(self, function: Callable[..., object], args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        named: dict[str, object] = {}
        own = self.positional if self.spread else self.positional + self.options
        for key, value in kwargs.items():
            if key not in self.known and not self.is_open and _is_default(function, key, value):
                continue  # Python functions hand on all that they have, also what the body need not know
            position = key if key in self.known else self._position_of(function, key, kwargs)
            if self.spread and position == len(args) >= len(self.positional):
                args = (*args, value)
                continue
            if isinstance(position, int):
                position = own[position] if position < len(own) else key
            if position in named:
                raise TypeError(f"{_name(function)}() got multiple values for argument '{key}'")
            named[position] = value
        return args, named

    def _position_of(self, function: Callable[..., object], key: str, kwargs: dict) -> int | str:
        """The position of an argument in PyTorch's signature, or the body's name for it."""
        name = _ALIASES.get(key, key)
        if name in self.known or (self.is_open and name != "input"):
            return name
        others = {_ALIASES.get(other, other) for other in kwargs} - self.known
        signatures = [signature for signature in _signatures(function) if name in signature]
        if signatures:
            return min(signatures, key=lambda signature: len(others.difference(signature))).index(name)
        return 0 if name == "input" else key


class Rule(Protocol):
    """What implements a function of PyTorch's: called with the arguments and the keywords of the function."""

    name: str
    names: BodyParameters
    tags: "Tags"
    elementwise: bool
    is_pure: bool

    def __call__(self, args: tuple, kwargs: dict, /) -> Any: ...


def _is_default(function: Callable[..., object], key: str, value: object) -> bool:
    """Returns True if an argument is the default of a Python function's parameter."""
    return isinstance(function, types.FunctionType) and _defaults(function).get(key, inspect.Parameter.empty) is value


@functools.cache
def _defaults(function: Callable[..., object]) -> dict[str, object]:
    try:
        return {name: x.default for name, x in inspect.signature(function).parameters.items()}
    except ValueError:  # it wraps one of C++
        return {}


def run_named(function: Callable, rule: "Rule", args: tuple, kwargs: dict) -> Any:
    """``rule(args, kwargs)``, where the arguments are named as PyTorch's `function` names them."""
    return rule(*rule.names.placed(function, args, kwargs)) if kwargs else rule(args, kwargs)


@functools.cache
def _signatures(function: Callable[..., object]) -> list[tuple[str, ...]]:
    """The names of positional arguments in PyTorch's signatures, a tuple for each overload; the first is ``input``."""
    if isinstance(function, types.FunctionType):
        parameters = inspect.signature(function).parameters.values()
        found = [tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)]
    else:
        found = [tuple(name for name, _ in _positional(schema)) for schema in schemas(function)]
    return [tuple("input" if name == "self" else name for name in names) for names in found]


def schemas(function: Callable[..., object]) -> list:
    """PyTorch's schemas of a function that is not written in Python, of each overload."""
    if isinstance(function, OpOverload):
        return [function._schema]
    if isinstance(function, OpOverloadPacket):
        return [getattr(function, name)._schema for name in function.overloads()]
    return jit_get_schemas_for_operator(f"aten::{_name(function)}")


def _name(function: Callable[..., object]) -> str:
    return getattr(function, "__name__", "").rstrip("_")


def _positional(schema: Any) -> list[tuple[str, object]]:
    """The arguments that may be given by place, with their defaults."""
    return [(x.name, x.default_value) for x in schema.arguments if not x.kwarg_only]


def by_schema(overload: OpOverload, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """The arguments of an operator with those by place that may be."""
    positional = _positional_of(overload)
    named = [i for i, (name, _) in enumerate(positional) if name in kwargs]
    if not named:
        return args, kwargs
    kwargs = dict(kwargs)
    rest = [kwargs.pop(name, default) for name, default in positional[len(args) : named[-1] + 1]]
    return (*args, *rest), kwargs


@functools.cache
def _positional_of(overload: OpOverload) -> list[tuple[str, object]]:
    return _positional(overload._schema)


def is_in_old_order(function: Callable[..., object], args: tuple) -> bool:
    """True if a call has more positional arguments than tensors: ``torch.add(x, 2, y)`` for ``add(x, y, alpha=2)``.

    PyTorch's own parser knows what is meant.
    """
    return len(args) > 2 and len(args) > _MOST_POSITIONAL.get(function, len(args))


DROPPED: dict[types.FunctionType, str] = {
    F.l1_loss: "weight",
    torch.Tensor.dim_order: "ambiguity_check",
    torch.chain_matmul: "out",
}
"""Arguments that PyTorch's Python functions drop when they pass a call on to an override."""


def with_dropped(func: types.FunctionType, kwargs: dict) -> dict:
    """The keywords of a call with the argument that is missing among them, which the frame of `func` still has."""
    name = DROPPED[func]
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not func.__code__:
        frame = frame.f_back
    value = None if frame is None else frame.f_locals[name]
    return kwargs if value is None or name in kwargs else {**kwargs, name: value}
