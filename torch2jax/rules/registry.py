"""The table of rules: `@implements`, and the family of functions that each rule serves.

A rule is written once, for one PyTorch function. From its name the registry derives the method, the operator, the
reflected operator, the in-place forms and, when asked, the ATen overloads whose arguments it can take.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

from ..tensors.dtypes import Takes, expect
from .inplace import InPlace, WithFlag
from .rule import (
    ArrayRule,
    ChannelsLast,
    DtypeSpec,
    MetadataRule,
    OverloadedRule,
    PromoteSpec,
    Reflected,
    TakesSpec,
    TensorRule,
)

__all__ = [
    "check_decomposed",
    "implements",
    "implements_metadata",
    "implements_overloads",
    "implements_selected",
    "implements_tensors",
    "limit_decomposed",
    "lookup",
    "lookup_aten",
    "lookup_selected",
]

_rules: dict[Any, Any] = {}
_selected_rules: dict[Any, Callable] = {}
_by_aten_name: dict[str, ArrayRule] = {}
_aten_cache: dict[OpOverload, Any] = {}
_decomposed: dict[OpOverload, Takes] = {}

_OPERATORS = {
    "add": "add",
    "sub": "sub",
    "mul": "mul",
    "div": "truediv",
    "floor_divide": "floordiv",
    "remainder": "mod",
    "pow": "pow",
    "matmul": "matmul",
    "bitwise_and": "and",
    "bitwise_or": "or",
    "bitwise_xor": "xor",
    "bitwise_left_shift": "lshift",
    "bitwise_right_shift": "rshift",
    "eq": "eq",
    "ne": "ne",
    "lt": "lt",
    "le": "le",
    "gt": "gt",
    "ge": "ge",
    "neg": "neg",
    "positive": "pos",
    "bitwise_not": "invert",
    "abs": "abs",
}
_FACTORY_KEYWORDS = {"device", "layout", "pin_memory", "out", "memory_format", "generator", "names", "dtype"}


def implements(
    *functions,
    promote: PromoteSpec = None,
    unpromoted: int = 0,
    takes: TakesSpec = None,
    fits: tuple[str, ...] = (),
    dtype: DtypeSpec = None,
    concrete: bool = False,
    random: bool = False,
    channels_last: ChannelsLast = None,
    prepare: Callable[..., tuple[tuple, dict]] | None = None,
    exact_out: bool = False,
    strides: Callable[..., tuple[int, ...] | None] | None = None,
) -> Callable[[Callable], Callable]:
    """Declares the decorated function, from jax arrays to jax arrays, to be the rule of PyTorch functions.

    Args:
        functions: `torch` functions, methods, or operators (``torch.ops.aten.add``, ``torch.ops.aten.add.Tensor``).
            The first one names the rule. Methods, operators, in-place and ``out=`` forms and ATen overloads follow.
            An operator of a library that may not be loaded, or one that older PyTorch lacks, goes by its name:
            ``"torchvision::nms"``.
        promote: the operands (all positional parameters) are promoted to a common dtype and broadcast.
        unpromoted: how many of the first operands are broadcast only.
        takes: the dtypes that the function is defined for, as sets of `torch2jax.tensors.dtypes`; any other is refused
            before the rule runs. By default all are taken; see `ArrayRule`.
        fits: the parameters whose Python numbers the dtype must hold: values to fill with, factors.
        dtype: the PyTorch dtype of the result where the operands do not decide it; see `ArrayRule`.
        concrete: the rule needs values, since the shape of its result depends on them.
        random: the rule takes a JAX key as its first argument.
        channels_last: the rule can work in channels-last order, and prefers to or follows its operand; see `ArrayRule`.
        prepare: changes the call's arguments before the rule sees them as arrays; see `ArrayRule`.
        exact_out: an ``out=`` tensor must have the dtype of the result, where others may have one that it casts to.
        strides: gives the strides of a result where these are not contiguous; see `rules.formats`.
    """

    def register(body: Callable) -> Callable:
        name = _name(functions[0])
        rule = ArrayRule(
            body,
            name,
            promote=promote,
            unpromoted=unpromoted,
            takes=takes,
            fits=fits,
            dtype=dtype,
            concrete=concrete,
            random=random,
            channels_last=channels_last,
            prepare=prepare,
            exact_out=exact_out,
            strides=strides,
        )
        for function in functions:
            _register_family(function, rule)
        return body

    return register


def implements_tensors(*functions, takes: Takes | None = None) -> Callable[[Callable], Callable]:
    """Declares the decorated function to be the rule of exactly these functions; it gets the tensors themselves.

    Args:
        functions: as those of `implements`.
        takes: the dtypes of the first tensor that the functions are defined for; all by default.
    """

    def register(body: Callable) -> Callable:
        rule = TensorRule(body, _name(functions[0]), takes)
        for function in functions:
            _rules[function] = rule
        return body

    return register


def implements_overloads(*functions) -> Callable[[Callable], Callable]:
    """Declares the decorated function to choose, from a call's arguments, the function with a rule that these mean.

    Args:
        functions: as those of `implements`.
    """

    def register(choose: Callable) -> Callable:
        rule = OverloadedRule(choose, lookup, _name(functions[0]))
        _rules.update(dict.fromkeys(functions, rule))
        return choose

    return register


def implements_selected(*functions) -> Callable[[Callable], Callable]:
    """Declares the decorated function to be what functions do where an argument is a `selection.Selected`.

    Rules that are elementwise need no such declaration.
    """

    def register(body: Callable) -> Callable:
        _selected_rules.update(dict.fromkeys(functions, body))
        return body

    return register


def implements_metadata(*functions) -> None:
    """Declares that PyTorch itself answers these functions of a tensor's metadata."""
    for function in functions:
        _rules[function] = MetadataRule(function, _name(function))


def limit_decomposed(*operators: OpOverload, takes: Takes) -> None:
    """Declares the dtypes that operators without a rule are defined for: PyTorch's decompositions take others too."""
    _decomposed.update(dict.fromkeys(operators, takes))


def check_decomposed(operator: OpOverload, args: tuple) -> None:
    """Refuses a dtype that an operator without a rule is not defined for."""
    if operator in _decomposed:
        expect(_name(operator), args[0].dtype, _decomposed[operator])


def lookup(function):
    """The rule of a function of PyTorch's Python interface, or None."""
    return _rules.get(function)


def lookup_selected(function) -> Callable | None:
    """What a function does with a `selection.Selected`, where that is declared."""
    return _selected_rules.get(function)


def lookup_aten(overload: OpOverload):
    """The rule of an operator of PyTorch's dispatcher, or None."""
    try:
        return _aten_cache[overload]
    except KeyError:
        found = _aten_cache[overload] = _find_aten(overload)
        return found


def _name(function) -> str:
    if isinstance(function, str):
        return function.rpartition("::")[2]
    if isinstance(function, OpOverload):
        return function.overloadpacket.__name__
    return function.__name__


def _register_family(function, rule: ArrayRule) -> None:
    _aten_cache.clear()
    _rules[function] = _with_flag(function, rule)
    if isinstance(function, (OpOverload, OpOverloadPacket, str)):
        return
    name = _name(function)
    namespace = getattr(function, "__module__", None) or "torch"
    _by_aten_name.setdefault(name, rule)
    owners = [torch, torch.Tensor] if getattr(torch, name, None) is function else []
    if inspect.isfunction(function) and namespace == "torch.nn.functional":
        owners.append(torch.nn.functional)
    if isinstance(function, type(torch.Tensor.add)):
        owners.append(torch.Tensor)
    for owner in owners:
        _register_forms(owner, name, rule)


def _register_forms(owner, name: str, rule: ArrayRule) -> None:
    if owner is torch.Tensor:
        _set_default(owner, name, rule)
        operator = _OPERATORS.get(name)
        if operator is not None:
            _set_default(owner, f"__{operator}__", rule)
            _set_default(owner, f"__r{operator}__", Reflected(rule))
            _set_default(owner, f"__i{operator}__", InPlace(rule))
    _set_default(owner, name + "_", InPlace(rule))


def _set_default(owner, name: str, rule) -> None:
    function = getattr(owner, name, None)
    if function is not None and function is not getattr(object, name, None):
        _rules.setdefault(function, rule)


def _with_flag(function, rule: ArrayRule):
    if inspect.isfunction(function) and "inplace" not in rule.parameters:
        parameters = list(inspect.signature(function).parameters)
        if "inplace" in parameters:
            return WithFlag(rule, parameters.index("inplace"))
    return rule


def _find_aten(overload: OpOverload):
    packet = overload.overloadpacket
    rule = _rules.get(overload) or _rules.get(packet) or _rules.get(packet._qualified_op_name)
    if rule is not None or overload.namespace != "aten":
        return rule
    name = packet.__name__
    rule = _by_aten_name.get(name)
    if rule is not None and _fits(overload, rule):
        return rule
    if name.endswith("_") and not name.endswith("__"):
        rule = _by_aten_name.get(name[:-1]) or _rules.get(getattr(torch.ops.aten, name[:-1], None))
        if isinstance(rule, ArrayRule) and _fits(overload, rule):
            return InPlace(rule)
    return None


def _fits(overload: OpOverload, rule: ArrayRule) -> bool:
    """Whether an overload's arguments mean what the rule's parameters of the same place and name do."""
    if rule.open:
        return True
    arguments = overload._schema.arguments
    names = ["input" if argument.name == "self" else argument.name for argument in arguments]
    positional = [name for name, argument in zip(names, arguments, strict=True) if not argument.kwarg_only]
    keywords = {
        name for name, argument in zip(names, arguments, strict=True) if argument.kwarg_only and not argument.is_out
    }
    if rule.promote is not None:  # operands are taken by place: schemas spell them in many ways
        options = positional[len(rule.positional) :]
        return tuple(options) == rule.options[: len(options)] and keywords <= rule.parameters | _FACTORY_KEYWORDS
    return positional == list(rule.positional[: len(positional)]) and keywords <= rule.parameters | _FACTORY_KEYWORDS
