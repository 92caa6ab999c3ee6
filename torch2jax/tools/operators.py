"""PyTorch's operators, each with the route by which it reaches JAX, as `dispatch` will decide it."""

import enum
import fnmatch
import types
import warnings
from collections.abc import Callable, Iterator

import torch
from torch.overrides import get_overridable_functions, resolve_name

from ..calls.library_kernels import has_kernel
from ..calls.modes import decomposition_of, functional_of
from ..internals.dispatch import OpOverload, OpOverloadPacket, dispatch_get_all_op_names, dispatch_has_kernel
from ..rules import registry
from ..rules.rule import MetadataRule


class Route(enum.Enum):
    """The implementation of a function in JAX; the values are the names in reports."""

    RULE = "torch-level rule"
    METADATA = "metadata"
    BODY = "Python body"
    COMPILED = "ATen calls"
    ATEN_RULE = "ATen rule"
    LEAF = "leaf rule"
    KERNEL = "Python kernel"
    DECOMPOSITION = "decomposition"
    IN_PLACE = "in-place form"
    NONE = "no rule"


def level_of(function: Callable) -> Route:
    """The level that serves a function, method or operator of PyTorch, when it is called."""
    if isinstance(function, OpOverload):
        return _level_of_overload(function)
    if isinstance(function, OpOverloadPacket):
        return _level_of_packet(function)
    rule = registry.lookup(function)
    if rule is not None:
        return Route.METADATA if isinstance(rule, MetadataRule) else Route.RULE
    if isinstance(function, types.FunctionType):
        return Route.BODY
    return Route.COMPILED


def operator_of(function: Callable) -> OpOverloadPacket | None:
    """The ATen operator that bears the name of a compiled function or method of PyTorch's Python interface, or None."""
    name = getattr(function, "__name__", "")
    packets = (getattr(torch.ops.aten, alias, None) for alias in (name, name.strip("_")))
    return next((packet for packet in packets if packet is not None and _overloads(packet)), None)


def _overloads(packet: OpOverloadPacket) -> list[OpOverload]:
    """The overloads that the dispatcher knows; others are TorchScript's alone."""
    overloads = [getattr(packet, name) for name in packet.overloads()]
    return [overload for overload in overloads if dispatch_has_kernel(overload.name())]


def _level_of_packet(packet: OpOverloadPacket) -> Route:
    """The level of its most direct overload that does not write to ``out=``."""
    overloads = _overloads(packet)
    plain = [overload for overload in overloads if not any(arg.is_out for arg in overload._schema.arguments)]
    order = list(Route)
    return min((_level_of_overload(overload) for overload in plain or overloads), key=order.index, default=Route.NONE)


def _level_of_overload(overload: OpOverload) -> Route:
    if registry.lookup(overload) is not None or registry.lookup(overload.overloadpacket) is not None:
        return Route.LEAF
    if registry.lookup_aten(overload) is not None:
        return Route.ATEN_RULE
    if has_kernel(overload):
        return Route.KERNEL
    if decomposition_of(overload) is not None or overload._can_decompose():
        return Route.DECOMPOSITION
    functional = functional_of(overload)
    if functional is not None and _level_of_overload(functional) is not Route.NONE:
        return Route.IN_PLACE
    return Route.NONE


def operators(pattern: str = "*", aten: bool = False) -> dict[str, Route]:
    """Returns how every operator with a matching name is implemented, by name.

    Args:
        pattern: a shell pattern for the whole name, or a part of it.
        aten: list the operators of PyTorch's dispatcher, instead of the functions and methods of its Python interface.
    """
    if not any(character in pattern for character in "*?["):
        pattern = f"*{pattern}*"
    pairs = _aten() if aten else _functions()
    return {name: _level(function) for name, function in sorted(pairs) if fnmatch.fnmatch(name, pattern)}


def _level(function: Callable) -> Route:
    """The route of a function; for a compiled function without a rule, that of the ATen operator that it calls."""
    level = level_of(function)
    operator = operator_of(function) if level is Route.COMPILED else None
    return level if operator is None else level_of(operator)


def _functions() -> Iterator[tuple[str, Callable]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some functions warn of their age when they are looked at
        namespaces = get_overridable_functions()
    seen = {}
    for functions in namespaces.values():
        for function in functions:
            name = resolve_name(function)
            if name and not name.endswith((".__get__", ".__set__", ".__delete__")):
                seen.setdefault(name.removeprefix("torch."), function)
    return iter(seen.items())


def _aten() -> Iterator[tuple[str, Callable]]:
    for name in {name.split(".")[0] for name in dispatch_get_all_op_names()}:
        namespace, _, operator = name.partition("::")
        packet = getattr(torch.ops.aten, operator, None) if namespace == "aten" else None
        if packet is not None:
            yield f"aten.{operator}", packet
