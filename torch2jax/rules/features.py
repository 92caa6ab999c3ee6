"""Features, which act on the functions that code calls: each is an object on its call's stack while code uses it.

A call without any takes each function by its plan, and asks nobody. With some it asks those that have something to do
there, in the order of their ranks, the outermost first. The call knows none of them: what a feature does stands in its
own file, as a class that goes on from `Feature`.

A few features are *standing*: every call has them, from the beginning to the end (`in_every_call`). They act where no
plan serves, and agree with plans where one does: a standing feature alone leaves operators to their plans.

Not on the stack are PyTorch's own switches: whether a region of autocast or a mode of dispatch is entered is PyTorch's
for each thread, and it tells in one call of C.

Also here: the kinds of tensors, classes of arguments that handle a function before its rule is looked up, and classes
of tensors from outside that come in otherwise than as a constant with an array.

The classes are a call's own (a mask selection, a number that is not known, a parameter without a shape), or no tensors
with values at all: where one of these is met, an error is raised, which leads to what serves it. Each kind is served in
its own file, and the call that asks here knows none of them.
"""

import operator
from collections.abc import Callable, Collection
from typing import Any, NamedTuple, TypeVar

import torch

from ..runtime.caches import remembered
from ..runtime.errors import WithoutValuesError
from ..runtime.layers import SPARSE
from ..runtime.translation import Call

Handler = Callable[[Any, Any, tuple, dict], Any]
"""Returns a function's result, given the call, the function, its arguments and keywords; or `Changed`."""
S = TypeVar("S", bound=Handler)
W = TypeVar("W", bound=Callable[..., Any])
F = TypeVar("F", bound="Feature")
N = TypeVar("N", bound="Incoming")

_handlers: list[tuple[int, type, Handler]] = []
_without_values: dict[type[WithoutValuesError], Callable[..., object]] = {}


class Changed(NamedTuple):
    """New arguments, with which the next handlers of the function and its rule continue."""

    args: tuple
    kwargs: dict


def handles(kind: type, rank: int) -> Callable[[S], S]:
    """Declares the decorated function to serve whatever has an argument of a class; the lowest rank comes first."""

    def register(handler: S) -> S:
        _handlers.append((rank, kind, handler))
        _handlers.sort(key=lambda entry: entry[0])
        handlers_of.cache_clear()
        return handler

    return register


@remembered(1024)
def handlers_of(types: tuple[type, ...]) -> tuple[Handler, ...]:
    """The functions that handle arguments of these classes, in the order of precedence."""
    return tuple(handler for _, kind, handler in _handlers if any(issubclass(x, kind) for x in types))


class Incoming:
    """Tensors of some classes as they come in from outside of a call: each as a constant of its own, by default."""

    def takes(self, kind: type) -> bool:
        """Returns True for the classes that this is for."""
        del kind
        return False

    def lift(self, call: object, tensor: object) -> Any:
        """The call's tensor for one from outside; or `NEXT`.

        Raises:
            Exception: there is none.
        """
        del call, tensor
        return NEXT

    def array(self, tensor: object, array: object) -> Any:
        """The array that stands for a tensor, of one that a caller gives for it."""
        del tensor
        return array

    def made(self, tensor: object, lifted: object) -> Any:
        """The call's tensor for one from outside, on the memory of `lifted`, which has its values."""
        del tensor
        return lifted


PLAIN_INCOMING = Incoming()
_incoming: list[Incoming] = []


def comes_in(kind: type[N]) -> type[N]:
    """Declares how tensors of some classes come in from outside."""
    _incoming.append(kind())
    incoming_of.cache_clear()
    return kind


@remembered(1024)
def incoming_of(kind: type) -> Incoming:
    """The way in of tensors of a class."""
    return next((found for found in _incoming if found.takes(kind)), PLAIN_INCOMING)


class HasSparse(WithoutValuesError):
    """A sparse tensor was given to code for strided ones: the sparse rules run instead."""

    def __init__(self):
        SPARSE.load()
        super().__init__("got a tensor of a sparse layout; wanted a strided one: tensor.to_dense()")


class InFakeMode(WithoutValuesError):
    """A function is called within a ``FakeTensorMode``, where no tensor has values."""


def handles_without_values(error: type[WithoutValuesError]) -> Callable[[W], W]:
    """Declares the decorated function as the handler of functions that met an argument without values.

    It gets the error, the call, the function, its arguments and keywords.
    """

    def register(handler: W) -> W:
        _without_values[error] = handler
        return handler

    return register


def run_without_values(
    error: WithoutValuesError, call: Call, function: Callable[..., object], args: tuple, kwargs: dict
) -> object:
    """The result of a function that has met an argument without values."""
    return _without_values[type(error)](error, call, function, args, kwargs)


DIVIDED: object = object()
"""The result of `Feature.run_cast` for a function whose rule does not serve: what PyTorch composes it of does."""
NEXT: object = object()
"""The result of a feature that does not handle a function: the next feature is asked, then the rule."""


class Feature:
    """A behavior that acts on the functions that code calls, by the methods that it overrides; where one is, plans may
    not apply.

    The first argument of each is the call whose code calls the function: the feature's own, or one within that.
    """

    rank = 50
    """The position on the stack: the lowest is asked first."""
    is_shared = False
    """True if calls within its call have it too, and pass it to the call around."""
    overridden: frozenset[str] = frozenset()
    """The names of its methods that do something."""

    def __init_subclass__(cls) -> None:
        cls.overridden = frozenset(
            name for name in _METHODS.values() if getattr(cls, name) is not getattr(Feature, name)
        )

    def begin(self, call: Call) -> None:
        """Sees that the code of an outermost call begins."""
        del call

    def begin_later(self, call: Call) -> None:
        """Sees that a run begins which is not the first of its function: it may need what an earlier one has missed."""
        del call

    def discard(self, call: Call) -> None:
        """Sees that a run is over which another one follows: that has to find all as this one did."""
        del call

    def end(self, call: object) -> None:
        """Sees that an outermost call has ended."""
        del call

    def run_first(self, call: Call, function: object, types: Collection[type], args: tuple, kwargs: dict) -> object:
        """The result of a function, before anything else is asked; or `NEXT`."""
        del call, function, types, args, kwargs
        return NEXT

    def run_mixed(self, call: Call, function: object, types: Collection[type], args: tuple, kwargs: dict) -> object:
        """The result of a function whose arguments are not plain tensors of the call alone; or `NEXT`.

        Args:
            types: their classes that override functions; none where PyTorch asks modes alone.
        """
        del call, function, types, args, kwargs
        return NEXT

    def run_instead(self, call: Call, function: object, rule: object, args: tuple, kwargs: dict) -> object:
        """The result of a function in place of its rule, where no class of its arguments handles it; or `NEXT`."""
        del call, function, rule, args, kwargs
        return NEXT

    def run_cast(self, call: Call, function: object, rule: object, args: tuple, kwargs: dict) -> object:
        """The result of a function or an operator while PyTorch casts operands; or `NEXT`, or `DIVIDED`.

        Args:
            rule: that of a function; None for an operator.
        """
        del call, function, rule, args, kwargs
        return NEXT

    def run_operator(self, call: Call, function: object, args: tuple, kwargs: dict) -> object:
        """The result of a function or an ATen operator whose operands autocast has already cast; or `NEXT`."""
        del call, function, args, kwargs
        return NEXT

    def run_past_overrides(self, call: Call, function: object, args: tuple) -> None:
        """Sees an operator that PyTorch's C++ calls without asking whether an argument overrides it."""
        del call, function, args

    def run_rule(self, call: object, function: object, rule: object, args: tuple, kwargs: dict) -> Any:
        """The result of a rule; or `NEXT`."""
        del call, function, rule, args, kwargs
        return NEXT

    def run_unruled(self, call: Call, operator: object, args: tuple, kwargs: dict) -> object:
        """The result of an operator without a rule, before PyTorch takes it apart; or `NEXT`."""
        del call, operator, args, kwargs
        return NEXT

    def run_missing(self, call: Call, operator: object, args: tuple, kwargs: dict) -> object:
        """The result of an ATen operator for which nothing leads to JAX; or `NEXT`."""
        del call, operator, args, kwargs
        return NEXT

    def run_again(
        self, call: Call, function: object, args: tuple, kwargs: dict, error: Exception, run: Callable[..., object]
    ) -> object:
        """The result of a function that has refused its arguments with `error`, for others; or `NEXT`.

        Args:
            run: gives the result for arguments and keywords.
        """
        del call, function, args, kwargs, error, run
        return NEXT

    def explain(self, call: Call, function: object, rule: object, args: tuple, kwargs: dict, error: Exception) -> None:
        """Raises a better error than that of a rule, or of PyTorch's decomposition where `rule` is None."""
        del call, function, rule, args, kwargs, error

    def bring_in(self, call: Call, tensor: torch.Tensor) -> Any:
        """The call's tensor for a constant, a tensor that code has and the call has not met yet; or `NEXT`."""
        del call, tensor
        return NEXT

    def record(self, depth: int, outer: object, below: int) -> Any:
        """A record of what code in a trace of its own computes, to take derivatives of: see `tensors/levels.py`.

        Args:
            depth: how many derivatives of derivatives the code takes.
            outer: the record of the code around, or None.
            below: how many are taken from outside.
        """
        raise NotImplementedError

    def take_hooks(self, tensor: torch.Tensor, lifted: object) -> None:
        """Sees the call's tensor for one from outside with hooks on its gradient."""
        del tensor, lifted

    def concerns(self, function: object) -> bool:
        """Returns True if `run_operator` may handle a function."""
        del function
        return True


class Features(list[Feature]):
    """The stack of a call: empty as long as its code uses no feature."""

    beginning: tuple[Feature, ...] = ()
    """The features that override `Feature.begin`; the other attributes list those of the other methods."""
    later: tuple[Feature, ...] = ()
    discarding: tuple[Feature, ...] = ()
    ending: tuple[Feature, ...] = ()
    first: tuple[Feature, ...] = ()
    mixed: tuple[Feature, ...] = ()
    instead: tuple[Feature, ...] = ()
    casting: tuple[Feature, ...] = ()
    operators: tuple[Feature, ...] = ()
    past_overrides: tuple[Feature, ...] = ()
    rules: tuple[Feature, ...] = ()
    unruled: tuple[Feature, ...] = ()
    missing: tuple[Feature, ...] = ()
    bringing: tuple[Feature, ...] = ()
    recording: tuple[Feature, ...] = ()
    hooking: tuple[Feature, ...] = ()
    again: tuple[Feature, ...] = ()
    explaining: tuple[Feature, ...] = ()
    sees_operators = False
    """True if a feature that code has entered may see operators, or what rules give."""

    def push(self, feature: Feature) -> None:
        """Adds a feature, if it is not there."""
        if not any(feature is other for other in self):
            self.append(feature)
            self._sort()

    def pop(self, feature: Feature) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Ends a feature, if it acts."""
        self[:] = [other for other in self if other is not feature]
        self._sort()

    def shared(self) -> "Features":
        """The features that a nested call has from the beginning."""
        found = Features([feature for feature in self if feature.is_shared])
        found._sort()
        return found

    def return_to(self, outer: "Features") -> None:
        """Passes shared features to the stack of the outer call, as this call ends."""
        for feature in self:
            if feature.is_shared:
                outer.push(feature)

    def explain(
        self, call: Call, function: Callable[..., object], rule: object, args: tuple, kwargs: dict, error: Exception
    ) -> None:
        """Raises a better error than `error`, if a feature has one."""
        for feature in self.explaining:
            feature.explain(call, function, rule, args, kwargs, error)

    def _sort(self) -> None:
        self.sort(key=_rank)
        _list(self, sorted([*self, *_standing], key=_rank))
        self.sees_operators = False
        for feature in self:
            if not _SEEING.isdisjoint(feature.overridden):
                self.sees_operators = True


_METHODS = {
    "beginning": "begin",
    "later": "begin_later",
    "discarding": "discard",
    "ending": "end",
    "first": "run_first",
    "mixed": "run_mixed",
    "instead": "run_instead",
    "casting": "run_cast",
    "operators": "run_operator",
    "past_overrides": "run_past_overrides",
    "rules": "run_rule",
    "unruled": "run_unruled",
    "missing": "run_missing",
    "bringing": "bring_in",
    "recording": "record",
    "hooking": "take_hooks",
    "again": "run_again",
    "explaining": "explain",
}
_SEEING = frozenset(("run_operator", "run_rule"))
_standing: list[Feature] = []
_rank = operator.attrgetter("rank")


def _list(owner: Features | type[Features], features: list[Feature]) -> None:
    """Notes for each event which features act on it."""
    for name, method in _METHODS.items():
        acting = []
        for feature in features:  # no comprehension, which is a call of its own for each event
            if method in feature.overridden:
                acting.append(feature)
        setattr(owner, name, tuple(acting))


def in_every_call(kind: type[F]) -> type[F]:
    """Declares the decorated class as a standing feature, which acts in every call."""
    _standing.append(kind())
    _standing.sort(key=_rank)
    _list(Features, _standing)
    return kind
