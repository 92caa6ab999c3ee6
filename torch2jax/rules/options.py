"""The options of a rule on arrays, and arguments as PyTorch's parser takes them.

Also here: the tags of PyTorch functions, by their rules and by PyTorch's schemas. PyTorch says of each operator whether
it draws random numbers, what it writes to and what its results share memory with. A rule is tagged with what else has
to be known, and a function of PyTorch's Python interface that is no operator too.
"""

import functools
import inspect
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, NamedTuple, Protocol, TypedDict

import torch
import torch.nn.functional as F

from ..internals.dispatch import (
    OpOverload,
    OpOverloadPacket,
    dispatch_has_kernel,
    dispatch_has_kernel_for_dispatch_key,
    jit_get_schemas_for_operator,
)
from ..tensors.dtypes import Takes
from .promotion import Promotion


class Tag(Enum):
    """A property of a PyTorch function."""

    AUTOGRAD = "asks how a tensor came about, or begins to note that"
    CONVERTS = "gives its first tensor, or a new one of another dtype"
    DATA = "takes NumPy's arrays and numbers for data, not for operands"
    FACTORY = "makes a new tensor, also of no other"
    FRESH = "gives new tensors, which share no memory with those that it takes"
    INTO_EXPANDED = "writes in place also to tensors that are expanded, with a warning"
    INDEXES = "gives a view, or a new tensor where a tensor tells the elements"
    LINEAR = "is linear in all tensors that it takes together"
    PRODUCT = "is linear in each of the tensors that it takes"
    QUOTIENT = "is linear in the first tensor that it takes, and singular in the others"
    RANDOM = "draws random numbers, or may"
    READS_BY_INDEX = "reads one element after the other, so that ``out=`` may share no memory with what it reads"
    READS = "gives Python's numbers, of values"
    SHARES = "lets its first tensor have the memory of another"
    UNINITIALIZED = "gives memory that is to be written"
    VIEW = "gives views, though its schema does not say so"
    WRITES = "writes values to its first tensor, and to no other"
    WRITES_BY_INDEX = "writes in place one element after the other, to no memory that it reads"
    WRITES_OTHERS = "writes values to other tensors than its first, or to several"


Tags = frozenset[Tag]
NO_TAGS: Tags = frozenset()


@functools.cache
def operators_of(function: Callable[..., object]) -> tuple[OpOverload, ...]:
    """The overloads of an operator, or of the operators with a name."""
    packet = getattr(torch.ops.aten, function, None) if isinstance(function, str) else function
    if isinstance(packet, OpOverload):
        return (packet,)
    if not isinstance(packet, OpOverloadPacket):
        return ()
    overloads = [getattr(packet, name) for name in packet.overloads()]
    return tuple([x for x in overloads if dispatch_has_kernel(x.name())])


@functools.cache
def tags_of_operators(operators: tuple[OpOverload, ...]) -> Tags:
    """The tags that follow from PyTorch's schemas of the operators of one name."""
    found: set[Tag] = set()
    if any(torch.Tag.nondeterministic_seeded in x.tags for x in operators):
        found.add(Tag.RANDOM)
    written = [x for x in map(_written, operators) if x]
    if written:
        found.add(Tag.WRITES if all(x == _FIRST for x in written) else Tag.WRITES_OTHERS)
    elif operators and all(_gives_new(x) for x in operators if not _has_out(x)):
        found.add(Tag.FRESH)
    return frozenset(found)


def _has_out(operator: OpOverload) -> bool:
    return any(argument.is_out for argument in operator._schema.arguments)


_FIRST = [(0, "Tensor")]


def _written(operator: OpOverload) -> list[tuple[int, str]]:
    """The places of the arguments that an operator writes values to, and their types."""
    if torch.Tag.inplace_view in operator.tags:  # to what a tensor is
        return []
    arguments = enumerate(operator._schema.arguments)
    return [(position, str(x.type)) for position, x in arguments if x.is_write and not x.is_out]


def _gives_new(operator: OpOverload) -> bool:
    # A composition need not say that it gives what it got, as `type_as` does.
    if dispatch_has_kernel_for_dispatch_key(operator.name(), "CompositeImplicitAutograd"):
        return False
    results = operator._schema.returns
    return any("Tensor" in str(x.type) for x in results) and all(x.alias_info is None for x in results)


PromoteSpec = Promotion | Callable[[dict], Promotion] | None
TakesSpec = Takes | Callable[..., Takes | None] | None
ChannelsLast = tuple[Literal["prefer", "follow"], int] | None
DtypeSpec = torch.dtype | tuple | Callable[..., Any] | None


@dataclass(frozen=True, kw_only=True)
class RuleOptions:
    """The options of a rule on arrays, which are the keywords of `implements`."""

    promote: PromoteSpec = None
    """The promotion of the positional parameters of the body (the operands) to a common dtype; they are broadcast too.
    None if they are not promoted. Keyword-only parameters are no operands, though a call may pass them by position too.
    A function of the operands returns the kind where they decide it."""
    unpromoted: int = 0
    """The number of first operands that are broadcast, but keep their dtype (the condition of a where)."""
    takes: TakesSpec = None
    """The dtypes that the function is defined for, as sets of `torch2jax.tensors.dtypes`, or a function of the call's
    arguments that gives them; any other is refused before the rule runs. Compared is the dtype that promotion gives to
    compute in; without it that of the first tensor, or what a `dtype` argument casts it to. All if None."""
    fits: tuple[str, ...] = ()
    """The parameters whose Python numbers that dtype must hold: values to fill with, factors. Others wrap around."""
    dtype: DtypeSpec = None
    """The PyTorch dtype of the result (one, a tuple of one for each, None in it where the operands decide, or a
    function of the call's arguments that gives one of these). By default the operands decide."""
    concrete: bool = False
    """True if the body needs values, not traced arrays, since the shape of its result depends on them."""
    random: bool = False
    """True if the body takes a JAX key before its other arguments."""
    channels_last: ChannelsLast = None
    """The rank of the first operand (or a list of them) that the body takes with its channels last, called with
    ``channels_last=True``; its results of that rank are so too. Always with ``("prefer", rank)``; if an operand is held
    so with ``("follow", rank)``; never with None.
    """
    prepare: Callable[..., tuple[tuple, dict]] | None = None
    """Gives the ``(args, kwargs)`` for the body from the call's. It has the body's parameters and sees the tensors
    themselves: their strides, their known values."""
    check: Callable[..., None] | None = None
    """Refuses the call's arguments, which it gets as tensors, where their values are known to be wrong: an index, a
    class. It is asked before all else, and what it raises has the attribute ``is_of_values``."""
    exact_out: bool = False
    """True if an ``out=`` tensor must have the dtype of the result, where others may have one that it casts to."""
    strides: Callable[..., tuple[int, ...] | None] | None = None
    """Gives the strides of a result from its shape and the call's arguments: `rules.pointwise`. By default results
    are contiguous, and those of a promoting rule as PyTorch has them for its operands, of which a number is one."""
    has_own_values: bool = False
    """True if PyTorch's function may give other values, as the sign of an eigenvector, so that the body computes known
    values too. Always true for rules of users."""
    tags: Iterable[Tag] = ()
    """The tags of the functions, beyond those that follow from PyTorch's schemas."""


class RuleKeywords(TypedDict, total=False):
    """The keywords of `implements`: those of `RuleOptions`, as a type."""

    promote: PromoteSpec
    unpromoted: int
    takes: TakesSpec
    fits: tuple[str, ...]
    dtype: DtypeSpec
    concrete: bool
    random: bool
    channels_last: ChannelsLast
    prepare: Callable[..., tuple[tuple, dict]] | None
    check: Callable[..., None] | None
    exact_out: bool
    strides: Callable[..., tuple[int, ...] | None] | None
    has_own_values: bool
    tags: Iterable[Tag]


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
