"""The route by which a PyTorch function reaches JAX, as `dispatch` will decide it."""

import enum
import types
from collections.abc import Callable

import torch

from ..calls.library_kernels import has_kernel
from ..calls.overloads import decomposition_of, functional_of
from ..internals.operators import OpOverload, OpOverloadPacket, dispatch_has_kernel
from ..rules import registry
from ..rules.rule import MetadataRule

__all__ = ["Route", "level_of", "operator_of"]


class Route(enum.Enum):
    """How a function is implemented in JAX; the values are the names in reports."""

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
    """Those that the dispatcher knows; others are TorchScript's alone."""
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
